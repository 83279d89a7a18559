/*
 * What the files of the extension weir._weir share.
 *
 * Every file is a part: `int pyweir_add_<part>(PyObject *module)` adds its types and functions to the module, and returns 0, or
 * -1 with an exception set. That is also what all int functions here return, unless they say otherwise.
 *
 * The GIL: a call of Weir's that can block, that can call back, or that takes an allocator's lock is made without it
 * (PYWEIR_CALL). So nobody holds the GIL while waiting for a lock of Weir's, and a callback that is called under such a
 * lock can take it.
 */
#ifndef PYWEIR_H
#define PYWEIR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

#include "weir/weir.h"

/* ---- Parts (module.c calls them in this order) ---- */

#define PYWEIR_PARTS(X)                                                                                                \
  X(errors)                                                                                                            \
  X(init)                                                                                                              \
  X(device)                                                                                                            \
  X(cudart)                                                                                                            \
  X(stream)                                                                                                            \
  X(event)                                                                                                             \
  X(graph)                                                                                                             \
  X(memory)                                                                                                            \
  X(buffer)                                                                                                            \
  X(dlpack)                                                                                                            \
  X(pool)                                                                                                              \
  X(history)                                                                                                           \
  X(frames)                                                                                                            \
  X(pluggable)                                                                                                         \
  X(host)                                                                                                              \
  X(ipc)

#define X(part) int pyweir_add_##part(PyObject *module);
PYWEIR_PARTS(X)
#undef X

/* A type of a part: readied, and added under its last name. The static type stays the part's. */
int pyweir_add_type(PyObject *module, PyTypeObject *type);

/* For tables of methods: functions with keywords have another C type than the table. */
#define PYWEIR_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)), METH_VARARGS | METH_KEYWORDS
#define PYWEIR_FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL
#define PYWEIR_FAST_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

/* A Python number that is an int. */
int pyweir_int(PyObject *object, int *value);

/* ---- Errors (errors.c) ---- */

/* Borrowed; there from the import on. */
extern PyObject *pyweir_OutOfMemoryError; /* weir.OutOfMemoryError, a RuntimeError */
extern PyObject *pyweir_AcceleratorError; /* weir.AcceleratorError, a RuntimeError with error_code */

/* Sets the exception of a status, with the text of weir_last_error(), and returns NULL. */
PyObject *pyweir_raise(weir_status status);

/* 0 for WEIR_OK, else -1 with the exception set. Warnings that Weir wrote during the call (PYWEIR_CALL) become Python's
 * first; where they are errors, that is an error too. */
int pyweir_check(weir_status status);

/* None for WEIR_OK, else NULL with the exception set: the end of many functions. */
PyObject *pyweir_none(weir_status status);

/* Makes a call of Weir's without the GIL, and keeps its status:
 *
 *     weir_status status;
 *     PYWEIR_CALL(status, weir_stream_synchronize(stream));
 *     return pyweir_none(status);
 */
#define PYWEIR_CALL(status, expression)                                                                                \
  do {                                                                                                                 \
    PyThreadState *pyweir_saved = pyweir_begin_call();                                                                 \
    (status) = (expression);                                                                                           \
    pyweir_end_call(pyweir_saved);                                                                                     \
  } while (0)
PyThreadState *pyweir_begin_call(void);
void pyweir_end_call(PyThreadState *saved);

/* ---- Starting (init.c) ---- */

extern bool pyweir_started; /* the start is over, queued calls too; false again in a forked child. Guarded by the GIL */

/* Starts Weir if need be: runtime, allocator, queued calls. First in every function that needs a device. */
int pyweir_start(void);
static inline int pyweir_ensure_init(void) { return pyweir_started ? 0 : pyweir_start(); }

/* ---- Arguments (device.c, stream.c). The runtime has started. ---- */

/* None is the current device; else a number from 0, "cuda", "cuda:1", or an object with `type` "cuda" and `index`, such as a
 * torch.device. Whether there is such a device is for the call to say that gets it. */
int pyweir_parse_device(PyObject *object, int *device);

/* A new weir.Device: a value with `type` "cuda" and `index`. */
PyObject *pyweir_device_wrap(int device);

/* None is the calling thread's current stream of the device; else a Stream, a number that is a CUstream's address, or an
 * object with `cuda_stream` or `__cuda_stream__`, as other libraries have them. device -1: the current one. A Stream that is
 * of another device than a device that was asked for is a ValueError. */
int pyweir_parse_stream(PyObject *object, int device, weir_stream *stream);

/* A new weir.Stream. */
PyObject *pyweir_stream_wrap(weir_stream stream);
bool pyweir_stream_check(PyObject *object);
weir_stream pyweir_stream_get(PyObject *object); /* of one that the check is true for */

/* The event of a weir.Event; NULL with a TypeError for anything else. */
weir_event *pyweir_event_get(PyObject *object);
PyObject *pyweir_event_new(void);

/* Methods that record and wait, for both classes (event.c). */
int pyweir_event_record(PyObject *event, weir_stream stream);
int pyweir_event_wait(PyObject *event, weir_stream stream);

/* A pool id is a tuple of two numbers. */
int pyweir_parse_pool_id(PyObject *object, weir_pool_id *id);
PyObject *pyweir_pool_id_wrap(weir_pool_id id);

/* ---- Memory (memory.c) ---- */

/* Makes the process's allocator over weir_get_driver, and gives it to weir_graph_use_allocator. Called once, when the runtime
 * has started and before queued calls run; with the GIL. Called again where a later part of the start failed. */
int pyweir_memory_start(void);

/* The process's allocator; NULL before the start. */
weir_allocator *pyweir_allocator(void);

#endif
