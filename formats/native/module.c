/* headway.formats.native: the table of what Python may call. Each row's function lives in the file of its concern;
 * typed wrappers are formats/kernel.py (images, pool, gather) and formats/points.py (LiDAR). */
#include "native.h"

static PyMethodDef methods[] = {
    {"submit", hw_py_submit, METH_VARARGS, PyDoc_STR("submit(specs, images, copies, status, messages, keep) -> Step: queue one batch's jobs.")},
    {"set_threads", hw_py_set_threads, METH_O, PyDoc_STR("set_threads(n) -> how many run; 0: whoever waits does the work.")},
    {"threads", hw_py_threads, METH_NOARGS, PyDoc_STR("threads() -> how many decode threads run.")},
    {"close", hw_py_close, METH_NOARGS, PyDoc_STR("close() -> threads left after 3 s: cancel what is queued and end them.")},
    {"locate", hw_py_locate, METH_VARARGS, PyDoc_STR("locate(starts, offsets, hints, numbers, part, row, shift) -> how many were in range.")},
    {"take", hw_py_take, METH_VARARGS, PyDoc_STR("take(counts, homes, shard, row, outs, later) -> Take: rows of several columns.")},
    {"shuffled", hw_py_shuffled, METH_VARARGS, PyDoc_STR("shuffled(line, short_end, key, permutations, positions, columns, out): items of a shuffled order.")},
    {"xxh3_64", hw_py_xxh3_64, METH_O, PyDoc_STR("xxh3_64(data) -> int: the xxh3-64 of a buffer, taken without the interpreter lock.")},
    {"jpeg_scan", hw_py_jpeg_scan, METH_O, PyDoc_STR("jpeg_scan(data) -> facts of a whole JPEG, or None: its markers walked, nothing decoded.")},
    {"points_decode", hw_py_points_decode, METH_VARARGS, PyDoc_STR("points_decode(data, columns, points): one payload of points to memory.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "native",
    .m_doc = "headway's native core: JPEG to batch memory, LiDAR codec, copies, hashes, and the thread pool that runs them.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *self = PyModule_Create(&module);
    if (self == NULL) return NULL;
    /* Raised when a call's meaning changes, so that a stale build is refused instead of misread. */
    if (PyModule_AddIntConstant(self, "ABI", 6) < 0 || hw_py_add_step(self) < 0 || hw_py_add_take(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
