/* What is logged: lines on standard error as onnxruntime writes them, or calls of the program's function, on the
 * thread that caused them. No lock is held meanwhile. */
#define _POSIX_C_SOURCE 200809L
#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "2026-11-23 05:11:47.084703443 [W:onnxruntime:id, place] message" */
static void write_line(const Logger *logger, OrtLoggingLevel severity, const char *place,
                       const char *message) {
    struct timespec now;
    struct tm parts;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &parts);
    fprintf(stderr, "%s.%09ld [%c:onnxruntime:%s, %s] %s\n", date, now.tv_nsec, "VIWEF"[severity],
            logger->id, place, message);
}

void log_message(const Logger *logger, OrtLoggingLevel severity, const char *place, const char *message) {
    if (severity < logger->severity || (unsigned)severity > ORT_LOGGING_LEVEL_FATAL) return;
    if (logger->function == NULL)
        write_line(logger, severity, place, message);
    else
        logger->function(logger->param, severity, "onnxruntime", logger->id, place, message);
}

void log_write(const Logger *logger, OrtLoggingLevel severity, const char *file, int line,
               const char *function, const char *format, ...) {
    char message[2048], place[256];
    const char *name = strrchr(file, '/');
    if (severity < logger->severity) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(place, sizeof place, "%s:%d %s", name == NULL ? file : name + 1, line, function);
    log_message(logger, severity, place, message);
}

OrtStatus *check_severity(const char *whose, int severity) {
    if (severity >= -1 && severity <= ORT_LOGGING_LEVEL_FATAL) return NULL;
    return status_new(ORT_FAIL, "Invalid %s log severity level. Not a valid onnxruntime::logging::Severity value: %d\n"
                      "  expected: 0, verbose, to 4, fatal, or -1 for what holds around it", whose, severity);
}

Logger session_logger(const OrtSession *session) {
    const OrtSessionOptions *options = session->options;
    Logger logger = env_logger();
    logger.id = options->log_id;
    if (options->severity >= 0) logger.severity = (OrtLoggingLevel)options->severity;
    if (options->log_function != NULL) {
        logger.function = options->log_function;
        logger.param = options->log_param;
    }
    return logger;
}

Logger run_logger(const OrtSession *session, const OrtRunOptions *options, LogId id) {
    Logger logger = session_logger(session);
    if (options == NULL) return logger;
    if (options->severity >= 0) logger.severity = (OrtLoggingLevel)options->severity;
    if (options->tag[0] != 0) {
        snprintf(id, sizeof(LogId), "%s%s%s", logger.id, logger.id[0] == 0 ? "" : ":", options->tag);
        logger.id = id;
    }
    return logger;
}

void log_records(const Logger *logger, struct message *answer) {
    size_t count = take_count(answer, answer->size);
    for (size_t i = 0; i < count && !answer->broken; i++) {
        OrtLoggingLevel severity = (OrtLoggingLevel)take_int(answer);
        const char *place = take_text(answer, NULL), *message = take_text(answer, NULL);
        if (!answer->broken) log_message(logger, severity, place, message);
    }
}

OrtStatus *api_Logger_LogMessage(const OrtLogger *logger, OrtLoggingLevel severity, const char *message,
                                 const ORTCHAR_T *file, int line, const char *function) {
    char place[512];
    snprintf(place, sizeof place, "%s:%d %s", file == NULL ? "" : file, line, function == NULL ? "" : function);
    log_message((const Logger *)(const void *)logger, severity, place, message);
    return NULL;
}

OrtStatus *api_Logger_GetLoggingSeverityLevel(const OrtLogger *logger, OrtLoggingLevel *out) {
    *out = ((const Logger *)(const void *)logger)->severity;
    return NULL;
}
