#include "inspect/guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "base/environment.h"
#include "base/thread.h"
#include "inspect/json.h"
#include "inspect/symbols.h"
#include "record/recorder.h"
#include "weir/history.h"

static const struct {
  const char *key, *text;
} kinds[] = {
#define X(number, name, key, text) [number] = {key, text},
    WEIR_GUARD_KIND_MAP(X)
#undef X
};

/* What to do about it. */
static const char *const advice[] = {
    [WEIR_GUARD_OUT_OF_BOUNDS] =
        "Look for the last kernel or copy that wrote to this block, and at how it computes the "
        "size. compute-sanitizer names the instruction.",
    [WEIR_GUARD_USE_AFTER_FREE] = "Look for a pointer to the block that is used after the free. If another stream uses "
                                  "it, call weir_allocator_record_stream (tensor.record_stream) before the free.",
    [WEIR_GUARD_STREAM] = "Call weir_allocator_record_stream (tensor.record_stream) for the other stream before the "
                          "free, or let the block's stream wait for the other one.",
    [WEIR_GUARD_DOUBLE_FREE] = "Remove one of the two frees.",
    [WEIR_GUARD_INTERIOR_FREE] = "Free the address that the allocation returned.",
    [WEIR_GUARD_WRONG_ALLOCATOR] = "Free the memory with the allocator that it came from.",
    [WEIR_GUARD_OTHER_PROCESS] = "Release the memory with weir_ipc_release or weir_ipc_close.",
    [WEIR_GUARD_FOREIGN_FREE] = "Free only what an allocator returned, and only while that allocator exists.",
    [WEIR_GUARD_FAULT] =
        "The driver does not say which address it was: these blocks are the newest, and one of them may "
        "have been meant. For the block and the byte run it again with WEIR_GUARD=light, for the "
        "instruction under compute-sanitizer; CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 makes the driver "
        "write a core dump of the GPU.",
    [WEIR_GUARD_WRONG_DEVICE] = "Use the memory on its own device, copy it to the other one, or let that one access it "
                                "(weir_allocator_enable_peer_access).",
    [WEIR_GUARD_DESTROYED] =
        "Destroy streams, events and graphs after their last use. The blocks of a stream have to be freed "
        "before it is destroyed.",
    [WEIR_GUARD_NEVER_WRITTEN] =
        "Write the block before it is read, or allocate it as zeros. Bytes that were computed from "
        "such bytes count too: valgrind --track-origins=yes says where they come from.",
};

/* ---- Stacks: without the frames of this library, which are the innermost ones ---- */

typedef struct outer_frames {
  int at, first; /* of the visit, and the first frame behind those of the library */
  weir_frame_fn visit;
  void *context;
} outer_frames;

static int find_first(void *context, const char *function, const char *file, int line, int is_native) {
  enum { MAX_OWN = 16 };
  outer_frames *frames = context;
  (void)file, (void)line;
  frames->at++;
  if (is_native && strncmp(function, "weir_", 5) == 0)
    frames->first = frames->at;
  return frames->at == MAX_OWN;
}

static int visit_outer(void *context, const char *function, const char *file, int line, int is_native) {
  outer_frames *frames = context;
  return frames->at++ < frames->first ? 0 : frames->visit(frames->context, function, file, line, is_native);
}

static weir_status visit_stack(weir__symbols *symbols, uint32_t stack, weir_frame_fn visit, void *context) {
  outer_frames frames = {.visit = visit, .context = context};
  weir_status status = weir__symbols_visit("WEIR_GUARD", symbols, stack, find_first, &frames);
  frames.at = 0;
  return status ? status : weir__symbols_visit("WEIR_GUARD", symbols, stack, visit_outer, &frames);
}

/* ---- Text ---- */

enum { TEXT_BYTES = 16 * 1024, MAX_FRAMES = 24 };

typedef struct text {
  char *at;
  size_t length;
  weir__symbols *symbols;
  int frames; /* of the stack under way */
} text;

static void put(text *to, const char *format, ...) WEIR_PRINTF(2, 3);
static void put(text *to, const char *format, ...) {
  va_list args;
  if (to->length >= TEXT_BYTES)
    return;
  va_start(args, format);
  int length = vsnprintf(to->at + to->length, TEXT_BYTES - to->length, format, args);
  va_end(args);
  to->length += length > 0 ? (size_t)length : 0;
}

static int put_frame(void *context, const char *function, const char *file, int line, int is_native) {
  text *to = context;
  (void)is_native;
  put(to, "\n      %s", function);
  if (line)
    put(to, " (%s:%d)", file, line);
  else if (*file && strcmp(file, "??") != 0)
    put(to, " (%s)", file);
  return ++to->frames >= MAX_FRAMES;
}

static void put_stack(text *to, const char *what, uint32_t stack) {
  put(to, "\n    %s", what);
  to->frames = 0;
  if (!stack || !to->symbols || visit_stack(to->symbols, stack, put_frame, to))
    put(to, ": not known");
}

static void put_block(text *to, const weir_guard_finding *f) {
  char size[32];
  put(to, "\n    block %p of %llu bytes (%s) on device %d, stream %p", (void *)f->address,
      (unsigned long long)f->requested, weir__format_bytes(f->requested, size), f->device, (void *)f->stream);
}

/* Whether bytes of a block were written or read. */
static bool has_place(const weir_guard_finding *f) {
  return f->kind == WEIR_GUARD_OUT_OF_BOUNDS || f->kind == WEIR_GUARD_USE_AFTER_FREE ||
         f->kind == WEIR_GUARD_WRONG_DEVICE || f->kind == WEIR_GUARD_NEVER_WRITTEN;
}

/* "4 bytes from offset 1000 on, 0 bytes past its end" */
static void put_place(text *to, const weir_guard_finding *f) {
  int64_t offset = (int64_t)f->offset, last = (int64_t)f->last;
  if (!has_place(f))
    return;
  if (f->access) {
    put(to, "\n    %s by %s at offset %lld", f->access == WEIR_GUARD_READ ? "a read" : "a write", f->work,
        (long long)offset);
    if (strcmp(f->work, "host") != 0)
      put(to, ", on stream %p", (void *)f->other_stream);
  } else
    put(to, "\n    %llu byte%s changed between offset %lld and %lld", (unsigned long long)f->bytes,
        f->bytes == 1 ? "" : "s", (long long)offset, (long long)last);
  if (offset < 0)
    put(to, ", %lld bytes before the block", (long long)-offset);
  else if (f->offset >= f->requested)
    put(to, ", starting %llu bytes past the end", (unsigned long long)(f->offset - f->requested));
}

/* "read past the end of a block" */
static void put_title(text *to, const weir_guard_finding *f) {
  const char *title = kinds[f->kind].text, *verb = "write";
  if (f->access == WEIR_GUARD_READ && !strncmp(title, verb, strlen(verb)))
    put(to, "read%s", title + strlen(verb));
  else if (f->kind == WEIR_GUARD_OUT_OF_BOUNDS && (int64_t)f->offset < 0)
    put(to, "write in front of a block");
  else
    put(to, "%s", title);
  if (f->count > 1)
    put(to, " (%llu times)", (unsigned long long)f->count);
}

static void put_candidates(text *to, const weir_guard_finding *f) {
  if (*f->work)
    put(to, "\n    the driver says %s", f->work);
  for (size_t i = 0; i < f->candidate_count; i++) {
    const weir_guard_finding *c = &f->candidates[i];
    put(to, "\n    candidate %zu of %zu, %s:", i + 1, f->candidate_count, c->is_freed ? "freed" : "live");
    put_block(to, c);
    put_stack(to, "allocated by", c->alloc_stack);
    if (c->is_freed)
      put_stack(to, "freed by", c->free_stack);
  }
}

static void write_text(text *to, const weir_guard_finding *f) {
  put_title(to, f);
  if (f->kind == WEIR_GUARD_FAULT)
    put_candidates(to, f);
  if (f->requested)
    put_block(to, f);
  else if (f->address)
    put(to, "\n    address %p", (void *)f->address);
  put_place(to, f);
  if (f->kind == WEIR_GUARD_DESTROYED)
    put(to, "\n    %s", f->work);
  if (f->kind == WEIR_GUARD_STREAM)
    put(to, "\n    work of stream %p on it was open", (void *)f->other_stream);
  if (f->kind == WEIR_GUARD_INTERIOR_FREE)
    put(to, "\n    the address was %llu bytes into it", (unsigned long long)f->offset);
  if (f->alloc_time && f->free_time)
    put(to, "\n    it lived for %.6f s", (double)(f->free_time - f->alloc_time) / 1e6);
  if (f->requested)
    put_stack(to, "allocated by", f->alloc_stack);
  if (f->is_freed || (f->kind == WEIR_GUARD_DESTROYED && f->free_stack))
    put_stack(to, f->kind == WEIR_GUARD_DESTROYED ? "destroyed by" : "freed by", f->free_stack);
  if (f->here_stack || (f->kind >= WEIR_GUARD_DOUBLE_FREE && f->kind <= WEIR_GUARD_FOREIGN_FREE))
    put_stack(to, f->kind == WEIR_GUARD_DESTROYED ? "used by" : "this free", f->here_stack);
  if (f->neighbour) {
    put(to, "\n    %s it: block %p of %llu bytes", f->neighbour < f->address ? "in front of" : "behind",
        (void *)f->neighbour, (unsigned long long)f->neighbour_requested);
    put_stack(to, "which was allocated by", f->neighbour_stack);
  }
  put(to, "\n    %s", advice[f->kind]);
}

/* ---- JSON ---- */

static int write_frame(void *context, const char *function, const char *file, int line, int is_native) {
  (void)is_native;
  WEIR__JSON(context, JSON_OBJECT(NULL), JSON_TEXT("name", function), JSON_TEXT("filename", file),
             JSON_INTEGER("line", line), JSON_CLOSE);
  return 0;
}

static void write_stack(weir__sink *sink, weir__symbols *symbols, const char *key, uint32_t stack) {
  WEIR__JSON(sink, JSON_LIST(key));
  if (stack && symbols)
    visit_stack(symbols, stack, write_frame, sink);
  WEIR__JSON(sink, JSON_CLOSE);
}

static void write_candidates(weir__sink *sink, weir__symbols *symbols, const weir_guard_finding *f) {
  WEIR__JSON(sink, JSON_LIST("candidates"));
  for (size_t i = 0; i < f->candidate_count; i++) {
    const weir_guard_finding *c = &f->candidates[i];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_NATURAL("block", c->address), JSON_NATURAL("requested", c->requested),
               JSON_NATURAL("stream", (uintptr_t)c->stream), JSON_BOOL("is_freed", c->is_freed));
    write_stack(sink, symbols, "alloc_stack", c->alloc_stack);
    write_stack(sink, symbols, "free_stack", c->free_stack);
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE);
}

/* Every finding has every field: docs/tools/guard.schema.json. */
static void write_json(weir__sink *sink, weir__symbols *symbols, const weir_guard_finding *f) {
  static const char *const accesses[] = {"changed", "read", "write"};
  bool is_past = has_place(f) && (int64_t)f->offset >= 0 && f->offset >= f->requested;
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("kind", kinds[f->kind].key), JSON_NATURAL("count", f->count),
             JSON_INTEGER("device", f->device), JSON_NATURAL("block", f->address),
             JSON_NATURAL("requested", f->requested), JSON_INTEGER("offset", (int64_t)f->offset),
             JSON_INTEGER("last", (int64_t)f->last), JSON_NATURAL("bytes", f->bytes),
             JSON_NATURAL("past_end", is_past ? f->offset - f->requested : 0),
             JSON_TEXT("access", has_place(f) ? accesses[f->access] : "none"), JSON_TEXT("work", f->work),
             JSON_NATURAL("stream", (uintptr_t)f->stream), JSON_NATURAL("other_stream", (uintptr_t)f->other_stream),
             JSON_BOOL("is_freed", f->is_freed), JSON_INTEGER("alloc_time_us", f->alloc_time),
             JSON_INTEGER("free_time_us", f->free_time), JSON_NATURAL("neighbour", f->neighbour),
             JSON_NATURAL("neighbour_requested", f->neighbour_requested));
  write_stack(sink, symbols, "alloc_stack", f->alloc_stack);
  write_stack(sink, symbols, "free_stack", f->free_stack);
  write_stack(sink, symbols, "here_stack", f->here_stack);
  write_stack(sink, symbols, "neighbour_stack", f->neighbour_stack);
  write_candidates(sink, symbols, f);
  WEIR__JSON(sink, JSON_TEXT("advice", advice[f->kind]), JSON_CLOSE);
}

/* ---- A new finding ---- */

static weir__mutex file_lock = WEIR__MUTEX_INIT;

static void append_to_file(weir__symbols *symbols, const weir_guard_finding *finding) {
  const char *path = weir__env_value(WEIR__ENV_GUARD_REPORT);
  weir__sink *sink = path ? malloc(sizeof *sink) : NULL;
  if (!sink)
    return;
  weir__mutex_lock(&file_lock);
  FILE *file = fopen(path, "ae");
  if (file) {
    weir__sink_begin(sink, &weir__json_format, weir_write_file, file);
    write_json(sink, symbols, finding);
    if (weir__sink_end(sink, "WEIR_GUARD_REPORT"))
      weir__log(WEIR_LOG_WARN, "%s", weir_last_error());
    if (fclose(file))
      weir__log(WEIR_LOG_WARN, "WEIR_GUARD_REPORT=%s: the file cannot be written", path);
  } else
    weir__log(WEIR_LOG_WARN, "WEIR_GUARD_REPORT=%s: the file cannot be opened", path);
  weir__mutex_unlock(&file_lock);
  free(sink);
}

/* An annotation, which every form of a recording keeps. weir explain reads it. */
static void annotate(weir_allocator *allocator, const weir_guard_finding *f, const char *whole) {
  char block[32], offset[32], requested[32];
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (!history)
    return;
  snprintf(block, sizeof block, "0x%" PRIx64, f->address);
  snprintf(offset, sizeof offset, "%" PRId64, (int64_t)f->offset);
  snprintf(requested, sizeof requested, "%" PRIu64, f->requested);
  const char *pairs[] = {"name",      kinds[f->kind].key,
                         "stage",     WEIR__STAGE_GUARD,
                         "block",     block,
                         "offset",    offset,
                         "requested", requested,
                         "text",      whole};
  weir__recorder_annotate(history, f->device, pairs, WEIR_COUNT_OF(pairs) / 2);
}

/* A message of the log is one line. */
static void log_lines(char *text) {
  for (char *line = text, *next; line; line = next) {
    next = strchr(line, '\n');
    if (next)
      *next++ = '\0';
    weir__log(WEIR_LOG_ERROR, "WEIR_GUARD: %s", line);
  }
}

void weir__guard_report(weir_allocator *allocator, const weir_guard_finding *finding) {
  text to = {.at = malloc(TEXT_BYTES), .symbols = weir__symbols_new(NULL)};
  if (to.at) {
    write_text(&to, finding);
    annotate(allocator, finding, to.at);
    log_lines(to.at);
  }
  append_to_file(to.symbols, finding);
  weir__symbols_delete(to.symbols);
  free(to.at);
  if (weir__guard_of(allocator)->options.is_abort)
    abort();
}

void weir__guard_record(weir_allocator *allocator) {
  int is_on = 0;
  weir_history_options options;
  if (!allocator->guard || weir_history_is_on(allocator, &is_on) || is_on)
    return;
  weir_history_options_init(&options);
  options.stacks = WEIR_STACKS_EITHER;
  if (weir_history_record(allocator, &options))
    weir__log(WEIR_LOG_WARN, "WEIR_GUARD: findings have no stacks: %s", weir_last_error());
  allocator->guard->samples = weir__guard_of(allocator)->options.sample > 1;
}

/* ---- Public calls ---- */

weir_status weir_guard_check(weir_allocator *allocator, uint64_t *count) {
  WEIR__CHECK_ALLOCATOR(allocator);
  uint64_t found = 0;
  if (allocator->guard) {
    for (int i = 0; i < allocator->heap_count; i++)
      if (atomic_load(&allocator->heaps[i].captures))
        return weir__fail(WEIR_ERROR_CAPTURE, "%s: not possible during a capture", __func__);
    weir__guard_check_all(allocator, true);
    found = atomic_load(&weir__guard_of(allocator)->total);
  }
  if (count)
    *count = found;
  return allocator->guard ? allocator->guard->calls->poll(__func__, allocator) : WEIR_OK;
}

/* Findings are copied, because names of frames are looked up without a lock. */
static weir_guard_finding *copy_findings(weir_allocator *allocator, size_t *count) {
  weir__guard *guard = weir__guard_of(allocator);
  *count = 0;
  if (!guard)
    return calloc(1, sizeof(weir_guard_finding));
  weir__mutex_lock(&guard->lock);
  weir_guard_finding *copy = calloc(guard->count + 1, sizeof *copy);
  if (copy && guard->count)
    memcpy(copy, guard->findings, guard->count * sizeof *copy);
  *count = guard->count;
  weir__mutex_unlock(&guard->lock);
  return copy;
}

static int write_texts(weir__symbols *symbols, const weir_guard_finding *findings, size_t count, weir_write_fn write,
                       void *context) {
  text to = {.at = malloc(TEXT_BYTES), .symbols = symbols};
  int error = to.at ? 0 : ENOMEM;
  for (size_t i = 0; i < count && !error; i++) {
    to.length = 0;
    write_text(&to, &findings[i]);
    size_t length = to.length < TEXT_BYTES ? to.length : TEXT_BYTES - 1;
    error = write(context, to.at, length);
    error = error ? error : write(context, "\n", 1);
  }
  free(to.at);
  return error;
}

weir_status weir_guard_write(weir_allocator *allocator, weir_guard_format format, weir_write_fn write, void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(write);
  if ((unsigned)format > WEIR_GUARD_JSON)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: format %d: expected text or JSON", __func__, (int)format);
  size_t count;
  weir_guard_finding *findings = copy_findings(allocator, &count);
  weir__sink *sink = malloc(sizeof *sink);
  weir__symbols *symbols = weir__symbols_new(NULL);
  weir_status status = WEIR_OK;
  if (!findings || !sink || !symbols)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  else if (format == WEIR_GUARD_JSON) {
    weir__sink_begin(sink, &weir__json_format, write, context);
    WEIR__JSON(sink, JSON_LIST(NULL));
    for (size_t i = 0; i < count; i++)
      write_json(sink, symbols, &findings[i]);
    WEIR__JSON(sink, JSON_CLOSE);
    status = weir__sink_end(sink, __func__);
  } else {
    int error = write_texts(symbols, findings, count, write, context);
    if (error)
      status = weir__fail(error == ENOMEM ? WEIR_ERROR_HOST_OUT_OF_MEMORY : WEIR_ERROR_SYSTEM,
                          "%s: the output failed: error %d", __func__, error);
  }
  weir__symbols_delete(symbols);
  free(findings);
  free(sink);
  return status;
}
