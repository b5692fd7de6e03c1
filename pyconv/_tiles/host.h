/* What the frame asks of the machine. */
#ifndef PYCONV_HOST_H
#define PYCONV_HOST_H

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

#endif
