/* Statuses, their texts, and what was wrong last in a thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];

ORTHRUS_API const char *orthrus_last_error(void) { return last_error; }

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
    va_list given;
    va_start(given, format);
    vsnprintf(last_error, sizeof last_error, format, given);
    va_end(given);
    return status;
}

static int damaged(const char *what) { return refuse(ORTHRUS_DAMAGED, "a damaged package: %s", what); }
