/* The native core without Python: what an image job says, what a decode answers, and the few functions between the
 * files. Everything here may run on any thread without the GIL; tests/sanitize.py builds exactly these files alone. */
#ifndef HEADWAY_CORE_H
#define HEADWAY_CORE_H

#include <stddef.h>
#include <stdint.h>

/* One body, two machine variants, chosen at load time. Only glibc resolves such functions, and only where the compiler
 * can make them; elsewhere the plain body is used. ("arch=haswell" would be chosen on that very processor only.)
 * -ffp-contract=off keeps both bit-equal. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(HW_NO_CLONES)
#define HW_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define HW_CLONES
#endif

enum { HW_MESSAGE_BYTES = 128 };
enum { HW_MOST_STEP = 64 }; /* decoded pixels between two target pixels; the decoder has shrunk by up to 8 before */
enum { HW_CHW = 0, HW_HWC = 1 };
enum { HW_U8 = 0, HW_F16 = 1, HW_BF16 = 2, HW_F32 = 3 };
enum { HW_CHECK_HASH = 1, HW_FULL_SIZE = 2, HW_PLAIN_HUFFMAN = 4 };

/* The int8 status of a job; formats/kernel.py names them for Python. */
enum {
    HW_OK = 0,
    HW_WARNING = 1,  /* decoded; the message says what was odd */
    HW_CORRUPT = 2,  /* not decodable, or data missing: the output is zero-filled */
    HW_LIMIT = 3,    /* refused: pixels, scans, memory or time above the limits */
    HW_MISMATCH = 4, /* the bytes are not those the hash was taken of */
    HW_REQUEST = 5,  /* the job itself cannot be meant (singular affine, zero size) */
    HW_NO_MEMORY = 6,
    HW_CANCELLED = 7,
    HW_PENDING = -1,
};

/* How one group of images is to look. Python's kernel.SPEC has the same layout; submit() checks the size. */
typedef struct {
    int32_t width, height;            /* of the target, px */
    int32_t layout, dtype;            /* HW_CHW..., HW_U8... */
    int64_t row_bytes, plane_bytes;   /* from a row to the next; from a channel's plane to the next (CHW) */
    float scale[3], offset[3];        /* stored value = pixel (0..255) * scale + offset */
    float pad[3];                     /* pixel value outside the image, before scale and offset */
    int32_t max_scans;                /* of a progressive file */
    int64_t max_pixels;               /* declared width * height */
    int64_t max_bytes;                /* of working memory: coefficients of a multi-scan file, scratch of a rotation */
    int64_t max_cpu_ms;               /* of one image */
} hw_spec;

typedef struct {
    uint64_t data, length;            /* address and size of the encoded bytes */
    uint64_t hash;                    /* xxh3-64 of them, if HW_CHECK_HASH */
    uint64_t out;                     /* address of the target's first element */
    double affine[6];                 /* source px -> target px, row-major 2x3, pixel centres at +0.5 */
    uint32_t spec, flags;
} hw_image;

typedef struct {
    uint64_t source, length;          /* bytes to copy */
    uint64_t hash;                    /* xxh3-64 of them, if HW_CHECK_HASH; checked on the copy */
    uint64_t out, room;               /* bytes at `out`: what the copy leaves is set to `fill` */
    uint32_t fill, flags;
} hw_copy;

/* Working memory of one thread, grown on demand and reused over images. */
typedef struct {
    unsigned char *block;
    size_t size;
    struct hw_huffman *huffman;       /* tables and bytes of the entropy decoder */
} hw_scratch;

void *hw_reserve(hw_scratch *scratch, size_t bytes);
void hw_release(hw_scratch *scratch);

int hw_decode_image(const hw_spec *spec, const hw_image *job, char message[HW_MESSAGE_BYTES], hw_scratch *scratch);
int hw_copy_bytes(const hw_copy *job, char message[HW_MESSAGE_BYTES]);
uint64_t hw_xxh3(const void *data, size_t length);
uint64_t hw_xxh3_copy(void *out, const void *data, size_t length); /* of the copy, made as it is hashed */

/* Resampling along one axis: target pixel o = sum over t of source[first[o] + t] * weight[o * taps + t] / 32768. */
typedef struct {
    int begin, end;                   /* target pixels whose centre lies inside the image; the rest is padding */
    int low, high;                    /* source pixels read: [low, high) */
    int taps;                         /* 1, or even */
    int copy;                         /* each target pixel is one source pixel, unchanged */
    int32_t *first;                   /* by target pixel; valid in [begin, end) */
    int16_t *weight;                  /* Q15, sums to 32768 (32767 for a lone tap) */
} hw_axis;

/* Rows hold 4 lanes a pixel (R G B unused): u8 from the decoder, int16 with 7 fraction bits (Q7) after blending. */
size_t hw_axis_bytes(int targets, double step);
void hw_axis_build(hw_axis *axis, void *memory, int targets, double scale, double shift, int extent, int eighths, int sources);
void hw_blend_rows(int16_t *out, const uint8_t *const *rows, const int16_t *weight, int taps, int lanes);
void hw_resample_row(int16_t *out, const int16_t *row, const hw_axis *axis, const int16_t *wide, int origin);
void hw_spread_weights(int16_t *wide, const hw_axis *axis);

/* An upright picture that slanted lines are sampled from: Q7, 4 lanes. A row is a pixel and the picture a row larger than
 * it says, read with weight 0. */
typedef struct {
    int16_t *pixels;
    int columns, rows;                /* columns * rows fits int32, either times 32768 too */
} hw_canvas;

void hw_slant_run(const double start[2], const double step[2], const double low[2], const double high[2], int targets, int *begin, int *end);
void hw_slant_row(int16_t *out, const hw_canvas *canvas, const double start[2], const double step[2], int begin, int end);

/* Writing Q7 pixels to the batch: normalised, converted, laid out. */
void hw_store_row(const hw_spec *spec, uint64_t out, int y, int begin, int end, const int16_t *row);
void hw_fill_row(const hw_spec *spec, uint64_t out, int y, int begin, int end);
void hw_zero_image(const hw_spec *spec, uint64_t out);

#endif
