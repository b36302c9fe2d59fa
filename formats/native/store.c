/* From Q7 pixels to the batch: normalise, convert to the batch's number type, lay out as planes or interleaved. */
#include "core.h"

#include <string.h>

static inline uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* to nearest, ties to even */
}

/* IEEE half, to nearest even, without a branch so that it vectorises. Below 2^-14 adding 0.5 leaves exactly the
 * half-precision subnormal in the low bits, rounded by the adder. */
static inline uint16_t to_f16(float value) {
    uint32_t bits, small, normal, sign;
    float magnitude;
    memcpy(&bits, &value, 4);
    sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    memcpy(&small, &magnitude, 4);
    small -= 0x3f000000;
    normal = (bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
    normal = bits < 0x38800000 ? small : normal;
    normal = bits >= 0x477ff000 ? 0x7c00 : normal;
    return (uint16_t)(normal | sign);
}

static inline uint8_t to_u8(float value) {
    value = value < 0 ? 0 : value > 255 ? 255 : value;
    return (uint8_t)(value + 0.5f);
}

static inline float to_f32(float value) { return value; }

/* The store loops, one a type: planes (a separate pointer a channel, step 1) and interleaved (step 3). */
#define STORE(name, type, convert)                                                                                              \
    HW_CLONES static void name##_planes(type *restrict r, type *restrict g, type *restrict b, const int16_t *restrict q, int n, \
                                        const float *s, const float *o) {                                                       \
        float s0 = s[0] / 128, s1 = s[1] / 128, s2 = s[2] / 128, o0 = o[0], o1 = o[1], o2 = o[2];                               \
        for (int k = 0; k < n; k++) {                                                                                           \
            r[k] = convert(q[4 * k] * s0 + o0);                                                                                 \
            g[k] = convert(q[4 * k + 1] * s1 + o1);                                                                             \
            b[k] = convert(q[4 * k + 2] * s2 + o2);                                                                             \
        }                                                                                                                       \
    }                                                                                                                           \
    HW_CLONES static void name##_mixed(type *restrict out, const int16_t *restrict q, int n, const float *s, const float *o) {  \
        float s0 = s[0] / 128, s1 = s[1] / 128, s2 = s[2] / 128, o0 = o[0], o1 = o[1], o2 = o[2];                               \
        for (int k = 0; k < n; k++) {                                                                                           \
            out[3 * k] = convert(q[4 * k] * s0 + o0);                                                                           \
            out[3 * k + 1] = convert(q[4 * k + 1] * s1 + o1);                                                                   \
            out[3 * k + 2] = convert(q[4 * k + 2] * s2 + o2);                                                                   \
        }                                                                                                                       \
    }

STORE(f32, float, to_f32)
STORE(f16, uint16_t, to_f16)
STORE(bf16, uint16_t, to_bf16)
STORE(u8, uint8_t, to_u8)

/* Plain 8-bit pixels: a rounding shift, no float. */
HW_CLONES static void pixels_planes(uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, const int16_t *restrict q, int n) {
    for (int k = 0; k < n; k++) {
        r[k] = (uint8_t)((q[4 * k] + 64) >> 7);
        g[k] = (uint8_t)((q[4 * k + 1] + 64) >> 7);
        b[k] = (uint8_t)((q[4 * k + 2] + 64) >> 7);
    }
}

HW_CLONES static void pixels_mixed(uint8_t *restrict out, const int16_t *restrict q, int n) {
    for (int k = 0; k < n; k++) {
        out[3 * k] = (uint8_t)((q[4 * k] + 64) >> 7);
        out[3 * k + 1] = (uint8_t)((q[4 * k + 1] + 64) >> 7);
        out[3 * k + 2] = (uint8_t)((q[4 * k + 2] + 64) >> 7);
    }
}

static int item_bytes(const hw_spec *spec) { return spec->dtype == HW_U8 ? 1 : spec->dtype == HW_F32 ? 4 : 2; }

static int untouched(const hw_spec *spec) {
    for (int c = 0; c < 3; c++)
        if (spec->scale[c] != 1 || spec->offset[c] != 0) return 0;
    return 1;
}

void hw_store_row(const hw_spec *spec, uint64_t out, int y, int begin, int end, const int16_t *row) {
    int n = end - begin, size = item_bytes(spec);
    const float *s = spec->scale, *o = spec->offset;
    char *at = (char *)(uintptr_t)out + y * spec->row_bytes + (int64_t)begin * size * (spec->layout == HW_HWC ? 3 : 1);
    const int16_t *q = row + 4L * begin;
    if (n <= 0) return;
    if (spec->layout == HW_CHW) {
        char *g = at + spec->plane_bytes, *b = g + spec->plane_bytes;
        switch (spec->dtype) {
        case HW_F32: f32_planes((float *)at, (float *)g, (float *)b, q, n, s, o); break;
        case HW_F16: f16_planes((uint16_t *)at, (uint16_t *)g, (uint16_t *)b, q, n, s, o); break;
        case HW_BF16: bf16_planes((uint16_t *)at, (uint16_t *)g, (uint16_t *)b, q, n, s, o); break;
        default:
            if (untouched(spec)) pixels_planes((uint8_t *)at, (uint8_t *)g, (uint8_t *)b, q, n);
            else u8_planes((uint8_t *)at, (uint8_t *)g, (uint8_t *)b, q, n, s, o);
        }
        return;
    }
    switch (spec->dtype) {
    case HW_F32: f32_mixed((float *)at, q, n, s, o); break;
    case HW_F16: f16_mixed((uint16_t *)at, q, n, s, o); break;
    case HW_BF16: bf16_mixed((uint16_t *)at, q, n, s, o); break;
    default:
        if (untouched(spec)) pixels_mixed((uint8_t *)at, q, n);
        else u8_mixed((uint8_t *)at, q, n, s, o);
    }
}

/* Planes; the general loop is a store a pixel. */
static void fill_words(uint32_t *at, const void *item, int count) {
    uint32_t value;
    memcpy(&value, item, sizeof value);
    for (int k = 0; k < count; k++) at[k] = value;
}

static void fill_halves(uint16_t *at, const void *item, int count) {
    uint16_t value;
    memcpy(&value, item, sizeof value);
    for (int k = 0; k < count; k++) at[k] = value;
}

void hw_fill_row(const hw_spec *spec, uint64_t out, int y, int begin, int end) {
    int size = item_bytes(spec);
    for (int c = 0; c < 3; c++) {
        float value = spec->pad[c] * spec->scale[c] + spec->offset[c];
        uint8_t small = to_u8(value);
        uint16_t half = spec->dtype == HW_F16 ? to_f16(value) : to_bf16(value);
        const void *item = spec->dtype == HW_U8 ? (void *)&small : spec->dtype == HW_F32 ? (void *)&value : (void *)&half;
        int step = spec->layout == HW_HWC ? 3 * size : size;
        char *at = (char *)(uintptr_t)out + y * spec->row_bytes + (int64_t)begin * step;
        at += spec->layout == HW_HWC ? c * size : c * spec->plane_bytes;
        if (step == 4) fill_words((uint32_t *)at, item, end - begin);
        else if (step == 2) fill_halves((uint16_t *)at, item, end - begin);
        else
            for (int k = begin; k < end; k++, at += step) memcpy(at, item, size);
    }
}

void hw_zero_image(const hw_spec *spec, uint64_t out) {
    int size = item_bytes(spec), hwc = spec->layout == HW_HWC;
    for (int c = 0; c < (hwc ? 1 : 3); c++)
        for (int y = 0; y < spec->height; y++)
            memset((char *)(uintptr_t)out + c * spec->plane_bytes + y * spec->row_bytes, 0, (size_t)spec->width * size * (hwc ? 3 : 1));
}
