/* Elements of other types than are computed in, read and written a row at a time. See body.h for the macros.
   A half is converted by the processor where it can; else it is read by shifting its exponent and fraction into a float's
   place, where the float is 2**112 times too small. A brain float is the upper half of a float. Both are rounded to even
   when written. */

#define READ(name, type, real_of)                                                                                     \
    static void NAME(read_##name)(const void *from, index_t step, index_t n, REAL *to)                                \
    {                                                                                                                 \
        const type *cells = from;                                                                                     \
        if (step == 1)                                                                                                \
            for (index_t i = 0; i < n; i++)                                                                           \
                to[i] = real_of(cells[i]);                                                                            \
        else                                                                                                          \
            for (index_t i = 0; i < n; i++)                                                                           \
                to[i] = real_of(cells[i * step]);                                                                     \
    }

#if defined(WHOLE) || defined(HOLDS_WHOLE)

READ(int8, int8_t, (REAL)) READ(uint8, uint8_t, (REAL)) READ(int16, int16_t, (REAL)) READ(uint16, uint16_t, (REAL))

#endif

#ifdef WHOLE

READ(int32, int32_t, (REAL)) READ(uint32, uint32_t, (REAL)) READ(int64, int64_t, (REAL)) READ(uint64, uint64_t, (REAL))

#else

#ifdef __F16C__

static void NAME(read_half)(const void *from, index_t step, index_t n, REAL *to)
{
    const uint16_t *cells = from;
    index_t i = 0;
    for (; step == 1 && sizeof(REAL) == sizeof(float) && i + 8 <= n; i += 8)
        _mm256_storeu_ps((float *)to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(cells + i))));
    for (; i < n; i++)
        to[i] = _cvtsh_ss(cells[i * step]);
}

static void NAME(write_half)(const REAL *from, index_t n, void *to, index_t step, int accumulate)
{
    uint16_t *cells = to;
    index_t i = 0;
    for (; step == 1 && sizeof(REAL) == sizeof(float) && i + 8 <= n; i += 8) {
        __m256 sum = _mm256_loadu_ps((const float *)from + i);
        if (accumulate)
            sum += _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(cells + i)));
        _mm_storeu_si128((__m128i *)(cells + i), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++) {
        REAL sum = from[i];
        if (accumulate)
            sum += _cvtsh_ss(cells[i * step]);
        cells[i * step] = _cvtss_sh((float)sum, _MM_FROUND_TO_NEAREST_INT);
    }
}

#else

static inline float NAME(of_half)(uint16_t half)
{
    union { uint32_t bits; float number; } it = {(uint32_t)(half & 0x7fff) << 13};
    it.number *= 0x1p112f;
    it.bits |= (half & 0x7c00) == 0x7c00 ? 0xffu << 23 : 0; /* an infinity, or a NaN, whose fraction is there */
    it.bits |= (uint32_t)(half & 0x8000) << 16;
    return it.number;
}

/* Below 2**-14 a half has a fixed last place, 2**-24, which adding 2**-1 rounds to; above, 13 of 23 bits drop. Without
   branches, so that loops are made of vectors. */
static inline uint16_t NAME(to_half)(float number)
{
    int32_t whole, low;
    __builtin_memcpy(&whole, &number, sizeof(whole));
    const int32_t bits = whole & 0x7fffffff, small = -(bits < 0x38800000), odd = -(bits > 0x7f800000);
    __builtin_memcpy(&number, &bits, sizeof(number));
    number += 0.5f;
    __builtin_memcpy(&low, &number, sizeof(low));
    const int32_t rounded = (bits + 0xfff + (bits >> 13 & 1) - (112 << 23)) >> 13;
    const int32_t large = (rounded < 0x7c00 ? rounded : 0x7c00) | (odd & 0x200); /* an infinity, or with odd a NaN */
    return (whole >> 16 & 0x8000) | ((low - 0x3f000000) & small) | (large & ~small);
}

#endif

static inline float NAME(of_brain)(uint16_t brain)
{
    const union { uint32_t bits; float number; } it = {(uint32_t)brain << 16};
    return it.number;
}

static inline uint16_t NAME(to_brain)(float number)
{
    const union { float number; uint32_t bits; } it = {number};
    const uint32_t rounded = (it.bits + 0x7fff + (it.bits >> 16 & 1)) >> 16;
    return (it.bits & 0x7fffffff) > 0x7f800000 ? (it.bits >> 16 | 0x40) : rounded;
}

#define WRITE(stored)                                                                                                 \
    static void NAME(write_##stored)(const REAL *from, index_t n, void *to, index_t step, int accumulate)             \
    {                                                                                                                 \
        uint16_t *cells = to;                                                                                         \
        if (accumulate)                                                                                               \
            for (index_t i = 0; i < n; i++, cells += step)                                                            \
                *cells = NAME(to_##stored)(from[i] + NAME(of_##stored)(*cells));                                      \
        else if (step == 1)                                                                                           \
            for (index_t i = 0; i < n; i++)                                                                           \
                cells[i] = NAME(to_##stored)(from[i]);                                                                \
        else                                                                                                          \
            for (index_t i = 0; i < n; i++)                                                                           \
                cells[i * step] = NAME(to_##stored)(from[i]);                                                         \
    }
#ifndef __F16C__
READ(half, uint16_t, NAME(of_half)) WRITE(half)
#endif
READ(brain, uint16_t, NAME(of_brain)) WRITE(brain)
#undef WRITE

#ifdef HOLDS_WHOLE

/* Of 64 bits, to which a sum may have to be added modulo 2**64. */
static void NAME(write_int64)(const REAL *from, index_t n, void *to, index_t step, int accumulate)
{
    uint64_t *cells = to;
    if (accumulate)
        for (index_t i = 0; i < n; i++)
            cells[i * step] += (uint64_t)(int64_t)from[i];
    else if (step == 1)
        for (index_t i = 0; i < n; i++)
            cells[i] = (uint64_t)(int64_t)from[i];
    else
        for (index_t i = 0; i < n; i++)
            cells[i * step] = (uint64_t)(int64_t)from[i];
}

#endif

#endif
#undef READ

static const struct {
    index_t size;
    void (*read)(const void *from, index_t step, index_t n, REAL *to);
    void (*write)(const REAL *from, index_t n, void *to, index_t step, int accumulate);
} NAME(stored)[STORED_TYPES] = {
#ifdef WHOLE
    [STORED_INT8] = {1, NAME(read_int8), NULL}, [STORED_UINT8] = {1, NAME(read_uint8), NULL},
    [STORED_INT16] = {2, NAME(read_int16), NULL}, [STORED_UINT16] = {2, NAME(read_uint16), NULL},
    [STORED_INT32] = {4, NAME(read_int32), NULL}, [STORED_UINT32] = {4, NAME(read_uint32), NULL},
    [STORED_INT64] = {8, NAME(read_int64), NULL}, [STORED_UINT64] = {8, NAME(read_uint64), NULL},
#else
    [STORED_HALF] = {2, NAME(read_half), NAME(write_half)}, [STORED_BRAIN] = {2, NAME(read_brain), NAME(write_brain)},
#ifdef HOLDS_WHOLE
    [STORED_INT8] = {1, NAME(read_int8), NULL}, [STORED_UINT8] = {1, NAME(read_uint8), NULL},
    [STORED_INT16] = {2, NAME(read_int16), NULL}, [STORED_UINT16] = {2, NAME(read_uint16), NULL},
    [STORED_INT64] = {8, NULL, NAME(write_int64)},
#endif
#endif
};

static inline index_t NAME(size_of)(int stored)
{
    return stored == STORED_REAL ? (index_t)sizeof(REAL) : NAME(stored)[stored].size;
}

/* to[0, n) <- cells that lie `step` apart. */
static inline void NAME(read_row)(int stored, const char *from, index_t step, index_t n, REAL *to)
{
    if (stored != STORED_REAL)
        NAME(stored)[stored].read(from, step, n, to);
    else if (step == 1)
        __builtin_memcpy(to, from, n * sizeof(REAL));
    else
        for (index_t i = 0; i < n; i++)
            to[i] = ((const REAL *)from)[i * step];
}

/* Cells `step` apart (+)= from[0, n). */
static void NAME(write_row)(int stored, const void *from, index_t n, void *to, index_t step, int accumulate)
{
    if (stored != STORED_REAL)
        NAME(stored)[stored].write(from, n, to, step, accumulate);
    else
        NAME(store_run)((REAL *)to, step, from, n, 0, accumulate);
}

/* A product with zero is zero unless the factor is NaN or infinite: then all bits of its exponent are set. */
static int NAME(finite_stored)(int stored, index_t n, const void *from, int small)
{
    const uint16_t *cells = from, exponent = stored == STORED_HALF ? 0x7c00 : 0x7f80;
    const uint16_t least = small && stored != STORED_HALF ? (127 + 32) << 7 : exponent;
    int odd = 0;
    if (stored == STORED_REAL)
        return NAME(finite)(n, from, small);
    for (index_t i = 0; i < n; i++)
        odd |= (cells[i] & exponent) >= least;
    return !odd;
}

static void NAME(see)(index_t n, const void *from, seen_t *seen)
{
    uint32_t least = seen->least, greatest = seen->greatest;
#if CELL == 2 && !defined(WHOLE)
    const uint16_t *numbers = from;
    const int shift = 17;
#else
    typedef uint32_t bits __attribute__((may_alias));
    const bits *numbers = from;
    const int shift = 1;
#endif
    for (index_t i = 0; i < n; i++) {
        const uint32_t twice = (uint32_t)numbers[i] << shift, less = twice - 1;
        least = less < least ? less : least;
        greatest = twice > greatest ? twice : greatest;
    }
    seen->least = least;
    seen->greatest = greatest;
}
