/* The kernels for AVX2 and FMA, 16 registers: 4 x 3 accumulators, 3 vectors and 1 broadcast fill them. */
#include "kernels.h"

#define LEVEL "avx2"
#define BYTES 32
#define ROWS 4
#define V8 1
#define V4 3
#define V2 4
#define V1 8

#define REAL float
#define MASK int
#define NAME(x) x##_float_avx2
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL double
#define MASK long long
#define NAME(x) x##_double_avx2
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define WHOLE
#define REAL uint32_t
#define MASK int
#define NAME(x) x##_uint32_avx2
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL uint64_t
#define MASK long long
#define NAME(x) x##_uint64_avx2
#include "body.h"
