/* What the library and its compile service say to each other: whole numbers of eight bytes, and texts with
 * their length in front, each followed by zeros up to the next multiple of eight, one at least, so that a text
 * can be read where it lies. Whoever reads past the end, or runs out of memory, finds `broken` set, and reads
 * zeros and empty texts from then on. */
#ifndef ORTHRUS_MESSAGE_H
#define ORTHRUS_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct message {
    unsigned char *bytes;
    size_t size, capacity, at;
    bool broken;
};

void message_clear(struct message *message);
bool message_resize(struct message *message, size_t size);
void put_int(struct message *message, int64_t number);
void put_bytes(struct message *message, const void *bytes, size_t size);
void put_text(struct message *message, const char *text);
int64_t take_int(struct message *message);
/* A number from 0 to `most`; anything else breaks the message. */
size_t take_count(struct message *message, size_t most);
/* A text where it lies, zero behind it. `size` may be null. */
const char *take_text(struct message *message, size_t *size);

#endif
