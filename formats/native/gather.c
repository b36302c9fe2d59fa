/* Bytes to their place in the batch: a checked copy with padding, and a thread's working memory. */
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
    const void *source = (const void *)(uintptr_t)job->source;
    int good = 1;
    if (job->flags & HW_CHECK_HASH) good = hw_xxh3_copy(out, source, job->length) == job->hash;
    else if (job->length) memcpy(out, source, job->length);
    memset(out + job->length, (int)job->fill, job->room - job->length);
    if (!good) {
        snprintf(message, HW_MESSAGE_BYTES, "the bytes do not match their xxh3-64");
        memset(out, 0, job->room);
        return HW_MISMATCH;
    }
    return HW_OK;
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
