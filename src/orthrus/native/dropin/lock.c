/* Locks that a forked child finds open: fork takes all of them, in the order they were made, and lets go of them in
 * both processes.
 *
 * Invariant: no thread waits for one of them while it holds another, or the list's. */
#include "internal.h"

static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER;
static Lock *first, **last = &first;

static void before_fork(void) {
    pthread_mutex_lock(&list);
    for (Lock *lock = first; lock != NULL; lock = lock->next) pthread_mutex_lock(&lock->mutex);
}

static void after_fork(void) {
    for (Lock *lock = first; lock != NULL; lock = lock->next) pthread_mutex_unlock(&lock->mutex);
    pthread_mutex_unlock(&list);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

void lock_new(Lock *lock) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_init(&lock->mutex, NULL);
    pthread_mutex_lock(&list);
    lock->next = NULL;
    lock->link = last;
    *last = lock;
    last = &lock->next;
    pthread_mutex_unlock(&list);
}

void lock_free(Lock *lock) {
    pthread_mutex_lock(&list);
    *lock->link = lock->next;
    if (lock->next != NULL)
        lock->next->link = lock->link;
    else
        last = lock->link;
    pthread_mutex_unlock(&list);
    pthread_mutex_destroy(&lock->mutex);
}

void lock_take(Lock *lock) { pthread_mutex_lock(&lock->mutex); }

void lock_give(Lock *lock) { pthread_mutex_unlock(&lock->mutex); }
