#include "message.h"

#include <stdlib.h>
#include <string.h>

static const char empty[1] = "";

void message_clear(struct message *message) {
    free(message->bytes);
    memset(message, 0, sizeof *message);
}

bool message_resize(struct message *message, size_t size) {
    if (size > message->capacity) {
        size_t capacity = size + message->capacity + 256;
        unsigned char *bytes = capacity < size ? NULL : realloc(message->bytes, capacity);
        if (bytes == NULL) {
            message->broken = true;
            return false;
        }
        message->bytes = bytes;
        message->capacity = capacity;
    }
    message->size = size;
    return true;
}

void put_int(struct message *message, int64_t number) {
    size_t at = message->size;
    if (!message->broken && message_resize(message, at + sizeof number))
        memcpy(message->bytes + at, &number, sizeof number);
}

static size_t padded(size_t size) { return (size | 7) + 1; }

void put_bytes(struct message *message, const void *bytes, size_t size) {
    put_int(message, (int64_t)size);
    size_t at = message->size;
    if (message->broken || !message_resize(message, at + padded(size))) return;
    memset(message->bytes + at + (padded(size) - 8), 0, 8);
    if (size > 0) memcpy(message->bytes + at, bytes, size);
}

void put_text(struct message *message, const char *text) {
    put_bytes(message, text, text == NULL ? 0 : strlen(text));
}

int64_t take_int(struct message *message) {
    int64_t number = 0;
    if (message->broken || message->size - message->at < sizeof number) {
        message->broken = true;
        return 0;
    }
    memcpy(&number, message->bytes + message->at, sizeof number);
    message->at += sizeof number;
    return number;
}

size_t take_count(struct message *message, size_t most) {
    int64_t number = take_int(message);
    if (number < 0 || (uint64_t)number > most) {
        message->broken = true;
        return 0;
    }
    return (size_t)number;
}

const char *take_text(struct message *message, size_t *size) {
    size_t length = take_count(message, message->size), left = message->size - message->at;
    if (message->broken || padded(length) > left || message->bytes[message->at + length] != 0) {
        message->broken = true;
        if (size != NULL) *size = 0;
        return empty;
    }
    const char *text = (const char *)message->bytes + message->at;
    message->at += padded(length);
    if (size != NULL) *size = length;
    return text;
}
