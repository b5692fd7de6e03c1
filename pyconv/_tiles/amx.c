/* The kernels for bytes and for brain floats with AMX's products of matrices; all else as in avx512.c. */
#include <immintrin.h>

#include "kernels.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* what other ways than these use */

#include "avx512.h"

#define MATRIX
#include "instances.h"
