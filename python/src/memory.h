/*
 * What the parts about memory share: the process's allocator, and the object that holds memory.
 */
#ifndef PYWEIR_MEMORY_H
#define PYWEIR_MEMORY_H

#include "pyweir.h"

/* Takes the arguments of a fast call by name: values[i] for names[i]. Those that are not given stay as they are. The first
 * `positional` can be given without a name. */
int pyweir_take_arguments(const char *who, const char *const *names, int name_count, int positional,
                          PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **values);

/* ---- The allocator (memory.c) ---- */

/* Starts Weir if need be. NULL with an exception set. */
weir_allocator *pyweir_need_allocator(void);

/* A device argument of a function that starts Weir. */
int pyweir_need_device(PyObject *object, int *device);

/* Whether the driver states a capability (WEIR_DRIVER_*). No driver states any before the start. */
bool pyweir_driver_can(uint64_t capability);

/* A number of bytes: an int, not negative. */
int pyweir_parse_bytes(PyObject *object, size_t *bytes);

/* The current stream of a device, -1 for the current one, and the driver's stream behind it. Called without the GIL. */
weir_status pyweir_current_stream(int device, weir_stream *stream, weir_cu_stream *raw);
weir_status pyweir_raw_stream(weir_stream stream, weir_cu_stream *raw);

/* What the process's allocator is to stand on: NULL for Weir's own. Before the start only. It stays the caller's. */
int pyweir_set_backend(const weir_backend *backend);

/* ---- Buffers (buffer.c) ---- */

typedef enum pyweir_owner {
  PYWEIR_OWNS_NOTHING, /* freed, or somebody else's */
  PYWEIR_OWNS_DEVICE,  /* memory of the process's allocator */
  PYWEIR_OWNS_HOST,    /* pinned memory of the host */
  PYWEIR_OWNS_VIEW,    /* a part of `base` */
  PYWEIR_OWNS_SHARED,  /* opened memory of another process; `release` closes it */
  PYWEIR_OWNS_FOREIGN  /* another library's; `release` gives it back */
} pyweir_owner;

/* Guarded by the GIL, all of it. */
typedef struct pyweir_buffer {
  PyObject_HEAD void *pointer;
  size_t bytes;
  weir_stream stream;  /* that it was allocated for; its device is the memory's. Not of host memory */
  unsigned char owner; /* pyweir_owner */
  bool is_host;        /* the processor's memory, not a device's */
  bool is_readonly;
  Py_ssize_t uses; /* views, exported buffers and tensors: while there are any it cannot be freed by hand */
  union {
    struct pyweir_buffer *base; /* of a view, a strong reference; never a view itself */
    struct {                    /* of shared and foreign memory */
      void (*release)(void *context);
      void *context;
    } foreign;
  } of;
  PyObject *weak; /* list of weak references */
} pyweir_buffer;

extern PyTypeObject pyweir_buffer_type;
#define PYWEIR_IS_BUFFER(object) PyObject_TypeCheck((PyObject *)(object), &pyweir_buffer_type)

/* A buffer that owns nothing yet. NULL with an exception set. */
pyweir_buffer *pyweir_buffer_new(void *pointer, size_t bytes, weir_stream stream);

/* New memory on a stream. NULL with an exception set. */
pyweir_buffer *pyweir_buffer_allocate(weir_allocator *allocator, weir_stream stream, size_t bytes);

/* The one that owns the memory: the buffer itself, or what it is a view of. */
static inline pyweir_buffer *pyweir_buffer_root(pyweir_buffer *buffer) {
  return buffer->owner == PYWEIR_OWNS_VIEW ? buffer->of.base : buffer;
}

/* A ValueError when it was freed. */
int pyweir_buffer_check(pyweir_buffer *buffer);

/* Waits until the device is done with the memory, as far as the buffer's own and the current stream know of it, so that the
 * processor can look at it. */
int pyweir_buffer_settle(pyweir_buffer *buffer);

/* Copies all of `from` in the stream's order. */
int pyweir_buffer_copy(pyweir_buffer *to, pyweir_buffer *from, weir_stream stream);

/* ---- Methods of buffers that stand in other files ---- */

PyObject *pyweir_buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *pyweir_buffer_dlpack_device(PyObject *self, PyObject *unused);
PyObject *pyweir_buffer_share(PyObject *self, PyObject *unused);

/* ---- Allocators of the program's own (pluggable.c) ---- */

/* The functions of one, which the object, pools and the allocator hold together. */
typedef struct pyweir_functions pyweir_functions;

/* The functions of an allocator's object, NULL for Weir's own; with a hold, for pyweir_functions_drop. -1 with an exception set
 * for anything that is no such object. */
int pyweir_functions_of(PyObject *object, pyweir_functions **functions);
void pyweir_functions_drop(void *functions);

/* With the functions as their context. */
void *pyweir_functions_alloc(void *functions, size_t bytes, int device, weir_cu_stream stream);
void pyweir_functions_free(void *functions, void *pointer, size_t bytes, int device, weir_cu_stream stream);

/* ---- Pinned host memory (host.c) ---- */

weir_status pyweir_host_free(void *pointer);

/* All without the GIL. Settings reach it if it is there already. */
weir_status pyweir_host_configure(const char *conf);

/* The pinned memory is in use on a stream. */
weir_status pyweir_host_record(void *pointer, weir_stream stream);

/* ---- Python's stacks (frames.c) ---- */

/* Stacks have Python's frames from now on, or no longer. Turning them off cannot fail. */
int pyweir_frames_use(bool on);

/* Whether the environment asks for a recording with stacks (WEIR_RECORD, WEIR_RECORD_STACKS). */
bool pyweir_frames_wanted(void);

#endif
