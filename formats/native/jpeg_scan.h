/* The walk over a JPEG's markers: what formats/jpeg.py does, for the files in which it finds nothing wrong. */
#ifndef HEADWAY_JPEG_SCAN_H
#define HEADWAY_JPEG_SCAN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t width, height, precision, process, components;
    uint8_t sampling[4][2]; /* horizontal, vertical factor of each component */
    int64_t scans;
    int32_t orientation; /* EXIF, 1 where none is stated */
    int32_t restart;
    int32_t adobe; /* colour transform, -1 without an Adobe segment */
    int64_t junk, trailing;
} hw_jpeg_facts;

/* Returns 1 with `facts` filled for a file that is whole from start to end marker, 0 for any other: jpeg.py then says what is wrong. */
int hw_scan_jpeg(const uint8_t *data, size_t size, hw_jpeg_facts *facts);

#endif
