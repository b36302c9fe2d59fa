/* The process's decode threads. A step is one batch's worth of jobs; its memory belongs to the caller until it is done. */
#ifndef HEADWAY_POOL_H
#define HEADWAY_POOL_H

#include "core.h"
#include "rows.h"

typedef struct hw_step hw_step;
struct hw_step {
    const hw_spec *specs;
    const hw_image *images;
    const hw_copy *copies;
    uint32_t image_count, copy_count;
    const hw_take *take;               /* or NULL: rows of columns, reported by `bad` alone */
    int8_t *status;                    /* images, then copies */
    char *messages;                    /* HW_MESSAGE_BYTES each, in the same order */
    /* Guarded by the pool's mutex from submit to done. */
    uint32_t task_count, next, finished;
    uint32_t *copy_ends;               /* by copy task: one past its last copy */
    uint32_t copy_tasks, take_tasks;
    _Atomic int bad;                   /* a row that there is not was asked for */
    uint64_t generation;
    int64_t submitted_ns, started_ns, finished_ns, busy_ns;
    hw_step *later;
};

enum { HW_LOST = -1, HW_WAITING = 0, HW_DONE = 1 };

int hw_step_prepare(hw_step *step);    /* cut into tasks; 0 if there is no memory */
void hw_step_clear(hw_step *step);
void hw_pool_submit(hw_step *step);
int hw_pool_wait(hw_step *step, int64_t timeout_ns, int help); /* help: do what no thread has begun yet */
int hw_pool_done(hw_step *step);
int hw_pool_cancel(hw_step *step);     /* jobs not begun become HW_CANCELLED; 0: one has been running for 20 s, its memory is to stay */
int hw_pool_resize(int threads);       /* at once; returns how many serve: those too many end after the job they are at */
int hw_pool_threads(void);
int hw_pool_close(void);               /* returns how many threads had not ended after 3 s */

#endif
