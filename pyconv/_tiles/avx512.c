/* The kernels for AVX-512 (F, VL, DQ, BW) and F16C, 32 registers: 8 x 3 sums, 3 vectors and 1 broadcast are 28. */
#include <immintrin.h>

#include "kernels.h"

#include "avx512.h"

#define CELL 1
#include "instances.h"
