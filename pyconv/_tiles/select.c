/* The table of kernels, best first, and which rows of it this processor can run. */
#include "kernels.h"

#if defined(__linux__)
#include <unistd.h>
#endif

#if defined(PYCONV_X86_LEVELS)
#include <cpuid.h>
#endif

#if defined(PYCONV_MATRICES)
#include <sys/syscall.h>
#endif

#define DECLARE(level)                                                                                                \
    extern const kernels_t kernels_float_##level, kernels_double_##level, kernels_uint32_##level,                     \
        kernels_uint64_##level;
#define ROW(name, level, runs)                                                                                        \
    {name, runs, {&kernels_float_##level, &kernels_double_##level, &kernels_uint32_##level, &kernels_uint64_##level}}
DECLARE(portable)
static int always(void)
{
    return 1;
}
#if defined(PYCONV_X86_LEVELS)
DECLARE(avx2)
DECLARE(avx512)
extern const kernels_t kernels_int8_vnni, kernels_uint8_vnni, kernels_pairs_avx512, kernels_pairs_avx2;

static int converts_halves(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int runs_avx2(void)
{
    return converts_halves() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int runs_avx512(void)
{
    return converts_halves() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

static int multiplies_bytes(void)
{
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
#endif

#if defined(PYCONV_MATRICES)
extern const kernels_t kernels_int8_amx, kernels_uint8_amx, kernels_brain_amx, kernels_sliced_amx;

/* Linux lets a process use registers for matrices once it has asked. */
enum { MAY_HAVE = 0x1021, ASK_FOR = 0x1023, MATRICES = 18 };

static int runs_amx(void)
{
    const unsigned brain_floats = 1u << 22, matrices = 1u << 24, bytes = 1u << 25, all = brain_floats | matrices | bytes;
    unsigned a, b, c, d;
    unsigned long features = 0;
    return runs_avx512() && multiplies_bytes() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all
        && syscall(SYS_arch_prctl, MAY_HAVE, &features) == 0 && (features >> MATRICES & 1);
}

static int is_let_use_matrices(void)
{
    static int answer = -1;
    if (answer < 0)
        answer = syscall(SYS_arch_prctl, ASK_FOR, MATRICES) == 0;
    return answer;
}
#endif

static const struct {
    const char *name;
    int (*runs)(void);
    const kernels_t *kernels[4];
} table[] = {
#if defined(PYCONV_MATRICES)
    ROW("amx", avx512, runs_amx),
#endif
#if defined(PYCONV_X86_LEVELS)
    ROW("avx512", avx512, runs_avx512), ROW("avx2", avx2, runs_avx2),
#endif
    ROW("portable", portable, always),
};

/* The row of the which-th best level, -1 where there are not so many. */
static int row_of(int which)
{
    const int rows = sizeof table / sizeof *table;
    for (int row = 0; row < rows; row++)
        if (table[row].runs() && which-- == 0)
            return row;
    return -1;
}

const char *pyconv_level(int which)
{
    const int row = row_of(which);
    return row < 0 ? NULL : table[row].name;
}

const kernels_t *pyconv_kernels(int whole, int itemsize, int which)
{
    return table[row_of(which)].kernels[2 * !!whole + (itemsize == 8)];
}

const kernels_t *pyconv_kernels_of_cells(int stored, int which, int other)
{
    const kernels_t *found[2] = {NULL, NULL};
    int count = 0;
#if defined(PYCONV_X86_LEVELS)
    const kernels_t *level = pyconv_kernels(1, 4, which);
    const int bytes = stored == STORED_INT8 || stored == STORED_UINT8;
#endif
#if defined(PYCONV_MATRICES)
    if (table[row_of(which)].runs == runs_amx && (bytes || stored == STORED_BRAIN) && is_let_use_matrices())
        found[count++] = stored == STORED_BRAIN ? &kernels_brain_amx
            : stored == STORED_INT8 ? &kernels_int8_amx : &kernels_uint8_amx;
#endif
#if defined(PYCONV_X86_LEVELS)
    if (level == &kernels_uint32_avx512 && bytes && multiplies_bytes())
        found[count++] = stored == STORED_INT8 ? &kernels_int8_vnni : &kernels_uint8_vnni;
    if (level == &kernels_uint32_avx512 && stored == STORED_INT16 && multiplies_bytes())
        found[count++] = &kernels_pairs_avx512;
    if (level == &kernels_uint32_avx2 && (bytes || stored == STORED_INT16))
        found[count++] = &kernels_pairs_avx2;
#endif
    (void)stored, (void)which;
    return other >= 0 && other < count ? found[other] : NULL;
}

const kernels_t *pyconv_kernels_of_slices(int which)
{
#if defined(PYCONV_MATRICES)
    static kernels_t both;
    const kernels_t *level = pyconv_kernels(0, 4, which);
    if (table[row_of(which)].runs == runs_amx && is_let_use_matrices()) {
        both = *level;
        both.ways[GATHER_SLICES] = kernels_sliced_amx.ways[GATHER_SLICES];
        return &both;
    }
#endif
    (void)which;
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
