/* xxh3-64 (seed 0, default secret), written from its specification: the hash of every payload, taken on the buffer that
 * is used. tests/formats/test_native_gather.py compares it with the xxhash package at every length to 600 and beyond. */
#include "core.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define P32_1 0x9E3779B1u
#define P32_2 0x85EBCA77u
#define P32_3 0xC2B2AE3Du
#define P64_1 0x9E3779B185EBCA87ull
#define P64_2 0xC2B2AE3D27D4EB4Full
#define P64_3 0x165667B19E3779F9ull
#define P64_4 0x85EBCA77C2B2AE63ull
#define P64_5 0x27D4EB2F165667C5ull

static const uint8_t secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t r32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t r64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint64_t rotl(uint64_t v, int by) { return v << by | v >> (64 - by); }

static inline uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t h) {
    h = (h ^ h >> 37) * 0x165667919E3779F9ull;
    return h ^ h >> 32;
}

static inline uint64_t old_avalanche(uint64_t h) {
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static inline uint64_t mix(const uint8_t *p, const uint8_t *key) { return fold(r64(p) ^ r64(key), r64(p + 8) ^ r64(key + 8)); }

static uint64_t up_to_16(const uint8_t *p, size_t n) {
    if (n == 0) return old_avalanche(r64(secret + 56) ^ r64(secret + 64));
    if (n < 4) {
        uint32_t joined = (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24 | p[n - 1] | (uint32_t)n << 8;
        return old_avalanche(joined ^ (uint64_t)(r32(secret) ^ r32(secret + 4)));
    }
    if (n <= 8) {
        uint64_t h = ((uint64_t)r32(p) << 32) + r32(p + n - 4);
        h ^= r64(secret + 8) ^ r64(secret + 16);
        h ^= rotl(h, 49) ^ rotl(h, 24);
        h *= 0x9FB21C651E98DF25ull;
        h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25ull;
        return h ^ h >> 28;
    }
    uint64_t low = r64(p) ^ r64(secret + 24) ^ r64(secret + 32), high = r64(p + n - 8) ^ r64(secret + 40) ^ r64(secret + 48);
    return avalanche(n + __builtin_bswap64(low) + high + fold(low, high));
}

static uint64_t up_to_240(const uint8_t *p, size_t n) {
    uint64_t h = n * P64_1;
    if (n <= 128) {
        for (int k = ((int)n - 1) / 32; k >= 0; k--) h += mix(p + 16 * k, secret + 32 * k) + mix(p + n - 16 * (k + 1), secret + 32 * k + 16);
        return avalanche(h);
    }
    for (int k = 0; k < 8; k++) h += mix(p + 16 * k, secret + 16 * k);
    h = avalanche(h);
    for (int k = 8; k < (int)(n / 16); k++) h += mix(p + 16 * k, secret + 16 * (k - 8) + 3);
    return avalanche(h + mix(p + n - 16, secret + 136 - 17));
}

/* All full blocks of 16 stripes, the stripes left over and the last 64 bytes go into the eight accumulators; the variants give
 * equal sums. With `out` the stripes are written there as they pass: the bytes hashed are the bytes stored, and the source is
 * read once. What follows the last whole stripe is the caller's to copy before the last 64 bytes are looked at. */
static void bulk_plain(uint64_t *acc, const uint8_t *p, size_t blocks, size_t rest, const uint8_t *last, uint8_t *out) {
    for (size_t b = 0; b <= blocks; b++, p += 1024) {
        size_t stripes = b < blocks ? 16 : rest + 1;
        for (size_t s = 0; s < stripes; s++) {
            int is_last = s == rest && b == blocks;
            const uint8_t *at = is_last ? last : p + 64 * s, *key = is_last ? secret + 121 : secret + 8 * s;
            if (out != NULL && !is_last) at = memcpy(out + b * 1024 + 64 * s, at, 64);
            for (int k = 0; k < 8; k++) {
                uint64_t data = r64(at + 8 * k), mixed = data ^ r64(key + 8 * k);
                acc[k ^ 1] += data;
                acc[k] += (mixed & 0xffffffff) * (mixed >> 32);
            }
        }
        for (int k = 0; k < 8 && b < blocks; k++) acc[k] = (acc[k] ^ acc[k] >> 47 ^ r64(secret + 128 + 8 * k)) * P32_1;
    }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 static inline __m256i stripe_avx2(__m256i acc, const uint8_t *p, const uint8_t *key, uint8_t *out) {
    __m256i data = _mm256_loadu_si256((const __m256i *)p), mixed = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)key));
    if (out != NULL) _mm256_storeu_si256((__m256i *)out, data);
    acc = _mm256_add_epi64(acc, _mm256_shuffle_epi32(data, 0x4e));
    return _mm256_add_epi64(acc, _mm256_mul_epu32(mixed, _mm256_shuffle_epi32(mixed, 0x31)));
}

AVX2 static inline __m256i scramble_avx2(__m256i acc, const uint8_t *key) {
    const __m256i prime = _mm256_set1_epi32((int)P32_1);
    acc = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), _mm256_loadu_si256((const __m256i *)key));
    __m256i high = _mm256_mul_epu32(_mm256_shuffle_epi32(acc, 0x31), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(acc, prime), _mm256_slli_epi64(high, 32));
}

AVX2 static inline __attribute__((always_inline)) void bulk_into(uint64_t *acc, const uint8_t *p, size_t blocks, size_t rest, const uint8_t *last,
                                                                 uint8_t *out, int copies) {
    __m256i a = _mm256_loadu_si256((__m256i *)acc), b = _mm256_loadu_si256((__m256i *)acc + 1);
    for (; blocks > 0; blocks--, p += 1024, out += copies ? 1024 : 0) {
        for (int s = 0; s < 16; s++) {
            a = stripe_avx2(a, p + 64 * s, secret + 8 * s, copies ? out + 64 * s : NULL);
            b = stripe_avx2(b, p + 64 * s + 32, secret + 8 * s + 32, copies ? out + 64 * s + 32 : NULL);
        }
        a = scramble_avx2(a, secret + 128), b = scramble_avx2(b, secret + 160);
    }
    for (size_t s = 0; s < rest; s++) {
        a = stripe_avx2(a, p + 64 * s, secret + 8 * s, copies ? out + 64 * s : NULL);
        b = stripe_avx2(b, p + 64 * s + 32, secret + 8 * s + 32, copies ? out + 64 * s + 32 : NULL);
    }
    a = stripe_avx2(a, last, secret + 121, NULL), b = stripe_avx2(b, last + 32, secret + 153, NULL);
    _mm256_storeu_si256((__m256i *)acc, a), _mm256_storeu_si256((__m256i *)acc + 1, b);
}

AVX2 static void bulk_avx2(uint64_t *acc, const uint8_t *p, size_t blocks, size_t rest, const uint8_t *last, uint8_t *out) {
    if (out == NULL) bulk_into(acc, p, blocks, rest, last, NULL, 0);
    else bulk_into(acc, p, blocks, rest, last, out, 1);
}
#endif

static uint64_t hashed(const uint8_t *p, size_t n, uint8_t *out) {
    uint64_t acc[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    size_t blocks = (n - 1) / 1024, rest = (n - 1 - blocks * 1024) / 64, whole = blocks * 1024 + rest * 64;
    const uint8_t *last = p + n - 64;
    if (out != NULL) memcpy(out + whole, p + whole, n - whole), last = out + n - 64;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) bulk_avx2(acc, p, blocks, rest, last, out);
    else
#endif
        bulk_plain(acc, p, blocks, rest, last, out);
    uint64_t h = n * P64_1;
    for (int k = 0; k < 4; k++) h += fold(acc[2 * k] ^ r64(secret + 11 + 16 * k), acc[2 * k + 1] ^ r64(secret + 19 + 16 * k));
    return avalanche(h);
}

uint64_t hw_xxh3(const void *bytes, size_t n) {
    if (n <= 16) return up_to_16(bytes, n);
    return n <= 240 ? up_to_240(bytes, n) : hashed(bytes, n, NULL);
}

uint64_t hw_xxh3_copy(void *out, const void *bytes, size_t n) {
    if (n > 240) return hashed(bytes, n, out);
    if (n) memcpy(out, bytes, n);
    return hw_xxh3(out, n);
}
