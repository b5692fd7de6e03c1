/* The kernels for AVX-512 (F, VL, DQ, BW), 32 registers: 8 x 3 accumulators, 3 vectors and 1 broadcast are 28. */
#include "kernels.h"

#define LEVEL avx512
#define BYTES 64
#define ROWS 8
#define V8 3
#define V4 6
#define V3 7
#define V2 8
#define V1 8

#define CELL 1
#include "instances.h"
