/* Entropy decoding for the common JPEG: it is half of a decode's time, and libjpeg-turbo's decoder serves every source
 * and every damage. This one takes only what is whole: the bytes lie in memory, escapes (FF 00) are removed ahead, so the
 * bit buffer refills with one load and no branch, and one look-up gives run, value and length of most coefficients.
 * At anything unexpected it gives up and the image is decoded again by libjpeg-turbo, whose verdict and messages stand.
 *
 * It goes in through the entropy decoder's first two fields, the same in every libjpeg since version 6. */
#include "huffman.h"

#include <stdlib.h>
#include <string.h>

#ifndef HW_CHUNK
#define HW_CHUNK (32 << 10) /* stays in L2, and a crop at the top does not pay for the rest */
#endif

enum {
    PEEK = 10,          /* 4 KiB a table stay in L1: 9 and 11 were no faster (bench/kernels.py) */
    TABLES = 4,
    CHUNK = HW_CHUNK,
    MOST_MCU = 4 << 10, /* bytes of an MCU: at most 10 blocks of 64 * 31 bits */
    SLACK = 512,        /* a block reads at most that far beyond the end before it is checked */
    END = 64,
};

struct entropy {
    void (*start_pass)(j_decompress_ptr jpeg);
    boolean (*decode_mcu)(j_decompress_ptr jpeg, JBLOCKROW *blocks);
};

/* An entry of `fast`: value << 16 | run << 8 | bits, all that the next PEEK bits hold. "End of block" is a run of 64 with
 * value 0, so that it needs no branch of its own. Bits 0: the value's bits do not all fit, and the upper half is
 * length << 8 | symbol of the code, or 0 if the code itself does not fit. */
typedef struct {
    uint8_t bits[17], symbols[256]; /* the definition, to recognise the same table in the next image */
    int known;
    int32_t fast[1 << PEEK];
    int32_t skip[1 << PEEK];        /* for blocks nobody wants: ends << 16 | coefficients << 8 | bits of all codes within PEEK bits */
    int skips;                      /* `skip` is built */
    int32_t most[18], offset[17];   /* by code length: largest code, and where its symbols start less its first code */
} table;

struct hw_huffman {
    table dc[TABLES], ac[TABLES];
    uint8_t *plain;                 /* CHUNK bytes of the segment without escapes, then SLACK zeros */
    int ended;                      /* they reach the segment's end */
    const uint8_t *raw, *raw_end;   /* what follows them in the file */
    const uint8_t *next, *last;     /* in `plain`: next byte to load, end of the bytes */
    uint64_t buffer;                /* bits from the top */
    int held;                       /* how many of them are loaded */
    unsigned left, interval;        /* MCUs to the next restart; 0: none */
    int marker;                     /* expected number of the next restart */
    unsigned column, first, past;   /* this MCU's column; those in [first, past) are wanted */
    int before[MAX_COMPS_IN_SCAN];  /* last DC by component */
};

/* Zigzag order; then what a run out of the block hits. That is the last coefficient, with 0 where the block ends as it
 * should: it cannot have been set yet, or there would be nothing left to end. */
static const uint8_t natural[64 + END] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
};

static inline int extend(int bits, int size) { return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits; }

/* libjpeg-turbo has checked the definition by now: no code is too long, none is used twice. */
static void build(table *t, const JHUFF_TBL *from, int dc) {
    if (t->known && memcmp(t->bits, from->bits, 17) == 0 && memcmp(t->symbols, from->huffval, 256) == 0) return;
    memcpy(t->bits, from->bits, 17), memcpy(t->symbols, from->huffval, 256), t->known = 1;
    t->skips = 0;
    memset(t->fast, 0, sizeof t->fast);
    int32_t code = 0;
    int symbol = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        t->offset[length] = symbol - code;
        for (int n = 0; n < t->bits[length]; n++, code++, symbol++) {
            if (length > PEEK) continue;
            int size = dc ? t->symbols[symbol] : t->symbols[symbol] & 15, run = dc ? 0 : t->symbols[symbol] >> 4;
            if (!dc && size == 0 && run != 15) run = END;
            int spare = PEEK - length - size;
            for (int low = 0; low < 1 << (PEEK - length); low++) {
                uint32_t value = size && spare >= 0 ? (uint32_t)extend(low >> spare, size) : 0;
                uint32_t entry = value << 16 | (uint32_t)run << 8 | (uint32_t)(length + size);
                if (spare < 0) entry = (uint32_t)length << 24 | (uint32_t)t->symbols[symbol] << 16;
                t->fast[code << (PEEK - length) | low] = (int32_t)entry;
            }
        }
        t->most[length] = t->bits[length] ? code - 1 : -1;
    }
}

static void build_skip(table *t) {
    for (int at = 0; at < 1 << PEEK; at++) {
        int bits = 0, coefficients = 0, ends = 0;
        while (!ends) {
            int32_t entry = t->fast[at << bits & ((1 << PEEK) - 1)];
            int more = entry & 255, run = entry >> 8 & 255;
            if (more == 0 || more > PEEK - bits) break; /* not decided by the bits that are there */
            bits += more;
            if (run == END) ends = 1;
            else coefficients += run + 1;
        }
        t->skip[at] = ends << 16 | coefficients << 8 | bits;
    }
    t->skips = 1;
}

/* More of the segment without its escapes, until the chunk is full or a marker comes. 0: not what a whole file has. */
static int feed(struct hw_huffman *h) {
    size_t rest = (size_t)(h->last - h->next);
    memmove(h->plain, h->next, rest);
    const uint8_t *from = h->raw;
    uint8_t *to = h->plain + rest, *full = h->plain + CHUNK;
    while (to < full) {
        const uint8_t *mark = memchr(from, 0xff, (size_t)(h->raw_end - from));
        if (mark == NULL || mark + 1 >= h->raw_end || mark[1] == 0xff) return 0;
        size_t run = (size_t)(mark - from), space = (size_t)(full - to);
        memcpy(to, from, run < space ? run : space);
        to += run < space ? run : space, from += run < space ? run : space;
        if (run >= space) break;
        if (mark[1] != 0) {
            h->ended = 1;
            break;
        }
        *to++ = 0xff, from += 2;
    }
    h->raw = from;
    memset(to, 0, SLACK);
    h->next = h->plain, h->last = to;
    return 1;
}

static int begin_segment(struct hw_huffman *h) {
    h->next = h->last = h->plain;
    h->ended = 0, h->buffer = 0, h->held = 0;
    memset(h->before, 0, sizeof h->before);
    h->left = h->interval;
    return feed(h);
}

/* Whole bytes not yet used by the decoder; negative: bits were read that are not there. */
static long unread(const struct hw_huffman *h) { return (long)(h->last - h->next) + (h->held >> 3); }

static int restart(struct hw_huffman *h) {
    if (!h->ended || unread(h) != 0 || h->raw[1] != 0xd0 + h->marker) return 0;
    h->marker = (h->marker + 1) & 7;
    h->raw += 2;
    return begin_segment(h);
}

#define REFILL()                                  \
    do {                                          \
        uint64_t word;                            \
        memcpy(&word, next, 8);                   \
        buffer |= __builtin_bswap64(word) >> held; \
        next += (63 - held) >> 3;                 \
        held |= 56;                               \
    } while (0)
#define USE(count) (buffer <<= (count), held -= (count))

/* The code at the head of the buffer, when `entry` does not decide it: its length (0: no such code) and its symbol. */
static inline int code_of(const table *t, int32_t entry, uint64_t buffer, int *symbol) {
    if (entry) {
        *symbol = entry >> 16 & 255;
        return (int)((uint32_t)entry >> 24);
    }
    for (int length = PEEK + 1; length <= 16; length++) {
        int32_t code = (int32_t)(buffer >> (64 - length));
        if (code <= t->most[length]) {
            *symbol = t->symbols[(code + t->offset[length]) & 255];
            return length;
        }
    }
    return 0;
}

/* The variables of a decode loop, in registers. */
#define OPEN(h)                          \
    const uint8_t *next = (h)->next;     \
    uint64_t buffer = (h)->buffer;       \
    int held = (h)->held, symbol, length; \
    int32_t entry
#define CLOSE(h) ((h)->next = next, (h)->buffer = buffer, (h)->held = held)

/* A block's first coefficient, as a difference; returns 0 for a bad code. */
#define DECODE_DC()                                                                  \
    do {                                                                             \
        REFILL();                                                                    \
        entry = dc->fast[buffer >> (64 - PEEK)];                                     \
        if (entry & 255) {                                                           \
            *before += entry >> 16;                                                  \
            USE(entry & 255);                                                        \
        } else {                                                                     \
            length = code_of(dc, entry, buffer, &symbol);                            \
            if (length == 0 || symbol > 15) return 0;                                \
            USE(length);                                                             \
            if (symbol) {                                                            \
                *before += extend((int)(buffer >> (64 - symbol)), symbol);           \
                USE(symbol);                                                         \
            }                                                                        \
        }                                                                            \
        /* Nonsense, on its way to an overflow. */                                   \
        if (*before > 1 << 20 || *before < -(1 << 20)) return 0;                     \
    } while (0)

/* One block; 0: a bad code, or coefficients beyond the 64th. */
static inline __attribute__((always_inline)) int decode_block(struct hw_huffman *h, const table *dc, const table *ac, int *before, JCOEF *block) {
    OPEN(h);
    int k = 1;
    DECODE_DC();
    block[0] = (JCOEF)*before;
    do {
        REFILL();
        for (int n = 0; n < 3; n++) { /* at least 56 bits: two that fit in PEEK, and then any (31 at most) */
            entry = ac->fast[buffer >> (64 - PEEK)];
            if ((entry & 255) == 0) goto long_one;
            k += entry >> 8 & 255;
            block[natural[k++]] = (JCOEF)(entry >> 16);
            USE(entry & 255);
            if (k >= 64) {
                if (k > 64 && (entry >> 8 & 255) != END) return 0;
                goto done;
            }
        }
        continue;
    long_one:
        length = code_of(ac, entry, buffer, &symbol);
        if (length == 0) return 0;
        USE(length);
        int size = symbol & 15, run = symbol >> 4;
        if (size == 0 && run != 15) break;
        k += run;
        if (size) {
            block[natural[k]] = (JCOEF)extend((int)(buffer >> (64 - size)), size);
            USE(size);
        }
        if (++k > 64) return 0;
    } while (k < 64);
done:
    CLOSE(h);
    return 1;
}

/* The same without the coefficients: several codes a look-up. */
static inline __attribute__((always_inline)) int skip_block(struct hw_huffman *h, const table *dc, table *ac, int *before) {
    OPEN(h);
    int k = 1;
    if (!ac->skips) build_skip(ac);
    DECODE_DC();
    do {
        REFILL();
        for (int n = 0; n < 3; n++) {
            entry = ac->skip[buffer >> (64 - PEEK)];
            int after = k + (entry >> 8 & 255);
            if ((entry & 255) == 0 || after >= 64) goto one; /* the block may end within the entry: code by code */
            k = after;
            USE(entry & 255);
            if (entry >> 16) goto done;
        }
        continue;
    one:
        entry = ac->fast[buffer >> (64 - PEEK)];
        if (entry & 255) {
            USE(entry & 255);
            if ((entry >> 8 & 255) == END) break;
            k += (entry >> 8 & 255) + 1;
        } else {
            length = code_of(ac, entry, buffer, &symbol);
            if (length == 0) return 0;
            USE(length);
            if ((symbol & 15) == 0 && symbol >> 4 != 15) break;
            USE(symbol & 15);
            k += (symbol >> 4) + 1;
        }
        if (k > 64) return 0;
    } while (k < 64);
done:
    CLOSE(h);
    return 1;
}

static inline __attribute__((always_inline)) boolean next_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    hw_client *client = jpeg->client_data;
    struct hw_huffman *h = client->huffman;
    int wanted = blocks != NULL && h->column >= h->first && h->column < h->past;
    if (h->interval && h->left == 0 && !restart(h)) client->give_up(jpeg);
    if (!h->ended && h->last - h->next < MOST_MCU && !feed(h)) client->give_up(jpeg);
    for (int b = 0; b < jpeg->blocks_in_MCU; b++) {
        int c = jpeg->MCU_membership[b];
        const jpeg_component_info *component = jpeg->cur_comp_info[c];
        const table *dc = h->dc + component->dc_tbl_no;
        table *ac = h->ac + component->ac_tbl_no;
        int good = wanted ? decode_block(h, dc, ac, h->before + c, (JCOEF *)blocks[b]) : skip_block(h, dc, ac, h->before + c);
        if (!good || unread(h) < 0) client->give_up(jpeg);
    }
    h->column = h->column + 1 == jpeg->MCUs_per_row ? 0 : h->column + 1;
    h->left--;
    return TRUE;
}

static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) { return next_mcu(jpeg, blocks); }

#if defined(__x86_64__)
/* Shifts by a register are one instruction here, and the loop is made of them. */
__attribute__((target("bmi2"))) static boolean decode_mcu_bmi2(j_decompress_ptr jpeg, JBLOCKROW *blocks) { return next_mcu(jpeg, blocks); }
#endif

int hw_huffman_attach(j_decompress_ptr jpeg, hw_scratch *scratch, const uint8_t *end) {
    hw_client *client = jpeg->client_data;
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg_has_multiple_scans(jpeg)) return 0;
    if (scratch->huffman == NULL) scratch->huffman = calloc(1, sizeof *scratch->huffman);
    struct hw_huffman *h = scratch->huffman;
    if (h == NULL) return 0;
    h->raw = jpeg->src->next_input_byte, h->raw_end = end;
    if (h->plain == NULL && (h->plain = malloc(CHUNK + SLACK)) == NULL) return 0;
    for (int c = 0; c < jpeg->comps_in_scan; c++) {
        int dc = jpeg->cur_comp_info[c]->dc_tbl_no, ac = jpeg->cur_comp_info[c]->ac_tbl_no;
        if (dc < 0 || dc >= TABLES || ac < 0 || ac >= TABLES || jpeg->dc_huff_tbl_ptrs[dc] == NULL || jpeg->ac_huff_tbl_ptrs[ac] == NULL) return 0;
        build(h->dc + dc, jpeg->dc_huff_tbl_ptrs[dc], 1);
        build(h->ac + ac, jpeg->ac_huff_tbl_ptrs[ac], 0);
    }
    h->interval = jpeg->restart_interval;
    h->marker = 0;
    h->column = h->first = 0, h->past = jpeg->MCUs_per_row;
    if (!begin_segment(h)) return 0;
    client->huffman = h;
    struct entropy *entropy = (struct entropy *)jpeg->entropy;
    entropy->decode_mcu = decode_mcu;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("bmi2")) entropy->decode_mcu = decode_mcu_bmi2;
#endif
    return 1;
}

void hw_huffman_crop(j_decompress_ptr jpeg, unsigned left, unsigned count) {
    struct hw_huffman *h = ((hw_client *)jpeg->client_data)->huffman;
    unsigned wide = (unsigned)DCTSIZE * jpeg->scale_num / jpeg->scale_denom; /* of an MCU, in decoded pixels */
    if (jpeg->comps_in_scan > 1) wide *= (unsigned)jpeg->max_h_samp_factor;
    h->first = left / wide, h->past = (left + count + wide - 1) / wide;
}

void hw_huffman_free(struct hw_huffman *huffman) {
    if (huffman == NULL) return;
    free(huffman->plain);
    free(huffman);
}
