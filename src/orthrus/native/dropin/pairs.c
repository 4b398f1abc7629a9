/* Keys and their values, in the order in which the keys came. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static size_t place_of(const OrtKeyValuePairs *pairs, const char *key) {
    size_t i = 0;
    while (i < pairs->count && strcmp(pairs->keys[i], key) != 0) i++;
    return i;
}

static bool make_room(OrtKeyValuePairs *pairs) {
    if (pairs->count < pairs->capacity) return true;
    size_t capacity = pairs->capacity == 0 ? 8 : 2 * pairs->capacity;
    char **keys = realloc(pairs->keys, capacity * sizeof *keys);
    if (keys == NULL) return false;
    pairs->keys = keys;
    char **values = realloc(pairs->values, capacity * sizeof *values);
    if (values == NULL) return false;
    pairs->values = values;
    pairs->capacity = capacity;
    return true;
}

bool pairs_set(OrtKeyValuePairs *pairs, const char *key, const char *value) {
    size_t place = place_of(pairs, key);
    char *new_value = text_copy(value);
    if (new_value == NULL) return false;
    if (place < pairs->count) {
        free(pairs->values[place]);
        pairs->values[place] = new_value;
        return true;
    }
    char *new_key = make_room(pairs) ? text_copy(key) : NULL;
    if (new_key == NULL) {
        free(new_value);
        return false;
    }
    pairs->keys[place] = new_key;
    pairs->values[place] = new_value;
    pairs->count++;
    return true;
}

const char *pairs_get(const OrtKeyValuePairs *pairs, const char *key) {
    size_t place = place_of(pairs, key);
    return place < pairs->count ? pairs->values[place] : NULL;
}

bool pairs_copy(OrtKeyValuePairs *to, const OrtKeyValuePairs *from) {
    for (size_t i = 0; i < from->count; i++)
        if (!pairs_set(to, from->keys[i], from->values[i])) return false;
    return true;
}

void pairs_clear(OrtKeyValuePairs *pairs) {
    for (size_t i = 0; i < pairs->count; i++) {
        free(pairs->keys[i]);
        free(pairs->values[i]);
    }
    free(pairs->keys);
    free(pairs->values);
    *pairs = (OrtKeyValuePairs){0};
}

OrtStatus *pairs_new(const OrtKeyValuePairs *from, OrtKeyValuePairs **out) {
    *out = calloc(1, sizeof **out);
    if (*out != NULL && pairs_copy(*out, from)) return NULL;
    api_ReleaseKeyValuePairs(*out);
    *out = NULL;
    return status_out_of_memory(from->count);
}

OrtStatus *config_set(OrtKeyValuePairs *config, const char *key, const char *value) {
    enum { LONGEST_KEY = 1024 };
    REQUIRE(*key != 0 && strlen(key) <= LONGEST_KEY, "Config key is empty or longer than maximum length %d",
            LONGEST_KEY);
    return pairs_set(config, key, value) ? NULL : status_out_of_memory(strlen(value));
}

void api_CreateKeyValuePairs(OrtKeyValuePairs **out) { *out = calloc(1, sizeof **out); }

void api_AddKeyValuePair(OrtKeyValuePairs *pairs, const char *key, const char *value) {
    if (pairs != NULL && key != NULL && *key != 0 && value != NULL) pairs_set(pairs, key, value);
}

const char *api_GetKeyValue(const OrtKeyValuePairs *pairs, const char *key) {
    return pairs == NULL || key == NULL ? NULL : pairs_get(pairs, key);
}

void api_GetKeyValuePairs(const OrtKeyValuePairs *pairs, const char *const **keys, const char *const **values,
                          size_t *count) {
    *keys = (const char *const *)pairs->keys;
    *values = (const char *const *)pairs->values;
    *count = pairs->count;
}

void api_RemoveKeyValuePair(OrtKeyValuePairs *pairs, const char *key) {
    if (pairs == NULL || key == NULL) return;
    size_t place = place_of(pairs, key);
    if (place == pairs->count) return;
    free(pairs->keys[place]);
    free(pairs->values[place]);
    size_t behind = --pairs->count - place;
    memmove(pairs->keys + place, pairs->keys + place + 1, behind * sizeof *pairs->keys);
    memmove(pairs->values + place, pairs->values + place + 1, behind * sizeof *pairs->values);
}

void api_ReleaseKeyValuePairs(OrtKeyValuePairs *pairs) {
    if (pairs == NULL) return;
    pairs_clear(pairs);
    free(pairs);
}
