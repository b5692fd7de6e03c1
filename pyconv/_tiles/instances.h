/* The kernels of body.h of one level for the FLOATS or the WHOLE_NUMBERS that are computed in, or for cells of several
   channels, of which there are CELL: NAME is made of the name, the type, LEVEL. */
#define JOINED(x, real, level) x##_##real##_##level
#define JOIN(x, real, level) JOINED(x, real, level)

#if defined(MATRIX)

#undef CELL
#define CELL 4
#define WHOLE
#define REAL uint32_t
#define MASK int
#define PRODUCTS "tdpbssd"
#define NAME(x) JOIN(x, int8, amx)
#include "body.h"
#undef NAME
#undef PRODUCTS

#define PRODUCTS "tdpbuud"
#define NAME(x) JOIN(x, uint8, amx)
#include "body.h"
#undef NAME
#undef PRODUCTS
#undef REAL
#undef WHOLE
#undef CELL

#define REAL float
#define MASK int
#define PRODUCTS "tdpbf16ps"
#define CELL 2
#define NAME(x) JOIN(x, brain, amx)
#include "body.h"
#undef NAME
#undef CELL

#define CELL 1
#define SLICED
#define NAME(x) JOIN(x, sliced, amx)
#include "body.h"

#elif CELL == 2

#define WHOLE
#define REAL uint32_t
#define MASK int
#define NAME(x) JOIN(x, pairs, LEVEL)
#include "body.h"

#elif CELL == 4

#define WHOLE
#define REAL uint32_t
#define MASK int
#define WEIGHT_IS_SIGNED 1
#define NAME(x) JOIN(x, int8, vnni)
#include "body.h"
#undef NAME
#undef WEIGHT_IS_SIGNED

#define WEIGHT_IS_SIGNED 0
#define NAME(x) JOIN(x, uint8, vnni)
#include "body.h"

#elif defined(FLOATS)

#define REAL float
#define MASK int
#define NAME(x) JOIN(x, float, LEVEL)
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL double
#define HOLDS_WHOLE /* numbers of which sums of 2**53 are exact, so that integers of 16 bits are multiplied as such */
#define MASK long long
#define NAME(x) JOIN(x, double, LEVEL)
#include "body.h"

#else

#define WHOLE
#define REAL uint32_t
#define MASK int
#define NAME(x) JOIN(x, uint32, LEVEL)
#include "body.h"
#undef NAME
#undef MASK
#undef REAL

#define REAL uint64_t
#define MASK long long
#define NAME(x) JOIN(x, uint64, LEVEL)
#include "body.h"

#endif
