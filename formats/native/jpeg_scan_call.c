/* jpeg_scan, as Python calls it. */
#include "native.h"

#include "jpeg_scan.h"

PyObject *hw_py_jpeg_scan(PyObject *module, PyObject *data) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    hw_jpeg_facts facts;
    int whole;
    Py_BEGIN_ALLOW_THREADS
    whole = hw_scan_jpeg(view.buf, (size_t)view.len, &facts);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (!whole) Py_RETURN_NONE;
    PyObject *sampling = PyTuple_New(facts.components);
    for (int n = 0; sampling != NULL && n < facts.components; n++) {
        PyObject *pair = Py_BuildValue("(ii)", facts.sampling[n][0], facts.sampling[n][1]);
        if (pair == NULL) Py_CLEAR(sampling);
        else PyTuple_SET_ITEM(sampling, n, pair);
    }
    if (sampling == NULL) return NULL;
    return Py_BuildValue("(iiiiNLiiiLL)", facts.width, facts.height, facts.precision, facts.process, sampling, (long long)facts.scans,
                         facts.orientation, facts.restart, facts.adobe, (long long)facts.junk, (long long)facts.trailing);
}
