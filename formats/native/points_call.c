/* points_decode, as Python calls it. */
#include "native.h"

#include "points.h"

PyObject *hw_py_points_decode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data, columns;
    unsigned int points;
    if (!PyArg_ParseTuple(args, "y*y*I", &data, &columns, &points)) return NULL;
    char message[HW_MESSAGE_BYTES];
    int status = HW_REQUEST;
    if (columns.len % (Py_ssize_t)sizeof(hw_point_column) == 0) {
        Py_BEGIN_ALLOW_THREADS
        status = hw_decode_points(data.buf, (size_t)data.len, points, columns.buf, (uint32_t)((size_t)columns.len / sizeof(hw_point_column)), message);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&columns);
    if (status == HW_OK) Py_RETURN_NONE;
    if (status == HW_NO_MEMORY) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, status == HW_REQUEST ? "columns are not whole descriptions" : message);
    return NULL;
}
