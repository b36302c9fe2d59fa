/* Runs the points decoder over the payloads of a file made by tests/sanitize_points.py, built with AddressSanitizer and
 * UBSan. Each payload and each output lies in a block of exactly its size, so that one byte too many is seen.
 *
 * The file: u32 points, u32 record bytes, u32 columns, (u8 kind, u8 width) a column, then payloads as u32 size and bytes. */
#include "../formats/native/points.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t number(FILE *file) {
    unsigned char b[4];
    if (fread(b, 1, 4, file) != 4) exit(2);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

int main(int count_of, char **names) {
    FILE *file = count_of == 2 ? fopen(names[1], "rb") : NULL;
    if (file == NULL) return 2;
    uint32_t points = number(file), record = number(file), count = number(file), payloads = number(file), decoded = 0;
    hw_point_column *columns = calloc(count, sizeof *columns);
    for (uint32_t k = 0; k < count; k++) columns[k].kind = (uint8_t)fgetc(file), columns[k].width = (uint8_t)fgetc(file);
    for (uint32_t n = 0; n < payloads; n++) {
        uint32_t size = number(file);
        unsigned char *payload = malloc(size ? size : 1);
        if (fread(payload, 1, size, file) != size) return 2;
        /* As records, as a float matrix, and as a matrix of every other column. */
        int way = (int)(n % 3);
        size_t bytes = way ? (size_t)points * count * 4 : (size_t)points * record, offset = 0;
        unsigned char *out = malloc(bytes ? bytes : 1);
        for (uint32_t k = 0; k < count; k++) {
            columns[k].out = (uint64_t)(uintptr_t)(out + (way ? 4 * (size_t)k : offset));
            columns[k].out_stride = way ? 4 * (int64_t)count : (int64_t)record;
            columns[k].as_float = way > 0;
            columns[k].wanted = way < 2 || k % 2;
            offset += columns[k].width;
        }
        char message[HW_MESSAGE_BYTES];
        decoded += hw_decode_points(payload, size, points, columns, count, message) == HW_OK;
        free(payload);
        free(out);
    }
    printf("%u of %u payloads decoded\n", decoded, payloads);
    free(columns);
    fclose(file);
    return 0;
}
