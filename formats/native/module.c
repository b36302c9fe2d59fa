/* headway.formats.native: the table of what Python may call. Each row's function lives in the file of its concern;
 * typed wrappers are formats/kernel.py (images, pool, gather) and formats/points.py (LiDAR). */
#include "native.h"

static PyMethodDef methods[] = {
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
    if (PyModule_AddIntConstant(self, "ABI", 1) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
