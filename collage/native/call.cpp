// A call of a native task as a Python object: the shortest way from Python to a kernel.
//
// Call(function, a, b, n, c, hold, reentrant, failed, keep) calls function(a, b, n, c), all given as integers. With
// `hold` it keeps the GIL, which takes less time than to give it away and take it back if the task takes microseconds.
// If the task returns a status other than 0, failed(status) is called, and its result is the call's. `keep` lives as
// long as the object does.
//
// run_table(function, program, inputs, outputs, rows, hold) calls a table program (table.h) once on lists of contiguous
// arrays, and returns its status. maps(rows, keys) makes a dictionary of each row of a contiguous array of float32.
// codes(values, known, out) fills an array of int64 with what a dictionary has for the values of a list, or -1.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "core.h"
#include "kernels/table.h"

namespace {

struct Call {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  collage_fn fn;
  void *a, *b, *c;
  Py_ssize_t n;
  int hold;
  char reentrant;
  PyObject *failed, *keep;
};

PyObject *run(PyObject *self, PyObject *const *, size_t count, PyObject *names) {
  auto *const call = reinterpret_cast<Call *>(self);
  if (PyVectorcall_NARGS(count) != 0 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a bound call takes no arguments");
    return nullptr;
  }
  int status;
  if (call->hold) {
    status = call->fn(call->a, call->b, call->n, call->c);
  } else {
    Py_BEGIN_ALLOW_THREADS
    status = call->fn(call->a, call->b, call->n, call->c);
    Py_END_ALLOW_THREADS
  }
  if (status != 0) return PyObject_CallFunction(call->failed, "i", status);
  Py_RETURN_NONE;
}

PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *) {
  Py_ssize_t function, a, b, n, c;
  int hold, reentrant;
  PyObject *failed, *keep;
  if (!PyArg_ParseTuple(arguments, "nnnnnppOO", &function, &a, &b, &n, &c, &hold, &reentrant, &failed, &keep))
    return nullptr;
  auto *const call = reinterpret_cast<Call *>(type->tp_alloc(type, 0));
  if (call == nullptr) return nullptr;
  call->vectorcall = run;
  call->fn = reinterpret_cast<collage_fn>(function);
  call->a = reinterpret_cast<void *>(a);
  call->b = reinterpret_cast<void *>(b);
  call->c = reinterpret_cast<void *>(c);
  call->n = n;
  call->hold = hold;
  call->reentrant = char(reentrant);
  Py_INCREF(failed);
  Py_INCREF(keep);
  call->failed = failed;
  call->keep = keep;
  return reinterpret_cast<PyObject *>(call);
}

void end(PyObject *self) {
  auto *const call = reinterpret_cast<Call *>(self);
  Py_XDECREF(call->failed);
  Py_XDECREF(call->keep);
  Py_TYPE(self)->tp_free(self);
}

PyMemberDef members[] = {
    {"reentrant", T_BOOL, offsetof(Call, reentrant), READONLY, "Whether threads need not take turns."},
    {nullptr, 0, 0, 0, nullptr}};

// The buffers of a list of arrays, which are given back at the end.
struct Buffers {
  static constexpr Py_ssize_t kFew = 8;
  Py_buffer few[kFew], *views = few;
  void *few_addresses[kFew], **addresses = few_addresses;
  Py_ssize_t count = 0;

  bool take(PyObject *list, int flags) {
    const Py_ssize_t wanted = PyList_GET_SIZE(list);
    if (wanted > kFew) {
      views = static_cast<Py_buffer *>(PyMem_Malloc(size_t(wanted) * sizeof *views));
      addresses = static_cast<void **>(PyMem_Malloc(size_t(wanted) * sizeof *addresses));
      if (views == nullptr || addresses == nullptr) {
        PyErr_NoMemory();
        return false;
      }
    }
    for (; count < wanted; ++count) {
      if (PyObject_GetBuffer(PyList_GET_ITEM(list, count), views + count, flags) < 0) return false;
      addresses[count] = views[count].buf;
    }
    return true;
  }

  ~Buffers() {
    for (Py_ssize_t i = 0; i < count; ++i) PyBuffer_Release(views + i);
    if (views != few) PyMem_Free(views);
    if (addresses != few_addresses) PyMem_Free(addresses);
  }
};

PyObject *run_table(PyObject *, PyObject *arguments) {
  Py_ssize_t function, program, rows;
  PyObject *inputs, *outputs;
  int hold;
  if (!PyArg_ParseTuple(
          arguments, "nnO!O!np", &function, &program, &PyList_Type, &inputs, &PyList_Type, &outputs, &rows, &hold))
    return nullptr;
  Buffers read, written;
  if (!read.take(inputs, PyBUF_SIMPLE) || !written.take(outputs, PyBUF_WRITABLE)) return nullptr;
  collage_table_call call = {};
  call.inputs = read.addresses;
  call.outputs = written.addresses;
  call.rows = rows;
  call.turn = COLLAGE_TABLE_BLOCK;
  const auto fn = reinterpret_cast<collage_fn>(function);
  int status;
  if (hold) {
    status = fn(reinterpret_cast<void *>(program), &call, 0, nullptr);
  } else {
    Py_BEGIN_ALLOW_THREADS
    status = fn(reinterpret_cast<void *>(program), &call, 0, nullptr);
    Py_END_ALLOW_THREADS
  }
  return PyLong_FromLong(status);
}

PyObject *maps(PyObject *, PyObject *arguments) {
  Py_buffer view;
  PyObject *keys;
  if (!PyArg_ParseTuple(arguments, "y*O!", &view, &PyTuple_Type, &keys)) return nullptr;
  const Py_ssize_t count = PyTuple_GET_SIZE(keys), size = view.len / Py_ssize_t(sizeof(float));
  const auto *number = static_cast<const float *>(view.buf);
  PyObject *found = PyList_New(count > 0 ? size / count : 0);
  for (Py_ssize_t row = 0; found != nullptr && row < PyList_GET_SIZE(found); ++row) {
    PyObject *const map = PyDict_New();
    bool good = map != nullptr;
    for (Py_ssize_t i = 0; good && i < count; ++i) {
      PyObject *const value = PyFloat_FromDouble(*number++);
      good = value != nullptr && PyDict_SetItem(map, PyTuple_GET_ITEM(keys, i), value) == 0;
      Py_XDECREF(value);
    }
    if (good) {
      PyList_SET_ITEM(found, row, map);
    } else {
      Py_XDECREF(map);
      Py_CLEAR(found);
    }
  }
  PyBuffer_Release(&view);
  return found;
}

PyObject *codes(PyObject *, PyObject *arguments) {
  PyObject *values, *known;
  Py_buffer view;
  if (!PyArg_ParseTuple(arguments, "O!O!w*", &PyList_Type, &values, &PyDict_Type, &known, &view)) return nullptr;
  auto *const out = static_cast<int64_t *>(view.buf);
  const Py_ssize_t count = view.len / Py_ssize_t(sizeof *out);
  bool good = count <= PyList_GET_SIZE(values);
  if (!good) PyErr_SetString(PyExc_ValueError, "there are more codes than values");
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    PyObject *const found = PyDict_GetItemWithError(known, PyList_GET_ITEM(values, i));
    out[i] = found == nullptr ? -1 : PyLong_AsLongLong(found);
    good = !PyErr_Occurred();
  }
  PyBuffer_Release(&view);
  if (!good) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"codes", codes, METH_VARARGS, "The numbers that a dictionary has for values; -1 for others."},
    {"run_table", run_table, METH_VARARGS, "Runs a table program on lists of arrays."},
    {"maps", maps, METH_VARARGS, "A list of dictionaries from rows of float32."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject type_of_calls = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_call", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__call(void) {
  type_of_calls.tp_name = "collage.native._call.Call";
  type_of_calls.tp_basicsize = sizeof(Call);
  type_of_calls.tp_dealloc = end;
  type_of_calls.tp_vectorcall_offset = offsetof(Call, vectorcall);
  type_of_calls.tp_call = PyVectorcall_Call;
  type_of_calls.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type_of_calls.tp_members = members;
  type_of_calls.tp_new = make;
  if (PyType_Ready(&type_of_calls) < 0) return nullptr;
  PyObject *const found = PyModule_Create(&module);
  if (found == nullptr) return nullptr;
  Py_INCREF(&type_of_calls);
  if (PyModule_AddObject(found, "Call", reinterpret_cast<PyObject *>(&type_of_calls)) < 0) {
    Py_DECREF(&type_of_calls);
    Py_DECREF(found);
    return nullptr;
  }
  return found;
}
