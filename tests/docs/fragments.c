/*
 * The C of the documentation that is not a whole program, with what it needs around it. The .inc files are written by
 * extract.py at build time.
 */
#include "fragments.h"

enum { BYTES = 1 << 20 };

static weir_stream new_stream(void) {
  weir_stream stream;
  MUST(weir_stream_create(0, 0, &stream) == WEIR_OK);
  return stream;
}

/* A driver whose context is current on this thread: that of the runtime. */
static weir_driver *current_driver(void) {
  weir_driver *driver;
  MUST(weir_device_set_current(0) == WEIR_OK && weir_get_driver(&driver) == WEIR_OK);
  return driver;
}

static void allocator_default(void) {
  size_t bytes = BYTES;
  weir_stream stream = new_stream(), other = new_stream();
#include "allocator_1.inc"
}

static void allocator_own(void) {
  size_t bytes = BYTES;
  weir_driver *driver = current_driver();
  weir_stream a = new_stream(), b = new_stream();
  weir_cu_stream stream, other;
  MUST(weir_stream_raw(a, &stream) == WEIR_OK && weir_stream_raw(b, &other) == WEIR_OK);
#include "allocator_2.inc"
}

static void *load(weir_allocator *allocator, weir_cu_stream stream) {
  void *layer = NULL;
  MUST(weir_allocator_alloc(allocator, 0, BYTES, stream, &layer) == WEIR_OK);
  return layer;
}

static void tags(void) {
  weir_allocator *allocator;
  weir_cu_stream stream = NULL;
  MUST(weir_allocator_create(current_driver(), NULL, &allocator) == WEIR_OK);
#include "sleep_1.inc"
  weir_tag_info info;
  weir_tag_info_init(&info);
  MUST(weir_tag_get_info(weights, &info) == WEIR_OK && info.state == WEIR_TAG_AWAKE && info.copied_bytes);
  MUST(weir_allocator_free(allocator, layer) == WEIR_OK);
  weir_allocator_destroy(allocator);
}

static void *my_alloc(void *context, uint64_t bytes, int device, weir_cu_stream stream) {
  ++*(int *)context;
  return malloc((size_t)bytes);
}

static void my_free(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream) {
  --*(int *)context;
  free(pointer);
}

static void backends(void) {
  int state = 0;
  void *memory;
  weir_driver *driver = current_driver();
  weir_allocator *allocator;
#include "allocator_3.inc"
  MUST(weir_allocator_alloc(allocator, 0, BYTES, NULL, &memory) == WEIR_OK && state == 1);
  MUST(weir_allocator_free(allocator, memory) == WEIR_OK && state == 0);
  weir_allocator_destroy(allocator);
}

static void my_function(void *context, weir_log_level level, const char *message) { ++*(int *)context; }

static void base(void) {
  int count = 0, *my_context = &count;
#include "runtime_5.inc"
  weir_log_set_sink(NULL, NULL);
}

static void driver_call(void) {
  weir_driver *driver = current_driver();
#include "driver_1.inc"
  MUST(result == WEIR_CU_SUCCESS && driver->MemFree(driver, p) == WEIR_CU_SUCCESS);
}

/* Allocates twice; returns 0 if all calls succeed. */
static int run(weir_driver *d) {
  weir_cu_context context;
  weir_cu_deviceptr memory;
  int failed = 1;
  if (d->Init(d, 0) || d->DevicePrimaryCtxRetain(d, &context, 0))
    return 1;
  if (!d->CtxSetCurrent(d, context) && !d->MemAlloc(d, &memory, BYTES))
    failed = d->MemFree(d, memory) != WEIR_CU_SUCCESS;
  d->DevicePrimaryCtxRelease(d, 0);
  return failed;
}

static void check_that_nothing_is_lost(void) {}

static void fault(void) {
  weir_driver *soft;
  MUST(weir_driver_open_soft(NULL, &soft) == WEIR_OK);
#include "driver_2.inc"
  weir_fault_clear(faulty);
#include "driver_3.inc"
  unsigned long calls, faults;
  MUST(weir_fault_counts(faulty, WEIR_CALL_COUNT, &calls, &faults) == WEIR_OK && faults > 0);
  weir_driver_close(faulty);
  weir_driver_close(soft);
}

static void history(void) {
  weir_driver *driver = current_driver();
  weir_allocator *allocator;
  MUST(weir_allocator_create(driver, NULL, &allocator) == WEIR_OK);
#include "history_1.inc"
  weir_allocator_destroy(allocator);
}

#include "history_2_1.inc"
#include "history_2_2.inc"

static void history_hook(void) {
  uint32_t stack;
  weir_stack_set_hook(frames_of_my_language, NULL);
  MUST(weir_stack_capture(WEIR_STACKS_LANGUAGE, &stack) == WEIR_OK && stack);
  weir_stack_set_hook(NULL, NULL);
}

static void host(void) {
  size_t bytes = BYTES;
  void *memory;
  weir_stream stream = new_stream();
  weir_cu_stream raw;
  weir_driver *driver = current_driver();
  MUST(weir_stream_raw(stream, &raw) == WEIR_OK && weir_malloc(bytes, stream, &memory) == WEIR_OK);
#include "host_1.inc"
  MUST(weir_stream_synchronize(stream) == WEIR_OK && weir_free(memory) == WEIR_OK);
  weir_host_allocator_destroy(host);
}

/* Compiled only: these need two processes. */
void ipc_send(weir_allocator *allocator, void *pointer, weir_cu_stream stream);
void ipc_send(weir_allocator *allocator, void *pointer, weir_cu_stream stream) {
#include "ipc_1_1.inc"
}
void ipc_receive(weir_allocator *allocator, weir_cu_stream stream, const void *bytes, size_t length);
void ipc_receive(weir_allocator *allocator, weir_cu_stream stream, const void *bytes, size_t length) {
#include "ipc_1_2.inc"
}
void ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle handle);
void ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle handle) {
#include "ipc_2_1.inc"
}
void ipc_open(weir_allocator *allocator, const void *bytes, size_t length);
void ipc_open(weir_allocator *allocator, const void *bytes, size_t length) {
#include "ipc_2_2.inc"
}

static void ledger(void) {
#include "driver_4.inc"
  weir_driver_close(ledger);
}

#include "runtime_1_1.inc"

static void runtime_lazy(void) {
  static int number = 0;
#include "runtime_1_2.inc"
}

static void runtime_context(void) {
#include "runtime_2.inc"
  MUST(driver->MemFree(driver, memory) == WEIR_CU_SUCCESS);
}

static void runtime_scope(void) {
  weir_stream stream = new_stream();
#include "runtime_3_1.inc"
  weir_stream current;
  MUST(weir_stream_get_current(0, &current) == WEIR_OK && weir_stream_equal(current, stream));
#include "runtime_3_2.inc"
}

static void runtime_graph(void) {
  static uint32_t word;
  weir_stream stream = new_stream();
  weir_stream_scope scope;
  weir_graph *graph;
  void *memory;
  MUST(weir_graph_create(&graph) == WEIR_OK && weir_malloc(sizeof word, stream, &memory) == WEIR_OK);
#include "runtime_4_1.inc"
  MUST(weir_fill32_async(memory, 42, 1, stream) == WEIR_OK);
#include "runtime_4_2.inc"
  MUST(weir_device_synchronize(0) == WEIR_OK && weir_copy(&word, memory, sizeof word, stream) == WEIR_OK);
  MUST(word == 42);
  weir_graph_destroy(graph);
  MUST(weir_free(memory) == WEIR_OK);
}

#include "soft_6_1.inc"

static void soft(void) {
#include "soft_1_1.inc"
  MUST(d->Init(d, 0) == WEIR_CU_SUCCESS);
#include "soft_6_2.inc"
  MUST(bytes[1] == sizeof(uint32_t));
#include "soft_1_2.inc"
}

/* As in examples/stepped.c, whose checks are left out in the page. */
static void soft_steps(void) {
  weir_soft_options options;
  weir_driver *d;
  weir_cu_context context;
  weir_cu_stream owner, user;
  weir_cu_event made, used;
  weir_cu_deviceptr buffer, result, other;
  unsigned long done;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  MUST(weir_driver_open_soft(&options, &d) == WEIR_OK);
  MUST(!d->Init(d, 0) && !d->DevicePrimaryCtxRetain(d, &context, 0) && !d->CtxSetCurrent(d, context));
  MUST(!d->StreamCreateWithPriority(d, &owner, WEIR_CU_STREAM_NON_BLOCKING, 0));
  MUST(!d->StreamCreateWithPriority(d, &user, WEIR_CU_STREAM_NON_BLOCKING, 0));
  MUST(!d->EventCreate(d, &made, 0) && !d->EventCreate(d, &used, 0) && !d->MemAlloc(d, &result, BYTES));
#include "soft_2.inc"
#include "soft_3.inc"
  MUST(done == 2);
#include "soft_4.inc"
  MUST(other != buffer);
#include "soft_5.inc"
  MUST(*(volatile unsigned char *)(uintptr_t)result == 42);
  weir_driver_close(d);
}

int main(void) {
  static const fragment fragments[] = {
      FRAGMENT(runtime_lazy), /* before the start */
      FRAGMENT(allocator_default),
      FRAGMENT(allocator_own),
      FRAGMENT(backends),
      FRAGMENT(base),
      FRAGMENT(driver_call),
      FRAGMENT(fault),
      FRAGMENT(history),
      FRAGMENT(history_hook),
      FRAGMENT(host),
      FRAGMENT(ledger),
      FRAGMENT(runtime_scope),
      FRAGMENT(runtime_context),
      FRAGMENT(runtime_graph),
      FRAGMENT(tags),
      FRAGMENT(soft),
      FRAGMENT(soft_steps),
  };
  return run_fragments(fragments, sizeof fragments / sizeof *fragments);
}
