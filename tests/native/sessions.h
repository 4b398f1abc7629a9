/* What the files of `sessions` share. */
#include <pthread.h>
#include <stdatomic.h>

#include "checked.h"

/* Whether it is a status, which is released. */
int refused(OrtStatus *status);
/* A number below `below`. */
unsigned chance(unsigned *seed, unsigned below);
OrtSession *session_on(OrtEnv *env, const char *path, int threads);

void bindings(OrtSession *session, unsigned seed, int count);
/* What is neither of the others: crowd, forks, busy, many, again. */
void lives(OrtEnv *env, const char *model, const char *library, const char *what, unsigned seed, int count);
void asynchronous(OrtSession *session, unsigned seed, int count);
void logging(const char *path, int severity, int count, char **words);
