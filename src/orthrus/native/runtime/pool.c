/* The threads of this process that compiled code divides its work over: one pool, started when first needed.

   A pool is a block of cells that compiled code works on (src/orthrus/codegen/runtime/scheduler.py). Workers
   sit in a model's function `work`: its code stays where it is for the life of the process. A forked child
   starts with none and gets its own. The number in the names is that of the block's layout. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum pool_cell {
    POOL_SIZE,
    POOL_CAPACITY,
    POOL_SPIN,
    POOL_PATIENCE,
    POOL_SYSCALL,
    POOL_TICKET = 16,
    POOL_LEFT = 23,
    POOL_AWAY = 48,
    POOL_WAITING = 64,
    POOL_HELD = 80,
    POOL_RUNS = 81,
    PLACES = 512,
    POOL_CELLS = 96 + 16 * PLACES
};

#define SPIN 3e-4     /* seconds a worker looks for the next job before it sleeps */
#define PATIENCE 1e-4 /* seconds a caller looks for the last worker before it sleeps */

struct orthrus_pool {
    _Alignas(64) _Atomic int64_t cells[POOL_CELLS];
    int64_t work; /* where workers sit; 0 until the pool is made */
};
__attribute__((weak, visibility("default"))) struct orthrus_pool orthrus_pool_1;
__attribute__((weak, visibility("default"))) pthread_mutex_t orthrus_pool_lock_1 = PTHREAD_MUTEX_INITIALIZER;

typedef void (*code_function)(int64_t);

/* The first line of a file, as a text; empty where there is none. */
static void first_line(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "re");
    if (!file || !fgets(text, (int)size, file)) text[0] = 0;
    if (file) fclose(file);
}

/* How many numbers a file of `folder` begins with, of two. */
static int numbers(const char *folder, const char *name, double *one, double *two) {
    char path[4200], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    first_line(path, text, sizeof text);
    return sscanf(text, "%lf %lf", one, two);
}

static void quota_of(const char *folder, int version, double *least) {
    double quota = -1, period = 0, nothing;
    int known = version == 2 ? numbers(folder, "cpu.max", &quota, &period) == 2
                             : numbers(folder, "cpu.cfs_quota_us", &quota, &nothing) > 0 &&
                                   numbers(folder, "cpu.cfs_period_us", &period, &nothing) > 0;
    if (known && quota > 0 && period > 0 && (*least == 0 || quota / period < *least)) *least = quota / period;
}

/* Processors that the control groups allow, 0 for no limit: of this process's group, or one above it. */
static double cpu_quota(void) {
    char line[4096], folder[4160];
    double least = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        int version = kinds[1] ? 1 : 2;
        if (version == 1 && !strstr(kinds, "cpu")) continue;
        for (;;) {
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", version == 1 ? "/cpu" : "", group);
            quota_of(folder, version, &least);
            char *last = strrchr(group, '/');
            if (!last || !*group) break;
            *last = 0;
        }
    }
    fclose(file);
    return least;
}

/* Cores this process may use: those of its affinity mask, threads of one core counted once, as far as its
   control group's quota goes. */
static int64_t cores(void) {
    cpu_set_t mask;
    int64_t found = 0;
    if (sched_getaffinity(0, sizeof mask, &mask)) return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[96], text[64];
        if (!CPU_ISSET(cpu, &mask)) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        first_line(path, text, sizeof text);
        int first = cpu, siblings = sscanf(text, "%d", &first);
        found += siblings != 1 || first >= cpu || first < 0 || !CPU_ISSET(first, &mask);
    }
    double quota = cpu_quota();
    int64_t allowed = (int64_t)quota + (quota > (double)(int64_t)quota);
    if (allowed && allowed < found) found = allowed;
    return found < 1 ? 1 : found > PLACES ? PLACES : found;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* How long one pause of a spinning thread takes, which differs by a factor of ten between processors. */
static double pause_seconds(code_function pauses) {
    double least = 1;
    for (int i = 0; i < 4; i++) {
        double start = seconds();
        pauses(500);
        double took = seconds() - start;
        if (took < least) least = took;
    }
    return least > 500e-10 ? least / 500 : 1e-10;
}

/* In a child: no worker yet, and whatever the parent's threads were doing is forgotten. */
static void pool_forked(void) {
    static const int passing[] = {POOL_AWAY, POOL_LEFT, POOL_WAITING, POOL_HELD, POOL_RUNS, POOL_TICKET};
    _Atomic int64_t *cells = orthrus_pool_1.cells;
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        atomic_store(&cells[passing[i]], 0);
    atomic_store(&cells[POOL_SIZE], 1);
    pthread_mutex_init(&orthrus_pool_lock_1, NULL);
}

static void pool_before_fork(void) { pthread_mutex_lock(&orthrus_pool_lock_1); }
static void pool_after_fork(void) { pthread_mutex_unlock(&orthrus_pool_lock_1); }

static void *sit(void *pool) {
    ((code_function)(intptr_t)((struct orthrus_pool *)pool)->work)((int64_t)(intptr_t)pool);
    return NULL;
}

/* The pool, made with the functions of a model's code if there is none yet: *kept is then set. */
static _Atomic int64_t *pool_cells(int64_t work, int64_t pauses, int *kept) {
    struct orthrus_pool *pool = &orthrus_pool_1;
    pthread_mutex_lock(&orthrus_pool_lock_1);
    if (!pool->work) {
        double pause = pause_seconds((code_function)(intptr_t)pauses);
        pool->work = work;
        *kept = 1;
        atomic_store(&pool->cells[POOL_SPIN], (int64_t)(SPIN / pause));
        atomic_store(&pool->cells[POOL_PATIENCE], (int64_t)(PATIENCE / pause));
        atomic_store(&pool->cells[POOL_SYSCALL], (int64_t)(intptr_t)&syscall);
        atomic_store(&pool->cells[POOL_CAPACITY], cores());
        atomic_store(&pool->cells[POOL_SIZE], 1);
        pthread_atfork(pool_before_fork, pool_after_fork, pool_forked);
    }
    pthread_mutex_unlock(&orthrus_pool_lock_1);
    return pool->cells;
}

/* Have as many threads, as far as the capacity goes. A system that refuses further ones is not asked again.
 */
static void pool_ensure(int64_t threads) {
    struct orthrus_pool *pool = &orthrus_pool_1;
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_mutex_lock(&orthrus_pool_lock_1);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (int64_t size = pool->cells[POOL_SIZE]; size < threads && size < pool->cells[POOL_CAPACITY]; size++) {
        pthread_t thread;
        if (pthread_create(&thread, &detached, sit, pool)) {
            pool->cells[POOL_CAPACITY] = size;
            break;
        }
        pool->cells[POOL_SIZE] = size + 1;
    }
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&orthrus_pool_lock_1);
}
