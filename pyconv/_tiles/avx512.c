/* The kernels for AVX-512 (F, VL, DQ, BW), 32 registers: 8 x 3 accumulators, 3 vectors and 1 broadcast are 28. */
#include "kernels.h"

#define LEVEL "avx512"
#define BYTES 64
#define ROWS 8
#define V8 3
#define V4 6
#define V2 8
#define V1 8

#define REAL float
#define MASK int
#define NAME(x) x##_float_avx512
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL double
#define MASK long long
#define NAME(x) x##_double_avx512
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define WHOLE
#define REAL uint32_t
#define MASK int
#define NAME(x) x##_uint32_avx512
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL uint64_t
#define MASK long long
#define NAME(x) x##_uint64_avx512
#include "body.h"
