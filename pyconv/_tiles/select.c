/* The table of kernels, best first, and which rows of it this processor can run. */
#include "kernels.h"

#define DECLARE(level) extern const kernels_t kernels_float_##level, kernels_double_##level;
DECLARE(portable)
#if defined(PYCONV_X86_LEVELS)
DECLARE(avx2)
DECLARE(avx512)
#endif

static int runs(int row)
{
#if defined(PYCONV_X86_LEVELS)
    if (row == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (row == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)row;
    return 1;
}

const kernels_t *pyconv_kernels(int itemsize, int which)
{
    static const kernels_t *const table[][2] = {
#if defined(PYCONV_X86_LEVELS)
        {&kernels_float_avx512, &kernels_double_avx512},
        {&kernels_float_avx2, &kernels_double_avx2},
#endif
        {&kernels_float_portable, &kernels_double_portable},
    };
    const int rows = sizeof table / sizeof *table;
    for (int row = 0; row < rows; row++)
        if (runs(row) && which-- == 0)
            return table[row][itemsize == 8];
    return NULL;
}
