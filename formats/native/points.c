/* The points codec's decoder: zstd per stream into scratch that stays in the second-level cache, then one pass over the
 * output in tiles that stay in the first: planes to integers, differences to values, values to their places.
 * formats/_point_columns.py says the same in numpy, and tests compare the two on good and on damaged payloads. */
#include "points.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { HEADER = 24, DESCRIPTOR = 16, ENTRY = 5 };
enum { BITS = 0, DECIMAL = 1 };
enum { AS_IS = 0, ZSTD = 1, FILL = 2 };
enum { ONE_FRAME = 1, QUANTISED = 2 };
enum { TILE = 512, MOST_STRIDE = 256, MOST_DIVISOR = (1 << 24) - 1 };
enum { MOST_PLANES = 8, CONTEXTS = 32 };
static const size_t KEPT_SCRATCH = 32u << 20; /* a 10 M point sweep must not pin its memory for good */

typedef struct {
    uint32_t stride, divisor, patches;
    uint8_t transform, stored, plain, zigzag, width; /* width: of the working integers, bytes */
    const uint8_t *stream[MOST_PLANES]; /* planes, or the plain stream */
    const uint8_t *patch;
    uint8_t *history;                   /* the last `stride` integers of the tile before */
} column_plan;

typedef struct {
    ZSTD_DCtx *zstd;
    hw_scratch streams, plans;
} context;

/* Idle contexts, handed out by exchange: making one costs 150 KB of memory and a tenth of a sweep's time. */
static _Atomic(context *) idle[CONTEXTS];

static context *borrow(void) {
    for (int k = 0; k < CONTEXTS; k++) {
        context *found = atomic_exchange(&idle[k], NULL);
        if (found) return found;
    }
    context *made = calloc(1, sizeof *made);
    if (made && (made->zstd = ZSTD_createDCtx()) == NULL) {
        free(made);
        return NULL;
    }
    return made;
}

static void give_back(context *used) {
    if (used->streams.size > KEPT_SCRATCH) hw_release(&used->streams);
    if (used->plans.size > KEPT_SCRATCH) hw_release(&used->plans);
    for (int k = 0; k < CONTEXTS; k++) {
        context *none = NULL;
        if (atomic_compare_exchange_strong(&idle[k], &none, used)) return;
    }
    hw_release(&used->streams);
    hw_release(&used->plans);
    ZSTD_freeDCtx(used->zstd);
    free(used);
}

static uint32_t u32_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int corrupt(char *message, const char *what) {
    snprintf(message, HW_MESSAGE_BYTES, "%s", what);
    return HW_CORRUPT;
}

/* ---- planes to integers, for each working width */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are little-endian; the pure-Python path serves other machines"
#endif

/* Any width and layout, a byte at a time: what the vector loops below leave. */
static void gather_bytes(uint8_t *out, const column_plan *c, size_t from, size_t n) {
    size_t w = c->width, stored = c->stored;
    if (stored == w && (c->plain || w == 1)) {
        memcpy(out, c->stream[0] + from * w, n * w);
        return;
    }
    memset(out, 0, n * w);
    for (size_t k = 0; k < stored; k++) {
        const uint8_t *p = c->plain ? c->stream[0] + from * stored + k : c->stream[k] + from;
        size_t step = c->plain ? stored : 1;
        for (size_t i = 0; i < n; i++) out[i * w + k] = p[i * step];
    }
}

/* Undo zigzag and differences. `at` has the `stride` integers before it in memory. */
#define RESTORE(T)                                                                                                          \
    HW_CLONES static void restore_##T(T *at, const column_plan *c, size_t n) {                                              \
        if (c->zigzag)                                                                                                      \
            for (size_t i = 0; i < n; i++) at[i] = (T)((T)(at[i] >> 1) ^ (T)(0 - (T)(at[i] & 1)));                          \
        if (c->stride == 1) {                                                                                               \
            T sum = at[-1];                                                                                                 \
            for (size_t i = 0; i < n; i++) at[i] = sum = (T)(sum + at[i]);                                                  \
        } else if (c->stride) {                                                                                             \
            for (size_t i = 0; i < n; i += c->stride) {                                                                     \
                size_t end = n - i < c->stride ? n - i : c->stride;                                                         \
                T *restrict to = at + i;                                                                                    \
                const T *restrict by = at + i - c->stride;                                                                  \
                for (size_t j = 0; j < end; j++) to[j] = (T)(to[j] + by[j]);                                                \
            }                                                                                                               \
        }                                                                                                                   \
    }
RESTORE(uint8_t)
RESTORE(uint16_t)
RESTORE(uint32_t)
RESTORE(uint64_t)

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HW_VECTORS 1
#endif
#endif

#ifdef HW_VECTORS
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t words8 __attribute__((vector_size(16)));
typedef uint32_t longs4 __attribute__((vector_size(16)));

static const uint8_t zeros[TILE]; /* the planes that are not stored */

static inline longs4 load16(const void *p) {
    longs4 v;
    memcpy(&v, p, 16);
    return v;
}
#define LOW_BYTES(a, b) (bytes16) __builtin_shufflevector((bytes16)(a), (bytes16)(b), 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_BYTES(a, b) (bytes16) __builtin_shufflevector((bytes16)(a), (bytes16)(b), 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_WORDS(a, b) (longs4) __builtin_shufflevector((words8)(a), (words8)(b), 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_WORDS(a, b) (longs4) __builtin_shufflevector((words8)(a), (words8)(b), 4, 12, 5, 13, 6, 14, 7, 15)

/* Planes of 4-byte integers put together and restored, 16 at a time in registers: what sweeps are made of. Strides from 16
 * on add what was finished before; stride 1 is a prefix sum within each four. Returns how many were done. */
HW_CLONES static size_t restore_planes(uint32_t *at, const column_plan *c, size_t from, size_t n) {
    const uint8_t *p[4];
    for (int k = 0; k < 4; k++) p[k] = k < c->stored ? c->stream[k] + from : zeros;
    size_t i = 0, stride = c->stride;
    uint32_t odd = c->zigzag;
    longs4 sum = {0};
    if (stride == 1) sum = sum + at[-1];
    for (; i + 16 <= n; i += 16) {
        longs4 a = load16(p[0] + i), b = load16(p[1] + i), d = load16(p[2] + i), e = load16(p[3] + i);
        bytes16 low = LOW_BYTES(a, b), high = HIGH_BYTES(a, b), low2 = LOW_BYTES(d, e), high2 = HIGH_BYTES(d, e);
        longs4 v[4] = {LOW_WORDS(low, low2), HIGH_WORDS(low, low2), LOW_WORDS(high, high2), HIGH_WORDS(high, high2)};
        if (odd)
            for (int k = 0; k < 4; k++) v[k] = (v[k] >> 1) ^ (0 - (v[k] & 1));
        if (stride == 1) {
            const longs4 none = {0};
            for (int k = 0; k < 4; k++) {
                v[k] += __builtin_shufflevector(none, v[k], 0, 4, 5, 6);
                v[k] += __builtin_shufflevector(none, v[k], 0, 1, 4, 5);
                v[k] += sum;
                sum = __builtin_shufflevector(v[k], v[k], 3, 3, 3, 3);
            }
        } else if (stride) {
            for (int k = 0; k < 4; k++) v[k] += load16(at + i + 4 * k - stride);
        }
        memcpy(at + i, v, 64);
    }
    return i;
}

/* Planes of 2-byte integers put together; returns how many were. */
HW_CLONES static size_t gather_pairs(uint8_t *at, const column_plan *c, size_t from, size_t n) {
    const uint8_t *p = c->stored > 0 ? c->stream[0] + from : zeros, *q = c->stored > 1 ? c->stream[1] + from : zeros;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        longs4 a = load16(p + i), b = load16(q + i);
        bytes16 v[2] = {LOW_BYTES(a, b), HIGH_BYTES(a, b)};
        memcpy(at + 2 * i, v, 32);
    }
    return i;
}
#endif

/* Make the integers of n points from `from` on, at `at`, which has the `stride` integers before it in memory. */
static void integers(uint8_t *at, const column_plan *c, size_t from, size_t n) {
    size_t done = 0, gathered = 0, w = c->width;
#ifdef HW_VECTORS
    if (w == 4 && !c->plain && (c->stride < 2 || c->stride >= 16)) done = restore_planes((uint32_t *)at, c, from, n);
    else if (w == 2 && !c->plain) gathered = gather_pairs(at, c, from, n);
#endif
    at += done * w, from += done, n -= done;
    gather_bytes(at + gathered * w, c, from + gathered, n - gathered);
    switch (w) {
    case 1: restore_uint8_t(at, c, n); break;
    case 2: restore_uint16_t((uint16_t *)at, c, n); break;
    case 4: restore_uint32_t((uint32_t *)at, c, n); break;
    default: restore_uint64_t((uint64_t *)at, c, n);
    }
}

/* ---- integers to values: in place where the size stays the same */

HW_CLONES static void decimals_f32(float *restrict out, const int32_t *restrict in, uint32_t divisor, size_t n) {
    /* Dividing in single precision gives the same as dividing in double and rounding, if both are exact in it (Figueroa 1995). */
    uint32_t big = 0;
    float by = (float)divisor;
    for (size_t i = 0; i < n; i++) {
        big |= (uint32_t)(in[i] ^ (in[i] >> 31));
        out[i] = (float)in[i] / by;
    }
    if (big >> 24)
        for (size_t i = 0; i < n; i++) out[i] = (float)((double)in[i] / divisor);
}

HW_CLONES static void decimals_f64(double *restrict out, const int32_t *restrict in, uint32_t divisor, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = (double)in[i] / divisor;
}

static float half(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff, out;
    float value;
    if (rest >= 0x7c00) {
        out = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
        out = sign | ((rest << 13) + (112u << 23));
    } else {
        value = (float)rest * 0x1p-24f;
        memcpy(&out, &value, 4);
        out |= sign;
    }
    memcpy(&value, &out, 4);
    return value;
}

#define CAST(T)                                                                                                             \
    for (size_t i = 0; i < n; i++) out[i] = (float)((const T *)in)[i];                                                      \
    break
static void to_float(float *restrict out, const void *restrict in, int kind, int width, size_t n) {
    switch (kind << 8 | width) {
    case 'b' << 8 | 1:
    case 'u' << 8 | 1: CAST(uint8_t);
    case 'u' << 8 | 2: CAST(uint16_t);
    case 'u' << 8 | 4: CAST(uint32_t);
    case 'u' << 8 | 8: CAST(uint64_t);
    case 'i' << 8 | 1: CAST(int8_t);
    case 'i' << 8 | 2: CAST(int16_t);
    case 'i' << 8 | 4: CAST(int32_t);
    case 'i' << 8 | 8: CAST(int64_t);
    case 'f' << 8 | 8: CAST(double);
    case 'f' << 8 | 4: memcpy(out, in, n * 4); break;
    default:
        for (size_t i = 0; i < n; i++) out[i] = half(((const uint16_t *)in)[i]);
    }
}

static void scatter(uint8_t *out, int64_t stride, const void *values, int width, size_t n) {
    if (stride == width) {
        memcpy(out, values, n * (size_t)width);
        return;
    }
    switch (width) {
    case 1:
        for (size_t i = 0; i < n; i++, out += stride) *out = ((const uint8_t *)values)[i];
        break;
    case 2:
        for (size_t i = 0; i < n; i++, out += stride) memcpy(out, (const uint8_t *)values + 2 * i, 2);
        break;
    case 4:
        for (size_t i = 0; i < n; i++, out += stride) memcpy(out, (const uint8_t *)values + 4 * i, 4);
        break;
    default:
        for (size_t i = 0; i < n; i++, out += stride) memcpy(out, (const uint8_t *)values + 8 * i, 8);
    }
}

/* Four columns that lie side by side in the output: transposed in registers, a 16-byte store a point. */
HW_CLONES static void scatter4(uint8_t *out, int64_t stride, const uint32_t *const *values, size_t n) {
    const uint32_t *restrict a = values[0], *restrict b = values[1], *restrict c = values[2], *restrict d = values[3];
    size_t i = 0;
#ifdef HW_VECTORS
    for (; i + 4 <= n; i += 4, out += 4 * stride) {
        longs4 p = load16(a + i), q = load16(b + i), r = load16(c + i), s = load16(d + i);
        longs4 t = __builtin_shufflevector(p, q, 0, 4, 1, 5), u = __builtin_shufflevector(r, s, 0, 4, 1, 5);
        longs4 v = __builtin_shufflevector(p, q, 2, 6, 3, 7), w = __builtin_shufflevector(r, s, 2, 6, 3, 7);
        p = __builtin_shufflevector(t, u, 0, 1, 4, 5), q = __builtin_shufflevector(t, u, 2, 3, 6, 7);
        r = __builtin_shufflevector(v, w, 0, 1, 4, 5), s = __builtin_shufflevector(v, w, 2, 3, 6, 7);
        memcpy(out, &p, 16), memcpy(out + stride, &q, 16), memcpy(out + 2 * stride, &r, 16), memcpy(out + 3 * stride, &s, 16);
    }
#endif
    for (; i < n; i++, out += stride) {
        uint32_t four[4] = {a[i], b[i], c[i], d[i]};
        memcpy(out, four, 16);
    }
}

/* A tile slot is heap memory without a type of its own: integers with `stride` before them, their values, their floats. */
enum { SLOT_BYTES = 8 * (MOST_STRIDE + TILE) + 8 * TILE + 4 * TILE + 320 }; /* no multiple of 4096: slots would share cache sets */

/* Return the values of n points from `from` on, as they go out, in the slot's memory. */
static const void *tile_values(const hw_point_column *to, column_plan *c, uint8_t *slot, size_t from, size_t n) {
    size_t w = c->width, kept = c->stride * w;
    uint8_t *at = slot + 8 * MOST_STRIDE, *values = at + 8 * TILE;
    float *cast = (float *)(values + 8 * TILE);
    memcpy(at - kept, c->history, kept);
    integers(at, c, from, n);
    memcpy(c->history, at + n * w - kept, kept);
    const void *found = at;
    if (c->transform == DECIMAL) {
        found = values;
        if (to->width == 4) decimals_f32((float *)values, (const int32_t *)at, c->divisor, n);
        else decimals_f64((double *)values, (const int32_t *)at, c->divisor, n);
    }
    if (!to->as_float || (to->kind == 'f' && to->width == 4)) return found;
    to_float(cast, found, to->kind, to->width, n);
    return cast;
}

static void write_tile(const hw_point_column *columns, column_plan *plan, uint32_t count, uint8_t *slots, size_t from, size_t n) {
    const uint32_t *values[4];
    for (uint32_t k = 0; k < count;) {
        const hw_point_column *to = &columns[k];
        uint32_t side = 0; /* columns from k on that are 4 bytes wide and side by side */
        while (side < 4 && k + side < count && to[side].wanted && (to[side].width == 4 || to[side].as_float) &&
               to[side].out == to->out + 4 * side && to[side].out_stride == to->out_stride)
            side++;
        uint8_t *out = (uint8_t *)(uintptr_t)to->out + (int64_t)from * to->out_stride;
        if (side == 4) {
            for (int j = 0; j < 4; j++) values[j] = tile_values(&to[j], &plan[k + j], slots + j * SLOT_BYTES, from, n);
            scatter4(out, to->out_stride, values, n);
            k += 4;
        } else {
            if (to->wanted) scatter(out, to->out_stride, tile_values(to, &plan[k], slots, from, n), to->as_float ? 4 : to->width, n);
            k++;
        }
    }
}

static int write_patches(const hw_point_column *to, const column_plan *c, uint32_t points, char *message) {
    const uint8_t *bits = c->patch + (size_t)c->patches * 4;
    for (uint32_t k = 0; k < c->patches; k++, bits += to->width) {
        uint32_t position = u32_at(c->patch + (size_t)k * 4);
        if (position >= points) return corrupt(message, "an exception at a point beyond the last");
        uint8_t *out = (uint8_t *)(uintptr_t)to->out + (int64_t)position * to->out_stride;
        if (to->as_float && to->width == 8) {
            double wide;
            memcpy(&wide, bits, 8);
            float value = (float)wide;
            memcpy(out, &value, 4);
        } else {
            memcpy(out, bits, to->width);
        }
    }
    return HW_OK;
}

/* ---- untrusted sizes */

static int read_descriptor(column_plan *c, const uint8_t *p, const hw_point_column *column, uint32_t points) {
    c->transform = p[0], c->stored = p[1], c->plain = p[2], c->zigzag = p[3];
    c->stride = u32_at(p + 4), c->divisor = u32_at(p + 8), c->patches = u32_at(p + 12);
    c->width = c->transform == DECIMAL ? 4 : column->width;
    if (c->transform == BITS) {
        if (c->divisor || c->patches) return 0;
    } else if (c->transform != DECIMAL || column->kind != 'f' || column->width < 4 || c->divisor == 0 || c->divisor > MOST_DIVISOR) {
        return 0;
    }
    if (c->stored > c->width || c->plain > 1 || c->zigzag > 1 || c->stride > MOST_STRIDE || c->patches > points) return 0;
    return !c->plain || c->stored == 1 || c->stored == 2 || c->stored == 4 || c->stored == 8;
}

/* Decompress exactly one frame that declares exactly `size` bytes. */
static int unframe(ZSTD_DCtx *zstd, void *out, size_t size, const uint8_t *frame, size_t length) {
    if (ZSTD_getFrameContentSize(frame, length) != size || ZSTD_findFrameCompressedSize(frame, length) != length) return 0;
    return ZSTD_decompressDCtx(zstd, out, size, frame, length) == size;
}

static int decode(context *work, const uint8_t *data, size_t size, uint32_t points, const hw_point_column *columns, uint32_t count,
                  char *message) {
    if (size < HEADER || memcmp(data, "HWP", 4) != 0) return corrupt(message, "no header of version 0");
    if (u32_at(data + 4) != points || (data[12] | data[13] << 8) != (int)count || data[14] > (ONE_FRAME | QUANTISED) || data[15])
        return corrupt(message, "a header that was not the one checked");
    int one_frame = data[14] & ONE_FRAME;
    const uint8_t *body = data + HEADER;
    size_t length = size - HEADER, head = (size_t)count * DESCRIPTOR;
    uint8_t *room = NULL;
    if (one_frame) {
        unsigned long long whole = ZSTD_getFrameContentSize(body, length);
        /* No more than every plane and every patch of every column; errors of the call are larger still. */
        if (whole < head || whole > head + 16ull * points * count) return corrupt(message, "a zstd frame of impossible size");
        room = hw_reserve(&work->streams, whole ? whole : 1);
        if (room == NULL) return snprintf(message, HW_MESSAGE_BYTES, "no memory for %llu bytes", whole), HW_NO_MEMORY;
        if (!unframe(work->zstd, room, whole, body, length)) return corrupt(message, "a broken zstd frame");
        body = room, length = whole;
    }
    if (length < head) return corrupt(message, "too few bytes for the column descriptors");

    size_t histories = 0, streams = 0;
    uint8_t *slots = hw_reserve(&work->plans, 4 * SLOT_BYTES + (size_t)count * (sizeof(column_plan) + MOST_STRIDE * 8));
    column_plan *plan = (column_plan *)(slots + 4 * SLOT_BYTES);
    if (slots == NULL) return snprintf(message, HW_MESSAGE_BYTES, "no memory for %u columns", count), HW_NO_MEMORY;
    uint8_t *history = (uint8_t *)(plan + count);
    for (uint32_t k = 0; k < count; k++) {
        if (!read_descriptor(&plan[k], body + (size_t)k * DESCRIPTOR, &columns[k], points))
            return corrupt(message, "a column descriptor unknown to this version");
        plan[k].history = history + histories;
        histories += (size_t)plan[k].stride * plan[k].width;
        streams += (plan[k].plain ? 1 : plan[k].stored) + (plan[k].patches > 0);
    }
    memset(history, 0, histories);

    /* First all sizes, then memory, then bytes. */
    size_t at = head + (one_frame ? 0 : streams * ENTRY), unpacked = 0;
    if (at > length) return corrupt(message, "too few bytes for the stream table");
    for (int pass = one_frame; pass < 2; pass++) {
        const uint8_t *entry = body + head;
        size_t offset = at, filled = 0;
        if (pass && !one_frame) {
            room = hw_reserve(&work->streams, unpacked ? unpacked : 1);
            if (room == NULL) return snprintf(message, HW_MESSAGE_BYTES, "no memory for %zu bytes", unpacked), HW_NO_MEMORY;
        }
        for (uint32_t k = 0; k < count; k++) {
            column_plan *c = &plan[k];
            int planes = c->plain ? 1 : c->stored, wanted = columns[k].wanted;
            for (int s = 0; s < planes + (c->patches > 0); s++) {
                size_t expected = s == planes ? (size_t)c->patches * (4u + columns[k].width) : (size_t)points * (c->plain ? c->stored : 1);
                int mode = one_frame ? AS_IS : entry[0];
                size_t stored = one_frame ? expected : u32_at(entry + 1);
                entry += ENTRY;
                if (mode > FILL || (mode == AS_IS && stored != expected) || (mode == FILL && stored != 1))
                    return corrupt(message, "a stream of a size or mode unknown to this version");
                if (stored > length - offset) return corrupt(message, "streams that end after the payload");
                const uint8_t *stream = body + offset;
                offset += stored;
                if (mode != AS_IS && wanted) {
                    if (pass) {
                        if (mode == FILL) memset(room + filled, stream[0], expected);
                        else if (!unframe(work->zstd, room + filled, expected, stream, stored)) return corrupt(message, "a broken zstd frame");
                        stream = room + filled;
                    }
                    filled += expected;
                }
                if (s == planes) c->patch = stream;
                else c->stream[s] = stream;
            }
        }
        if (offset != length) return corrupt(message, "bytes after the last stream");
        unpacked = filled;
    }
    for (size_t from = 0; from < points; from += TILE) {
        size_t n = points - from < TILE ? points - from : TILE;
        write_tile(columns, plan, count, slots, from, n);
    }
    for (uint32_t k = 0; k < count; k++)
        if (columns[k].wanted && plan[k].patches && write_patches(&columns[k], &plan[k], points, message) != HW_OK) return HW_CORRUPT;
    return HW_OK;
}

int hw_decode_points(const uint8_t *data, size_t size, uint32_t points, const hw_point_column *columns, uint32_t count,
                     char message[HW_MESSAGE_BYTES]) {
    message[0] = 0;
    context *work = borrow();
    if (work == NULL) return snprintf(message, HW_MESSAGE_BYTES, "no memory for a zstd context"), HW_NO_MEMORY;
    int status = decode(work, data, size, points, columns, count, message);
    give_back(work);
    return status;
}
