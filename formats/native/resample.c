/* Separable antialiased resampling in 16-bit fixed point. The filter is a
 * triangle as wide as the step between target pixels (at least one source pixel), so downscaling averages all that it
 * drops; at a step of one with whole offsets it is a copy. Values carry 7 fraction bits and weights 15, which keeps the
 * sum within 0.05 of a level of exact arithmetic (tests/formats/test_native_images.py). */
#include "core.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST_TAPS = 2 * HW_MOST_STEP + 2 };

/* The most source pixels one target pixel can touch. */
static int most_taps(double step) {
    double half = step > 1 ? step : 1;
    int taps = (int)floor(2 * half) + 1;
    return taps + (taps & 1);
}

size_t hw_axis_bytes(int targets, double step) {
    return (size_t)targets * (sizeof(int32_t) + (size_t)most_taps(step) * sizeof(int16_t)) + 64;
}

/* Quantise to Q15 so that the sum is exact; what rounding left over goes to the largest weight. */
static void quantise(const double *exact, int count, double total, int16_t *out) {
    int sum = 0, largest = 0;
    int32_t whole[MOST_TAPS];
    for (int t = 0; t < count; t++) {
        whole[t] = (int32_t)lrint(exact[t] / total * 32768);
        sum += whole[t];
        if (whole[t] > whole[largest]) largest = t;
    }
    whole[largest] += 32768 - sum;
    for (int t = 0; t < count; t++) out[t] = (int16_t)(whole[t] > 32767 ? 32767 : whole[t]);
}

/* target = scale * source + shift in full-size pixels; the decoder delivers `sources` pixels at eighths/8 of full size. */
void hw_axis_build(hw_axis *axis, void *memory, int targets, double scale, double shift, int extent, int eighths, int sources) {
    double ratio = eighths / 8.0, step = ratio / fabs(scale), half = step > 1 ? step : 1;
    int room = most_taps(step), widest = 0;
    axis->first = memory;
    axis->weight = (int16_t *)(axis->first + targets);
    axis->begin = targets, axis->end = 0, axis->low = sources, axis->high = 0, axis->copy = 1;
    memset(axis->weight, 0, (size_t)targets * room * sizeof(int16_t));
    for (int o = 0; o < targets; o++) {
        double centre = (o + 0.5 - shift) / scale;
        axis->first[o] = 0;
        if (!(centre >= 0 && centre < extent)) continue;
        if (o < axis->begin) axis->begin = o;
        axis->end = o + 1;
        centre *= ratio;
        int low = (int)ceil(centre - half - 0.5), high = (int)floor(centre + half - 0.5);
        if (low < 0) low = 0;
        if (high > sources - 1) high = sources - 1;
        if (low > high) low = high = low > sources - 1 ? sources - 1 : low;
        double exact[MOST_TAPS], total = 0;
        int count = 0, first = low;
        for (int i = low; i <= high && count < room; i++) {
            double w = 1 - fabs(i + 0.5 - centre) / half;
            if (w < 1e-5 && count == 0 && i < high) { /* nothing yet: start at the next */
                first = i + 1;
                continue;
            }
            if (w < 1e-5 && count > 0) break;
            exact[count++] = w > 1e-5 ? w : 1;
            total += exact[count - 1];
        }
        quantise(exact, count, total, axis->weight + (size_t)o * room);
        axis->first[o] = first;
        if (count > widest) widest = count;
        if (first < axis->low) axis->low = first;
        if (first + count > axis->high) axis->high = first + count;
    }
    if (axis->begin >= axis->end) axis->begin = axis->end = 0, axis->low = axis->high = 0;
    axis->copy = widest <= 1;
    axis->taps = widest <= 1 ? 1 : widest + (widest & 1);
    for (int o = 0; o < targets && axis->taps < room; o++) /* close the gaps: fewer taps were used than could have been */
        memmove(axis->weight + (size_t)o * axis->taps, axis->weight + (size_t)o * room, (size_t)axis->taps * sizeof(int16_t));
}

/* (value << 7) * weight, rounded back to Q7; pmulhrsw in one step, which compilers do not find by themselves. */
#define SCALED(value, weight) ((int16_t)(((int32_t)(int16_t)((value) << 7) * (weight) + 0x4000) >> 15))

static void blend_plain(int16_t *out, const uint8_t *const *rows, const int16_t *weight, int taps, int from, int lanes) {
    for (int k = from; k < lanes; k++) {
        int32_t sum = 0;
        for (int t = 0; t < taps; t++) sum += SCALED(rows[t][k], weight[t]);
        out[k] = (int16_t)sum;
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void blend_avx2(int16_t *out, const uint8_t *const *rows, const int16_t *weight, int taps, int lanes) {
    int k = 0;
    __m256i u = _mm256_set1_epi16(weight[0]), v = _mm256_set1_epi16(weight[1]), w = _mm256_set1_epi16(taps > 2 ? weight[2] : 0);
    const uint8_t *a = rows[0], *b = rows[1], *c = taps > 2 ? rows[2] : rows[1];
#define Q7(p) _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p))), 7)
    for (; k + 16 <= lanes; k += 16) {
        __m256i sum = _mm256_add_epi16(_mm256_mulhrs_epi16(Q7(a + k), u), _mm256_mulhrs_epi16(Q7(b + k), v));
        if (taps > 2) sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(Q7(c + k), w));
        for (int t = 3; t < taps; t++) sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(Q7(rows[t] + k), _mm256_set1_epi16(weight[t])));
        _mm256_storeu_si256((__m256i *)(out + k), sum);
    }
#undef Q7
    blend_plain(out, rows, weight, taps, k, lanes);
}

__attribute__((target("ssse3"))) static void blend_ssse3(int16_t *out, const uint8_t *const *rows, const int16_t *weight, int taps, int lanes) {
    int k = 0;
    for (; k + 8 <= lanes; k += 8) {
        __m128i sum = _mm_setzero_si128();
        for (int t = 0; t < taps; t++) {
            __m128i wide = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(rows[t] + k)), _mm_setzero_si128());
            sum = _mm_add_epi16(sum, _mm_mulhrs_epi16(_mm_slli_epi16(wide, 7), _mm_set1_epi16(weight[t])));
        }
        _mm_storeu_si128((__m128i *)(out + k), sum);
    }
    blend_plain(out, rows, weight, taps, k, lanes);
}
#endif

HW_CLONES static void widen(int16_t *restrict out, const uint8_t *restrict row, int lanes) {
    for (int k = 0; k < lanes; k++) out[k] = (int16_t)(row[k] << 7);
}

void hw_blend_rows(int16_t *out, const uint8_t *const *rows, const int16_t *weight, int taps, int lanes) {
    while (taps > 1 && weight[taps - 1] == 0) taps--;
    if (taps == 1) {
        widen(out, rows[0], lanes);
        return;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        blend_avx2(out, rows, weight, taps, lanes);
        return;
    }
    if (__builtin_cpu_supports("ssse3")) {
        blend_ssse3(out, rows, weight, taps, lanes);
        return;
    }
#endif
    blend_plain(out, rows, weight, taps, 0, lanes);
}

/* Each weight four times over, one for each lane of a pixel. */
void hw_spread_weights(int16_t *wide, const hw_axis *axis) {
    for (long o = (long)axis->begin * axis->taps; o < (long)axis->end * axis->taps; o++)
        for (int lane = 0; lane < 4; lane++) wide[4 * o + lane] = axis->weight[o];
}

static void resample_plain(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin) {
    for (int o = axis->begin; o < axis->end; o++) {
        const int16_t *pixel = row + 4L * (axis->first[o] - origin), *w = wide + 4L * o * axis->taps;
        for (int lane = 0; lane < 4; lane++) {
            int32_t sum = 0;
            for (int t = 0; t < axis->taps; t++) sum += (int16_t)((pixel[4 * t + lane] * w[4 * t + lane] + 0x4000) >> 15);
            out[4L * o + lane] = (int16_t)sum;
        }
    }
}

#if defined(__x86_64__)
/* Two neighbouring pixels are one 16-byte load, so a pair of taps is one multiply; two target pixels share a store. */
__attribute__((target("ssse3"))) static inline __m128i taps_of(const int16_t *row, const hw_axis *axis, const int16_t *wide, int o, int origin) {
    const int16_t *pixel = row + 4L * (axis->first[o] - origin), *w = wide + 4L * o * axis->taps;
    __m128i sum = _mm_mulhrs_epi16(_mm_loadu_si128((const __m128i *)pixel), _mm_loadu_si128((const __m128i *)w));
    for (int t = 2; t < axis->taps; t += 2)
        sum = _mm_add_epi16(sum, _mm_mulhrs_epi16(_mm_loadu_si128((const __m128i *)(pixel + 4 * t)), _mm_loadu_si128((const __m128i *)(w + 4 * t))));
    return sum;
}

__attribute__((target("ssse3"))) static void resample_ssse3(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin) {
    int o = axis->begin;
    for (; o + 2 <= axis->end; o += 2) {
        __m128i a = taps_of(row, axis, wide, o, origin), b = taps_of(row, axis, wide, o + 1, origin);
        _mm_storeu_si128((__m128i *)(out + 4L * o), _mm_add_epi16(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)));
    }
    for (; o < axis->end; o++) {
        __m128i a = taps_of(row, axis, wide, o, origin);
        _mm_storel_epi64((__m128i *)(out + 4L * o), _mm_add_epi16(a, _mm_unpackhi_epi64(a, a)));
    }
}

/* Four taps, the usual case when DCT scaling has done its part: one 32-byte load and one multiply a target pixel. */
__attribute__((target("avx2"))) static void resample_four_avx2(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin) {
    int o = axis->begin;
#define TAPS(o) _mm256_mulhrs_epi16(_mm256_loadu_si256((const __m256i *)(row + 4L * (axis->first[o] - origin))), _mm256_loadu_si256((const __m256i *)(wide + 16L * (o))))
    for (; o + 2 <= axis->end; o += 2) {
        __m256i a = TAPS(o), b = TAPS(o + 1), sum = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        _mm_storeu_si128((__m128i *)(out + 4L * o), _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)));
    }
    for (; o < axis->end; o++) {
        __m256i a = TAPS(o), sum = _mm256_add_epi16(a, _mm256_unpackhi_epi64(a, a));
        _mm_storel_epi64((__m128i *)(out + 4L * o), _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)));
    }
#undef TAPS
}
/* Two taps, where the decoder's picture is as fine as the target: a pair of target pixels a register. */
__attribute__((target("avx2"))) static void resample_two_avx2(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin) {
    int o = axis->begin;
#define PIXELS(o) _mm_loadu_si128((const __m128i *)(row + 4L * (axis->first[o] - origin)))
#define PAIR(o)                                                                                             \
    _mm256_mulhrs_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(PIXELS(o)), PIXELS((o) + 1), 1), \
                        _mm256_loadu_si256((const __m256i *)(wide + 8L * (o))))
    for (; o + 4 <= axis->end; o += 4) {
        __m256i a = PAIR(o), b = PAIR(o + 2), sum = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        _mm256_storeu_si256((__m256i *)(out + 4L * o), _mm256_permute4x64_epi64(sum, 0xd8));
    }
    for (; o < axis->end; o++) {
        __m128i a = _mm_mulhrs_epi16(PIXELS(o), _mm_loadu_si128((const __m128i *)(wide + 8L * o)));
        _mm_storel_epi64((__m128i *)(out + 4L * o), _mm_add_epi16(a, _mm_unpackhi_epi64(a, a)));
    }
#undef PAIR
#undef PIXELS
}
#endif

void hw_resample_row(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin) {
    if (axis->copy) {
        for (int o = axis->begin; o < axis->end; o++) memcpy(out + 4L * o, row + 4L * (axis->first[o] - origin), 8);
        return;
    }
#if defined(__x86_64__)
    if ((axis->taps == 2 || axis->taps == 4) && __builtin_cpu_supports("avx2")) {
        (axis->taps == 4 ? resample_four_avx2 : resample_two_avx2)(out, row, axis, wide, origin);
        return;
    }
    if (__builtin_cpu_supports("ssse3")) {
        resample_ssse3(out, row, axis, wide, origin);
        return;
    }
#endif
    resample_plain(out, row, axis, wide, origin);
}
