/* What the files of the native core show each other. The functions below are entered with the GIL held; whatever they
 * call that takes time runs without it and touches no Python object. */
#ifndef HEADWAY_NATIVE_H
#define HEADWAY_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#endif
