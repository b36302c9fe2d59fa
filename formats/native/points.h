/* Payloads of points (formats/points.py has the layout) to memory: records, or columns of a float32 matrix. No Python. */
#ifndef HEADWAY_POINTS_H
#define HEADWAY_POINTS_H

#include "core.h"

/* One scalar of a record: what the schema says it is, and where its values go. */
typedef struct {
    uint64_t out;                     /* address of the first value */
    int64_t out_stride;               /* bytes to the next */
    uint8_t kind;                     /* 'b' 'i' 'u' 'f' */
    uint8_t width;                    /* bytes of a value: 1, 2, 4, 8 */
    uint8_t as_float;                 /* cast to float32 */
    uint8_t wanted;                   /* 0: nothing is written, and its streams are not decompressed */
    uint8_t reserved[4];
} hw_point_column;

/* Decode a payload of exactly `points` points and `count` columns. Every size in it is checked before use; the answer is
 * HW_OK, or HW_CORRUPT or HW_NO_MEMORY with a message, the output then being anything. */
int hw_decode_points(const uint8_t *data, size_t size, uint32_t points, const hw_point_column *columns, uint32_t count,
                     char message[HW_MESSAGE_BYTES]);

#endif
