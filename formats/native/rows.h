/* Rows of columns: where many row numbers lie, and many columns' rows to contiguous memory. No Python. */
#ifndef HEADWAY_ROWS_H
#define HEADWAY_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* Part k holds rows [starts[k], starts[k + 1]), in its shard from `offset` on. hints[r >> shift] is a part at or before the
 * one that holds row r: random rows are what a binary search is worst at. */
typedef struct {
    const int64_t *starts, *offset, *hints;
    int64_t count, hint_count;
    int shift;
} hw_parts;

enum { HW_CHUNK_SHIFT = 16 };         /* a chunk of a file has 64 KiB, the last one fewer */

/* A column in one shard. With `good`, its rows lie in a file whose chunks are compared with their sums before a row in them is
 * first taken; whoever has done so sets good[chunk], two threads at worst. */
typedef struct {
    uint64_t base;                    /* address of the first row; 0: not open */
    uint64_t good;                    /* address of a byte a chunk; 0: there is nothing to compare */
    uint64_t file, bytes;             /* address of the file's first byte; how many it has */
    uint64_t sums;                    /* address of the xxh3-64 of each chunk */
} hw_home;

typedef struct {
    const hw_home *homes;             /* by shard */
    size_t width;                     /* bytes of a row */
    unsigned char *out;
} hw_column;

/* Rows (shard[k], row[k]) of several columns; a shard has `counts` rows in each of them. */
typedef struct {
    const int64_t *shard, *row, *counts;
    int64_t rows, shards;
    const hw_column *columns;
    uint32_t column_count;
} hw_take;

int64_t hw_locate(const hw_parts *parts, const int64_t *numbers, int64_t count, int64_t *part, int64_t *row); /* how many were good */
int hw_take_rows(const hw_take *take, int64_t begin, int64_t end); /* 0: an index or a chunk was bad */

#endif
