#define _GNU_SOURCE
#include "content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RATE = 136, ROUNDS = 24, PIECE = 64 * CONTENT_BLOCK };

static uint64_t turned(uint64_t word, unsigned by) { return by == 0 ? word : word << by | word >> (64 - by); }

static void permute(uint64_t a[25]) {
    static const uint64_t constants[ROUNDS] = {
        0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
        0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
        0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
        0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
        0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};
    static const unsigned turns[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                                       27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
    static const unsigned lanes[24] = {10, 7,  11, 17, 18, 3, 5,  16, 8,  21, 24, 4,
                                       15, 23, 19, 13, 12, 2, 20, 14, 22, 9,  6,  1};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t columns[5], moving = a[1];
        for (int x = 0; x < 5; x++) columns[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
        for (int x = 0; x < 5; x++) {
            uint64_t mixed = columns[(x + 4) % 5] ^ turned(columns[(x + 1) % 5], 1);
            for (int y = 0; y < 25; y += 5) a[x + y] ^= mixed;
        }
        moving = a[1];
        for (int i = 0; i < 24; i++) {
            uint64_t next = a[lanes[i]];
            a[lanes[i]] = turned(moving, turns[i]);
            moving = next;
        }
        for (int y = 0; y < 25; y += 5) {
            uint64_t row[5];
            memcpy(row, a + y, sizeof row);
            for (int x = 0; x < 5; x++) a[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
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
    shake_end(&shake, key, sizeof *key);
    for (size_t i = 0; i < CONTENT_WORDS; i++) {
        key->low[i] |= 1;
        key->high[i] |= 1;
    }
}

static uint64_t told(const struct content_key *key, const unsigned char *block) {
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
