/* The kernels for pairs of 16 bits with AVX2's sums of two products, so that a lane sums two channels; tiles as in avx2.c.
   4 x 3 accumulators, 2 vectors, 1 broadcast and 1 sum of two products fill the 16 registers; the third vector is an
   operand in memory (see tile.h). */
#include <immintrin.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* what other ways than these use */

#include "avx2.h"

#define CELL 2
#include "instances.h"
