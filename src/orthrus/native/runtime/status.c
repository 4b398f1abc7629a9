/* Statuses, their texts, and what was wrong last in a thread, in memory that a thread takes for its first text
   and gives back at its end: a thread-local variable would make libraries need the dynamic linker too. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 512 };
static pthread_once_t error_once = PTHREAD_ONCE_INIT;
static pthread_key_t error_key;
static int error_keyed;

static void error_begin(void) { error_keyed = !pthread_key_create(&error_key, free); }

/* This thread's text; null before it has one, or where there can be none. */
static char *error_text(int wanted) {
    pthread_once(&error_once, error_begin);
    char *text = error_keyed ? pthread_getspecific(error_key) : NULL;
    if (text || !error_keyed || !wanted || !(text = calloc(1, TEXT))) return text;
    if (!pthread_setspecific(error_key, text)) return text;
    free(text);
    return NULL;
}

ORTHRUS_API const char *orthrus_last_error(void) {
    const char *text = error_text(0);
    return text ? text : "";
}

ORTHRUS_API const char *orthrus_status_text(int status) {
    static const char *const texts[] = {
        "done", "invalid argument", "no memory", "a damaged package", "not compiled for this processor",
        "inputs of shapes that the model was not compiled for", "an index out of range in the data",
        "numbers beyond the range of a transformed convolution", "stopped", "the context is running"};
    if (status < 0 || (size_t)status >= sizeof texts / sizeof *texts) return "no status of this version";
    return texts[status];
}

/* Note what was wrong; answers `status`. */
__attribute__((format(printf, 2, 3))) static int refuse(int status, const char *format, ...) {
    char *text = error_text(1);
    va_list given;
    va_start(given, format);
    if (text) vsnprintf(text, TEXT, format, given);
    va_end(given);
    return status;
}

static int damaged(const char *what) { return refuse(ORTHRUS_DAMAGED, "a damaged package: %s", what); }
