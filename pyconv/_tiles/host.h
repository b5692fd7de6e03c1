/* What the frame asks of the machine. */
#ifndef PYCONV_HOST_H
#define PYCONV_HOST_H

#include <stddef.h>
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

/* A number that no other thread gets: from 0 on, and not far beyond `end`, where there are no more. */
static inline ptrdiff_t pyconv_take(ptrdiff_t *next, ptrdiff_t end)
{
    const ptrdiff_t seen = __atomic_load_n(next, __ATOMIC_RELAXED); /* cheaper than to take one in vain */
    return seen < end ? __atomic_fetch_add(next, 1, __ATOMIC_RELAXED) : seen;
}

#endif
