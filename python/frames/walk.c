/*
 * Python stacks, read from CPython's internal frames.
 *
 * The hook runs on the thread whose stack is captured, inside a call that this thread made, so its frames do not
 * change, whether it holds the GIL or not. It walks them without touching a reference count. The file, function and
 * line of a frame are looked up by the frame's current instruction, in a table that keeps the code objects alive. Only
 * an instruction that is not in the table yet needs the GIL.
 *
 * Threads read the table without a lock. Each thread has a flag that says that it is walking. Before memory is freed
 * that a walk may read (an old table or, at the end, thread states), weir_frames_end and the table's writer wait until
 * all flags are clear. A thread that waits for the GIL is not walking. The table is written with the GIL held.
 *
 * The layout of frames changes with each version of CPython. Unknown versions use public functions (public.c).
 */
#include <patchlevel.h>
#include <pyconfig.h>

#if PY_VERSION_HEX >= 0x030E0000 || defined(Py_GIL_DISABLED)

#include "public.c"

#else

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#else
#define Py_BUILD_CORE 1 /* only for this header */
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"
#include "weir/log.h"

/* An instruction takes two bytes or a multiple of that. */
enum { UNIT = 2 };

/* ---- Threads that walk ---- */

typedef struct walker {
  atomic_int is_walking;
  atomic_bool is_used; /* by a thread that has not ended */
  struct walker *next; /* written before it is in the list */
} walker;

static _Atomic(walker *) walkers; /* never freed; reused by later threads */
static atomic_bool is_on;
static _Thread_local walker *mine __attribute__((tls_model("initial-exec")));
static pthread_key_t thread_end;

static void leave(void *walker_of_thread) {
  walker *w = walker_of_thread;
  mine = NULL;
  atomic_store(&w->is_used, false);
}

/* The child of a fork has no other threads. */
static void forget_others(void) {
  for (walker *w = atomic_load(&walkers); w; w = w->next)
    if (w != mine) {
      atomic_store(&w->is_walking, 0);
      atomic_store(&w->is_used, false);
    }
}

static void start_walkers(void) {
  pthread_key_create(&thread_end, leave);
  pthread_atfork(NULL, NULL, forget_others);
}

/* Returns NULL without host memory. */
static __attribute__((noinline)) walker *join(void) {
  walker *w = atomic_load(&walkers);
  for (bool unused = false; w && !atomic_compare_exchange_strong(&w->is_used, &unused, true); unused = false)
    w = w->next;
  if (!w) {
    w = calloc(1, sizeof *w);
    if (!w)
      return NULL;
    atomic_store(&w->is_used, true);
    w->next = atomic_load(&walkers);
    while (!atomic_compare_exchange_weak(&walkers, &w->next, w)) {
    }
  }
  pthread_setspecific(thread_end, w);
  mine = w;
  return w;
}

/* Returns false if walking has ended. Both flags are accessed in sequentially consistent order, so either this thread
 * sees the end, or the thread that ends walking sees this one. */
static inline bool begin_walk(walker *w) {
  atomic_store(&w->is_walking, 1);
  if (atomic_load(&is_on))
    return true;
  atomic_store_explicit(&w->is_walking, 0, memory_order_release);
  return false;
}

static inline void end_walk(walker *w) { atomic_store_explicit(&w->is_walking, 0, memory_order_release); }

/* Waits until all current walks are over. The caller must not be walking. */
static void wait_for_walks(void) {
  for (walker *w = atomic_load(&walkers); w; w = w->next)
    while (atomic_load(&w->is_walking))
      sched_yield();
}

/* ---- The table ---- */

/* An instruction, and its position in the source. */
typedef struct place {
  _Atomic(PyCodeObject *) code; /* a strong reference, written last; NULL if the slot is free */
  int instruction;              /* its index in the code */
  bool is_left_out;             /* where it is innermost */
  weir_stack_frame frame;
} place;

/* At most half full. */
typedef struct place_table {
  size_t slots, used; /* slots is a power of two; used is guarded by the GIL */
  place places[];
} place_table;

/* With more entries, the table starts empty again; otherwise code that runs once would be kept forever. */
enum { FIRST_SLOTS = 1024, MAX_SLOTS = 1 << 17 };

static _Atomic(place_table *) current; /* NULL while it is empty */

/* Part of every key. Keys identify code by its address, which is unique only while the table keeps the code alive. When
 * the table drops code, or could not add some, this changes, and older keys become invalid. */
static _Atomic uint64_t generation = 1;

static size_t slot_of(const PyCodeObject *code, int instruction) {
  uint64_t h = ((uint64_t)(uintptr_t)code >> 4) + (uint64_t)(unsigned)instruction * 0x9e3779b97f4a7c15u;
  h *= 0xff51afd7ed558ccdu;
  return (size_t)(h >> 32);
}

/* The slot of an instruction, or the free slot where it would be stored. */
static inline place *find(place_table *table, const PyCodeObject *code, int instruction) {
  for (size_t i = slot_of(code, instruction);; i++) {
    place *p = &table->places[i & (table->slots - 1)];
    const PyCodeObject *here = atomic_load_explicit(&p->code, memory_order_acquire);
    if (!here || (here == code && p->instruction == instruction))
      return p;
  }
}

static void put(place_table *table, PyCodeObject *code, int instruction, const weir_stack_frame *frame,
                bool leave_out) {
  place *p = find(table, code, instruction);
  if (atomic_load_explicit(&p->code, memory_order_relaxed))
    return;
  p->instruction = instruction;
  p->frame = *frame;
  p->is_left_out = leave_out;
  table->used++;
  Py_INCREF(code);
  atomic_store_explicit(&p->code, code, memory_order_release);
}

/* Frees a table that is no longer reachable. With the GIL; destroying a code object may run Python code, which may call
 * this again. */
static void drop_table(place_table *table) {
  if (!table)
    return;
  wait_for_walks();
  for (size_t i = 0; i < table->slots; i++)
    Py_XDECREF(atomic_load_explicit(&table->places[i].code, memory_order_relaxed));
  free(table);
}

/* Returns a table with room for one more entry, or NULL without host memory. */
static place_table *table_with_room(place_table **old) {
  place_table *table = atomic_load_explicit(&current, memory_order_relaxed);
  *old = NULL;
  if (table && 2 * (table->used + 1) <= table->slots)
    return table;
  bool begins_anew = !table || 2 * table->slots > MAX_SLOTS;
  size_t slots = begins_anew ? FIRST_SLOTS : 2 * table->slots;
  place_table *larger = calloc(1, sizeof *larger + slots * sizeof larger->places[0]);
  if (!larger)
    return NULL;
  larger->slots = slots;
  for (size_t i = 0; !begins_anew && i < table->slots; i++) {
    const place *p = &table->places[i];
    PyCodeObject *code = atomic_load_explicit(&p->code, memory_order_relaxed);
    if (code)
      put(larger, code, p->instruction, &p->frame, p->is_left_out);
  }
  if (begins_anew)
    atomic_fetch_add(&generation, 1);
  *old = table;
  atomic_store(&current, larger);
  return larger;
}

static const char *left_out; /* the folder of weir_frames_leave_out */

void weir_frames_leave_out(const char *folder) { left_out = folder; }

static bool is_left_out(PyObject *file) {
  const char *text = left_out ? PyUnicode_AsUTF8(file) : NULL;
  return text && strncmp(text, left_out, strlen(left_out)) == 0;
}

/* Text that Python cannot encode as UTF-8 becomes a question mark. */
static uint32_t text_of(PyObject *string) {
  const char *text = PyUnicode_AsUTF8(string);
  if (text)
    return weir_history_text(text);
  PyErr_Clear();
  return weir_history_text("?");
}

static bool learn_with_gil(PyCodeObject *code, int instruction, weir_stack_frame *frame) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  *frame = (weir_stack_frame){text_of(code->co_filename), text_of(code->co_name),
                              PyCode_Addr2Line(code, instruction * UNIT)};
  bool leave_out = is_left_out(code->co_filename);
  place_table *old, *table = table_with_room(&old);
  if (table)
    put(table, code, instruction, frame, leave_out);
  else
    atomic_fetch_add(&generation, 1);
  drop_table(old);
  PyErr_Restore(type, value, trace);
  return leave_out;
}

/* Adds an instruction to the table. The thread must not be walking. Returns false if the interpreter is ending: a
 * thread that waits for the GIL then would wait forever. */
static bool learn(PyCodeObject *code, int instruction, weir_stack_frame *frame, bool *leave_out) {
  if (PyGILState_Check()) {
    *leave_out = learn_with_gil(code, instruction, frame);
    return true;
  }
  if (!atomic_load(&is_on))
    return false;
  PyGILState_STATE gil = PyGILState_Ensure();
  *leave_out = learn_with_gil(code, instruction, frame);
  PyGILState_Release(gil);
  return true;
}

/* ---- Frames by version: the innermost frame, the next outer frame, the code and the instruction of a frame ---- */

#if PY_VERSION_HEX < 0x030B0000

typedef PyFrameObject *frame_pointer;

static frame_pointer innermost(PyThreadState *thread) { return thread->frame; }
static frame_pointer behind(frame_pointer frame) { return frame->f_back; }
static bool is_between(frame_pointer frame) { return false & !frame; }
static PyCodeObject *code_of(frame_pointer frame, int *instruction) {
  *instruction = frame->f_lasti;
  return frame->f_code;
}

#else

typedef _PyInterpreterFrame *frame_pointer;

static frame_pointer innermost(PyThreadState *thread) {
#if PY_VERSION_HEX >= 0x030D0000
  return thread->current_frame;
#else
  return thread->cframe->current_frame;
#endif
}

static frame_pointer behind(frame_pointer frame) { return frame->previous; }

/* Whether the interpreter inserted the frame between itself and a C function. */
static bool is_between(frame_pointer frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return frame->owner == FRAME_OWNED_BY_CSTACK;
#else
  return false & !frame;
#endif
}

/* Returns NULL for a frame that has not started to execute, and for one between the interpreter and a C function. */
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

#endif

/* The thread is walking, and still is on return, unless walking has ended. It pauses to add missing instructions. */
static size_t walk(walker *w, weir_stack_frame *frames, size_t room) {
  PyThreadState *thread = PyGILState_GetThisThreadState();
  place_table *table = atomic_load_explicit(&current, memory_order_acquire);
  size_t count = 0;
  for (frame_pointer f = thread ? innermost(thread) : NULL; f && count < room; f = behind(f)) {
    int instruction;
    PyCodeObject *code = code_of(f, &instruction);
    if (!code)
      continue;
    const place *p = table ? find(table, code, instruction) : NULL;
    if (p && atomic_load_explicit(&p->code, memory_order_relaxed)) {
      if (count || !p->is_left_out)
        frames[count++] = p->frame;
      continue;
    }
    bool leave_out;
    end_walk(w);
    if (learn(code, instruction, &frames[count], &leave_out) && (count || !leave_out))
      count++;
    if (!begin_walk(w))
      return count;
    table = atomic_load_explicit(&current, memory_order_acquire);
  }
  return count;
}

/* ---- The hook ---- */

size_t weir_frames_gather(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  walker *w = mine ? mine : join();
  if (!w || !begin_walk(w))
    return 0;
  size_t count = walk(w, frames, room);
  end_walk(w);
  return count;
}

/* A hash of the instructions of all frames. A frame that has not started to execute is not in the table, which keeps
 * code alive, so a stack with such a frame has no key. */
int weir_frames_key(void *context, uint64_t *key) {
  (void)context;
  walker *w = mine ? mine : join();
  if (!w || !begin_walk(w))
    return 0;
  const PyThreadState *thread = PyGILState_GetThisThreadState();
  /* Spreads the index over all bits: a small number could collide with a difference between code addresses. */
  uint64_t mixed = atomic_load_explicit(&generation, memory_order_acquire) * 0xc2b2ae3d27d4eb4fu;
  bool has_key = thread != NULL;
  for (frame_pointer f = has_key ? innermost((PyThreadState *)thread) : NULL; f && has_key; f = behind(f)) {
    int instruction;
    if (is_between(f))
      continue;
    const PyCodeObject *code = code_of(f, &instruction);
    has_key = code != NULL;
    mixed = (mixed ^ (uint64_t)(uintptr_t)code) * 0x9e3779b97f4a7c15u;
    mixed = ((mixed ^ mixed >> 32) + (uint64_t)(unsigned)instruction) * 0xff51afd7ed558ccdu;
    mixed ^= mixed >> 29;
  }
  end_walk(w);
  mixed *= 0xff51afd7ed558ccdu;
  *key = mixed ^ mixed >> 29;
  return has_key;
}

bool weir_frames_are_on(void) { return atomic_load(&is_on); }

bool weir_frames_begin(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  char built_for[16], text[160];
  snprintf(built_for, sizeof built_for, "%d.%d.", PY_MAJOR_VERSION, PY_MINOR_VERSION);
  if (strncmp(Py_GetVersion(), built_for, strlen(built_for)) != 0) {
    snprintf(text, sizeof text, "stacks have no Python frames: they were built for Python %.*s, but this is %.20s",
             (int)strlen(built_for) - 1, built_for, Py_GetVersion());
    weir_log_message(WEIR_LOG_WARN, text);
    return false;
  }
  pthread_once(&once, start_walkers);
  atomic_store(&is_on, true);
  weir_stack_set_hook(weir_frames_gather, NULL);
  weir_stack_set_key(weir_frames_key);
  return true;
}

void weir_frames_end(void) {
  if (!atomic_exchange(&is_on, false))
    return;
  weir_stack_set_hook(NULL, NULL);
  wait_for_walks();
  atomic_fetch_add(&generation, 1); /* before the code can be freed */
  drop_table(atomic_exchange(&current, NULL));
}

#endif
