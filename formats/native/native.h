/* What the files of the native core show each other. The functions below are entered with the GIL held; whatever they
 * call that takes time runs without it and touches no Python object. */
#ifndef HEADWAY_NATIVE_H
#define HEADWAY_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pool.h"

/* step.c: images, copies, hashes and the pool */
PyObject *hw_py_submit(PyObject *module, PyObject *args);
PyObject *hw_py_set_threads(PyObject *module, PyObject *threads);
PyObject *hw_py_threads(PyObject *module, PyObject *unused);
PyObject *hw_py_close(PyObject *module, PyObject *unused);
PyObject *hw_py_xxh3_64(PyObject *module, PyObject *data);
int hw_py_add_step(PyObject *module);
int hw_take_buffer(PyObject *object, Py_buffer *view, Py_ssize_t item, int writable, const char *name); /* 0: raised */
int hw_wait_for(hw_step *step, PyObject *timeout, int help); /* 1: done, 0: not in time, -1: raised */

/* rows_call.c: rows of columns */
PyObject *hw_py_locate(PyObject *module, PyObject *args);
PyObject *hw_py_take(PyObject *module, PyObject *args);
int hw_py_add_take(PyObject *module);

/* shuffle_call.c */
PyObject *hw_py_shuffled(PyObject *module, PyObject *args);

/* jpeg_scan_call.c */
PyObject *hw_py_jpeg_scan(PyObject *module, PyObject *data);

/* points_call.c */
PyObject *hw_py_points_decode(PyObject *module, PyObject *args);

#endif
