/* shuffled(): items of a shuffled order as Python asks for them; the arithmetic is in shuffle.c. */
#include "native.h"

#include "order.h"

enum { LONG = 64, PERMUTATIONS = 256 };

static int sensible(const hw_order *o) {
    return o->items >= 1 && o->items <= (int64_t)1 << 48 && o->slots >= 1 && o->slots <= INT64_MAX / o->items - 1 && o->block_items >= 1 &&
           o->block_items <= o->items && o->span_blocks >= 1 && o->span_blocks <= INT32_MAX && o->block_items <= INT64_MAX / 8 / o->span_blocks &&
           o->short_end >= 0 && o->short_end <= o->items;
}

PyObject *hw_py_shuffled(PyObject *module, PyObject *args) {
    PyObject *permutations, *positions, *out;
    Py_buffer table = {0}, from = {0}, to = {0};
    long long items, slots, block_items, span_blocks, short_end, columns, good = 0;
    unsigned long long key;
    (void)module;
    if (!PyArg_ParseTuple(args, "(LLLL)LKOOLO:shuffled", &items, &slots, &block_items, &span_blocks, &short_end, &key, &permutations, &positions, &columns, &out))
        return NULL;
    hw_order order = {items, slots, block_items, span_blocks, 0, 0, short_end, key, NULL};
    if (!sensible(&order)) return PyErr_Format(PyExc_ValueError, "shuffled: numbers out of range");
    order.blocks = (items - 1) / block_items + 1;
    order.missing = order.blocks * block_items - items;
    if (!hw_take_buffer(permutations, &table, 1, 0, "permutations")) return NULL;
    order.permutations = table.buf;
    int fits = hw_take_buffer(positions, &from, 8, 0, "positions") && hw_take_buffer(out, &to, 8, 1, "out");
    if (fits && ((block_items <= LONG && table.len != PERMUTATIONS * block_items) || from.len != to.len)) {
        PyErr_SetString(PyExc_ValueError, "shuffled: lengths do not belong together");
        fits = 0;
    }
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        good = hw_shuffled_items(&order, from.buf, from.len / 8, columns, to.buf);
        Py_END_ALLOW_THREADS
        if (good != from.len / 8) {
            PyErr_Format(PyExc_IndexError, "shuffled: a position is not one of the line's %lld", items);
            fits = 0;
        }
    }
    if (to.obj != NULL) PyBuffer_Release(&to);
    if (from.obj != NULL) PyBuffer_Release(&from);
    PyBuffer_Release(&table);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}
