/* The kernels for bytes with AVX-512's products of four (VNNI), and its permutations (VBMI): tiles as in avx512.c, a lane
   of which sums four channels. */
#include <immintrin.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* what other ways than these use */

#include "avx512.h"

#define CELL 4
#include "instances.h"
