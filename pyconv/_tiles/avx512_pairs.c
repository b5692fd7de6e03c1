/* The kernels for pairs of 16 bits with AVX-512's sums of two products (VNNI), so that a lane sums two channels; tiles as
   in avx512.c. */
#include <immintrin.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* what other ways than these use */

#include "avx512.h"

#define CELL 2
#include "instances.h"
