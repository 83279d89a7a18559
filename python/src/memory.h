/*
 * Declarations that the parts about memory share: the process's allocator, and the object that holds memory.
 */
#pragma once

#include "pyweir.h"

/* Parses the arguments of a fast call: stores in values[i] the argument names[i], and leaves values[i] as it is if the
 * argument is missing. The first `positional` arguments may be given by position. */
int pyweir_parse_arguments(const char *function, const char *const *names, int name_count, int positional,
                           PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **values);

/* ---- The allocator (memory.c) ---- */

/* Starts Weir if needed. Returns NULL with an exception set if that fails. */
weir_allocator *pyweir_need_allocator(void);

/* Whether the driver has a capability (WEIR_DRIVER_*). False before the start. */
bool pyweir_driver_can(uint64_t capability);

/* Parses an address, which must not be negative. */
int pyweir_parse_address(PyObject *object, void **address);

/* Parses a number of bytes: an int that is not negative. */
int pyweir_parse_bytes(PyObject *object, size_t *bytes);

/* The current stream of a device (-1 for the current device), and its raw stream. Called without the GIL. */
weir_status pyweir_current_stream(int device, weir_stream *stream, weir_cu_stream *raw);
weir_status pyweir_raw_stream(weir_stream stream, weir_cu_stream *raw);

/* Sets the back end of the process's allocator, NULL for Weir's own. Fails after the start. The caller keeps it. */
int pyweir_set_backend(const weir_backend *backend);

/* ---- Buffers (buffer.c) ---- */

typedef enum pyweir_owner {
  PYWEIR_OWNS_NOTHING, /* freed, or owned elsewhere */
  PYWEIR_OWNS_DEVICE,  /* memory of the process's allocator */
  PYWEIR_OWNS_HOST,    /* pinned host memory */
  PYWEIR_OWNS_VIEW,    /* a part of `base` */
  PYWEIR_OWNS_SHARED,  /* opened memory of another process; `release` closes it */
  PYWEIR_OWNS_FOREIGN  /* memory of another library; `release` returns it */
} pyweir_owner;

/* All fields are guarded by the GIL. */
typedef struct pyweir_buffer {
  PyObject_HEAD void *pointer;
  size_t bytes;
  weir_stream stream;  /* for which it was allocated; its device is the memory's. Unused for host memory */
  unsigned char owner; /* pyweir_owner */
  bool is_host;        /* host memory, not device memory */
  bool is_readonly;
  Py_ssize_t uses; /* views, exported buffers and tensors; free() requires that there are none */
  union {
    struct pyweir_buffer *base; /* of a view: a strong reference, never to another view */
    struct {                    /* of shared and foreign memory */
      void (*release)(void *context);
      void *context;
    } foreign;
  } of;
  PyObject *weak; /* list of weak references */
} pyweir_buffer;

extern PyTypeObject pyweir_buffer_type;
#define PYWEIR_IS_BUFFER(object) PyObject_TypeCheck((PyObject *)(object), &pyweir_buffer_type)

/* Returns a buffer that owns nothing yet, or NULL with an exception set. */
pyweir_buffer *pyweir_buffer_new(void *pointer, size_t bytes, weir_stream stream);

/* Allocates memory on a stream. Returns NULL with an exception set if that fails. */
pyweir_buffer *pyweir_buffer_allocate(weir_allocator *allocator, weir_stream stream, size_t bytes);

/* The memory of an object. 1 if it is a Buffer, 0 if it is not, -1 with an exception set if it was freed. */
int pyweir_buffer_memory(PyObject *object, pyweir_memory *memory);

/* The buffer that owns the memory: the buffer itself, or the base of a view. */
static inline pyweir_buffer *pyweir_buffer_root(pyweir_buffer *buffer) {
  return buffer->owner == PYWEIR_OWNS_VIEW ? buffer->of.base : buffer;
}

/* Raises ValueError if the buffer was freed. */
int pyweir_buffer_check(pyweir_buffer *buffer);

/* Waits for the buffer's stream and the current stream, so that the host can read the memory. */
int pyweir_buffer_wait(pyweir_buffer *buffer);

/* Copies all of `from` in stream order. */
int pyweir_buffer_copy(pyweir_buffer *to, pyweir_buffer *from, weir_stream stream);

/* ---- Methods of buffers that are defined in other files ---- */

PyObject *pyweir_buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *pyweir_buffer_dlpack_device(PyObject *self, PyObject *unused);
PyObject *pyweir_buffer_share(PyObject *self, PyObject *unused);
PyObject *pyweir_buffer_reduce(PyObject *self, PyObject *protocol);

/* The release of memory of another process waits for the work that a stream has then. `root` has the owner
 * PYWEIR_OWNS_SHARED. Returns 0, or -1 with the exception set. */
int pyweir_shared_record(pyweir_buffer *root, weir_stream stream);

/* ---- Pluggable allocators (pluggable.c) ---- */

/* The functions of an allocator, shared by the Python object, pools and the allocator. */
typedef struct pyweir_functions pyweir_functions;

/* Returns the functions of an allocator object, NULL for Weir's own, with a new reference for pyweir_functions_drop. -1
 * with an exception set for any other object. */
int pyweir_functions_of(PyObject *object, pyweir_functions **functions);
void pyweir_functions_drop(void *functions);

/* These take the functions as their context. */
void *pyweir_functions_alloc(void *functions, size_t bytes, int device, weir_cu_stream stream);
void pyweir_functions_free(void *functions, void *pointer, size_t bytes, int device, weir_cu_stream stream);

/* ---- Pinned host memory (host.c) ---- */

/* Creates the allocator of weir.host_empty at its first use. Returns NULL with an exception set if that fails. */
weir_host_allocator *pyweir_need_host(void);

/* NULL before that. */
weir_host_allocator *pyweir_host(void);

weir_status pyweir_host_free(void *pointer);

/* All of these are called without the GIL. Settings take effect only if the host allocator exists. */
weir_status pyweir_host_configure(const char *conf);

/* Records that a stream uses the pinned memory. */
weir_status pyweir_host_record(void *pointer, weir_stream stream);

/* ---- Python stacks (frames.c) ---- */

/* Turns Python frames in recorded stacks on or off. Turning them off cannot fail. */
int pyweir_frames_use(bool on);

/* Whether the environment requests a recording with stacks (WEIR_RECORD, WEIR_RECORD_STACKS; WEIR_GUARD). */
bool pyweir_frames_wanted(void);
