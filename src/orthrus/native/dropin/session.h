/* A session: a model with its options, known to the compile service where it has to be, and its native plans.
 *
 * Invariant: `opening` is all that a service needs to know the model, so that a session outlives every service;
 * `generation` says which service knows it by `handle`, 0 for none. Both, and `natives`, are guarded by `lock`,
 * which is held only for moments: never while the service is asked or a model runs. */
#ifndef ORTHRUS_SESSION_H
#define ORTHRUS_SESSION_H

#include "cache.h"
#include "internal.h"
#include "service.h"

enum role { INPUTS, OUTPUTS, OVERRIDABLE, ROLES };

struct described {
    char *name;
    OrtTypeInfo *type;
};

struct natives;
struct assigned;

struct OrtSession {
    OrtSessionOptions *options;
    struct message opening;
    int model; /* a file without a name that holds a model which came as bytes, else -1 */
    Name name;  /* of what the cache knows of it, "" where it keeps nothing */
    Name notes; /* what packages are noted under: the model with the files beside it; "" likewise */
    struct described *values[ROLES];
    size_t counts[ROLES];
    OrtModelMetadata *metadata;
    OrtKeyValuePairs opsets; /* by domain */
    int64_t profiling_start;
    bool native; /* whether packages of it may be asked for */
    Lock lock;
    uint64_t generation;
    int64_t handle;
    struct natives *natives;
    struct assigned *_Atomic assigned; /* null: not asked for yet */
};

/* Something asked of the service about a session. `write` adds what is asked behind the model's number and may
 * be called again for another service; `read` takes the answer; both may be null. */
struct question {
    int what;
    OrtStatus *(*write)(struct message *request, struct channel *channel, void *argument);
    OrtStatus *(*read)(struct message *answer, struct channel *channel, void *argument);
    void *argument;
    const struct listening *listening; /* null: the session's logger */
};

OrtStatus *session_ask(OrtSession *session, const struct question *question);
/* The same about no session. */
OrtStatus *service_ask(const struct question *question);

/* asked.c */
void assigned_free(struct assigned *assigned);
void put_pairs_of(struct message *message, const char *const *keys, const char *const *values, size_t count);

/* logging.c: who hears of a session, and of a run, whose name may have to be made in `id`. */
typedef char LogId[512];

/* FAIL for a severity that is none; `whose`: "session" or "run". */
OrtStatus *check_severity(const char *whose, int severity);
Logger session_logger(const OrtSession *session);
Logger run_logger(const OrtSession *session, const OrtRunOptions *options, LogId id);

/* told.c: what decides about what is made of a model, and what else a session is told. */
void put_decisive_options(struct message *message, const OrtSessionOptions *options);
OrtStatus *put_other_options(struct message *message, const OrtSessionOptions *options, OrtLoggingLevel severity);
/* Whether what is made with these options may be kept. */
bool options_keepable(const OrtSessionOptions *options);

/* native.c */
OrtStatus *natives_new(struct natives **natives);
void natives_free(struct natives *natives);
/* Makes the one plan of a session whose inputs have known sizes. False: there is none yet. */
bool natives_prepare(OrtSession *session, bool ask, OrtStatus **status);
/* Runs `feeds`, a dense tensor for each input. `*done` false: it is for the service to compute. `outputs`: one for
 * each output, null for those that are to be made; `asked` says which are wanted. */
OrtStatus *natives_run(OrtSession *session, const OrtValue *const *feeds, const bool *asked, OrtValue **outputs,
                       const Stop *stop, bool *done);

#endif
