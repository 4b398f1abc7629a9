/* Statuses: an error code and a text; NULL means that all went well. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct OrtStatus {
    OrtErrorCode code;
    const char *text; /* `own`, but in the one below */
    char own[];
};

static struct OrtStatus exhausted = {.code = ORT_RUNTIME_EXCEPTION, .text = "std::bad_alloc"};

OrtStatus *status_out_of_memory(size_t bytes) {
    return bytes <= PTRDIFF_MAX ? &exhausted
                                : status_new(ORT_FAIL, "%zu bytes are more than there can be", bytes);
}

OrtStatus *status_new(OrtErrorCode code, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    OrtStatus *status = length < 0 ? NULL : malloc(sizeof *status + (size_t)length + 1);
    if (status != NULL) {
        status->code = code;
        status->text = status->own;
        vsnprintf(status->own, (size_t)length + 1, format, again);
    }
    va_end(again);
    va_end(arguments);
    return status != NULL ? status : &exhausted;
}

OrtStatus *status_not_implemented(const char *name, const char *cure) {
    return status_new(ORT_NOT_IMPLEMENTED, "%s is not implemented by Orthrus%s%s", name, cure[0] == 0 ? "" : "\n  cure: ",
                      cure);
}

OrtStatus *status_null(const char *function, const char *argument) {
    return status_new(ORT_INVALID_ARGUMENT, "%s: %s must not be null", function, argument);
}

OrtStatus *api_CreateStatus(OrtErrorCode code, const char *message) {
    return status_new(code, "%s", message == NULL ? "" : message);
}

OrtErrorCode api_GetErrorCode(const OrtStatus *status) { return status == NULL ? ORT_OK : status->code; }

const char *api_GetErrorMessage(const OrtStatus *status) { return status == NULL ? "" : status->text; }

void api_ReleaseStatus(OrtStatus *status) {
    if (status != &exhausted) free(status);
}
