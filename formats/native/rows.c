/* Rows of columns: which part holds each of many row numbers, and many columns' rows to contiguous memory. Every index is
 * compared with what there is before it becomes an address, and every chunk of a file with its sum before a row in it is
 * taken; a bad one leaves zeros and is reported. */
#include "rows.h"

#include "core.h"

#include <string.h>

enum { MOST_STEPS = 4 }; /* from there on halving is faster */

int64_t hw_locate(const hw_parts *parts, const int64_t *numbers, int64_t count, int64_t *part, int64_t *row) {
    const int64_t *starts = parts->starts, total = starts[parts->count];
    for (int64_t k = 0; k < count; k++) {
        int64_t number = numbers[k];
        if (number < 0 || number >= total) return k;
        int64_t hint = number >> parts->shift, at = hint < parts->hint_count ? parts->hints[hint] : 0;
        if (at < 0 || at >= parts->count || starts[at] > number) at = 0;
        for (int steps = 0; steps < MOST_STEPS && starts[at + 1] <= number; steps++) at++;
        if (starts[at + 1] <= number) /* the last part that starts at or before the number */
            for (int64_t left = parts->count - at; left > 1;) {
                int64_t half = left / 2;
                at += starts[at + half] <= number ? half : 0;
                left -= half;
            }
        part[k] = at;
        row[k] = number - starts[at] + parts->offset[at];
    }
    return count;
}

static int compare_chunk(const hw_home *home, uint64_t chunk) {
    const uint64_t *sums = (const uint64_t *)(uintptr_t)home->sums;
    uint64_t start = chunk << HW_CHUNK_SHIFT, most = 1 << HW_CHUNK_SHIFT;
    if (start >= home->bytes) return 0;
    uint64_t length = home->bytes - start < most ? home->bytes - start : most;
    if (hw_xxh3((const unsigned char *)(uintptr_t)home->file + start, length) != sums[chunk]) return 0;
    __atomic_store_n((unsigned char *)(uintptr_t)home->good + chunk, 1, __ATOMIC_RELAXED);
    return 1;
}

static inline int is_good(const hw_home *home, uint64_t start, uint64_t width) {
    const unsigned char *good = (const unsigned char *)(uintptr_t)home->good;
    if (width == 0) return 1;
    for (uint64_t chunk = start >> HW_CHUNK_SHIFT; chunk <= (start + width - 1) >> HW_CHUNK_SHIFT; chunk++)
        if (!__atomic_load_n(good + chunk, __ATOMIC_RELAXED) && !compare_chunk(home, chunk)) return 0;
    return 1;
}

/* The address of a row whose bytes are good, or NULL. A shard whose column is not open has base 0. */
static inline const unsigned char *source(const hw_take *take, const hw_column *column, int64_t k) {
    int64_t shard = take->shard[k], row = take->row[k];
    if (shard < 0 || shard >= take->shards || row < 0 || row >= take->counts[shard]) return NULL;
    const hw_home *home = column->homes + shard;
    uint64_t address = home->base + (uint64_t)row * column->width;
    if (home->base == 0 || (home->good != 0 && !is_good(home, address - home->file, column->width))) return NULL;
    return (const unsigned char *)(uintptr_t)address;
}

#define TAKE_OF(WIDTH)                                                                                                      \
    for (int64_t k = begin; k < end; k++, out += WIDTH) {                                                                   \
        const unsigned char *from = source(take, column, k);                                                                \
        if (from == NULL) memset(out, 0, WIDTH), good = 0;                                                                  \
        else memcpy(out, from, WIDTH);                                                                                      \
    }                                                                                                                       \
    break

int hw_take_rows(const hw_take *take, int64_t begin, int64_t end) {
    int good = 1;
    for (uint32_t c = 0; c < take->column_count; c++) {
        const hw_column *column = take->columns + c;
        unsigned char *out = column->out + (size_t)begin * column->width;
        switch (column->width) { /* a call a number would cost more than the copy */
        case 1: TAKE_OF(1);
        case 4: TAKE_OF(4);
        case 8: TAKE_OF(8);
        default: TAKE_OF(column->width);
        }
    }
    return good;
}
