/* Values on their way to the compile service and back, as wire.py reads and writes them. */
#ifndef ORTHRUS_WIRE_H
#define ORTHRUS_WIRE_H

#include "service.h"

/* Bytes of the room that a value takes. */
size_t wire_room(const OrtValue *value);
/* Writes a value; its larger tensors go to `room` from `*at` on, which moves on. */
OrtStatus *wire_put(struct message *message, const OrtValue *value, unsigned char *room, size_t *at);
/* The same with all of it in the message. */
OrtStatus *wire_put_whole(struct message *message, const OrtValue *value);
/* The value that follows; null for an optional of nothing. */
OrtStatus *wire_take(struct message *message, struct channel *channel, OrtValue **value);
/* The declared type that follows; null where memory is out or the message is broken. */
OrtTypeInfo *wire_take_type(struct message *message);

#endif
