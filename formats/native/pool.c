/* Persistent decode threads over a queue of steps. A step's jobs are taken one by one, the oldest step first, by whatever
 * thread is free: out of order inside a step, several steps in flight. With no threads, whoever waits does the work.
 *
 * One mutex guards the queue, the number of threads and each queued step's counters; it is held for a few instructions a job
 * (a job is hundreds of microseconds). Threads are detached, and one too many ends when it is between two jobs: a thread may be
 * in a read that never returns (a mapped file whose server is gone), and nobody waits for it without a deadline. A forked child
 * has no threads: it starts its own at its first submit, and steps submitted before the fork are lost to it (generation), which
 * waiting reports. */
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_THREADS = 256, COPY_TASK_BYTES = 512 << 10 }; /* smaller copies are grouped: a task should outlast its dispatch */

/* How long to wait for jobs that are under way: twice what an image may cost; and when the process ends. */
static const int64_t CANCEL_NS = 20000000000LL, CLOSE_NS = 3000000000LL;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    hw_step *oldest, *newest; /* steps with jobs not yet taken */
    int wanted, alive; /* alive: threads that have not ended, some of which may be too many */
    int is_closed;     /* the process ends: nobody has patience any more */
    uint64_t generation;
} pool;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void init_sync(void) {
    pthread_condattr_t monotonic;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool.work, &monotonic);
    pthread_cond_init(&pool.done, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }

static void after_fork_parent(void) { pthread_mutex_unlock(&pool.lock); }

static void after_fork_child(void) {
    init_sync();
    pool.oldest = pool.newest = NULL;
    pool.alive = 0;
    pool.generation++;
}

static void init(void) {
    init_sync();
    pool.generation = 1;
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Into how many runs of rows a take is cut. */
static uint32_t take_tasks(const hw_take *take) {
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < take->column_count; k++) bytes += take->columns[k].width * (uint64_t)take->rows;
    uint64_t tasks = (bytes + COPY_TASK_BYTES / 2) / COPY_TASK_BYTES;
    return (uint32_t)(tasks < 1 ? 1 : tasks > 64 ? 64 : tasks);
}

int hw_step_prepare(hw_step *step) {
    uint64_t bytes = 0;
    uint32_t groups = 0;
    step->copy_ends = malloc(sizeof(uint32_t) * (step->copy_count + 1));
    if (step->copy_ends == NULL) return 0;
    for (uint32_t k = 0; k < step->copy_count; k++) {
        bytes += step->copies[k].room;
        if (bytes >= COPY_TASK_BYTES || k + 1 == step->copy_count) {
            step->copy_ends[groups++] = k + 1;
            bytes = 0;
        }
    }
    step->copy_tasks = groups;
    step->take_tasks = step->take ? take_tasks(step->take) : 0;
    step->task_count = step->image_count + groups + step->take_tasks;
    step->next = step->finished = 0;
    step->bad = 0;
    size_t jobs = (size_t)step->image_count + step->copy_count;
    if (jobs) memset(step->status, HW_PENDING, jobs);
    for (size_t job = 0; job < jobs; job++) step->messages[job * HW_MESSAGE_BYTES] = 0;
    return 1;
}

void hw_step_clear(hw_step *step) {
    free(step->copy_ends);
    step->copy_ends = NULL;
}

static void copies_of(const hw_step *step, uint32_t task, uint32_t *begin, uint32_t *end) {
    uint32_t group = task - step->image_count;
    *begin = group ? step->copy_ends[group - 1] : 0;
    *end = step->copy_ends[group];
}

static void run_task(hw_step *step, uint32_t task, hw_scratch *scratch) {
    if (task < step->image_count) {
        const hw_image *image = step->images + task;
        step->status[task] = (int8_t)hw_decode_image(step->specs + image->spec, image, step->messages + (size_t)task * HW_MESSAGE_BYTES, scratch);
        return;
    }
    if (task >= step->image_count + step->copy_tasks) {
        int64_t part = task - step->image_count - step->copy_tasks, rows = step->take->rows;
        if (!hw_take_rows(step->take, part * rows / step->take_tasks, (part + 1) * rows / step->take_tasks)) step->bad = 1;
        return;
    }
    uint32_t begin, end;
    copies_of(step, task, &begin, &end);
    for (uint32_t k = begin; k < end; k++) {
        size_t job = (size_t)step->image_count + k;
        step->status[job] = (int8_t)hw_copy_bytes(step->copies + k, step->messages + job * HW_MESSAGE_BYTES);
    }
}

/* Take a step with no task left out of the queue; the lock is held. 0: it was not there. */
static int unlink_step(hw_step *step) {
    hw_step **link = &pool.oldest, *before = NULL;
    while (*link != NULL && *link != step) before = *link, link = &before->later;
    if (*link == NULL) return 0;
    *link = step->later;
    if (pool.newest == step) pool.newest = before;
    return 1;
}

/* Do one task of a step that has one; the lock is held on entry and on return, not while the task runs. */
static void do_one(hw_step *step, hw_scratch *scratch) {
    uint32_t task = step->next++;
    if (step->next == step->task_count) unlink_step(step);
    pthread_mutex_unlock(&pool.lock);
    int64_t begin = now_ns();
    run_task(step, task, scratch);
    int64_t end = now_ns();
    pthread_mutex_lock(&pool.lock);
    if (step->started_ns == 0 || begin < step->started_ns) step->started_ns = begin;
    step->busy_ns += end - begin;
    if (++step->finished == step->task_count) {
        step->finished_ns = end;
        pthread_cond_broadcast(&pool.done);
    }
}

static void *work(void *unused) {
    hw_scratch scratch = {0};
    (void)unused;
    pthread_mutex_lock(&pool.lock);
    while (pool.alive <= pool.wanted)
        if (pool.oldest != NULL) do_one(pool.oldest, &scratch);
        else pthread_cond_wait(&pool.work, &pool.lock);
    hw_release(&scratch); /* before it counts as ended, so that nothing of it is left then */
    pool.alive--;
    pthread_cond_broadcast(&pool.done);
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

/* How many threads take steps, or will once they are through with what they are at; the lock is held. */
static int serving(void) { return pool.alive < pool.wanted ? pool.alive : pool.wanted; }

/* The lock is held, so that no fork falls in between. Signals stay with the interpreter's threads. */
static void start_threads(void) {
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    if (pool.alive >= pool.wanted) return;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.alive < pool.wanted && pthread_create(&thread, &detached, work, NULL) == 0) pool.alive++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

int hw_pool_resize(int threads) {
    pthread_once(&once, init);
    pthread_mutex_lock(&pool.lock);
    pool.is_closed = 0;
    pool.wanted = threads < 0 ? 0 : threads > MOST_THREADS ? MOST_THREADS : threads;
    start_threads();
    pthread_cond_broadcast(&pool.work); /* those too many end */
    if (serving() == 0) pthread_cond_broadcast(&pool.done); /* whoever waits must take over the work */
    int count = serving();
    pthread_mutex_unlock(&pool.lock);
    return count;
}

int hw_pool_threads(void) {
    pthread_once(&once, init);
    pthread_mutex_lock(&pool.lock);
    int count = serving();
    pthread_mutex_unlock(&pool.lock);
    return count;
}

void hw_pool_submit(hw_step *step) {
    pthread_once(&once, init);
    pthread_mutex_lock(&pool.lock);
    start_threads(); /* the first submit after a fork */
    step->generation = pool.generation;
    step->submitted_ns = now_ns();
    step->later = NULL;
    if (step->task_count == 0) {
        step->finished_ns = step->submitted_ns;
    } else {
        if (pool.newest != NULL) pool.newest->later = step;
        else pool.oldest = step;
        pool.newest = step;
        pthread_cond_broadcast(&pool.work);
    }
    pthread_mutex_unlock(&pool.lock);
}

static struct timespec as_time(int64_t ns) { return (struct timespec){ns / 1000000000LL, ns % 1000000000LL}; }

int hw_pool_wait(hw_step *step, int64_t timeout_ns, int help) {
    hw_scratch scratch = {0};
    int64_t until = now_ns() + timeout_ns;
    struct timespec deadline = as_time(until);
    int result = HW_DONE;
    pthread_mutex_lock(&pool.lock);
    if (step->generation != pool.generation) result = HW_LOST;
    while (result == HW_DONE && step->finished < step->task_count) {
        hw_step *mine = help && step->next < step->task_count ? step : serving() == 0 ? pool.oldest : NULL;
        if (mine != NULL) do_one(mine, &scratch); /* at least one task a call, so that polling gets there */
        if (step->finished == step->task_count) break;
        if (now_ns() >= until) result = HW_WAITING;
        else if (mine == NULL) pthread_cond_timedwait(&pool.done, &pool.lock, &deadline);
    }
    pthread_mutex_unlock(&pool.lock);
    hw_release(&scratch);
    return result;
}

int hw_pool_done(hw_step *step) {
    pthread_mutex_lock(&pool.lock);
    int done = step->generation != pool.generation || step->finished == step->task_count;
    pthread_mutex_unlock(&pool.lock);
    return done;
}

/* Drop a step's untaken jobs; the lock is held. */
static void drop(hw_step *step) {
    if (!unlink_step(step)) return; /* nothing untaken */
    for (; step->next < step->task_count; step->next++, step->finished++) {
        uint32_t begin = step->next, end = begin + 1;
        if (begin >= step->image_count + step->copy_tasks) continue; /* rows have no status of their own */
        if (begin >= step->image_count) {
            copies_of(step, step->next, &begin, &end);
            begin += step->image_count, end += step->image_count;
        }
        memset(step->status + begin, HW_CANCELLED, end - begin);
    }
    if (step->finished == step->task_count) step->finished_ns = now_ns();
    pthread_cond_broadcast(&pool.done);
}

int hw_pool_cancel(hw_step *step) {
    int is_over = 1;
    pthread_mutex_lock(&pool.lock);
    struct timespec deadline = as_time(now_ns() + (pool.is_closed ? 0 : CANCEL_NS));
    if (step->generation == pool.generation) {
        drop(step);
        while (step->finished < step->task_count && pthread_cond_timedwait(&pool.done, &pool.lock, &deadline) != ETIMEDOUT) {
        }
        is_over = step->finished == step->task_count;
    }
    pthread_mutex_unlock(&pool.lock);
    return is_over;
}

int hw_pool_close(void) {
    struct timespec deadline = as_time(now_ns() + CLOSE_NS);
    pthread_once(&once, init);
    pthread_mutex_lock(&pool.lock);
    while (pool.oldest != NULL) drop(pool.oldest);
    pool.wanted = 0;
    pool.is_closed = 1;
    pthread_cond_broadcast(&pool.work);
    pthread_cond_broadcast(&pool.done);
    while (pool.alive > 0 && pthread_cond_timedwait(&pool.done, &pool.lock, &deadline) != ETIMEDOUT) {
    }
    int left = pool.alive;
    pthread_mutex_unlock(&pool.lock);
    return left;
}
