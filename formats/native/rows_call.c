/* Rows of columns as Python sees them: locate(), and take() -> Take, done at once or by the pool. A Take keeps every buffer
 * it reads or writes alive until no thread uses one. */
#include "native.h"

#include <stdlib.h>

enum { INDEX_VIEWS = 3, MOST_COLUMNS = 4096 };

typedef struct {
    PyObject_HEAD
    hw_step step;
    hw_take take;
    Py_buffer *views; /* counts, shard, row, then homes and out of each column */
    Py_ssize_t view_count;
    hw_column *columns;
    int submitted;
} Take;

static void take_dealloc(Take *self) {
    if (self->submitted) {
        int is_over;
        Py_BEGIN_ALLOW_THREADS
        is_over = hw_pool_cancel(&self->step);
        Py_END_ALLOW_THREADS
        if (!is_over) return; /* see step.c */
    }
    hw_step_clear(&self->step);
    for (Py_ssize_t k = 0; k < self->view_count; k++) PyBuffer_Release(self->views + k);
    free(self->views);
    free(self->columns);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
}

static PyObject *bad_row(void) { return PyErr_Format(PyExc_IndexError, "a row was asked for that there is not, of a shard that is not open, or in a damaged chunk"); }

PyDoc_STRVAR(wait_doc, "wait(timeout_s) -> True when all rows are there, False when the time is over first; helps with what is not begun.");

static PyObject *take_wait(Take *self, PyObject *timeout) {
    int result = self->submitted ? hw_wait_for(&self->step, timeout, 1) : 1;
    if (result < 0) return NULL;
    if (result && self->step.bad) return bad_row();
    return PyBool_FromLong(result);
}

static PyObject *take_is_done(Take *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(!self->submitted || hw_pool_done(&self->step));
}

static PyMethodDef take_methods[] = {
    {"wait", (PyCFunction)take_wait, METH_O, wait_doc},
    {"is_done", (PyCFunction)take_is_done, METH_NOARGS, PyDoc_STR("is_done() -> whether nobody works on them any more.")},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject TakeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "headway.formats.native.Take",
    .tp_doc = PyDoc_STR("Rows of columns on their way to memory; made by take()."),
    .tp_basicsize = sizeof(Take),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)take_dealloc,
    .tp_methods = take_methods,
};

static int hold(Take *self, PyObject *object, Py_ssize_t item, int writable, const char *name) {
    if (!hw_take_buffer(object, self->views + self->view_count, item, writable, name)) return 0;
    self->view_count++;
    return 1;
}

static int fill(Take *self, PyObject *counts, PyObject *homes, PyObject *shard, PyObject *row, PyObject *outs) {
    Py_ssize_t columns = PyTuple_GET_SIZE(homes);
    hw_take *take = &self->take;
    if (columns != PyTuple_GET_SIZE(outs) || columns > MOST_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "%zd columns and %zd outputs", columns, PyTuple_GET_SIZE(outs));
        return 0;
    }
    self->views = calloc((size_t)(INDEX_VIEWS + 2 * columns), sizeof *self->views);
    self->columns = calloc((size_t)columns + 1, sizeof *self->columns);
    if (self->views == NULL || self->columns == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    if (!hold(self, counts, 8, 0, "counts") || !hold(self, shard, 8, 0, "shard") || !hold(self, row, 8, 0, "row")) return 0;
    take->counts = self->views[0].buf, take->shards = self->views[0].len / 8;
    take->shard = self->views[1].buf, take->row = self->views[2].buf, take->rows = self->views[1].len / 8;
    if (self->views[1].len != self->views[2].len) {
        PyErr_SetString(PyExc_ValueError, "shard and row differ in length");
        return 0;
    }
    take->columns = self->columns, take->column_count = (uint32_t)columns;
    for (Py_ssize_t k = 0; k < columns; k++) {
        Py_buffer *home = self->views + self->view_count, *out = home + 1;
        if (!hold(self, PyTuple_GET_ITEM(homes, k), sizeof(hw_home), 0, "homes")) return 0;
        if (!hold(self, PyTuple_GET_ITEM(outs, k), take->rows ? (Py_ssize_t)take->rows : 1, 1, "out")) return 0;
        if (home->len / (Py_ssize_t)sizeof(hw_home) != take->shards) {
            PyErr_SetString(PyExc_ValueError, "homes and counts differ in length");
            return 0;
        }
        self->columns[k] = (hw_column){home->buf, take->rows ? (size_t)(out->len / take->rows) : 0, out->buf};
    }
    return 1;
}

PyObject *hw_py_take(PyObject *module, PyObject *args) {
    PyObject *counts, *homes, *shard, *row, *outs;
    int later;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!OOO!p:take", &counts, &PyTuple_Type, &homes, &shard, &row, &PyTuple_Type, &outs, &later)) return NULL;
    Take *self = (Take *)TakeType.tp_alloc(&TakeType, 0);
    if (self == NULL) return NULL;
    if (!fill(self, counts, homes, shard, row, outs)) goto failed;
    if (!later) {
        int good;
        Py_BEGIN_ALLOW_THREADS
        good = hw_take_rows(&self->take, 0, self->take.rows);
        Py_END_ALLOW_THREADS
        if (good) return (PyObject *)self;
        bad_row();
        goto failed;
    }
    self->step.take = &self->take;
    if (!hw_step_prepare(&self->step)) {
        PyErr_NoMemory();
        goto failed;
    }
    self->submitted = 1;
    Py_BEGIN_ALLOW_THREADS
    hw_pool_submit(&self->step);
    Py_END_ALLOW_THREADS
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

enum { STARTS, OFFSETS, HINTS, NUMBERS, PART, ROW, LOCATE_VIEWS };

PyObject *hw_py_locate(PyObject *module, PyObject *args) {
    PyObject *objects[LOCATE_VIEWS];
    Py_buffer views[LOCATE_VIEWS] = {0};
    static const char *const names[LOCATE_VIEWS] = {"starts", "offsets", "hints", "numbers", "part", "row"};
    int held = 0, shift;
    int64_t good = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOi:locate", objects, objects + 1, objects + 2, objects + 3, objects + 4, objects + 5, &shift)) return NULL;
    while (held < LOCATE_VIEWS && hw_take_buffer(objects[held], views + held, 8, held >= PART, names[held])) held++;
    if (held == LOCATE_VIEWS) {
        Py_ssize_t parts = views[OFFSETS].len, rows = views[NUMBERS].len;
        if (parts == 0 || views[STARTS].len != parts + 8 || views[PART].len != rows || views[ROW].len != rows || shift < 0 || shift > 62) {
            PyErr_SetString(PyExc_ValueError, "locate: lengths do not belong together");
        } else {
            hw_parts where = {views[STARTS].buf, views[OFFSETS].buf, views[HINTS].buf, parts / 8, views[HINTS].len / 8, shift};
            Py_BEGIN_ALLOW_THREADS
            good = hw_locate(&where, views[NUMBERS].buf, rows / 8, views[PART].buf, views[ROW].buf);
            Py_END_ALLOW_THREADS
        }
    }
    while (held > 0) PyBuffer_Release(views + --held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(good);
}

int hw_py_add_take(PyObject *module) {
    if (PyType_Ready(&TakeType) < 0) return -1;
    Py_INCREF(&TakeType);
    return PyModule_AddObject(module, "Take", (PyObject *)&TakeType);
}
