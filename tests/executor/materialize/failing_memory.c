/* native.c with a malloc and a calloc that give nothing from the call on which a test names. */

#include <stdlib.h>

static long calls_left = -1;

void fake_memory(long calls) { calls_left = calls; }

static int is_out(void) { return calls_left >= 0 && calls_left-- == 0; }

static void *limited_malloc(size_t size) { return is_out() ? NULL : malloc(size); }

static void *limited_calloc(size_t count, size_t size) { return is_out() ? NULL : calloc(count, size); }

#define malloc limited_malloc
#define calloc limited_calloc

#include NATIVE
