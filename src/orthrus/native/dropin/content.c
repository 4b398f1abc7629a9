#define _GNU_SOURCE
#include "content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RATE = 136, ROUNDS = 24, PIECE = 16 * CONTENT_BLOCK };

static uint64_t turned(uint64_t word, unsigned by) { return by == 0 ? word : word << by | word >> (64 - by); }

/* Keccak-f[1600]. */
static void permute(uint64_t a[25]) {
    static const uint64_t constants[ROUNDS] = {
        0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
        0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
        0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
        0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
        0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};
    static const unsigned char turns[25] = {0,  1,  62, 28, 27, 36, 44, 6,  55, 20, 3,  10, 43,
                                            25, 39, 41, 45, 15, 21, 8,  18, 2,  61, 56, 14};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t columns[5], moved[25];
#pragma GCC unroll 5
        for (int x = 0; x < 5; x++) columns[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma GCC unroll 5
        for (int x = 0; x < 5; x++) {
            uint64_t mixed = columns[(x + 4) % 5] ^ turned(columns[(x + 1) % 5], 1);
#pragma GCC unroll 5
            for (int y = 0; y < 5; y++)
                moved[y + 5 * ((2 * x + 3 * y) % 5)] = turned(a[x + 5 * y] ^ mixed, turns[x + 5 * y]);
        }
#pragma GCC unroll 5
        for (int y = 0; y < 25; y += 5) {
#pragma GCC unroll 5
            for (int x = 0; x < 5; x++) a[y + x] = moved[y + x] ^ (~moved[y + (x + 1) % 5] & moved[y + (x + 2) % 5]);
        }
        a[0] ^= constants[round];
    }
}

static void mix(struct shake *shake, unsigned char byte) {
    shake->state[shake->at / 8] ^= (uint64_t)byte << (8 * (shake->at % 8));
}

void shake_begin(struct shake *shake) { memset(shake, 0, sizeof *shake); }

void shake_add(struct shake *shake, const void *bytes, size_t size) {
    const unsigned char *from = bytes;
    for (size_t i = 0; i < size; i++) {
        mix(shake, from[i]);
        if (++shake->at == RATE) {
            permute(shake->state);
            shake->at = 0;
        }
    }
}

void shake_end(struct shake *shake, void *bytes, size_t size) {
    unsigned char *to = bytes;
    mix(shake, 0x1f);
    shake->at = RATE - 1;
    mix(shake, 0x80);
    for (size_t i = 0; i < size; i++) {
        if (i % RATE == 0) permute(shake->state);
        to[i] = (unsigned char)(shake->state[i % RATE / 8] >> (8 * (i % 8)));
    }
}

void content_key_make(struct content_key *key, const unsigned char secret[SECRET_BYTES]) {
    struct shake shake;
    shake_begin(&shake);
    shake_add(&shake, secret, SECRET_BYTES);
    shake_end(&shake, key, sizeof key->low + sizeof key->high);
    for (size_t i = 0; i < CONTENT_WORDS; i++) {
        key->low[i] |= 1;
        key->high[i] |= 1;
        key->crossed[2 * i] = (uint32_t)(key->low[i] >> 32);
        key->crossed[2 * i + 1] = (uint32_t)(key->low[i] + (key->high[i] >> 32));
    }
}

static uint64_t told_by_words(const struct content_key *key, const unsigned char *block) {
    uint64_t sums[4] = {0, 0, 0, 0};
    for (size_t i = 0; i < CONTENT_WORDS; i += 2) {
        uint64_t words[2];
        memcpy(words, block + 8 * i, sizeof words);
        sums[0] += words[0] * key->low[i];
        sums[1] += (words[0] >> 32) * key->high[i];
        sums[2] += words[1] * key->low[i + 1];
        sums[3] += (words[1] >> 32) * key->high[i + 1];
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

#if defined(__x86_64__)
/* The same four words at a time, from products of 32 bits: those that count from bit 32 on, of which no more than
 * 32 bits are wanted, are added up by themselves. */
__attribute__((target("avx2"))) static uint64_t told_by_vectors(const struct content_key *key,
                                                                const unsigned char *block) {
    __m256i whole = _mm256_setzero_si256(), upper = whole, crossed = whole;
    for (size_t i = 0; i < CONTENT_WORDS; i += 4) {
        __m256i words = _mm256_loadu_si256((const __m256i *)(block + 8 * i));
        __m256i low = _mm256_loadu_si256((const __m256i *)(key->low + i));
        __m256i high = _mm256_loadu_si256((const __m256i *)(key->high + i));
        __m256i cross = _mm256_loadu_si256((const __m256i *)(key->crossed + 2 * i));
        whole = _mm256_add_epi64(whole, _mm256_mul_epu32(words, low));
        upper = _mm256_add_epi64(upper, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), high));
        crossed = _mm256_add_epi32(crossed, _mm256_mullo_epi32(words, cross));
    }
    uint64_t sums[4], sum = 0;
    uint32_t beyond[8], more = 0;
    _mm256_storeu_si256((__m256i *)sums, _mm256_add_epi64(whole, upper));
    _mm256_storeu_si256((__m256i *)beyond, crossed);
    for (int i = 0; i < 4; i++) sum += sums[i];
    for (int i = 0; i < 8; i++) more += beyond[i];
    return sum + ((uint64_t)more << 32);
}
#endif

static uint64_t told(const struct content_key *key, const unsigned char *block) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return told_by_vectors(key, block);
#endif
    return told_by_words(key, block);
}

static void add_blocks(struct shake *shake, const struct content_key *key, const unsigned char *bytes, size_t size) {
    unsigned char last[CONTENT_BLOCK];
    for (; size >= CONTENT_BLOCK; bytes += CONTENT_BLOCK, size -= CONTENT_BLOCK) {
        uint64_t number = told(key, bytes);
        shake_add(shake, &number, sizeof number);
    }
    if (size == 0) return;
    memset(last, 0, sizeof last);
    memcpy(last, bytes, size);
    uint64_t number = told(key, last);
    shake_add(shake, &number, sizeof number);
}

static void begin(struct shake *shake, size_t size) {
    uint64_t length = size;
    shake_begin(shake);
    shake_add(shake, &length, sizeof length);
}

bool content_of_bytes(const struct content_key *key, const void *bytes, size_t size, Digest digest) {
    struct shake shake;
    begin(&shake, size);
    add_blocks(&shake, key, bytes, size);
    shake_end(&shake, digest, DIGEST_BYTES);
    return true;
}

/* Reads `size` bytes, or fewer at the end of the file; -1 where it cannot be read. */
static ssize_t filled(int file, unsigned char *bytes, size_t size, size_t at) {
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(file, bytes + done, size - done, (off_t)(at + done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return -1;
        if (count == 0) break;
        done += (size_t)count;
    }
    return (ssize_t)done;
}

bool content_of_file(const struct content_key *key, int file, Digest digest) {
    struct stat before, after;
    unsigned char *piece = malloc(PIECE);
    if (piece == NULL || fstat(file, &before) != 0 || !S_ISREG(before.st_mode)) {
        free(piece);
        return false;
    }
    size_t size = (size_t)before.st_size, at = 0;
    struct shake shake;
    begin(&shake, size);
    while (at < size) {
        size_t wanted = size - at < PIECE ? size - at : PIECE;
        if (filled(file, piece, wanted, at) != (ssize_t)wanted) break;
        add_blocks(&shake, key, piece, wanted);
        at += wanted;
    }
    free(piece);
    shake_end(&shake, digest, DIGEST_BYTES);
    return at == size && fstat(file, &after) == 0 && after.st_size == before.st_size &&
           after.st_mtim.tv_sec == before.st_mtim.tv_sec && after.st_mtim.tv_nsec == before.st_mtim.tv_nsec;
}
