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

static network network_of(uint64_t n, uint64_t key) {
    uint64_t bits = n > 1 ? 64 - (uint64_t)__builtin_clzll(n - 1) : 0, power = (bits >> 1) - (bits >> 3), mask = (1ull << power) - 1;
    return (network){n, power, mask, (n + mask) >> power, key};
}

static uint64_t permuted(uint64_t point, uint64_t n, uint64_t key) {
    network w = network_of(n, key);
    for (int pass = 0; pass < (n < SMALL ? PASSES : 1); pass++) {
        w.key = pass ? key ^ multipliers[pass] : key;
        do point = turned(point, &w);
        while (point >= n);
    }
    return point;
}

enum { LANES = 8 };

/* The same for LANES points at once, in place: each is a chain of multiplications, and the processor does several side by side. */
static void permuted_lanes(int64_t *points, uint64_t n, uint64_t key) {
    const network w = network_of(n, key);
    uint64_t left[LANES], right[LANES];
    for (int k = 0; k < LANES; k++) left[k] = (uint64_t)points[k] & w.mask, right[k] = (uint64_t)points[k] >> w.power;
    for (int turn = 0; turn < ROUNDS; turn++) {
        for (int k = 0; k < LANES; k++) left[k] ^= hash(right[k], key, multipliers[2 * turn]) & w.mask;
        for (int k = 0; k < LANES; k++) {
            right[k] += hash(left[k], key, multipliers[2 * turn + 1]) * w.base >> 32;
            right[k] -= right[k] >= w.base ? w.base : 0;
        }
    }
    for (int k = 0; k < LANES; k++) {
        uint64_t point = right[k] << w.power | left[k];
        while (point >= n) point = turned(point, &w);
        points[k] = (int64_t)point;
    }
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

/* A span, clipped to its slot: the positions [begin, end), and what walks them. */
typedef struct {
    int64_t begin, end;
    uint64_t key;
} span;

static span span_of(const hw_order *o, int64_t position, uint64_t spans_key) {
    int64_t slot = ((position + 1) * o->slots - 1) / o->items, width = o->span_blocks * o->block_items;
    int64_t phase = (int64_t)(((uint64_t)slot * 0x9E3779B1u & 0xFFFFFFFFu) * (uint64_t)o->span_blocks >> 32) * o->block_items;
    int64_t full = position + (position >= o->short_end ? o->missing : 0);
    int64_t open = (full + phase) / width * width - phase;
    int64_t end = least(plain(o, open + width), start(slot + 1, o->items, o->slots));
    int64_t begin = most(plain(o, open), start(slot, o->items, o->slots));
    return (span){begin, end, folded(spans_key, (uint64_t)begin)};
}

/* Return the full position read at `position` of span `s`. */
static inline int64_t walked(const hw_order *o, int64_t position, const span *s) {
    int64_t turn = position - s->begin, items = s->end - s->begin;
    position = s->begin + (items == o->span_blocks * o->block_items ? walk_whole(o, turn, s->key) : walk_clipped(o, turn, items, s->key));
    return position + (position >= o->short_end ? o->missing : 0);
}

enum { RUN = 256, SPANS_KEPT = 1024 };

/* Positions come step by step, each with the same slots, which stay in their spans for many steps: `columns` says how many
 * there are, and the span of each is kept. Two loops, so that the second, all multiplications, is not held up by branches. */
int64_t hw_shuffled_items(const hw_order *o, const int64_t *positions, int64_t count, int64_t columns, int64_t *out) {
    uint64_t blocks_key = folded(o->key, BLOCKS), spans_key = folded(o->key, SPANS);
    span kept[SPANS_KEPT] = {{0, 0, 0}};
    int64_t place[RUN], column = 0;
    for (int64_t from = 0; from < count; from += RUN) {
        int64_t n = least(RUN, count - from);
        for (int64_t k = 0; k < n; k++, column = column + 1 < columns ? column + 1 : 0) {
            int64_t position = positions[from + k];
            if (position < 0 || position >= o->items) return from + k;
            span *s = kept + column % SPANS_KEPT;
            if (position < s->begin || position >= s->end) *s = span_of(o, position, spans_key);
            int64_t full = walked(o, position, s);
            place[k] = full / o->block_items;
            out[from + k] = full - place[k] * o->block_items;
        }
        int64_t done = o->blocks < SMALL ? 0 : n / LANES * LANES;
        for (int64_t k = 0; k < done; k += LANES) permuted_lanes(place + k, (uint64_t)o->blocks, blocks_key);
        for (int64_t k = done; k < n; k++) place[k] = (int64_t)permuted((uint64_t)place[k], (uint64_t)o->blocks, blocks_key);
        for (int64_t k = 0; k < n; k++) out[from + k] += place[k] * o->block_items;
    }
    return count;
}
