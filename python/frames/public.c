/*
 * Python stacks through public functions, for versions that walk.c does not know and for builds without Python's
 * headers. The functions are declared here, with opaque pointers for objects: they are the same in all versions since
 * 3.10. Each stack needs the GIL, and creates an object for each frame.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "frames.h"
#include "weir/log.h"

extern int PyGILState_Check(void);
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int state);
extern void *PyGILState_GetThisThreadState(void);
extern void *PyThreadState_GetFrame(void *thread);
extern void *PyFrame_GetCode(void *frame);
extern void *PyFrame_GetBack(void *frame);
extern int PyFrame_GetLineNumber(void *frame);
extern void *PyObject_GetAttrString(void *object, const char *name);
extern const char *PyUnicode_AsUTF8AndSize(void *string, ptrdiff_t *size);
extern void PyErr_Fetch(void **type, void **value, void **trace);
extern void PyErr_Restore(void *type, void *value, void *trace);
extern void PyErr_Clear(void);
extern void Py_DecRef(void *object); /* NULL is allowed */

static atomic_bool is_on;

/* Text that Python cannot encode as UTF-8 becomes a question mark. */
static uint32_t text_of(void *code, const char *attribute) {
  void *string = PyObject_GetAttrString(code, attribute);
  const char *text = string ? PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
  uint32_t number = weir_history_text(text ? text : "?");
  if (!text)
    PyErr_Clear();
  Py_DecRef(string);
  return number;
}

static const char *left_out; /* the folder of weir_frames_leave_out */

void weir_frames_leave_out(const char *folder) { left_out = folder; }

static int is_left_out(void *code) {
  void *string = left_out ? PyObject_GetAttrString(code, "co_filename") : NULL;
  const char *text = string ? PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
  int found = text && strncmp(text, left_out, strlen(left_out)) == 0;
  Py_DecRef(string);
  return found;
}

static size_t walk(void *thread, weir_stack_frame *frames, size_t room) {
  void *type, *value, *trace;
  size_t count = 0;
  PyErr_Fetch(&type, &value, &trace);
  void *frame = PyThreadState_GetFrame(thread);
  while (frame && count < room) {
    void *code = PyFrame_GetCode(frame);
    if (count || !is_left_out(code))
      frames[count++] =
          (weir_stack_frame){text_of(code, "co_filename"), text_of(code, "co_name"), PyFrame_GetLineNumber(frame)};
    Py_DecRef(code);
    void *next = PyFrame_GetBack(frame);
    Py_DecRef(frame);
    frame = next;
  }
  Py_DecRef(frame);
  PyErr_Restore(type, value, trace);
  return count;
}

size_t weir_frames_gather(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (!atomic_load(&is_on)) /* a thread that waits for the GIL while the interpreter ends would wait forever */
    return 0;
  void *thread = PyGILState_GetThisThreadState();
  if (!thread)
    return 0;
  if (PyGILState_Check())
    return walk(thread, frames, room);
  int gil = PyGILState_Ensure();
  size_t count = atomic_load(&is_on) ? walk(thread, frames, room) : 0;
  PyGILState_Release(gil);
  return count;
}

bool weir_frames_are_on(void) { return atomic_load(&is_on); }

bool weir_frames_begin(void) {
  static atomic_flag is_said = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&is_said))
    weir_log_message(WEIR_LOG_INFO,
                     "Python frames are read through Python's public functions, which need the GIL for each stack:"
                     " the frame layout of this version is unknown, or its headers were missing at build time");
  atomic_store(&is_on, true);
  weir_stack_set_hook(weir_frames_gather, NULL);
  return true;
}

void weir_frames_end(void) {
  if (atomic_exchange(&is_on, false))
    weir_stack_set_hook(NULL, NULL);
}
