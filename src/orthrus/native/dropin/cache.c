#define _GNU_SOURCE
#include "cache.h"

#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#ifndef ORTHRUS_BUILT_STAMP
#define ORTHRUS_BUILT_STAMP ""
#endif

enum { MAGIC_BYTES = 8, HEAD_BYTES = MAGIC_BYTES + DIGEST_BYTES, FORMAT = 1 };
static const char object_magic[] = "orthrus1", entry_magic[] = "orthrusD";
static const size_t largest_entry = (size_t)1 << 26;

extern char **environ;

static bool mine(int file, mode_t kind) {
    struct stat found;
    return fstat(file, &found) == 0 && (found.st_mode & S_IFMT) == kind && found.st_uid == geteuid() &&
           (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static bool joined(char *path, const char *folder, const char *name) {
    int size = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return size > 0 && size < PATH_MAX;
}

static bool home(char *path) {
    const char *given = getenv("HOME");
    if (given != NULL && given[0] != 0) return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    char space[4096];
    struct passwd user, *found = NULL;
    return getpwuid_r(getuid(), &user, space, sizeof space, &found) == 0 && found != NULL &&
           snprintf(path, PATH_MAX, "%s", found->pw_dir) < PATH_MAX;
}

/* Where the folder is, as orthrus.codegen.object.cache says. */
static bool place(char *path) {
    const char *on = getenv("ORTHRUS_CACHE"), *chosen = getenv("ORTHRUS_CACHE_DIR"), *base = getenv("XDG_CACHE_HOME");
    char folder[PATH_MAX];
    if (on != NULL && strcmp(on, "0") == 0) return false;
    if (chosen != NULL && chosen[0] != 0) return snprintf(path, PATH_MAX, "%s", chosen) < PATH_MAX;
    if (base != NULL && base[0] == '/') return joined(path, base, "orthrus");
    return home(folder) && folder[0] == '/' && joined(path, folder, ".cache/orthrus");
}

static int folder(const char *inside) {
    char path[PATH_MAX], whole[PATH_MAX];
    if (!place(path) || !joined(whole, path, inside)) return -1;
    int opened = open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened >= 0 && !mine(opened, S_IFDIR)) {
        close(opened);
        return -1;
    }
    return opened;
}

static int opened(const char *inside, const char *name) {
    int outer = folder(inside);
    if (outer < 0) return -1;
    int file = openat(outer, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(outer);
    if (file >= 0 && !mine(file, S_IFREG)) {
        close(file);
        return -1;
    }
    return file;
}

static bool taken(int file, void *bytes, size_t size) {
    unsigned char *to = bytes;
    for (size_t done = 0; done < size;) {
        ssize_t count = read(file, to + done, size - done);
        if (count <= 0) return false;
        done += (size_t)count;
    }
    return true;
}

bool cache_key(struct content_key *key) {
    unsigned char read[HEAD_BYTES + SECRET_BYTES];
    int file = opened(".", "secret");
    if (file < 0) return false;
    bool whole = taken(file, read, sizeof read) && memcmp(read, object_magic, MAGIC_BYTES) == 0;
    close(file);
    if (whole) content_key_make(key, read + HEAD_BYTES);
    return whole;
}

void hexadecimal(const Digest digest, Name name) {
    for (size_t i = 0; i < DIGEST_BYTES; i++) snprintf(name + 2 * i, 3, "%02x", digest[i]);
}

static void add_text(struct shake *shake, const char *text) { shake_add(shake, text, strlen(text) + 1); }

static void add_processor(struct shake *shake) {
    unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    shake_add(shake, words, sizeof words);
#if defined(__x86_64__)
    unsigned a, b, c, d;
    __cpuid(1, a, b, c, d); /* b names the core that happens to run this */
    shake_add(shake, (unsigned[]){a, c & ~(1u << 27), d}, 3 * sizeof a);
    for (unsigned leaf = 0; leaf < 2 && __get_cpuid_count(7, leaf, &a, &b, &c, &d); leaf++)
        shake_add(shake, (unsigned[]){a, b, c, d}, 4 * sizeof a);
#endif
}

static bool harmless(const char *variable) {
    static const char *const names[] = {"CACHE=", "CACHE_DIR=", "CACHE_SESSIONS=", "PYTHON=", "SERVICE_TIMEOUT="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(variable + strlen("ORTHRUS_"), names[i], strlen(names[i])) == 0) return true;
    }
    return false;
}

static int compared(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The switches that decide about what is made. */
static void add_switches(struct shake *shake) {
    char *found[64];
    size_t count = 0;
    for (char **each = environ; each != NULL && *each != NULL && count < 64; each++) {
        if (strncmp(*each, "ORTHRUS_", strlen("ORTHRUS_")) == 0 && !harmless(*each)) found[count++] = *each;
    }
    qsort(found, count, sizeof *found, compared);
    for (size_t i = 0; i < count; i++) add_text(shake, found[i]);
}

void cache_name(const Digest content, const struct message *options, Name name) {
    struct shake shake;
    Digest digest;
    shake_begin(&shake);
    add_text(&shake, ORTHRUS_BUILT_STAMP);
    add_processor(&shake);
    add_switches(&shake);
    shake_add(&shake, content, DIGEST_BYTES);
    shake_add(&shake, options->bytes, options->size);
    shake_end(&shake, digest, sizeof digest);
    hexadecimal(digest, name);
}

void cache_note_name(const Name model, const int64_t *sizes, size_t count, Name name) {
    struct shake shake;
    Digest digest;
    shake_begin(&shake);
    add_text(&shake, model);
    shake_add(&shake, sizes, count * sizeof *sizes);
    shake_end(&shake, digest, sizeof digest);
    hexadecimal(digest, name);
}

/* Whether `told` is the digest by which neither other bytes nor another file's are taken for what is kept so. */
static bool sealed(const char *name, const void *bytes, size_t size, const unsigned char *told) {
    struct shake shake;
    Digest digest;
    shake_begin(&shake);
    add_text(&shake, name);
    shake_add(&shake, bytes, size);
    shake_end(&shake, digest, sizeof digest);
    return memcmp(digest, told, sizeof digest) == 0;
}

/* What lies behind the head, and the digest of it that the head holds. */
bool cache_read(const char *name, struct message *entry) {
    unsigned char head[HEAD_BYTES + sizeof(int64_t)];
    int64_t size = 0;
    int file = opened("dropin", name);
    if (file < 0) return false;
    bool whole = taken(file, head, sizeof head) && memcmp(head, entry_magic, MAGIC_BYTES) == 0;
    if (whole) memcpy(&size, head + HEAD_BYTES, sizeof size);
    whole = whole && size >= 0 && (size_t)size <= largest_entry && message_resize(entry, (size_t)size) &&
            taken(file, entry->bytes, (size_t)size) &&
            sealed(name, entry->bytes, entry->size, head + MAGIC_BYTES);
    if (whole) {
        entry->at = 0;
        futimens(file, NULL);
    }
    close(file);
    return whole;
}

bool cache_map(const struct content_key *key, const char *name, struct mapped *mapped) {
    enum { TRAILERS = 2 * DIGEST_BYTES }; /* this one, and the one of whoever writes files of the cache */
    struct stat found;
    Digest digest;
    int file = opened("dropin", name);
    memset(mapped, 0, sizeof *mapped);
    if (file < 0) return false;
    if (fstat(file, &found) == 0 && found.st_size > TRAILERS) {
        mapped->whole = (size_t)found.st_size;
        mapped->size = mapped->whole - TRAILERS;
        mapped->bytes = mmap(NULL, mapped->whole, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
        if (mapped->bytes == MAP_FAILED) mapped->bytes = NULL;
        futimens(file, NULL);
    }
    close(file);
    if (mapped->bytes == NULL) return false;
    if (content_of_bytes(key, mapped->bytes, mapped->size, digest) &&
        sealed(name, digest, sizeof digest, mapped->bytes + mapped->size))
        return true;
    cache_unmap(mapped);
    return false;
}

void cache_unmap(struct mapped *mapped) {
    if (mapped->bytes != NULL) munmap(mapped->bytes, mapped->whole);
    memset(mapped, 0, sizeof *mapped);
}
