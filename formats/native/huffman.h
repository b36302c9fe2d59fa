/* Entropy decoding for the common JPEG: one scan, sequential, Huffman. Include after jpeglib.h. */
#ifndef HEADWAY_HUFFMAN_H
#define HEADWAY_HUFFMAN_H

#include "core.h"

#include <stdio.h>

#include <jpeglib.h>

/* What jpeg.client_data points to must begin with this. */
typedef struct {
    struct hw_huffman *huffman;
    void (*give_up)(j_decompress_ptr jpeg); /* does not return */
} hw_client;

/* Take over decode_mcu of a decompressor that has just been started; 0 if this is not such a file. */
int hw_huffman_attach(j_decompress_ptr jpeg, hw_scratch *scratch, const uint8_t *end);
/* After jpeg_crop_scanline: only these columns, of decoded pixels, will be looked at. */
void hw_huffman_crop(j_decompress_ptr jpeg, unsigned left, unsigned count);
void hw_huffman_free(struct hw_huffman *huffman);

#endif
