/* The pool as Python sees it: submit() -> Step, and Step.wait(). The interpreter lock is held to check the arrays and to
 * hand out the result; nothing between the two touches a Python object. A Step keeps every buffer it reads or writes
 * alive, and does not let go of one while a thread may still use it. */
#include "native.h"

#include "pool.h"

#include <math.h>

typedef struct {
    PyObject_HEAD
    hw_step step;
    Py_buffer specs, images, copies, status, messages;
    PyObject *keep;
    int submitted;
} Step;

/* `item` divides the size; a size mismatch is a stale build or a wrong array. */
int hw_take_buffer(PyObject *object, Py_buffer *view, Py_ssize_t item, int writable, const char *name) {
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0) return 0;
    if (view->len % item == 0) return 1;
    PyErr_Format(PyExc_ValueError, "%s holds %zd bytes, expected a multiple of %zd", name, view->len, item);
    PyBuffer_Release(view);
    return 0;
}

static int sensible(const hw_spec *s) {
    return s->width > 0 && s->height > 0 && s->width <= 65535 && s->height <= 65535 && (s->layout == HW_CHW || s->layout == HW_HWC) && s->dtype >= HW_U8 &&
           s->dtype <= HW_F32;
}

static int check_jobs(const Step *self, Py_ssize_t specs) {
    const hw_step *step = &self->step;
    for (Py_ssize_t k = 0; k < specs; k++)
        if (!sensible(step->specs + k)) {
            PyErr_Format(PyExc_ValueError, "spec %zd has an impossible size, layout or dtype", k);
            return 0;
        }
    for (uint32_t k = 0; k < step->image_count; k++)
        if (step->images[k].spec >= specs) {
            PyErr_Format(PyExc_ValueError, "image job %u names spec %u of %zd", k, step->images[k].spec, specs);
            return 0;
        }
    return 1;
}

static void step_dealloc(Step *self) {
    if (self->submitted) {
        int is_over;
        Py_BEGIN_ALLOW_THREADS
        is_over = hw_pool_cancel(&self->step);
        Py_END_ALLOW_THREADS
        if (!is_over) return; /* a thread hangs in a read and may write yet: all of this stays for good */
    }
    hw_step_clear(&self->step);
    Py_buffer *views[] = {&self->specs, &self->images, &self->copies, &self->status, &self->messages};
    for (size_t k = 0; k < sizeof views / sizeof *views; k++)
        if (views[k]->obj != NULL) PyBuffer_Release(views[k]);
    Py_XDECREF(self->keep);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
}

PyDoc_STRVAR(wait_doc, "wait(timeout_s, help) -> True when every job has a status, False when the time is over first.\n\n"
                       "Ctrl-C is seen within 0.1 s. With help, or no threads in the pool, the caller does the work here.");

int hw_wait_for(hw_step *step, PyObject *timeout, int help) {
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1 && PyErr_Occurred()) return -1;
    if (isnan(timeout_s)) {
        PyErr_SetString(PyExc_ValueError, "timeout_s is not a number");
        return -1;
    }
    int64_t left = timeout_s <= 0 ? 0 : timeout_s > 1e9 ? (int64_t)1e18 : (int64_t)(timeout_s * 1e9);
    for (;;) {
        int64_t slice = left < 100000000 ? left : 100000000;
        int result;
        Py_BEGIN_ALLOW_THREADS
        result = hw_pool_wait(step, slice, help);
        Py_END_ALLOW_THREADS
        if (result == HW_LOST) {
            PyErr_SetString(PyExc_RuntimeError, "this step was submitted before a fork; its decode threads exist in the parent process only");
            return -1;
        }
        if (result == HW_DONE) return 1;
        left -= slice;
        if (PyErr_CheckSignals() < 0) return -1;
        if (left <= 0) return 0;
    }
}

static PyObject *step_wait(Step *self, PyObject *args) {
    PyObject *timeout;
    int help, result;
    if (!PyArg_ParseTuple(args, "Op:wait", &timeout, &help)) return NULL;
    result = hw_wait_for(&self->step, timeout, help);
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *step_is_done(Step *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(hw_pool_done(&self->step));
}

PyDoc_STRVAR(cancel_doc, "cancel() -> True: drops the jobs not yet begun (status CANCELLED) and returns when none is running; False: one still is.");

static PyObject *step_cancel(Step *self, PyObject *unused) {
    int is_over;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    is_over = hw_pool_cancel(&self->step);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_over);
}

PyDoc_STRVAR(times_doc, "times() -> (submitted, started, finished, busy) in monotonic nanoseconds; busy sums over threads; 0 where not yet known.");

static PyObject *step_times(Step *self, PyObject *unused) {
    (void)unused;
    const hw_step *s = &self->step;
    return Py_BuildValue("LLLL", (long long)s->submitted_ns, (long long)s->started_ns, (long long)s->finished_ns, (long long)s->busy_ns);
}

static PyMethodDef step_methods[] = {
    {"wait", (PyCFunction)step_wait, METH_VARARGS, wait_doc},
    {"is_done", (PyCFunction)step_is_done, METH_NOARGS, PyDoc_STR("is_done() -> whether every job has a status.")},
    {"cancel", (PyCFunction)step_cancel, METH_NOARGS, cancel_doc},
    {"times", (PyCFunction)step_times, METH_NOARGS, times_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject StepType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headway.formats.native.Step",
    .tp_doc = PyDoc_STR("One batch's jobs in the pool; made by submit()."),
    .tp_basicsize = sizeof(Step),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)step_dealloc,
    .tp_methods = step_methods,
};

PyObject *hw_py_submit(PyObject *module, PyObject *args) {
    PyObject *specs, *images, *copies, *status, *messages, *keep;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOO:submit", &specs, &images, &copies, &status, &messages, &keep)) return NULL;
    Step *self = (Step *)StepType.tp_alloc(&StepType, 0);
    if (self == NULL) return NULL;
    if (!hw_take_buffer(specs, &self->specs, sizeof(hw_spec), 0, "specs") || !hw_take_buffer(images, &self->images, sizeof(hw_image), 0, "images") ||
        !hw_take_buffer(copies, &self->copies, sizeof(hw_copy), 0, "copies") || !hw_take_buffer(status, &self->status, 1, 1, "status") ||
        !hw_take_buffer(messages, &self->messages, HW_MESSAGE_BYTES, 1, "messages"))
        goto failed;
    hw_step *step = &self->step;
    step->specs = self->specs.buf, step->images = self->images.buf, step->copies = self->copies.buf;
    step->image_count = (uint32_t)(self->images.len / (Py_ssize_t)sizeof(hw_image));
    step->copy_count = (uint32_t)(self->copies.len / (Py_ssize_t)sizeof(hw_copy));
    step->status = self->status.buf, step->messages = self->messages.buf;
    Py_ssize_t jobs = (Py_ssize_t)step->image_count + step->copy_count;
    if (self->status.len != jobs || self->messages.len != jobs * HW_MESSAGE_BYTES) {
        PyErr_Format(PyExc_ValueError, "%zd jobs need as many status bytes and messages, found %zd and %zd", jobs, self->status.len,
                     self->messages.len / HW_MESSAGE_BYTES);
        goto failed;
    }
    if (!check_jobs(self, self->specs.len / (Py_ssize_t)sizeof(hw_spec))) goto failed;
    if (!hw_step_prepare(step)) {
        PyErr_NoMemory();
        goto failed;
    }
    Py_INCREF(keep);
    self->keep = keep;
    self->submitted = 1;
    Py_BEGIN_ALLOW_THREADS
    hw_pool_submit(step);
    Py_END_ALLOW_THREADS
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

PyObject *hw_py_set_threads(PyObject *module, PyObject *argument) {
    long threads = PyLong_AsLong(argument);
    int running;
    (void)module;
    if (threads == -1 && PyErr_Occurred()) return NULL;
    if (threads < 0 || threads > 256) return PyErr_Format(PyExc_ValueError, "threads must be 0..256, found %ld", threads);
    Py_BEGIN_ALLOW_THREADS
    running = hw_pool_resize((int)threads);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(running);
}

PyObject *hw_py_threads(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    int running;
    Py_BEGIN_ALLOW_THREADS
    running = hw_pool_threads();
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(running);
}

PyObject *hw_py_close(PyObject *module, PyObject *unused) {
    int left;
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS
    left = hw_pool_close();
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(left);
}

PyObject *hw_py_xxh3_64(PyObject *module, PyObject *data) {
    Py_buffer view;
    uint64_t hash;
    (void)module;
    if (PyObject_GetBuffer(data, &view, PyBUF_CONTIG_RO) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    hash = hw_xxh3(view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

int hw_py_add_step(PyObject *module) {
    if (PyType_Ready(&StepType) < 0) return -1;
    Py_INCREF(&StepType);
    if (PyModule_AddObject(module, "Step", (PyObject *)&StepType) < 0) return -1;
    return PyModule_AddIntConstant(module, "SPEC_BYTES", sizeof(hw_spec)) < 0 || PyModule_AddIntConstant(module, "IMAGE_BYTES", sizeof(hw_image)) < 0 ||
                   PyModule_AddIntConstant(module, "COPY_BYTES", sizeof(hw_copy)) < 0 || PyModule_AddIntConstant(module, "MESSAGE_BYTES", HW_MESSAGE_BYTES) < 0
               ? -1
               : 0;
}
