/* What tells contents apart, as orthrus.modelfile does: a keyed number for each block of 4096 bytes, and a digest
 * (SHAKE-256, FIPS 202) of these. Whoever does not know the key cannot make two contents alike. */
#ifndef ORTHRUS_CONTENT_H
#define ORTHRUS_CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CONTENT_WORDS = 512, CONTENT_BLOCK = 8 * CONTENT_WORDS, DIGEST_BYTES = 32, SECRET_BYTES = 32 };

struct content_key {
    uint64_t low[CONTENT_WORDS], high[CONTENT_WORDS]; /* drawn */
    uint32_t crossed[2 * CONTENT_WORDS];              /* what the halves of a word are taken times for bits 32 on */
};

typedef unsigned char Digest[DIGEST_BYTES];

struct shake {
    uint64_t state[25];
    size_t at;
};

void shake_begin(struct shake *shake);
void shake_add(struct shake *shake, const void *bytes, size_t size);
/* Ends what was added and takes `size` bytes. */
void shake_end(struct shake *shake, void *bytes, size_t size);

void content_key_make(struct content_key *key, const unsigned char secret[SECRET_BYTES]);
bool content_of_bytes(const struct content_key *key, const void *bytes, size_t size, Digest digest);
/* False: it cannot be read, or changed meanwhile. */
bool content_of_file(const struct content_key *key, int file, Digest digest);

#endif
