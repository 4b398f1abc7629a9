#define _GNU_SOURCE
#include "service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef ORTHRUS_BUILT_PYTHON
#define ORTHRUS_BUILT_PYTHON ""
#endif
#ifndef ORTHRUS_BUILT_STAMP
#define ORTHRUS_BUILT_STAMP ""
#endif

enum { LAST_WORDS = 2000, SILENCE_S = 120, GLANCE_MS = 20, LOOK_MS = 1000 };
static const int64_t longest_answer = (int64_t)1 << 40;

/* One process. `beat`: when it was last heard of. */
struct start {
    uint64_t generation;
    pid_t pid;
    int control, references;
    double beat;
    bool heard, dead;
    size_t words;
    char last_words[LAST_WORDS];
};

struct channel {
    struct channel *next, *next_idle;
    struct start *start;
    int socket, room;
    unsigned char *bytes;
    size_t size;
};

static struct {
    Lock lock;
    uint64_t starts;
    struct start *now;
    struct channel *all, *idle;
} service;

/* What the Python process runs. It speaks of what went wrong before orthrus was there. */
static const char program[] =
        "import socket, sys\n"
        "control = socket.socket(fileno=0)\n"
        "try:\n"
        "    from orthrus.native.dropin.service import serve\n"
        "    why = serve(control, sys.argv[1])\n"
        "except BaseException as error:\n"
        "    why = f'{type(error).__name__}: {error}'\n"
        "if why:\n"
        "    control.setblocking(True)\n"
        "    control.sendall(('!' + why).encode('utf-8', 'replace')[:1900])\n"
        "    sys.exit(1)\n";

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double patience(void) {
    const char *given = getenv("ORTHRUS_SERVICE_TIMEOUT");
    double seconds = given == NULL ? 0 : atof(given);
    return seconds > 0 ? seconds : SILENCE_S;
}

/* Below: callers hold the lock. */

static void let_go(struct start *start) {
    if (--start->references > 0) return;
    close(start->control);
    free(start);
}

/* The service is not to be used any more. A process that still is there ends. */
static void bury(struct start *start) {
    if (start->dead) return;
    start->dead = true;
    if (waitpid(start->pid, NULL, WNOHANG) == 0) {
        kill(start->pid, SIGKILL);
        waitpid(start->pid, NULL, 0);
    }
}

/* The service that is there, null where it has ended. */
static struct start *living(void) {
    if (service.now != NULL && service.now->dead) {
        let_go(service.now);
        service.now = NULL;
    }
    return service.now;
}

/* Takes in what the service says on its own: that it lives, or why it does not. */
static void listen_to(struct start *start) {
    char heard[256];
    while (!start->dead) {
        ssize_t count = recv(start->control, heard, sizeof heard, MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (count <= 0) {
            bury(start);
            return;
        }
        start->beat = now();
        start->heard = true;
        for (ssize_t i = 0; i < count; i++) {
            if ((start->words > 0 || heard[i] == '!') && start->words < LAST_WORDS - 1)
                start->last_words[start->words++] = heard[i];
        }
    }
}

static OrtStatus *ended(const struct start *start) {
    if (start->words > 1)
        return status_new(ORT_FAIL, "the compile service could not begin: %s\n  cure: put that right, or set "
                          "ORTHRUS_PYTHON to a Python that has this version of orthrus-runtime",
                          start->last_words + 1);
    return status_new(ORT_FAIL, "the compile service %s\n  cure: run again, it starts anew; what it wrote to "
                      "standard error says why; ORTHRUS_SERVICE_TIMEOUT is how many seconds it may be silent",
                      start->heard ? "ended" : "never began");
}

static void discard(struct channel *channel) {
    struct channel **link = &service.all;
    while (*link != channel) link = &(*link)->next;
    *link = channel->next;
    if (channel->bytes != NULL) munmap(channel->bytes, channel->size);
    close(channel->socket);
    close(channel->room);
    let_go(channel->start);
    free(channel);
}

/* The child leaves the service to its parent. */
static void in_child(void) {
    for (struct channel *channel = service.all; channel != NULL; channel = channel->next) {
        close(channel->socket);
        close(channel->room);
        if (channel->bytes != NULL) munmap(channel->bytes, channel->size);
    }
    if (service.now != NULL) close(service.now->control);
    service.now = NULL;
    service.all = service.idle = NULL;
}

__attribute__((constructor)) static void prepare(void) {
    lock_new(&service.lock);
    pthread_atfork(NULL, NULL, in_child);
}

/* Moved out of the way of the three descriptors that the child is given. */
static int high(int descriptor) {
    if (descriptor < 0 || descriptor > 2) return descriptor;
    int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
    close(descriptor);
    return moved;
}

static bool pair(int ends[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    for (int i = 0; i < 2; i++) ends[i] = high(ends[i]);
    if (ends[0] >= 0 && ends[1] >= 0) return true;
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
    }
    return false;
}

extern char **environ;

/* The environment without what would load libraries into the service. */
static char **surroundings(void) {
    size_t count = 0, kept = 0;
    while (environ != NULL && environ[count] != NULL) count++;
    char **given = malloc((count + 1) * sizeof *given);
    if (given == NULL) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0) given[kept++] = environ[i];
    }
    given[kept] = NULL;
    return given;
}

static const char *python(void) {
    const char *chosen = secure_getenv("ORTHRUS_PYTHON");
    if (chosen != NULL && chosen[0] != 0) return chosen;
    if (ORTHRUS_BUILT_PYTHON[0] != 0 && access(ORTHRUS_BUILT_PYTHON, X_OK) == 0) return ORTHRUS_BUILT_PYTHON;
    return "python3";
}

/* Descriptor 0 is the control socket, what goes to 1 goes to 2, and 2 stays where the host has one. */
static int spawn(int control, const char *path, pid_t *pid) {
    char *arguments[] = {(char*)path, "-P", "-c", (char*)program, ORTHRUS_BUILT_STAMP, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    char **given = surroundings();
    if (given == NULL) return ENOMEM;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, control, 0);
    if (fcntl(2, F_GETFD) < 0)
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_RDWR, 0);
    else
        posix_spawn_file_actions_adddup2(&actions, 2, 2);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    int error = posix_spawnp(pid, path, &actions, &attributes, arguments, given);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    free(given);
    return error;
}

static OrtStatus *begin(void) {
    int ends[2];
    struct start *start = calloc(1, sizeof *start);
    if (start == NULL) return status_new(ORT_FAIL, "there is not enough memory to start the compile service");
    if (!pair(ends)) {
        int error = errno;
        free(start);
        return status_new(ORT_FAIL, "the compile service cannot be started: no socket: %s", strerror(error));
    }
    const char *path = python();
    int error = spawn(ends[1], path, &start->pid);
    close(ends[1]);
    if (error != 0) {
        close(ends[0]);
        free(start);
        return status_new(ORT_FAIL, "the compile service cannot be started: %s: %s\n  cure: set ORTHRUS_PYTHON to a "
                          "Python that has orthrus-runtime; a model that was opened before needs none while its "
                          "package is in the cache", path, strerror(error));
    }
    start->control = ends[0];
    start->references = 1;
    start->generation = ++service.starts;
    start->beat = now();
    service.now = start;
    return NULL;
}

static bool send_pair(int control, int first, int second) {
    char byte = 'C';
    struct iovec piece = {&byte, 1};
    union {
        char space[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } room;
    memset(&room, 0, sizeof room);
    struct msghdr header = {
            .msg_iov = &piece, .msg_iovlen = 1, .msg_control = room.space, .msg_controllen = sizeof room.space};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(rights), (int[]){first, second}, 2 * sizeof(int));
    ssize_t sent;
    do {
        sent = sendmsg(control, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent == 1;
}

static OrtStatus *connected(struct channel **made) {
    struct start *start = service.now;
    struct channel *channel = calloc(1, sizeof *channel);
    int ends[2] = {-1, -1}, room = memfd_create("orthrus", MFD_CLOEXEC);
    if (channel == NULL || room < 0 || !pair(ends)) {
        OrtStatus *status = status_new(ORT_FAIL, "no channel to the compile service: %s", strerror(errno));
        if (room >= 0) close(room);
        free(channel);
        return status;
    }
    bool sent = send_pair(start->control, ends[1], room);
    int error = errno;
    close(ends[1]);
    if (!sent) {
        close(ends[0]);
        close(room);
        free(channel);
        listen_to(start);
        if (start->dead || error == EPIPE || error == ECONNRESET) return NULL;
        return status_new(ORT_FAIL, "the compile service takes no further channel: %s", strerror(error));
    }
    channel->start = start;
    start->references++;
    channel->socket = ends[0];
    channel->room = room;
    channel->next = service.all;
  *made = service.all = channel;
    return NULL;
}

static struct channel *idle(void) {
    while (service.idle != NULL) {
        struct channel *channel = service.idle;
        service.idle = channel->next_idle;
        if (!channel->start->dead) return channel;
        discard(channel);
    }
    return NULL;
}

/* Above: callers hold the lock. */

OrtStatus *channel_take(struct channel **channel) {
    OrtStatus *status = NULL;
  *channel = NULL;
    lock_take(&service.lock);
    for (int attempt = 0; attempt < 2 && *channel == NULL && status == NULL; attempt++) {
        if (living() != NULL) listen_to(service.now);
        if (living() == NULL) status = begin();
        if (status == NULL) *channel = idle();
        if (status == NULL && *channel == NULL) status = connected(channel);
        if (*channel == NULL && status == NULL) bury(service.now);
    }
    lock_give(&service.lock);
    if (*channel == NULL && status == NULL)
        status = status_new(ORT_FAIL, "the compile service ends as soon as it begins\n  cure: run `%s -m orthrus "
                            "doctor` and see why", python());
    return status;
}

void channel_give(struct channel *channel) {
    if (channel == NULL) return;
    lock_take(&service.lock);
    if (channel->start->dead) {
        discard(channel);
    } else {
        channel->next_idle = service.idle;
        service.idle = channel;
    }
    lock_give(&service.lock);
}

uint64_t channel_generation(const struct channel *channel) { return channel->start->generation; }

uint64_t service_generation(void) {
    lock_take(&service.lock);
    uint64_t generation = living() == NULL ? 0 : service.now->generation;
    lock_give(&service.lock);
    return generation;
}

static bool mapped(struct channel *channel, size_t size) {
    unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, channel->room, 0);
    if (bytes == MAP_FAILED) return false;
    if (channel->bytes != NULL) munmap(channel->bytes, channel->size);
    channel->bytes = bytes;
    channel->size = size;
    return true;
}

OrtStatus *channel_room(struct channel *channel, size_t size, unsigned char **bytes) {
    if (size > channel->size) {
        int error = posix_fallocate(channel->room, 0, (off_t)size);
        if (error == 0 && !mapped(channel, size)) error = errno;
        if (error != 0)
            return status_new(ORT_FAIL, "there is no room for %zu bytes to hand to the compile service: %s", size,
                                                        strerror(error));
    }
  *bytes = channel->bytes;
    return NULL;
}

const unsigned char *channel_look(struct channel *channel, size_t at, size_t size) {
    struct stat now;
    if (at > channel->size || size > channel->size - at) {
        if (fstat(channel->room, &now) != 0 || now.st_size < 0 || at > (size_t)now.st_size ||
                size > (size_t)now.st_size - at || !mapped(channel, (size_t)now.st_size))
            return NULL;
    }
    return channel->bytes + at;
}

struct waiting {
    struct listening listening;
    bool called_off;
};

static void call_off(int64_t run) {
    struct channel *other;
    struct message request = {0}, answer = {0};
    bool lost;
    OrtStatus *status = channel_take(&other);
    if (status == NULL) {
        put_int(&request, ASK_CANCEL);
        put_int(&request, run);
        Logger logger = env_logger();
        status = channel_ask(other, &request, -1, &(struct listening){&logger, NULL, 0}, &answer, &lost);
        channel_give(other);
    }
    api_ReleaseStatus(status);
    message_clear(&request);
    message_clear(&answer);
}

/* Waits until the socket can be read or written. False: the service is lost. */
static bool ready(struct channel *channel, short events, struct waiting *waiting) {
    struct start *start = channel->start;
    for (;;) {
        bool watching = waiting->listening.stop != NULL && !waiting->called_off;
        struct pollfd polled[] = {{channel->socket, events, 0}, {start->control, POLLIN, 0}};
        int count = poll(polled, 2, watching ? GLANCE_MS : LOOK_MS);
        if (count < 0 && errno != EINTR) return false;
        if (count > 0 && polled[0].revents != 0) return true;
        lock_take(&service.lock);
        if (polled[1].revents != 0) listen_to(start);
        if (now() - start->beat > patience()) bury(start);
        bool dead = start->dead;
        lock_give(&service.lock);
        if (dead) return false;
        if (watching && atomic_load(waiting->listening.stop)) {
            waiting->called_off = true;
            call_off(waiting->listening.run);
        }
    }
}

/* How many bytes went, 0 for none yet, -1 where the service is lost. */
static ssize_t moved(ssize_t count) {
    if (count > 0) return count;
    return count < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
}

static ssize_t sent(int socket, const unsigned char *bytes, size_t size, int attached) {
    struct iovec piece = {(void*)bytes, size};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } room;
    memset(&room, 0, sizeof room);
    if (attached >= 0) {
        header.msg_control = room.space;
        header.msg_controllen = sizeof room.space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &attached, sizeof attached);
    }
    return moved(sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static bool sent_all(struct channel *channel, const unsigned char *bytes, size_t size, int attached,
                                          struct waiting *waiting) {
    while (size > 0) {
        ssize_t count = ready(channel, POLLOUT, waiting) ? sent(channel->socket, bytes, size, attached) : -1;
        if (count < 0) return false;
        if (count > 0) attached = -1;
        bytes += count;
        size -= (size_t)count;
    }
    return true;
}

static bool received_all(struct channel *channel, unsigned char *bytes, size_t size, struct waiting *waiting) {
    while (size > 0) {
        ssize_t count = ready(channel, POLLIN, waiting) ? moved(recv(channel->socket, bytes, size, MSG_DONTWAIT)) : -1;
        if (count < 0) return false;
        bytes += count;
        size -= (size_t)count;
    }
    return true;
}

static bool exchanged(struct channel *channel, const struct message *request, int attached,
                                            struct waiting *waiting, struct message *answer) {
    int64_t size = (int64_t)request->size;
    unsigned char head[sizeof size];
    memcpy(head, &size, sizeof size);
    if (!sent_all(channel, head, sizeof head, attached, waiting) ||
            !sent_all(channel, request->bytes, request->size, -1, waiting) ||
            !received_all(channel, head, sizeof head, waiting))
        return false;
    memcpy(&size, head, sizeof size);
    answer->size = answer->at = 0;
    return size >= 0 && size <= longest_answer && message_resize(answer, (size_t)size) &&
                  received_all(channel, answer->bytes, (size_t)size, waiting);
}

OrtStatus *channel_ask(struct channel *channel, struct message *request, int attached,
                       const struct listening *listening, struct message *answer, bool *lost) {
    struct waiting waiting = {*listening, false};
  *lost = false;
    if (request->broken) return status_new(ORT_FAIL, "there is not enough memory to ask the compile service");
    if (!exchanged(channel, request, attached, &waiting, answer)) {
        lock_take(&service.lock);
        listen_to(channel->start);
        bury(channel->start);
        OrtStatus *status = ended(channel->start);
        lock_give(&service.lock);
    *lost = true;
        return status;
    }
    OrtErrorCode code = (OrtErrorCode)take_int(answer);
    const char *text = take_text(answer, NULL);
    log_records(listening->logger, answer);
    if (answer->broken) return status_new(ORT_FAIL, "the compile service's answer cannot be read");
    return code == ORT_OK ? NULL : status_new(code, "%s", text);
}
