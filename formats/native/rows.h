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

typedef struct {
    const int64_t *bases;             /* by shard: address of the column's first row; 0: not open */
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
int hw_take_rows(const hw_take *take, int64_t begin, int64_t end); /* 0: an index was bad */

#endif
