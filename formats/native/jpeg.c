/* One JPEG into its place in the batch: only the region the affine needs, at the smallest DCT scale that still has a
 * pixel for each of the target's, resampled row by row as the rows come, and no row after the last one needed.
 *
 * A picture is right, or it is an error: missing data, bad Huffman codes and lost restarts end the decode, and the
 * target is zeroed, where libjpeg alone would warn and go on in grey. EXIF orientation is never applied. Four-channel
 * files are read as Adobe writes them (inverted, Pillow and OpenCV do the same): R = C * K / 255. */
#include "huffman.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h> /* before jpeglib.h, which uses FILE without including it */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include <jerror.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "headway's native core needs libjpeg-turbo 2.1 or newer"
#endif

/* A slanted map in the making: target rows are sampled as soon as the canvas has what they need, while it is in cache. */
typedef struct {
    hw_canvas canvas;
    int16_t *row;               /* a target row */
    double start[2];            /* the target's corner, in canvas pixels (x, y); then what a target column and row add */
    double across[2], down[2];
    double low[2], high[2];     /* the image's edges there */
    int next, by, left;         /* target row to make next, the direction to go on in, rows still to make */
} slant;

typedef struct {
    hw_client client; /* first: huffman.c finds it here */
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    const hw_spec *spec;
    const hw_image *job;
    hw_scratch *scratch;
    char *message;
    int status;         /* what a jump to `escape` returns */
    int odd;            /* a warning was given */
    int careful;        /* libjpeg-turbo's own entropy decoder, after ours gave up */
    int whole;          /* an end-of-image marker was seen, so what is left unread is there */
    int64_t deadline_ns; /* of this thread's CPU time */
    unsigned calls;
    size_t room;        /* bytes at the head of the scratch that `stream` leaves alone */
    unsigned char *head;
    slant slant;
} decoder;

/* Thread CPU time, not wall time: a suspended or crowded machine must not fail a good image. */
static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static decoder *of(j_common_ptr jpeg) { return (decoder *)jpeg->client_data; }

static void refuse(decoder *d, int status, const char *message) __attribute__((noreturn));
static void refuse(decoder *d, int status, const char *message) {
    snprintf(d->message, HW_MESSAGE_BYTES, "%s", message);
    d->status = status;
    longjmp(d->escape, 1);
}

static void describe(decoder *d) {
    char text[JMSG_LENGTH_MAX];
    d->errors.format_message((j_common_ptr)&d->jpeg, text);
    snprintf(d->message, HW_MESSAGE_BYTES, "%.*s", HW_MESSAGE_BYTES - 1, text);
}

static void on_error(j_common_ptr jpeg) {
    decoder *d = of(jpeg);
    describe(d);
    d->status = d->errors.msg_code == JERR_OUT_OF_MEMORY ? HW_NO_MEMORY : HW_CORRUPT;
    longjmp(d->escape, 1);
}

static void on_message(j_common_ptr jpeg, int level) {
    decoder *d = of(jpeg);
    if (level >= 0) return; /* a trace */
    switch (d->errors.msg_code) {
    case JWRN_HIT_MARKER:     /* premature end of data segment */
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:    /* a restart marker is missing: blocks are lost */
    case JWRN_NOT_SEQUENTIAL: on_error(jpeg); break;
    default:
        if (!d->odd) describe(d);
        d->odd = 1;
    }
}

/* Back to hw_decode_image, to decode once more with libjpeg-turbo alone. */
static void give_up(j_decompress_ptr jpeg) {
    decoder *d = of((j_common_ptr)jpeg);
    d->status = HW_PENDING;
    longjmp(d->escape, 1);
}

static void no_output(j_common_ptr jpeg) { (void)jpeg; }

static void on_progress(j_common_ptr jpeg) {
    decoder *d = of(jpeg);
    if (d->jpeg.input_scan_number > d->spec->max_scans) {
        char text[64];
        snprintf(text, sizeof text, "more than %d scans", d->spec->max_scans);
        refuse(d, HW_LIMIT, text);
    }
    if ((d->calls++ & 31) == 31 && cpu_ns() > d->deadline_ns) refuse(d, HW_LIMIT, "took more than the allowed CPU time");
}

/* A marker cannot occur inside entropy-coded data, so after the first scan's start it is the real end of an image. */
static int ends(const unsigned char *from, const unsigned char *end) {
    for (const unsigned char *at = end - 2; at >= from; at--)
        if (at[0] == 0xff && at[1] == 0xd9) return 1;
    return 0;
}

static void check_limits(decoder *d) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    char text[HW_MESSAGE_BYTES];
    if ((int64_t)j->image_width * j->image_height > d->spec->max_pixels) {
        snprintf(text, sizeof text, "%u x %u pixels, allowed are %lld", j->image_width, j->image_height, (long long)d->spec->max_pixels);
        refuse(d, HW_LIMIT, text);
    }
    int64_t blocks = 0;
    for (int c = 0; c < j->num_components; c++) blocks += (int64_t)j->comp_info[c].width_in_blocks * j->comp_info[c].height_in_blocks;
    /* A Huffman code has at least one bit and a block at least one code: a bomb is refused before anything is allocated. */
    if (!j->arith_code && (int64_t)d->job->length < blocks / 8) {
        snprintf(text, sizeof text, "%llu bytes cannot hold %u x %u pixels", (unsigned long long)d->job->length, j->image_width, j->image_height);
        refuse(d, HW_CORRUPT, text);
    }
    if (!jpeg_has_multiple_scans(j)) return;
    int64_t coefficients = blocks * (int64_t)sizeof(JBLOCK);
    if (coefficients > d->spec->max_bytes) {
        snprintf(text, sizeof text, "a multi-scan image of %u x %u needs %lld bytes, allowed are %lld", j->image_width, j->image_height,
                 (long long)coefficients, (long long)d->spec->max_bytes);
        refuse(d, HW_LIMIT, text);
    }
    /* Whole scans could be missing, and nothing else would tell. */
    if (!d->whole) refuse(d, HW_CORRUPT, "no end-of-image marker after the scans");
}

/* Decoded pixels that a target pixel spans at least. At 1 the DCT does all of the shrinking and a picture is as far from
 * float64 as it gets (42 dB at 1/2); a little below, ours still smooths it (44 dB at 0.55), and twice as fine a decode would
 * cost a fifth more. tests/formats/test_native_images.py holds the floors. */
static const double LEAST_PIXELS = 0.88;

/* The smallest of libjpeg-turbo's fast scales that leaves that many. */
static int eighths_for(const decoder *d, double density_x, double density_y) {
    double densest = density_x > density_y ? density_x : density_y;
    if (d->job->flags & HW_FULL_SIZE) return 8;
    for (int n = 1; n < 8; n *= 2)
        if (n / 8.0 >= densest * LEAST_PIXELS) return n;
    return 8;
}

static void cmyk_to_rgb(unsigned char *row, int pixels) {
    for (int k = 0; k < pixels; k++, row += 4)
        for (int c = 0; c < 3; c++) row[c] = (unsigned char)((row[c] * row[3] + 127) / 255);
}

static unsigned char *take(unsigned char **at, size_t bytes) {
    unsigned char *block = *at;
    *at += (bytes + 63) & ~(size_t)63;
    return block;
}

/* Where resampled rows go: `place` says where row y is to be written, Q7, and `done` hears that it was. */
typedef struct {
    int16_t *(*place)(decoder *d, int y);
    void (*done)(decoder *d, const hw_axis *x, int y);
} row_sink;

/* Decode and resample; each target row of [y->begin, y->end) goes to `sink` once, in the order it comes. */
static void stream(decoder *d, int eighths, double scale_x, double shift_x, int columns, double scale_y, double shift_y, int rows,
                   const row_sink *sink, hw_axis *x, hw_axis *y) {
    struct jpeg_decompress_struct *j = &d->jpeg;
    double step_x = eighths / 8.0 / fabs(scale_x), step_y = eighths / 8.0 / fabs(scale_y);
    int wide = (int)(((int64_t)j->image_width * eighths + 7) / 8), high = (int)(((int64_t)j->image_height * eighths + 7) / 8);
    if (!(step_x <= HW_MOST_STEP && step_y <= HW_MOST_STEP)) refuse(d, HW_REQUEST, "the affine shrinks the image too much");

    /* Everything this image needs, in one block of the thread's scratch; at most a row more than is used of each. */
    size_t most = 2 * HW_MOST_STEP + 2, axis_x = hw_axis_bytes(columns, step_x), axis_y = hw_axis_bytes(rows, step_y);
    size_t ring_rows = (size_t)(step_y > 1 ? 2 * step_y : 2) + 3;
    size_t line = ((size_t)wide + 64) * 4; /* libjpeg writes whole iMCU columns at a crop's right edge */
    size_t total = d->room + axis_x + axis_y + ring_rows * (line + 64) + (line + 4 * most) * 2 + axis_x * 4 + 64 * 17;
    unsigned char *at = hw_reserve(d->scratch, total);
    if (at == NULL) refuse(d, HW_NO_MEMORY, "no memory for working rows");
    d->head = take(&at, d->room);
    hw_axis_build(x, take(&at, axis_x), columns, scale_x, shift_x, (int)j->image_width, eighths, wide);
    hw_axis_build(y, take(&at, axis_y), rows, scale_y, shift_y, (int)j->image_height, eighths, high);
    if (x->begin == x->end || y->begin == y->end) return;
    int16_t *weights = (int16_t *)take(&at, (size_t)columns * x->taps * 4 * sizeof(int16_t));
    if (!x->copy) hw_spread_weights(weights, x);
    int16_t *blended = (int16_t *)take(&at, (line + 4 * most) * 2);
    int needed = x->high - x->low;
    memset(blended + 4L * needed, 0, (size_t)x->taps * 4 * 2); /* read with weight 0 by the last pixels */
    unsigned char *ring = at;

    j->scale_num = (unsigned)eighths, j->scale_denom = 8;
    int four = j->num_components == 4;
    j->out_color_space = four ? JCS_CMYK : JCS_EXT_RGBX;
    jpeg_start_decompress(j);
    if ((int)j->output_width != wide || (int)j->output_height != high) refuse(d, HW_CORRUPT, "the decoder's picture has an unexpected size");
    const uint8_t *end = (const uint8_t *)(uintptr_t)d->job->data + d->job->length;
    int ours = d->whole && !d->careful && hw_huffman_attach(j, d->scratch, end);
    /* Smooth chroma upsampling treats the outermost columns of a crop as the picture's edge, so take two more. */
    JDIMENSION left = x->low > 2 ? (JDIMENSION)x->low - 2 : 0, count = (JDIMENSION)(x->high + 2 < wide ? x->high + 2 : wide) - left;
    if (left > 0 || (int)count < wide) jpeg_crop_scanline(j, &left, &count);
    if (ours) hw_huffman_crop(j, left, count);
    long offset = 4L * (x->low - (long)left);
    int next = 0, taps = y->taps;
    if (y->low > 0) next = (int)jpeg_skip_scanlines(j, (JDIMENSION)y->low);

    int upwards = scale_y < 0;
    for (int n = 0; n < y->end - y->begin; n++) {
        int o = upwards ? y->end - 1 - n : y->begin + n, first = y->first[o];
        int last = first + taps <= y->high ? first + taps : y->high;
        for (; next < last; next++) {
            JSAMPROW row = ring + (size_t)(next % taps) * line;
            if (jpeg_read_scanlines(j, &row, 1) != 1) refuse(d, HW_CORRUPT, "the decoder stopped before the last row");
            if (four) cmyk_to_rgb(row + offset, needed);
        }
        const uint8_t *lines[2 * HW_MOST_STEP + 2];
        for (int t = 0; t < taps; t++) lines[t] = ring + (size_t)((first + t) % taps) * line + offset;
        hw_blend_rows(blended, lines, y->weight + (size_t)o * taps, taps, 4 * needed);
        hw_resample_row(sink->place(d, o), blended, x, weights, x->low);
        sink->done(d, x, o);
    }
    if (!d->whole) { /* nothing marks the end: only reading on can tell a lost marker from lost rows */
        if (next + 1 < high) jpeg_skip_scanlines(j, (JDIMENSION)(high - 1 - next));
        JSAMPROW row = ring;
        if (j->output_scanline < j->output_height) jpeg_read_scanlines(j, &row, 1);
        if (!d->odd) snprintf(d->message, HW_MESSAGE_BYTES, "no end-of-image marker");
        d->odd = 1;
    }
}

static int16_t *one_row(decoder *d, int y) {
    (void)y;
    return (int16_t *)d->head;
}

static void store(decoder *d, const hw_axis *x, int y) {
    hw_store_row(d->spec, d->job->out, y, x->begin, x->end, (int16_t *)d->head);
    hw_fill_row(d->spec, d->job->out, y, 0, x->begin);
    hw_fill_row(d->spec, d->job->out, y, x->end, d->spec->width);
}

static const row_sink target_rows = {one_row, store};

static void fill_rows(decoder *d, int begin, int end) {
    for (int row = begin; row < end; row++) hw_fill_row(d->spec, d->job->out, row, 0, d->spec->width);
}

static void decode_upright(decoder *d) {
    const double *a = d->job->affine;
    const hw_spec *spec = d->spec;
    hw_axis x = {0}, y = {0};
    d->room = (size_t)spec->width * 8;
    stream(d, eighths_for(d, fabs(a[0]), fabs(a[4])), a[0], a[2], spec->width, a[4], a[5], spec->height, &target_rows, &x, &y);
    int empty = x.begin == x.end || y.begin == y.end;
    fill_rows(d, 0, empty ? spec->height : y.begin);
    if (!empty) fill_rows(d, y.end, spec->height);
}

static void corner(const slant *s, int o, double at[2]) {
    for (int k = 0; k < 2; k++) at[k] = s->start[k] + (o + 0.5) * s->down[k];
}

/* Make the target rows that read no canvas row from `ready` on. */
static void sample_rows(decoder *d, int ready) {
    slant *s = &d->slant;
    const hw_spec *spec = d->spec;
    for (; s->left > 0; s->left--, s->next += s->by) {
        double at[2];
        int begin, end;
        corner(s, s->next, at);
        double deepest = at[1] + (s->across[1] > 0 ? spec->width * s->across[1] : 0);
        if (ready < s->canvas.rows && deepest + 2 > ready) return;
        hw_slant_run(at, s->across, s->low, s->high, spec->width, &begin, &end);
        hw_slant_row(s->row, &s->canvas, at, s->across, begin, end);
        hw_store_row(spec, d->job->out, s->next, begin, end, s->row);
        hw_fill_row(spec, d->job->out, s->next, 0, begin);
        hw_fill_row(spec, d->job->out, s->next, end, spec->width);
    }
}

static size_t pitch(const hw_canvas *c) { return ((size_t)c->columns + 1) * 4; }

static int16_t *canvas_row(decoder *d, int y) {
    hw_canvas *c = &d->slant.canvas;
    if (c->pixels == NULL) { /* the first row that comes; scratch holds an older image */
        c->pixels = (int16_t *)d->head;
        d->slant.row = c->pixels + pitch(c) * ((size_t)c->rows + 1);
        memset(c->pixels, 0, pitch(c) * (size_t)y * 2);
    }
    return c->pixels + pitch(c) * (size_t)y;
}

static void sample_on(decoder *d, const hw_axis *x, int y) {
    int16_t *row = canvas_row(d, y);
    memset(row, 0, (size_t)x->begin * 8);
    memset(row + 4L * x->end, 0, (pitch(&d->slant.canvas) - 4 * (size_t)x->end) * 2);
    sample_rows(d, y + 1);
}

static const row_sink canvas_rows = {canvas_row, sample_on};

/* A slanted map: first the upright part (region, scale, antialiasing) onto a canvas about as fine as the target, then
 * one bilinear pass along the target's rows. */
static void decode_slanted(decoder *d, const double *back) {
    slant *s = &d->slant;
    const double *a = d->job->affine;
    const hw_spec *spec = d->spec;
    double extent[2] = {d->jpeg.image_width, d->jpeg.image_height}, density[2], scale[2], shift[2];
    int size[2];
    for (int k = 0; k < 2; k++) {
        density[k] = hypot(a[k], a[3 + k]);
        density[k] = density[k] > 1 ? 1 : density[k];
        /* Mirrored sideways where the target is, so that neighbours are read in the order in which they lie. */
        scale[k] = k == 0 && a[0] < 0 ? -density[k] : density[k];
        double edge = extent[k] * density[k], low = edge, high = 0, zero = scale[k] < 0 ? edge : 0;
        s->across[k] = back[3 * k] * scale[k], s->down[k] = back[3 * k + 1] * scale[k];
        s->start[k] = back[3 * k + 2] * scale[k] + zero;
        for (int corner = 0; corner < 4; corner++) {
            double at = s->across[k] * (corner & 1) * spec->width + s->down[k] * (corner >> 1) * spec->height + s->start[k];
            low = at < low ? at : low, high = at > high ? at : high;
        }
        low = low < 0 ? 0 : low, high = high > edge ? edge : high;
        int cells = (int)floor(edge + 0.5 - 1e-9); /* canvas pixels whose centre lies inside the image */
        cells = cells < 1 ? 1 : cells;
        int origin = (int)floor(low) - 1, end = (int)ceil(high) + 1;
        origin = origin < 0 ? 0 : origin > cells - 1 ? cells - 1 : origin;
        end = end > cells ? cells : end;
        size[k] = low < high && end > origin ? end - origin : 0;
        s->start[k] -= origin, s->low[k] = -origin, s->high[k] = edge - origin;
        shift[k] = zero - origin;
    }
    if (size[0] == 0 || size[1] == 0) {
        fill_rows(d, 0, spec->height);
        return;
    }
    d->room = ((size_t)size[0] + 1) * ((size_t)size[1] + 1) * 8 + (size_t)spec->width * 8;
    if ((int64_t)d->room > spec->max_bytes || d->room / 8 > INT32_MAX) refuse(d, HW_LIMIT, "a rotation needs more working memory than allowed");
    s->canvas.columns = size[0], s->canvas.rows = size[1];
    s->by = s->down[1] < 0 ? -1 : 1, s->next = s->by < 0 ? spec->height - 1 : 0, s->left = spec->height;
    hw_axis x = {0}, y = {0};
    stream(d, eighths_for(d, density[0], density[1]), scale[0], shift[0], size[0], scale[1], shift[1], size[1], &canvas_rows, &x, &y);
    if (s->canvas.pixels == NULL) fill_rows(d, 0, spec->height);
    else {
        memset(canvas_row(d, y.end), 0, pitch(&s->canvas) * ((size_t)size[1] + 1 - (size_t)y.end) * 2);
        sample_rows(d, size[1]);
    }
}

/* The inverse of a 2x3 affine; 0 if it has none worth the name. */
static int invert(const double *a, double *back) {
    double det = a[0] * a[4] - a[1] * a[3];
    for (int k = 0; k < 6; k++)
        if (!isfinite(a[k]) || fabs(a[k]) > 1e9) return 0;
    if (!(fabs(det) > 1e-12)) return 0;
    back[0] = a[4] / det, back[1] = -a[1] / det, back[3] = -a[3] / det, back[4] = a[0] / det;
    back[2] = -(back[0] * a[2] + back[1] * a[5]), back[5] = -(back[3] * a[2] + back[4] * a[5]);
    return 1;
}

/* HW_PENDING: our entropy decoder gave up, and `careful` is worth a try. */
static int attempt(const hw_spec *spec, const hw_image *job, char *message, hw_scratch *scratch, const double *back, int careful) {
    decoder d;
    memset(&d, 0, sizeof d);
    d.client.give_up = give_up;
    d.spec = spec, d.job = job, d.message = message, d.scratch = scratch, d.careful = careful;
    d.deadline_ns = cpu_ns() + spec->max_cpu_ms * 1000000;
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.errors.error_exit = on_error, d.errors.emit_message = on_message, d.errors.output_message = no_output;
    d.progress.progress_monitor = on_progress;
    if (setjmp(d.escape)) {
        jpeg_destroy_decompress(&d.jpeg);
        return d.status;
    }
    d.jpeg.client_data = &d;
    jpeg_create_decompress(&d.jpeg);
    d.jpeg.client_data = &d, d.jpeg.progress = &d.progress;
    if (job->length == 0) refuse(&d, HW_CORRUPT, "0 bytes");
    jpeg_mem_src(&d.jpeg, (const unsigned char *)(uintptr_t)job->data, job->length);
    jpeg_read_header(&d.jpeg, TRUE);
    d.whole = ends(d.jpeg.src->next_input_byte, (const unsigned char *)(uintptr_t)job->data + job->length);
    check_limits(&d);
    if (fabs(job->affine[1]) * d.jpeg.image_height < 1e-6 && fabs(job->affine[3]) * d.jpeg.image_width < 1e-6) decode_upright(&d);
    else decode_slanted(&d, back);
    jpeg_destroy_decompress(&d.jpeg); /* rows below the region are never entropy-decoded */
    return d.odd ? HW_WARNING : HW_OK;
}

int hw_decode_image(const hw_spec *spec, const hw_image *job, char message[HW_MESSAGE_BYTES], hw_scratch *scratch) {
    double back[6];
    message[0] = 0;
    if (!invert(job->affine, back)) {
        snprintf(message, HW_MESSAGE_BYTES, "the affine is singular, huge or not finite");
        hw_zero_image(spec, job->out);
        return HW_REQUEST;
    }
    if ((job->flags & HW_CHECK_HASH) && hw_xxh3((const void *)(uintptr_t)job->data, job->length) != job->hash) {
        snprintf(message, HW_MESSAGE_BYTES, "the bytes do not match their xxh3-64");
        hw_zero_image(spec, job->out);
        return HW_MISMATCH;
    }
    int status = attempt(spec, job, message, scratch, back, (job->flags & HW_PLAIN_HUFFMAN) != 0);
    if (status == HW_PENDING) {
        message[0] = 0;
        status = attempt(spec, job, message, scratch, back, 1);
    }
    if (status > HW_WARNING) hw_zero_image(spec, job->out);
    return status;
}
