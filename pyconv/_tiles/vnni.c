/* The kernels for bytes with AVX-512's products of four (VNNI), and its permutations (VBMI): tiles as in avx512.c, a lane
   of which sums four channels. */
#include <immintrin.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* what other ways than these use */

#define LEVEL avx512
#define BYTES 64
#define ROWS 8
#define V8 3
#define V4 6
#define V3 7
#define V2 8
#define V1 8

#define CELL 4
#include "instances.h"
