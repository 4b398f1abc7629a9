/* The whole runtime, as one file to compile: cc -std=c11 -O2 runtime.c -lpthread.

   -DORTHRUS_PREFIX=name_ gives its functions other names; -DORTHRUS_API='static inline' keeps them to the
   file that includes this one. What models of one process have in common, its pool of threads, is weak and so
   there once. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "package.h"

#include "status.c"
#include "memory.c"
#include "cpu.c"
#include "digest.c"
#include "pool.c"
#include "package.c"
#include "context.c"
