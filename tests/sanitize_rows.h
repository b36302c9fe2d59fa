/* Takes and located rows with indices from anywhere, of files with damaged chunks, through the pool; every output lies in a block
 * of its own. */
#include "../formats/native/order.h"

/* Draw a small number, one at the edge of what there is, or any 64 bits. */
static int64_t draw_index(int64_t count) {
    switch (below(12)) {
    case 0: return (int64_t)draw();
    case 1: return count;
    case 2: return -1;
    default: return count > 0 ? (int64_t)below((uint64_t)count) : 0;
    }
}

/* A column of `bytes` bytes of `value` somewhere in a file; where `hostile`, some chunks of it are not what their sums say. */
static hw_home draw_home(size_t bytes, int value, int64_t hostile) {
    size_t lead = (size_t)below(3) * 40000, size = lead + bytes + (size_t)below(100), chunks = (size >> HW_CHUNK_SHIFT) + 1;
    unsigned char *file = memset(malloc(size), value, size);
    uint64_t *sums = malloc(8 * chunks);
    if (below(3) == 0) chunks = 0; /* nothing to compare */
    for (size_t k = 0; k < chunks; k++) {
        size_t start = k << HW_CHUNK_SHIFT, left = size - start, most = (size_t)1 << HW_CHUNK_SHIFT;
        sums[k] = hw_xxh3(file + start, left < most ? left : most) + (hostile && below(4) == 0);
    }
    return (hw_home){
        .base = (uintptr_t)file + lead, .good = chunks ? (uintptr_t)calloc(chunks, 1) : 0, .file = (uintptr_t)file, .bytes = size, .sums = (uintptr_t)sums};
}

/* Whether the chunks under a row are what their sums say. */
static int is_whole(const hw_home *home, size_t start, size_t width) {
    if (home->base == 0 || home->good == 0) return home->base != 0;
    start += home->base - home->file;
    for (size_t chunk = start >> HW_CHUNK_SHIFT; chunk <= (start + width - 1) >> HW_CHUNK_SHIFT; chunk++) {
        size_t from = chunk << HW_CHUNK_SHIFT, left = home->bytes - from, most = (size_t)1 << HW_CHUNK_SHIFT;
        if (hw_xxh3((unsigned char *)(uintptr_t)home->file + from, left < most ? left : most) != ((uint64_t *)(uintptr_t)home->sums)[chunk]) return 0;
    }
    return 1;
}

static void free_home(const hw_home *home) { free((void *)(uintptr_t)home->file), free((void *)(uintptr_t)home->good), free((void *)(uintptr_t)home->sums); }

static void run_take(void) {
    enum { SHARDS = 3, COLUMNS = 3 };
    static const size_t widths[] = {1, 3, 4, 8, 600};
    int64_t counts[SHARDS], rows = below(300), hostile = below(2);
    hw_home homes[COLUMNS][SHARDS];
    int64_t *shard = malloc(8 * (size_t)rows + 1), *row = malloc(8 * (size_t)rows + 1), bad = 0;
    hw_column columns[COLUMNS];
    for (int s = 0; s < SHARDS; s++) counts[s] = 1 + below(below(2) ? 20 : 400);
    for (int c = 0; c < COLUMNS; c++) {
        columns[c] = (hw_column){.homes = homes[c], .width = widths[below(5)]};
        columns[c].out = malloc(columns[c].width * (size_t)rows + 1);
        for (int s = 0; s < SHARDS; s++) {
            homes[c][s] = hostile && below(9) == 0 ? (hw_home){0} : draw_home(columns[c].width * (size_t)counts[s], 10 * c + s + 1, hostile);
        }
    }
    for (int64_t k = 0; k < rows; k++) {
        shard[k] = hostile ? draw_index(SHARDS) : (int64_t)below(SHARDS);
        int64_t there = shard[k] >= 0 && shard[k] < SHARDS ? counts[shard[k]] : 5;
        row[k] = hostile ? draw_index(there) : (int64_t)below((uint64_t)there);
    }
    hw_take take = {shard, row, counts, rows, SHARDS, columns, COLUMNS};
    hw_step step = {.take = &take};
    if (!hw_step_prepare(&step)) exit(3);
    hw_pool_submit(&step);
    int cancelled = below(20) == 0;
    if (cancelled) hw_pool_cancel(&step);
    while (hw_pool_wait(&step, 1000000000, below(2)) != HW_DONE) {}
    for (int64_t k = 0; k < rows && !cancelled; k++)
        for (int c = 0; c < COLUMNS; c++) {
            int there = shard[k] >= 0 && shard[k] < SHARDS && row[k] >= 0 && row[k] < counts[shard[k]] &&
                        is_whole(&homes[c][shard[k]], (size_t)row[k] * columns[c].width, columns[c].width);
            if (columns[c].out[(size_t)k * columns[c].width] != (there ? 10 * c + shard[k] + 1 : 0)) exit(10);
            bad |= !there;
        }
    if (!cancelled && bad != step.bad) exit(11);
    hw_step_clear(&step);
    for (int c = 0; c < COLUMNS; c++) {
        for (int s = 0; s < SHARDS; s++) free_home(&homes[c][s]);
        free(columns[c].out);
    }
    free(shard), free(row);
}

static void run_locate(void) {
    int64_t parts = 1 + below(40), starts[41] = {0}, offsets[40], numbers[50], part[50], row[50];
    for (int64_t k = 0; k < parts; k++) starts[k + 1] = starts[k] + below(9), offsets[k] = below(1000);
    for (int k = 0; k < 50; k++) numbers[k] = below(30) ? (int64_t)below((uint64_t)starts[parts] + 1) : draw_index(starts[parts]);
    int64_t hints[64], shift = below(4);
    for (int k = 0; k < 64; k++) hints[k] = below(9) ? 0 : draw_index(parts);
    hw_parts where = {starts, offsets, hints, parts, 64, (int)shift};
    int64_t good = hw_locate(&where, numbers, 50, part, row);
    for (int64_t k = 0; k < good; k++)
        if (numbers[k] < starts[part[k]] || numbers[k] >= starts[part[k] + 1] || row[k] != numbers[k] - starts[part[k]] + offsets[part[k]]) exit(12);
    if (good < 50 && numbers[good] >= 0 && numbers[good] < starts[parts]) exit(13);
}

/* Each position of a small line once: the order is a permutation, and the table is read inside its bounds. */
static void run_order(void) {
    int64_t items = 1 + below(900), slots = 1 + below(20), length = 1 + below(80);
    int64_t most = items / slots > 1 ? items / slots : 1;
    length = length < most ? length : most;
    hw_order order = {.items = items, .slots = slots, .block_items = length, .span_blocks = 1 + below(12), .key = draw()};
    order.blocks = (items - 1) / length + 1, order.missing = order.blocks * length - items;
    order.short_end = (int64_t)(1 + below((uint64_t)order.blocks)) * length - order.missing;
    uint8_t *table = malloc(256 * (size_t)length);
    for (size_t k = 0; k < 256 * (size_t)length; k++) table[k] = (uint8_t)(k % (size_t)length);
    order.permutations = table;
    int64_t *positions = malloc(8 * (size_t)items), *found = malloc(8 * (size_t)items);
    for (int64_t k = 0; k < items; k++) positions[k] = k;
    if (hw_shuffled_items(&order, positions, items, 1 + below(30), found) != items) exit(14);
    for (int64_t k = 0; k < items; k++)
        if (found[k] < 0 || found[k] >= order.blocks * length) exit(15);
    free(table), free(positions), free(found);
}
