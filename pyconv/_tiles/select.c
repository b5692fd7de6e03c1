/* The table of kernels, best first, and which rows of it this processor can run. */
#include "kernels.h"

#if defined(__linux__)
#include <unistd.h>
#endif

#if defined(PYCONV_X86_LEVELS)
#include <cpuid.h>
#endif

#define DECLARE(level)                                                                                                \
    extern const kernels_t kernels_float_##level, kernels_double_##level, kernels_uint32_##level,                     \
        kernels_uint64_##level;
#define ROW(level)                                                                                                    \
    {&kernels_float_##level, &kernels_double_##level, &kernels_uint32_##level, &kernels_uint64_##level}
DECLARE(portable)
#if defined(PYCONV_X86_LEVELS)
DECLARE(avx2)
DECLARE(avx512)
extern const kernels_t kernels_int8_vnni, kernels_uint8_vnni, kernels_pairs_avx2;
#endif

#if defined(PYCONV_X86_LEVELS)
static int converts_halves(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static int runs(int row)
{
#if defined(PYCONV_X86_LEVELS)
    if (row < 2 && !converts_halves())
        return 0;
    if (row == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (row == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)row;
    return 1;
}

const kernels_t *pyconv_kernels(int whole, int itemsize, int which)
{
    static const kernels_t *const table[][4] = {
#if defined(PYCONV_X86_LEVELS)
        ROW(avx512), ROW(avx2),
#endif
        ROW(portable),
    };
    const int rows = sizeof table / sizeof *table;
    for (int row = 0; row < rows; row++)
        if (runs(row) && which-- == 0)
            return table[row][2 * !!whole + (itemsize == 8)];
    return NULL;
}

const kernels_t *pyconv_kernels_of_cells(int itemsize, int is_unsigned, int which)
{
#if defined(PYCONV_X86_LEVELS)
    const kernels_t *level = pyconv_kernels(1, 4, which);
    if (level == &kernels_uint32_avx512 && itemsize == 1 && __builtin_cpu_supports("avx512vnni")
        && __builtin_cpu_supports("avx512vbmi"))
        return is_unsigned ? &kernels_uint8_vnni : &kernels_int8_vnni;
    if (level == &kernels_uint32_avx2 && (itemsize == 1 || (itemsize == 2 && !is_unsigned)))
        return &kernels_pairs_avx2;
#endif
    (void)itemsize, (void)is_unsigned, (void)which;
    return NULL;
}

long pyconv_second_level(void)
{
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return size > 0 ? size : 0;
#else
    return 0;
#endif
}
