/* Bilinear samples of a canvas along slanted lines, in 16-bit fixed point: what a rotated picture needs once its
 * upright part is there. Positions are within 2^-12 of a pixel; the plain body and the AVX2 one give equal bits, which
 * tests/sanitize_driver.c compares. */
#include "core.h"

#include <math.h>

#if defined(__x86_64__) && !defined(HW_PLAIN)
#include <immintrin.h>
#endif

enum { ONE = 1 << 15, GROUP = 8 };

static int within(const double start[2], const double step[2], const double low[2], const double high[2], int o) {
    double x = start[0] + (o + 0.5) * step[0], y = start[1] + (o + 0.5) * step[1];
    return x >= low[0] && x < high[0] && y >= low[1] && y < high[1];
}

/* The samples o with start + (o + 0.5) * step inside [low, high): on a line they are one run, perhaps an empty one. */
void hw_slant_run(const double start[2], const double step[2], const double low[2], const double high[2], int targets, int *begin, int *end) {
    double first = 0, past = targets;
    for (int k = 0; k < 2; k++) {
        if (fabs(step[k]) < 1e-12) continue; /* the exact test below decides */
        double a = (low[k] - start[k]) / step[k] - 0.5, b = (high[k] - start[k]) / step[k] - 0.5;
        first = fmax(first, fmin(a, b)), past = fmin(past, fmax(a, b));
    }
    int from = first < targets ? (int)first : targets, to = past > 0 ? (int)past : 0;
    /* Rounding may have moved either end by one. */
    from = from > 1 ? from - 1 : 0, to = to + 2 < targets ? to + 2 : targets;
    if (to < from) to = from;
    while (from < to && !within(start, step, low, high, from)) from++;
    while (to > from && !within(start, step, low, high, to - 1)) to--;
    *begin = from, *end = to;
}

/* A position, or a step, in units of ONE with 16 more bits. */
static int64_t fixed(double value) { return (int64_t)llrint(value * ONE * 65536); }

static inline int32_t held(int32_t at, int32_t most) { return at < 0 ? 0 : at > most ? most : at; }

static inline int16_t part(int value, int weight) { return (int16_t)((value * weight + ONE / 2) >> 15); }

/* Up to eight samples; down between two rows, then across. */
static void sample_plain(int16_t *out, const hw_canvas *c, const int32_t at[2], const int32_t step[2], int count) {
    int32_t right = (c->columns - 1) * ONE, bottom = (c->rows - 1) * ONE;
    for (int n = 0; n < count; n++) {
        int32_t x = held(at[0] + n * step[0], right), y = held(at[1] + n * step[1], bottom), fx = x & (ONE - 1), fy = y & (ONE - 1);
        const int16_t *above = c->pixels + 4 * ((int64_t)(y >> 15) * (c->columns + 1) + (x >> 15)), *below = above + 4 * ((int64_t)c->columns + 1);
        for (int lane = 0; lane < 4; lane++) {
            int near = above[lane] + part(below[lane] - above[lane], fy), far = above[4 + lane] + part(below[4 + lane] - above[4 + lane], fy);
            out[4 * n + lane] = (int16_t)(part(near, ONE - 1 - fx) + part(far, fx));
        }
    }
}

#if defined(__x86_64__) && !defined(HW_PLAIN)
/* Byte pairs 2 * k and 2 * l of a lane, four times each. */
#define PAIRS(k, l)                                                                                                                                  \
    _mm256_setr_epi8(2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, 2 * (l), 2 * (l) + 1, 2 * (l), 2 * (l) + 1, \
                     2 * (l), 2 * (l) + 1, 2 * (l), 2 * (l) + 1, 2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, 2 * (k), 2 * (k) + 1, \
                     2 * (l), 2 * (l) + 1, 2 * (l), 2 * (l) + 1, 2 * (l), 2 * (l) + 1, 2 * (l), 2 * (l) + 1)

/* Four samples of neighbouring pixels; `which` picks their weights of eight. */
__attribute__((target("avx2"))) static inline void four_avx2(int16_t *out, const int16_t *above, const int16_t *below, __m256i near, __m256i far,
                                                            __m256i down, __m256i which) {
    __m256i a = _mm256_loadu_si256((const __m256i *)above), b = _mm256_loadu_si256((const __m256i *)(above + 4));
    down = _mm256_permutevar8x32_epi32(down, which);
    a = _mm256_add_epi16(a, _mm256_mulhrs_epi16(_mm256_sub_epi16(_mm256_loadu_si256((const __m256i *)below), a), down));
    b = _mm256_add_epi16(b, _mm256_mulhrs_epi16(_mm256_sub_epi16(_mm256_loadu_si256((const __m256i *)(below + 4)), b), down));
    a = _mm256_mulhrs_epi16(a, _mm256_permutevar8x32_epi32(near, which)), b = _mm256_mulhrs_epi16(b, _mm256_permutevar8x32_epi32(far, which));
    _mm256_storeu_si256((__m256i *)out, _mm256_add_epi16(a, b));
}

/* Eight samples; a register holds two neighbours of sample n in its lower half and of n + 4 in its upper. */
__attribute__((target("avx2"))) static inline void sample_avx2(int16_t *out, const hw_canvas *c, const int32_t at[2], const int32_t step[2]) {
    const __m256i count = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), zero = _mm256_setzero_si256(), fraction = _mm256_set1_epi32(ONE - 1);
    __m256i x = _mm256_add_epi32(_mm256_set1_epi32(at[0]), _mm256_mullo_epi32(_mm256_set1_epi32(step[0]), count));
    __m256i y = _mm256_add_epi32(_mm256_set1_epi32(at[1]), _mm256_mullo_epi32(_mm256_set1_epi32(step[1]), count));
    x = _mm256_min_epi32(_mm256_max_epi32(x, zero), _mm256_set1_epi32((c->columns - 1) * ONE));
    y = _mm256_min_epi32(_mm256_max_epi32(y, zero), _mm256_set1_epi32((c->rows - 1) * ONE));
    __m256i fx = _mm256_and_si256(x, fraction), down = _mm256_and_si256(y, fraction), stride = _mm256_set1_epi32(c->columns + 1);
    __m256i place = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(y, 15), stride), _mm256_srli_epi32(x, 15));
    const int16_t *first = c->pixels, *second = first + 4 * ((int64_t)c->columns + 1);
    uint32_t lower = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(place)), upper = (uint32_t)_mm_cvtsi128_si32(_mm256_extracti128_si256(place, 1));
    _mm_prefetch((const char *)(second + 4 * ((size_t)lower + c->columns + 1)), _MM_HINT_T0); /* the next target row goes on there */
    __m256i rows = _mm256_add_epi32(_mm256_shuffle_epi32(place, 0), _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3));
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(place, rows)) == -1) { /* fours of neighbours: with little rotation, most are */
        __m256i far = _mm256_or_si256(fx, _mm256_slli_epi32(fx, 16)), near = _mm256_sub_epi16(_mm256_set1_epi16(ONE - 1), far);
        down = _mm256_or_si256(down, _mm256_slli_epi32(down, 16));
        four_avx2(out, first + 4 * (size_t)lower, second + 4 * (size_t)lower, near, far, down, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        four_avx2(out + 16, first + 4 * (size_t)upper, second + 4 * (size_t)upper, near, far, down, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
        return;
    }
    uint32_t pixel[GROUP] __attribute__((aligned(32)));
    _mm256_store_si256((__m256i *)pixel, place);
    __asm__("" : "+m"(pixel)); /* or the compiler takes the numbers out of the register one by one, which is slower */
    __m256i across = _mm256_or_si256(_mm256_sub_epi32(fraction, fx), _mm256_slli_epi32(fx, 16));
#define TWO(row, n)                                                                                                                  \
    _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)((row) + 4 * (size_t)pixel[n]))),                \
                            _mm_loadu_si128((const __m128i *)((row) + 4 * (size_t)pixel[(n) + 4])), 1)
#define SAMPLE(name, n)                                                                                                              \
    __m256i name = TWO(first, n);                                                                                                    \
    name = _mm256_add_epi16(name, _mm256_mulhrs_epi16(_mm256_sub_epi16(TWO(second, n), name), _mm256_shuffle_epi8(down, PAIRS(2 * (n), 2 * (n))))); \
    name = _mm256_mulhrs_epi16(name, _mm256_shuffle_epi8(across, PAIRS(2 * (n), 2 * (n) + 1)))
#define SUM(a, b, n)                                                                                                                 \
    do {                                                                                                                             \
        __m256i sum = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));                                    \
        _mm_storeu_si128((__m128i *)(out + 4 * (n)), _mm256_castsi256_si128(sum));                                                   \
        _mm_storeu_si128((__m128i *)(out + 4 * (n) + 16), _mm256_extracti128_si256(sum, 1));                                         \
    } while (0)
    SAMPLE(a, 0);
    SAMPLE(b, 1);
    SUM(a, b, 0);
    SAMPLE(e, 2);
    SAMPLE(f, 3);
    SUM(e, f, 2);
#undef SUM
#undef SAMPLE
#undef TWO
}

__attribute__((target("avx2"))) static int samples_avx2(int16_t *out, const hw_canvas *c, int64_t at[2], const int64_t step[2], int begin, int end) {
    const int32_t by[2] = {(int32_t)(step[0] >> 16), (int32_t)(step[1] >> 16)};
    int o = begin;
    for (; o + GROUP <= end; o += GROUP, at[0] += GROUP * step[0], at[1] += GROUP * step[1]) {
        int32_t from[2] = {(int32_t)(at[0] >> 16), (int32_t)(at[1] >> 16)};
        sample_avx2(out + 4L * o, c, from, by);
    }
    return o;
}
#endif

/* Samples begin ... end - 1 of the line, which must lie inside; near the border the nearest pixels stand for those beyond. */
void hw_slant_row(int16_t *out, const hw_canvas *c, const double start[2], const double step[2], int begin, int end) {
    if (begin == end) return;
    int64_t at[2], each[2];
    /* Two samples inside are less than a canvas apart; the step of a lone one is never used. */
    for (int k = 0; k < 2; k++) at[k] = fixed(start[k] + (begin + 0.5) * step[k] - 0.5), each[k] = end - begin > 1 ? fixed(step[k]) : 0;
    int o = begin;
#if defined(__x86_64__) && !defined(HW_PLAIN)
    if (__builtin_cpu_supports("avx2")) o = samples_avx2(out, c, at, each, begin, end);
#endif
    for (; o < end; o += GROUP, at[0] += GROUP * each[0], at[1] += GROUP * each[1]) {
        int32_t from[2] = {(int32_t)(at[0] >> 16), (int32_t)(at[1] >> 16)}, by[2] = {(int32_t)(each[0] >> 16), (int32_t)(each[1] >> 16)};
        sample_plain(out + 4L * o, c, from, by, end - o < GROUP ? end - o : GROUP);
    }
}
