/* What the frame asks of the machine. */
#ifndef PYCONV_HOST_H
#define PYCONV_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

static inline int pyconv_openmp(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

static inline double pyconv_seconds(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One of `count` numbers that no other thread gets, the least that is left or the greatest; -1 where none is. taken: how
   many of the least were, and above its lower half how many of the greatest. */
static inline ptrdiff_t pyconv_take(uint64_t *taken, ptrdiff_t count, int greatest)
{
    uint64_t seen = __atomic_load_n(taken, __ATOMIC_RELAXED), below, above;
    do {
        below = seen & UINT32_MAX;
        above = seen >> 32;
        if ((ptrdiff_t)(below + above) >= count)
            return -1;
    } while (!__atomic_compare_exchange_n(
        taken, &seen, seen + (greatest ? (uint64_t)1 << 32 : 1), 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return greatest ? count - 1 - (ptrdiff_t)above : (ptrdiff_t)below;
}

#endif
