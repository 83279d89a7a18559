/*
 * Python's stacks for the history.
 *
 * The hook runs in the thread whose stack is wanted, inside a call that this thread made: so its frames stand still, whether
 * it holds the GIL or, as buffers do it, not. It walks them without touching a reference count. What a frame stands for, its
 * file, function and line, is looked up by the instruction that it is at, in a table that keeps the code alive; only an
 * instruction that was never seen before needs the GIL.
 *
 * That needs CPython's own view of a frame, which changes with each version. A version that is not known here is asked through
 * its public functions, which make an object of each frame.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000
#define FRAMES_ARE_OBJECTS 1
#include <frameobject.h>
#elif PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define FRAMES_ARE_KNOWN 1
#define Py_BUILD_CORE 1 /* for this header, and for nothing else */
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "memory.h"

/* An instruction takes two bytes, or several times that. */
enum { UNIT = 2 };

/* ---- The table ---- */

/* An instruction, and what it stands for. */
typedef struct place {
  PyCodeObject *code; /* a strong reference; NULL: the slot is free */
  int instruction;    /* its number in the code */
  weir_stack_frame frame;
} place;

/* When there are more it begins anew: code that was made to run once would stay forever otherwise. */
enum { FIRST_SLOTS = 1024, MOST_SLOTS = 1 << 17 };

/* Guards the table. Never held while waiting for the GIL. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place *table;
static size_t slots, used; /* slots is a power of two, or 0 */

static size_t slot_of(const PyCodeObject *code, int instruction) {
  uint64_t h = ((uint64_t)(uintptr_t)code >> 4) + (uint64_t)(unsigned)instruction * 0x9e3779b97f4a7c15u;
  h *= 0xff51afd7ed558ccdu;
  return (size_t)(h >> 32);
}

/* Where it is, or where it would go. The lock is held, and there is a free slot. */
static place *find(const PyCodeObject *code, int instruction) {
  size_t i = slot_of(code, instruction) & (slots - 1);
  while (table[i].code && (table[i].code != code || table[i].instruction != instruction))
    i = (i + 1) & (slots - 1);
  return &table[i];
}

/* Takes all of the table away, for the caller to let go of the code when the lock is not held. */
static place *take_table(size_t *count) {
  place *taken = table;
  *count = slots;
  table = NULL;
  slots = used = 0;
  return taken;
}

/* With the GIL, without the lock: the end of a code object may run code of the program. */
static void drop_table(place *taken, size_t count) {
  for (size_t i = 0; i < count; i++)
    Py_XDECREF(taken[i].code);
  free(taken);
}

/* Room for one more, in a table that is never more than half full. */
static bool make_room(place **old, size_t *old_count) {
  *old = NULL;
  if (2 * (used + 1) <= slots)
    return true;
  size_t wanted = slots ? 2 * slots : FIRST_SLOTS;
  if (wanted > MOST_SLOTS) {
    *old = take_table(old_count);
    wanted = FIRST_SLOTS;
  }
  place *larger = calloc(wanted, sizeof *larger), *before = table;
  size_t count = slots;
  if (!larger)
    return false;
  table = larger;
  slots = wanted;
  for (size_t i = 0; i < count; i++)
    if (before[i].code)
      *find(before[i].code, before[i].instruction) = before[i];
  free(before);
  return true;
}

/* A text that Python cannot put into UTF-8 is shown as a question mark. */
static uint32_t text_of(PyObject *string) {
  const char *text = PyUnicode_AsUTF8(string);
  if (text)
    return weir_history_text(text);
  PyErr_Clear();
  return weir_history_text("?");
}

static void learn_with_gil(PyCodeObject *code, int instruction, weir_stack_frame *frame) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  *frame = (weir_stack_frame){text_of(code->co_filename), text_of(code->co_name),
                              PyCode_Addr2Line(code, instruction * UNIT)};
  place *old = NULL;
  size_t old_count = 0;
  pthread_mutex_lock(&lock);
  if (make_room(&old, &old_count)) {
    place *p = find(code, instruction);
    if (!p->code) {
      Py_INCREF(code);
      *p = (place){code, instruction, *frame};
      used++;
    }
  }
  pthread_mutex_unlock(&lock);
  drop_table(old, old_count);
  PyErr_Restore(type, value, trace);
}

#if PY_VERSION_HEX >= 0x030D0000
#define is_finalizing Py_IsFinalizing
#else
#define is_finalizing _Py_IsFinalizing
#endif

/* ---- The frames of a thread, by version: the innermost frame, the one behind a frame, its code, its instruction ---- */

#ifdef FRAMES_ARE_KNOWN

typedef _PyInterpreterFrame *frame_pointer;

static frame_pointer innermost(PyThreadState *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe->current_frame;
#endif
}

static frame_pointer behind(frame_pointer frame) { return frame->previous; }

/* NULL for one that has no place in a program yet, or never will: those between the interpreter and a C function. */
static PyCodeObject *code_of(frame_pointer frame, int *instruction) {
#if PY_VERSION_HEX >= 0x030D0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK || !PyCode_Check(frame->f_executable))
    return NULL;
  PyCodeObject *code = (PyCodeObject *)frame->f_executable;
  const _Py_CODEUNIT *at = frame->instr_ptr;
#else
#if PY_VERSION_HEX >= 0x030C0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK)
    return NULL;
#endif
  PyCodeObject *code = frame->f_code;
  const _Py_CODEUNIT *at = frame->prev_instr;
#endif
  const _Py_CODEUNIT *first = (const _Py_CODEUNIT *)(const void *)code->co_code_adaptive;
  *instruction = (int)(at - first);
  if (frame->owner != FRAME_OWNED_BY_GENERATOR && *instruction < code->_co_firsttraceable)
    return NULL;
  return code;
}

#elif defined(FRAMES_ARE_OBJECTS)

typedef PyFrameObject *frame_pointer;

static frame_pointer innermost(PyThreadState *thread) { return thread->frame; }
static frame_pointer behind(frame_pointer frame) { return frame->f_back; }
static PyCodeObject *code_of(frame_pointer frame, int *instruction) {
  *instruction = frame->f_lasti;
  return frame->f_code;
}

#endif

#if defined(FRAMES_ARE_KNOWN) || defined(FRAMES_ARE_OBJECTS)

/* An instruction that is not in the table. */
static bool learn(PyCodeObject *code, int instruction, weir_stack_frame *frame) {
  if (PyGILState_Check()) {
    learn_with_gil(code, instruction, frame);
    return true;
  }
  /* A thread that waits for the GIL now waits forever. */
  if (is_finalizing())
    return false;
  PyGILState_STATE gil = PyGILState_Ensure();
  learn_with_gil(code, instruction, frame);
  PyGILState_Release(gil);
  return true;
}

/* The frames that are not in the table are learnt when the lock is not held; those before them stay. */
static size_t walk(PyThreadState *thread, weir_stack_frame *frames, size_t room) {
  size_t count = 0;
  pthread_mutex_lock(&lock);
  for (frame_pointer f = innermost(thread); f && count < room; f = behind(f)) {
    int instruction;
    PyCodeObject *code = code_of(f, &instruction);
    if (!code)
      continue;
    place *p = slots ? find(code, instruction) : NULL;
    if (p && p->code) {
      frames[count++] = p->frame;
      continue;
    }
    pthread_mutex_unlock(&lock);
    if (learn(code, instruction, &frames[count]))
      count++;
    pthread_mutex_lock(&lock);
  }
  pthread_mutex_unlock(&lock);
  return count;
}

#else

/* Public functions alone. The frames are objects, and have to be let go of. */
static size_t walk_with_gil(PyThreadState *thread, weir_stack_frame *frames, size_t room) {
  size_t count = 0;
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  while (frame && count < room) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    int instruction = PyFrame_GetLasti(frame) / UNIT;
    pthread_mutex_lock(&lock);
    place *p = slots ? find(code, instruction) : NULL;
    bool is_known = p && p->code;
    if (is_known)
      frames[count] = p->frame;
    pthread_mutex_unlock(&lock);
    if (!is_known)
      learn_with_gil(code, instruction, &frames[count]);
    count++;
    Py_DECREF(code);
    PyFrameObject *next = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = next;
  }
  Py_XDECREF(frame);
  return count;
}

static size_t walk(PyThreadState *thread, weir_stack_frame *frames, size_t room) {
  if (PyGILState_Check())
    return walk_with_gil(thread, frames, room);
  if (is_finalizing())
    return 0;
  PyGILState_STATE gil = PyGILState_Ensure();
  size_t count = walk_with_gil(thread, frames, room);
  PyGILState_Release(gil);
  return count;
}

#endif

/* ---- The hook ---- */

/* A thread that Python never saw has no frames. */
static size_t gather(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  PyThreadState *thread = Py_IsInitialized() ? PyGILState_GetThisThreadState() : NULL;
  return thread ? walk(thread, frames, room) : 0;
}

void pyweir_frames_use(bool on) {
  if (on) {
    weir_set_stack_hook(gather, NULL);
    return;
  }
  weir_set_stack_hook(NULL, NULL);
  pthread_mutex_lock(&lock);
  size_t count;
  place *taken = take_table(&count);
  pthread_mutex_unlock(&lock);
  drop_table(taken, count);
}

/* For tests and the benchmark. */
static PyObject *gather_frames(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  enum { ROOM = 256 };
  weir_stack_frame frames[ROOM];
  size_t count = gather(NULL, frames, ROOM);
  return PyLong_FromSize_t(count);
}

/* How long a stack takes, in nanoseconds, without the cost of a call from Python. */
static PyObject *time_frames(PyObject *module, PyObject *repeat_object) {
  (void)module;
  enum { ROOM = 256 };
  weir_stack_frame frames[ROOM];
  struct timespec begin, end;
  long repeats = PyLong_AsLong(repeat_object);
  if (repeats <= 0) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "the number of repeats is positive");
    return NULL;
  }
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < repeats; i++)
    gather(NULL, frames, ROOM);
  clock_gettime(CLOCK_MONOTONIC, &end);
  double spent = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
  return PyFloat_FromDouble(spent / (double)repeats);
}

static PyMethodDef functions[] = {
    {"_gather_frames", gather_frames, METH_NOARGS, "How many frames the hook finds for the calling thread."},
    {"_time_frames", time_frames, METH_O, "(repeats): nanoseconds that the hook takes for the calling thread's stack."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_frames(PyObject *module) { return PyModule_AddFunctions(module, functions); }
