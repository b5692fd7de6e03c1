/* The kernels for AVX2 and FMA, 16 registers: 4 x 3 accumulators, 3 vectors and 1 broadcast fill them. */
#include "kernels.h"

#define LEVEL avx2
#define BYTES 32
#define ROWS 4
#define V8 1
#define V4 3
#define V3 3
#define V2 4
#define V1 8

#define CELL 1
#include "instances.h"
