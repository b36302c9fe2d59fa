/* The shuffled order, position by position: loader/shuffled.py and loader/permutation.py in plain integers, bit for bit.
 * numpy makes some sixty passes over each run of positions; here a position costs a handful of multiplications and
 * divisions and nothing is stored. tests/loader/test_native_order.py compares the two. */
#include "order.h"

#include <string.h>

static const uint64_t multipliers[8] = {
    0x243F6A8885A308D3ull, 0x13198A2E03707345ull, 0xA4093822299F31D1ull, 0x082EFA98EC4E6C89ull,
    0x452821E638D01377ull, 0xBE5466CF34E90C6Dull, 0xC0AC29B7C97C50DDull, 0x3F84D5B5B5470917ull,
};
static const uint64_t second = 0xD6E8FEB86659FD93ull, golden = 0x9E3779B97F4A7C15ull;
enum { ROUNDS = 4, SMALL = 64, PASSES = 3, LONG = 64, PERMUTATIONS = 256 };
enum { BLOCKS = 1, SPANS = 2 };

typedef struct {
    uint64_t n, power, mask, base, key;
} network;

static inline uint64_t mixed(uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

static inline uint64_t folded(uint64_t key, uint64_t part) { return mixed((key ^ part) + golden); }

static inline uint64_t word(uint64_t key, uint64_t number) {
    uint64_t w = (number * golden ^ key) * second;
    return (w ^ w >> 32) * second;
}

static inline int64_t below(uint64_t word, int64_t bound) { return (int64_t)((word >> 32) * (uint64_t)bound >> 32); }

static inline uint64_t hash(uint64_t half, uint64_t key, uint64_t multiplier) {
    uint64_t h = (half + key) * multiplier;
    return (h ^ h >> 32) * second >> 32;
}

static inline uint64_t turned(uint64_t point, const network *w) {
    uint64_t left = point & w->mask, right = point >> w->power;
    for (int turn = 0; turn < ROUNDS; turn++) {
        left ^= hash(right, w->key, multipliers[2 * turn]) & w->mask;
        right += hash(left, w->key, multipliers[2 * turn + 1]) * w->base >> 32;
        right -= right >= w->base ? w->base : 0;
    }
    return right << w->power | left;
}

static uint64_t permuted(uint64_t point, uint64_t n, uint64_t key) {
    uint64_t bits = n > 1 ? 64 - (uint64_t)__builtin_clzll(n - 1) : 0, power = (bits >> 1) - (bits >> 3), mask = (1ull << power) - 1;
    network w = {n, power, mask, (n + mask) >> power, key};
    for (int pass = 0; pass < (n < SMALL ? PASSES : 1); pass++) {
        w.key = pass ? key ^ multipliers[pass] : key;
        do point = turned(point, &w);
        while (point >= n);
    }
    return point;
}

static inline int64_t start(int64_t slot, int64_t items, int64_t slots) { return slot * items / slots; }

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t plain(const hw_order *o, int64_t full) { return full - most(least(full - o->short_end, o->missing), 0); }

static int64_t walk_whole(const hw_order *o, int64_t turn, uint64_t key) {
    int64_t row = turn / o->span_blocks, column = turn - row * o->span_blocks, place;
    column += below(word(key, (uint64_t)row), o->span_blocks);
    column -= column >= o->span_blocks ? o->span_blocks : 0;
    uint64_t drawn = word(key, ~(uint64_t)column);
    if (o->block_items > LONG) {
        place = (int64_t)permuted((uint64_t)row, (uint64_t)o->block_items, drawn);
    } else {
        place = o->permutations[(int64_t)(drawn & (PERMUTATIONS - 1)) * o->block_items + row] + below(drawn, o->block_items);
        place -= place >= o->block_items ? o->block_items : 0;
    }
    return column * o->block_items + place;
}

static int64_t walk_clipped(const hw_order *o, int64_t turn, int64_t items, uint64_t key) {
    int64_t columns = (items + o->block_items - 1) / o->block_items, row = turn / columns, column = turn % columns;
    int64_t rows = items / columns;
    if (row < rows) column = (column + below(word(key, (uint64_t)row), columns)) % columns;
    else column = ((column + 1) * columns - 1) / most(items % columns, 1);
    int64_t first = start(column, items, columns), size = start(column + 1, items, columns) - first;
    return first + (int64_t)permuted((uint64_t)row, (uint64_t)size, word(key, ~(uint64_t)column));
}

static int64_t item_at(const hw_order *o, int64_t position, uint64_t blocks_key, uint64_t spans_key) {
    int64_t slot = ((position + 1) * o->slots - 1) / o->items, width = o->span_blocks * o->block_items;
    int64_t phase = (int64_t)(((uint64_t)slot * 0x9E3779B1u & 0xFFFFFFFFu) * (uint64_t)o->span_blocks >> 32) * o->block_items;
    int64_t full = position + (position >= o->short_end ? o->missing : 0);
    int64_t open = (full + phase) / width * width - phase;
    int64_t end = least(plain(o, open + width), start(slot + 1, o->items, o->slots));
    int64_t begin = most(plain(o, open), start(slot, o->items, o->slots));
    uint64_t key = folded(spans_key, (uint64_t)begin);
    int64_t turn = position - begin;
    position = begin + (end - begin == width ? walk_whole(o, turn, key) : walk_clipped(o, turn, end - begin, key));
    full = position + (position >= o->short_end ? o->missing : 0);
    int64_t place = full / o->block_items;
    return ((int64_t)permuted((uint64_t)place, (uint64_t)o->blocks, blocks_key) - place) * o->block_items + full;
}

int64_t hw_shuffled_items(const hw_order *o, const int64_t *positions, int64_t count, int64_t *out) {
    uint64_t blocks_key = folded(o->key, BLOCKS), spans_key = folded(o->key, SPANS);
    for (int64_t k = 0; k < count; k++) {
        if (positions[k] < 0 || positions[k] >= o->items) return k;
        out[k] = item_at(o, positions[k], blocks_key, spans_key);
    }
    return count;
}
