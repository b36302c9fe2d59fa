/* Runs the native core, alone, over files and over mutants of them: built with AddressSanitizer and UBSan by
 * tests/sanitize.py. Every encoded input and every output lies in a block of exactly its size, so that one byte too many
 * is seen. Usage: driver SEED MUTANTS FILE... */
#include "../formats/native/jpeg_scan.h"
#include "../formats/native/pool.h"

/* slant.c once more, without its machine variants. */
#define HW_PLAIN
#define hw_slant_run plain_slant_run
#define hw_slant_row plain_slant_row
#include "../formats/native/slant.c"
#undef hw_slant_run
#undef hw_slant_row

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

static int below(uint64_t n) { return (int)(draw() % n); }
static double unit(void) { return (double)(draw() >> 11) / 9007199254740992.0; }

typedef struct {
    unsigned char *bytes;
    size_t size;
} blob;

static blob load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) exit(2);
    fseek(file, 0, SEEK_END);
    blob b = {NULL, (size_t)ftell(file)};
    rewind(file);
    b.bytes = malloc(b.size ? b.size : 1);
    if (fread(b.bytes, 1, b.size, file) != b.size) exit(2);
    fclose(file);
    return b;
}

/* A few flipped bits, overwritten or moved runs, edited header bytes, cuts: often in the header, where structure is. */
static blob mutate(blob from) {
    blob b = {NULL, from.size};
    int kind = below(8);
    if (kind == 0 && b.size) b.size = (size_t)below(b.size);
    b.bytes = malloc(b.size ? b.size : 1);
    memcpy(b.bytes, from.bytes, b.size);
    if (b.size < 16) return b;
    size_t reach = below(3) ? (b.size < 700 ? b.size : 700) : b.size;
    for (int n = 1 + below(kind < 4 ? 3 : 12); n > 0; n--) {
        size_t at = (size_t)below(reach);
        switch (kind) {
        case 1: case 4: b.bytes[at] ^= (unsigned char)(1 << below(8)); break;
        case 2: case 5: b.bytes[at] = (unsigned char)draw(); break;
        case 3: b.bytes[at] = below(2) ? 0xff : 0; break;
        case 6: {
            size_t other = (size_t)below(b.size), run = (size_t)below(64);
            if (run > b.size - at) run = b.size - at;
            if (run > b.size - other) run = b.size - other;
            memmove(b.bytes + at, b.bytes + other, run);
            break;
        }
        default: memset(b.bytes + at, (int)draw(), b.size - at < 8 ? b.size - at : 8);
        }
    }
    return b;
}

static hw_spec draw_spec(void) {
    static const int bytes[] = {1, 2, 2, 4};
    hw_spec s = {.width = 1 + below(90), .height = 1 + below(70), .layout = below(2), .dtype = below(4)};
    int hwc = s.layout == HW_HWC;
    s.row_bytes = (int64_t)s.width * bytes[s.dtype] * (hwc ? 3 : 1);
    s.plane_bytes = (int64_t)s.width * s.height * bytes[s.dtype];
    for (int c = 0; c < 3; c++) s.scale[c] = below(2) ? 1 : 0.017f, s.offset[c] = s.scale[c] == 1 ? 0 : -2.1f, s.pad[c] = (float)below(256);
    s.max_scans = 100, s.max_pixels = 16000000, s.max_bytes = 64 << 20, s.max_cpu_ms = 2000;
    return s;
}

static void draw_affine(double *a) {
    double size = below(2) ? 1 : below(20) ? 0.05 + unit() * 1.8 : 0.002;
    a[0] = size, a[4] = below(2) ? size : size * (0.5 + unit()), a[1] = a[3] = 0;
    a[2] = below(2) ? -(double)below(200) : (unit() - 0.7) * 300, a[5] = below(2) ? -(double)below(200) : (unit() - 0.7) * 300;
    if (below(3) == 0) a[0] = -a[0], a[2] += 300 * size;
    if (below(5) == 0) a[4] = -a[4], a[5] += 300 * size;
    if (below(4) == 0) a[1] = (unit() - 0.5) * size, a[3] = -a[1] * (0.5 + unit());
    if (below(200) == 0) a[below(6)] = 1e300 * unit();
}

/* libjpeg-turbo's own entropy decoder must come to the same picture, status and message. */
static void compare(const hw_spec *specs, const hw_image *done, int status, const char *message) {
    hw_scratch scratch = {0};
    char said[HW_MESSAGE_BYTES];
    hw_image again = *done;
    size_t bytes = (size_t)specs[done->spec].plane_bytes * 3;
    again.flags |= HW_PLAIN_HUFFMAN;
    again.out = (uintptr_t)malloc(bytes);
    int other = hw_decode_image(specs + done->spec, &again, said, &scratch);
    if (other != status || strcmp(said, message) != 0 || memcmp((void *)(uintptr_t)again.out, (void *)(uintptr_t)done->out, bytes) != 0) {
        printf("entropy decoders differ: %d %s, %d %s\n", status, message, other, said);
        exit(7);
    }
    free((void *)(uintptr_t)again.out);
    hw_release(&scratch);
}

/* Lines through canvases of every size: the run lies inside, and all variants of a row give equal bits. */
static void compare_slants(void) {
    hw_canvas c = {.columns = 1 + below(70), .rows = 1 + below(50)};
    int targets = 1 + below(90), begin, end;
    size_t pixels = ((size_t)c.columns + 1) * ((size_t)c.rows + 1), row = (size_t)targets * 8;
    c.pixels = malloc(pixels * 8);
    for (size_t k = 0; k < pixels * 4; k++) c.pixels[k] = (int16_t)below(255 * 128 + 1);
    double reach = below(8) ? 1.5 : 1e6, low[2] = {-(double)below(4), -(double)below(4)}, high[2] = {c.columns - low[0], c.rows - low[1]};
    double step[2] = {(unit() - 0.5) * reach, (unit() - 0.5) * reach}, start[2] = {(unit() - 0.2) * 60, (unit() - 0.2) * 60};
    int16_t *one = malloc(row), *other = malloc(row);
    hw_slant_run(start, step, low, high, targets, &begin, &end);
    for (int o = 0; o < targets; o++) {
        double x = start[0] + (o + 0.5) * step[0], y = start[1] + (o + 0.5) * step[1];
        if ((x >= low[0] && x < high[0] && y >= low[1] && y < high[1]) != (o >= begin && o < end)) exit(8);
    }
    hw_slant_row(one, &c, start, step, begin, end);
    plain_slant_row(other, &c, start, step, begin, end);
    if (memcmp(one + 4L * begin, other + 4L * begin, (size_t)(end - begin) * 8) != 0) exit(9);
    free(c.pixels), free(one), free(other);
}

enum { BATCH = 16 };

/* One step of BATCH images and as many copies, through the pool; now and then cancelled half way. */
static void run_step(const blob *files, int count, int pristine, long *tally) {
    blob data[BATCH];
    hw_spec specs[BATCH];
    hw_image images[BATCH];
    hw_copy copies[BATCH];
    int8_t status[2 * BATCH];
    char(*messages)[HW_MESSAGE_BYTES] = malloc(2 * BATCH * HW_MESSAGE_BYTES);
    for (int k = 0; k < BATCH; k++) {
        blob file = files[below((uint64_t)count)];
        data[k] = pristine ? (blob){memcpy(malloc(file.size ? file.size : 1), file.bytes, file.size), file.size} : mutate(file);
        hw_jpeg_facts facts;
        hw_scan_jpeg(data[k].bytes, data[k].size, &facts); /* formats/jpeg.py's own walk is compared with it by tests/formats/test_jpeg.py */
        specs[k] = draw_spec();
        size_t out = (size_t)specs[k].plane_bytes * 3, room = data[k].size + (size_t)below(9);
        images[k] = (hw_image){.data = (uintptr_t)data[k].bytes, .length = data[k].size, .out = (uintptr_t)malloc(out), .spec = (uint32_t)k};
        images[k].flags = below(4) ? 0 : HW_FULL_SIZE;
        draw_affine(images[k].affine);
        copies[k] = (hw_copy){.source = (uintptr_t)data[k].bytes, .length = data[k].size, .out = (uintptr_t)malloc(room ? room : 1), .room = room};
        copies[k].hash = hw_xxh3(data[k].bytes, data[k].size), copies[k].flags = HW_CHECK_HASH;
    }
    hw_step step = {.specs = specs, .images = images, .copies = copies, .image_count = BATCH, .copy_count = BATCH, .status = status, .messages = messages[0]};
    if (!hw_step_prepare(&step)) exit(3);
    hw_pool_submit(&step);
    if (below(40) == 0) hw_pool_cancel(&step);
    while (hw_pool_wait(&step, 1000000000, below(2)) != HW_DONE) {}
    for (int k = 0; k < 2 * BATCH; k++) {
        int s = status[k];
        if (s < HW_OK || s > HW_CANCELLED || (k >= BATCH && s != HW_OK && s != HW_CANCELLED)) exit(4);
        if (memchr(messages[k], 0, HW_MESSAGE_BYTES) == NULL) exit(5);
        if (k < BATCH) tally[s]++;
    }
    for (int k = 0; k < BATCH; k++)
        if (status[k] != HW_CANCELLED) compare(specs, images + k, status[k], messages[k]);
    hw_step_clear(&step);
    free(messages);
    for (int k = 0; k < BATCH; k++) free(data[k].bytes), free((void *)(uintptr_t)images[k].out), free((void *)(uintptr_t)copies[k].out);
}

#include "sanitize_rows.h"

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    state = strtoull(argv[1], NULL, 10);
    long mutants = atol(argv[2]), tally[HW_CANCELLED + 1] = {0};
    int count = argc - 3;
    blob *files = malloc(sizeof(blob) * (size_t)count);
    for (int k = 0; k < count; k++) files[k] = load(argv[3 + k]);
    if (hw_pool_resize(2) != 2) return 3;
    for (int k = 0; k < 5000; k++) compare_slants();
    for (int k = 0; k < 3000; k++) run_take(), run_locate(), run_order();
    for (int k = 0; k < 4 + count / 4; k++) run_step(files, count, 1, tally);
    for (long k = 0; k < mutants / BATCH; k++) {
        run_step(files, count, 0, tally);
        if (k % 500 == 499) hw_pool_resize((int)(k / 500 % 3)); /* with no threads at all, too */
    }
    hw_pool_close();
    for (int k = 0; k < count; k++) free(files[k].bytes);
    free(files);
    printf("ok %ld, warning %ld, corrupt %ld, limit %ld, request %ld, cancelled %ld\n", tally[HW_OK], tally[HW_WARNING], tally[HW_CORRUPT], tally[HW_LIMIT],
           tally[HW_REQUEST], tally[HW_CANCELLED]);
    return tally[HW_MISMATCH] || tally[HW_NO_MEMORY] ? 6 : 0;
}
