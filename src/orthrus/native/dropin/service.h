/* The compile service: Python in a process of its own, started when something is first asked of it and started
 * anew when it has ended. A channel is one conversation with it; a thread takes one, asks and is answered, and
 * gives it back. A service that ended, never began or no longer moves is a status that says what to do. */
#ifndef ORTHRUS_SERVICE_H
#define ORTHRUS_SERVICE_H

#include "internal.h"
#include "message.h"

#include <stdatomic.h>

struct channel;

/* A conversation's thread is told what the service logged while it answered. `stop`, which may be null, is looked at
 * while waiting: once it is set, the run of the number `run` is called off, and the wait goes on for the service to
 * say so. */
struct listening {
    const Logger *logger;
    const Stop *stop;
    int64_t run;
};

/* Hands on the log's records that follow in an answer. */
void log_records(const Logger *logger, struct message *answer);

/* What a request is; service.py has the same numbers. */
enum {
    ASK_NOTHING,
    ASK_OPEN,
    ASK_PACKAGE,
    ASK_RUN,
    ASK_CANCEL,
    ASK_CLOSE,
    ASK_END_PROFILING,
    ASK_DYNAMIC_OPTIONS,
    ASK_ASSIGNED,
    ASK_COMPATIBILITY,
    ASK_ADAPTER,
    ASK_COMPILE,
};

OrtStatus *channel_take(struct channel **channel);
void channel_give(struct channel *channel);
/* Which start of the service it leads to: what one start was told, the next one does not know. */
uint64_t channel_generation(const struct channel *channel);
/* The generation of the service that runs now, 0 for none. */
uint64_t service_generation(void);
/* `size` bytes that both sides see; they stay where they are until more is asked for. */
OrtStatus *channel_room(struct channel *channel, size_t size, unsigned char **bytes);
/* What the other side put there: null where [at, at + size) is not all there. */
const unsigned char *channel_look(struct channel *channel, size_t at, size_t size);
/* Sends `request`, with the descriptor `attached` unless that is -1, and waits for the answer. `*lost`: whether the
 * service ended meanwhile. */
OrtStatus *channel_ask(struct channel *channel, struct message *request, int attached,
                       const struct listening *listening, struct message *answer, bool *lost);

#endif
