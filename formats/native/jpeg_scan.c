/* The walk over a JPEG's markers, from start to end, without decoding; formats/jpeg.py explains it and is its reference. */
#include "jpeg_scan.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { SOF0 = 0xc0, DHT = 0xc4, JPG = 0xc8, DAC = 0xcc, RST0 = 0xd0, RST7 = 0xd7, SOI = 0xd8, EOI = 0xd9, SOS = 0xda, DNL = 0xdc, DRI = 0xdd, APP1 = 0xe1, APP14 = 0xee };

static uint32_t r16(const uint8_t *p, int little) { return little ? p[0] | (uint32_t)p[1] << 8 : (uint32_t)p[0] << 8 | p[1]; }

static uint32_t r32(const uint8_t *p, int little) { return little ? r16(p, 1) | r16(p + 2, 1) << 16 : r16(p, 0) << 16 | r16(p + 2, 0); }

/* The first marker after entropy-coded data: 0xff before anything but a stuffed zero, a restart or a fill byte. */
static const uint8_t *after_scan(const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
    const __m128i ones = _mm_set1_epi8((char)0xff), zero = _mm_setzero_si128();
    for (; end - p > 16; p += 16) {
        __m128i here = _mm_loadu_si128((const __m128i *)p), next = _mm_loadu_si128((const __m128i *)(p + 1));
        int found = _mm_movemask_epi8(_mm_andnot_si128(_mm_cmpeq_epi8(next, zero), _mm_cmpeq_epi8(here, ones)));
        for (; found; found &= found - 1) {
            const uint8_t *at = p + __builtin_ctz((unsigned)found);
            if (at[1] != 0xff && (at[1] < RST0 || at[1] > RST7)) return at;
        }
    }
#endif
    for (; end - p > 1; p++)
        if (p[0] == 0xff && p[1] != 0 && p[1] != 0xff && (p[1] < RST0 || p[1] > RST7)) return p;
    return NULL;
}

/* The byte after the next marker, whose code goes to `marker`; what lies before it is junk, which decoders skip too. */
static const uint8_t *next_marker(const uint8_t *from, const uint8_t *end, int *marker, int64_t *junk) {
    const uint8_t *at = from;
    while (at < end && (at = memchr(at, 0xff, (size_t)(end - at))) != NULL) {
        const uint8_t *after = at + 1;
        while (after < end && *after == 0xff) after++;
        if (after == end) return NULL;
        if (*after) {
            *junk += at - from;
            *marker = *after;
            return after + 1;
        }
        at = after + 1;
    }
    return NULL;
}

/* Orientation of EXIF data, 0 where there is none that makes sense. */
static int orientation(const uint8_t *tiff, size_t size) {
    if (size < 10) return 0;
    int little = memcmp(tiff, "II*", 4) == 0;
    if (!little && memcmp(tiff, "MM\0*", 4) != 0) return 0;
    size_t at = r32(tiff + 4, little);
    if (at + 2 > size) return 0;
    size_t count = r16(tiff + at, little);
    for (size_t entry = at + 2; count > 0 && entry + 11 < size; entry += 12, count--) {
        if (r16(tiff + entry, little) != 0x0112) continue;
        uint32_t kind = r16(tiff + entry + 2, little), value = r16(tiff + entry + 8, little);
        return kind == 3 && value >= 1 && value <= 8 ? (int)value : 0;
    }
    return 0;
}

static int frame_header(int marker, const uint8_t *body, size_t size, hw_jpeg_facts *facts) {
    if (size < 6 || size < 6 + 3 * (size_t)body[5]) return 0;
    int count = body[5];
    if (count != 1 && count != 3 && count != 4) return 0;
    for (int n = 0; n < count && n < 4; n++) {
        int across = body[7 + 3 * n] >> 4, down = body[7 + 3 * n] & 15;
        if (across < 1 || across > 4 || down < 1 || down > 4) return 0;
        if (facts->components == 0) facts->sampling[n][0] = (uint8_t)across, facts->sampling[n][1] = (uint8_t)down;
    }
    if (facts->components) return 1;
    facts->process = marker - SOF0, facts->precision = body[0], facts->components = count;
    facts->height = (int32_t)r16(body + 1, 0), facts->width = (int32_t)r16(body + 3, 0);
    return 1;
}

int hw_scan_jpeg(const uint8_t *data, size_t size, hw_jpeg_facts *facts) {
    memset(facts, 0, sizeof *facts);
    facts->orientation = 1, facts->adobe = -1;
    if (size < 2 || data[0] != 0xff || data[1] != SOI) return 0;
    const uint8_t *at = data + 2, *end = data + size;
    for (;;) {
        int marker = 0;
        at = next_marker(at, end, &marker, &facts->junk);
        if (at == NULL) return 0;
        if (marker == EOI) break;
        if (marker == SOI || marker == 0x01 || (marker >= RST0 && marker <= RST7)) {
            facts->junk += 2;
            continue;
        }
        if (end - at < 2) return 0;
        size_t length = r16(at, 0);
        if (length < 2 || length > (size_t)(end - at)) return 0;
        const uint8_t *body = at + 2;
        size_t room = length - 2;
        if ((marker & 0xf0) == SOF0 && marker != DHT && marker != JPG && marker != DAC) {
            if (!frame_header(marker, body, room, facts)) return 0;
        } else if (marker == DRI && room >= 2) {
            facts->restart = (int32_t)r16(body, 0);
        } else if (marker == DNL && room >= 2 && facts->components && facts->height == 0) {
            facts->height = (int32_t)r16(body, 0);
        } else if (marker == APP1 && room >= 6 && memcmp(body, "Exif\0", 6) == 0) {
            int found = orientation(body + 6, room - 6);
            if (found) facts->orientation = found;
        } else if (marker == APP14 && room >= 12 && memcmp(body, "Adobe", 5) == 0) {
            facts->adobe = body[11];
        }
        at += length;
        if (marker != SOS) continue;
        facts->scans++;
        if (facts->components == 0 || (at = after_scan(at, end)) == NULL) return 0;
    }
    facts->trailing = end - at;
    return facts->components > 0 && facts->scans > 0;
}
