/* The kernels for AVX2, FMA and F16C, 16 registers: 4 x 3 accumulators, 3 vectors and 1 broadcast fill them. */
#include <immintrin.h>

#include "kernels.h"

#include "avx2.h"

#define CELL 1
#include "instances.h"
