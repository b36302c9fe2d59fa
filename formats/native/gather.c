/* Bytes to their place in the batch: rows of a column, a checked copy with padding, and a thread's working memory. */
#include "huffman.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hw_copy_bytes(const hw_copy *job, char message[HW_MESSAGE_BYTES]) {
    unsigned char *out = (unsigned char *)(uintptr_t)job->out;
    message[0] = 0;
    if (job->length > job->room) {
        snprintf(message, HW_MESSAGE_BYTES, "%llu bytes do not fit in %llu", (unsigned long long)job->length, (unsigned long long)job->room);
        memset(out, 0, job->room);
        return HW_REQUEST;
    }
    if (job->length) memcpy(out, (const void *)(uintptr_t)job->source, job->length);
    memset(out + job->length, (int)job->fill, job->room - job->length);
    if ((job->flags & HW_CHECK_HASH) && hw_xxh3(out, job->length) != job->hash) {
        snprintf(message, HW_MESSAGE_BYTES, "the bytes do not match their xxh3-64");
        memset(out, 0, job->room);
        return HW_MISMATCH;
    }
    return HW_OK;
}

void hw_gather_rows(void *out, const int64_t *sources, size_t rows, size_t width) {
    unsigned char *to = out;
    if (width == 8) { /* numbers: a call a row would cost more than the copy */
        for (size_t k = 0; k < rows; k++) memcpy(to + 8 * k, (const void *)(intptr_t)sources[k], 8);
        return;
    }
    for (size_t k = 0; k < rows; k++) memcpy(to + width * k, (const void *)(intptr_t)sources[k], width);
}

void *hw_reserve(hw_scratch *scratch, size_t bytes) {
#ifdef HW_EXACT_SCRATCH /* the sanitizer's build: a new block each time, so that reading past one is seen */
    scratch->size = 0;
#endif
    if (scratch->size < bytes) {
        free(scratch->block);
        if (posix_memalign((void **)&scratch->block, 64, bytes) != 0) scratch->block = NULL;
        scratch->size = scratch->block == NULL ? 0 : bytes;
    }
    return scratch->block;
}

void hw_release(hw_scratch *scratch) {
    free(scratch->block);
    hw_huffman_free(scratch->huffman);
    *scratch = (hw_scratch){0};
}
