/* One epoch's shuffled order as loader/shuffled.py's BlockLine states it; see shuffle.c. */
#ifndef HEADWAY_ORDER_H
#define HEADWAY_ORDER_H

#include <stdint.h>

typedef struct {
    int64_t items, slots, block_items, span_blocks, blocks, missing, short_end;
    uint64_t key;
    const uint8_t *permutations; /* 256 rows of block_items, where these are at most 64 */
} hw_order;

/* Items at positions of the line, row after row of `columns`; returns how many positions were on it. */
int64_t hw_shuffled_items(const hw_order *order, const int64_t *positions, int64_t count, int64_t columns, int64_t *out);

#endif
