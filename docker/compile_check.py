"""Compile and load a C module as Triton does for its first kernel; run while a GPU image is built.

Triton looks for a compiler and Python's headers at run time; an image without them fails at the first window.
"""

import importlib.util
import tempfile
from pathlib import Path

from triton.runtime.build import _build

SOURCE = r"""
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, -1, methods};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""

with tempfile.TemporaryDirectory() as folder:
    source = Path(folder) / "probe.c"
    source.write_text(SOURCE)
    library = _build("probe", str(source), folder, [], [], [], [])
    spec = importlib.util.spec_from_file_location("probe", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.answer() != 42:
        raise SystemExit("compile_check: the compiled module gives a wrong answer")
print("compile_check: Triton's compiler works")
