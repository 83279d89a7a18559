/*
 * Declarations that the files of the extension weir._weir share.
 *
 * Every file is a part: `int pyweir_add_<part>(PyObject *module)` adds its types and functions to the module. It
 * returns 0, or -1 with an exception set, as do all int functions here unless stated otherwise.
 */
#pragma once

#define PYWEIR(name) pyweir_##name
#include "api.h"

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
  X(tag)                                                                                                               \
  X(history)                                                                                                           \
  X(frames)                                                                                                            \
  X(pluggable)                                                                                                         \
  X(host)                                                                                                              \
  X(ipc)                                                                                                               \
  X(offline)                                                                                                           \
  X(cupy)

#define X(part) int pyweir_add_##part(PyObject *module);
PYWEIR_PARTS(X)
#undef X

/* Readies a static type of a part, and adds it under the last component of its name. */
int pyweir_add_type(PyObject *module, PyTypeObject *type);

/* Converts a Python number to an int. */
int pyweir_parse_int(PyObject *object, int *value);

/* ---- Errors (errors.c) ---- */

/* Borrowed references, valid from the import on. */
extern PyObject *pyweir_OutOfMemoryError; /* weir.OutOfMemoryError, a RuntimeError */
extern PyObject *pyweir_AcceleratorError; /* weir.AcceleratorError, a RuntimeError with error_code */

/* Sets a TypeError "expected <what>, got <the type of the object>", and returns NULL. */
PyObject *pyweir_type_error(const char *what, PyObject *object);

/* Reports a failed status where no exception can be raised, such as in a destructor. */
void pyweir_write_unraisable(weir_status status);

/* Gives the exception that is set another type. */
void pyweir_change_type(PyObject *type);

/* Sets the exception for a status, with the text of weir_last_error() in Python's names, and returns NULL. */
PyObject *pyweir_raise(weir_status status);

/* Returns 0 for WEIR_OK, or else -1 with the exception set. Warnings that Weir wrote during the call (PYWEIR_CALL) are
 * first issued as Python warnings; if a filter turns one into an exception, this returns -1. */
int pyweir_check(weir_status status);

/* Returns None for WEIR_OK, or else NULL with the exception set. */
PyObject *pyweir_none(weir_status status);

/* For PYWEIR_CALL: they release and take the GIL, and keep warnings of the call. */
PyThreadState *pyweir_begin_call(void);
void pyweir_end_call(PyThreadState *saved);

/* ---- Starting (init.c) ---- */

extern bool pyweir_started; /* including deferred calls; false again in a forked child. Guarded by the GIL */

/* Starts Weir if needed: runtime, allocator, deferred calls. Comes first in every function that needs a device. */
int pyweir_start(void);
static inline int pyweir_ensure_init(void) { return PYWEIR_ENSURE_INIT(pyweir_started); }

/* ---- Arguments (device.c, stream.c). The runtime must have started. ---- */

/* Starts Weir if needed, and parses a device argument. */
int pyweir_need_device(PyObject *object, int *device);

/* Accepts None (the current device), an index, "cuda", "cuda:1", or an object with `type` "cuda" and `index`, such as a
 * torch.device. Does not check that the device exists; the call that receives it does. */
int pyweir_parse_device(PyObject *object, int *device);

/* Returns a new weir.Device: a value with `type` "cuda" and `index`. -1 is the host, whose type is "cpu". */
PyObject *pyweir_device_wrap(int device);

/* Accepts None (the calling thread's current stream on the device), a Stream, the address of a CUstream, or an object
 * of another library with `cuda_stream` or `__cuda_stream__`. A device of -1 means the current one. Raises ValueError
 * if a Stream belongs to another device than the one given. */
int pyweir_parse_stream(PyObject *object, int device, weir_stream *stream);

/* Returns a new weir.Stream. */
PyObject *pyweir_stream_wrap(weir_stream stream);
bool pyweir_stream_check(PyObject *object);
weir_stream pyweir_stream_get(PyObject *object); /* requires pyweir_stream_check(object) */

/* Returns the event of a weir.Event, or NULL with a TypeError. */
weir_event *pyweir_event_get(PyObject *object);
PyObject *pyweir_event_new(void);

/* Record and wait, for the methods of both classes (event.c). */
int pyweir_event_record(PyObject *event, weir_stream stream);
int pyweir_event_wait(PyObject *event, weir_stream stream);

/* Returns the graph of a weir.CUDAGraph, or NULL with a TypeError (graph.c). */
weir_graph *pyweir_graph_get(PyObject *object);

/* A pool id is a tuple of two integers. */
int pyweir_parse_pool_id(PyObject *object, weir_pool_id *id);
PyObject *pyweir_pool_id_wrap(weir_pool_id id);

/* ---- Memory (memory.c) ---- */

/* Creates the process's allocator on weir_get_driver, and passes it to weir_graph_use_allocator. Called with the GIL
 * after the start of the runtime and before deferred calls run, and again if a later part of the start failed. */
int pyweir_memory_start(void);

/* Returns the process's allocator, or NULL before the start. */
weir_allocator *pyweir_allocator(void);

/* ---- DLPack (dlpack.c) ---- */

/* Destroys a capsule that was not consumed. A consumed one has another name, and its tensor belongs to the consumer. */
void pyweir_dlpack_destroy_capsule(PyObject *capsule);

/* Whether the consumer understands versioned tensors. -1 with an exception set. */
int pyweir_dlpack_wants_version(PyObject *max_version);

/* An explicitly requested device must be the one that has the memory. */
int pyweir_dlpack_check_device(int type, int number, PyObject *requested);

/* The argument `stream` of __dlpack__ for memory on a CUDA device: *is_ordered is false if the consumer synchronizes,
 * and *raw is the stream that waits. For other memory only None and -1 are allowed. */
int pyweir_dlpack_parse_stream(PyObject *stream, int type, bool *is_ordered, weir_cu_stream *raw);

/* The capsule of an object: the object itself, or what its __dlpack__ returns. A new reference. */
PyObject *pyweir_dlpack_capsule(PyObject *object);

/* The tensor in a capsule that was not consumed yet, or NULL with an exception set. */
const tensor *pyweir_dlpack_tensor(PyObject *capsule, bool *is_readonly);

/* Takes the tensor out of its capsule. The caller has to call pyweir_dlpack_release with *managed. */
int pyweir_dlpack_consume(PyObject *capsule, void **managed, bool *is_versioned);
void pyweir_dlpack_release(void *managed, bool is_versioned);
