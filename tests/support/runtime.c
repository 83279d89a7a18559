#include "support/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

weir_driver *soft;
weir_driver *fault;

static bool has_driver; /* the setup of the test chose a driver */

static weir_cu_deviceptr address_of(const void *pointer) { return (weir_cu_deviceptr)(uintptr_t)pointer; }

/* ---- Other threads and processes ---- */

void on_thread(void *(*fn)(void *), void *data) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, fn, data), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Runs fn(data) in a child, and returns its status as waitpid does. */
static int fork_and_wait(void (*fn)(void *), void *data) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(60); /* kills a child that hangs */
    fn(data);
    fflush(NULL);
    _exit(0);
  }
  int status = -1;
  if (child > 0)
    while (waitpid(child, &status, 0) != child)
      continue;
  return status;
}

int succeeds_in_process(void (*fn)(void *), void *data) { return fork_and_wait(fn, data) == 0; }

void runtime_in_process(void (*fn)(void *), void *data, const char *file, int line) {
  int status = fork_and_wait(fn, data);
  if (status == 0)
    return;
  if (WIFSIGNALED(status))
    print_error("the process was ended by signal %d\n", WTERMSIG(status));
  else
    print_error("the process ended with %d\n", WEXITSTATUS(status));
  _fail(file, line);
}

static void look_for_device(void *data) {
  (void)data;
  device_close(device_open(NULL));
}

void runtime_need_device(void) {
  /* Loading a kernel on its first launch may wait for running kernels, including one that a test holds. */
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int status = fork_and_wait(look_for_device, NULL);
  if (status != 0)
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* ---- Messages ---- */

static struct {
  pthread_mutex_t lock;
  struct {
    weir_log_level level;
    char text[512];
  } list[64]; /* the first ones */
  int count;
} messages = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void collect(void *context, weir_log_level level, const char *text) {
  (void)context;
  pthread_mutex_lock(&messages.lock);
  if (messages.count < 64) {
    messages.list[messages.count].level = level;
    snprintf(messages.list[messages.count].text, sizeof messages.list[0].text, "%s", text);
    messages.count++;
  }
  pthread_mutex_unlock(&messages.lock);
}

void collect_messages(void) {
  pthread_mutex_lock(&messages.lock);
  messages.count = 0;
  pthread_mutex_unlock(&messages.lock);
  weir_log_set_sink(collect, NULL);
}

int messages_with(weir_log_level level, const char *words) {
  int found = 0;
  pthread_mutex_lock(&messages.lock);
  for (int i = 0; i < messages.count; i++)
    found += messages.list[i].level == level && strstr(messages.list[i].text, words) != NULL;
  pthread_mutex_unlock(&messages.lock);
  return found;
}

/* ---- A runtime for each test ---- */

/* The kernels of the tests, and where they are loaded. */
static struct {
  weir_cu_module module;
  weir_cu_function add, gate;
} kernels[WEIR_MAX_DEVICES];
static bool kernels_are_registered;

enum { MAX_HELD = 64 };
struct held {
  struct gate *gate; /* soft: a host function waits for it */
};
static struct held all_held[MAX_HELD];
static int held_count;
static uint32_t *flags; /* cuda: page-locked, one for each of all_held; a kernel waits until it is set */

static int setup(int device_number, bool with_fault) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.devices = device_number;
  options.bytes = 1ull << 30;
  if (is_soft())
    unsetenv("CUDA_VISIBLE_DEVICES");
  d = device_open_bare(&options);
  soft = is_soft() ? d : NULL;
  fault = NULL;
  if (with_fault) {
    assert_ok(weir_driver_open_fault(d, &fault));
    d = fault;
  }
  kernels_are_registered = false;
  held_count = 0;
  flags = NULL;
  forget_marks();
  assert_ok(weir_use_driver(d));
  has_driver = true;
  return 0;
}

int runtime_setup(void **state) {
  (void)state;
  return setup(2, false);
}

int runtime_setup_four(void **state) {
  (void)state;
  return setup(4, true);
}

int runtime_setup_fault(void **state) {
  (void)state;
  return setup(2, true);
}

int runtime_setup_none(void **state) {
  (void)state;
  if (is_soft())
    unsetenv("CUDA_VISIBLE_DEVICES");
  d = soft = fault = NULL;
  has_driver = false;
  forget_marks();
  return 0;
}

/* Retains the contexts of the software device, as other code of the program could, so that objects that the runtime
 * leaks outlive it. */
static unsigned long long keep_contexts(void) {
  unsigned long long kept = 0;
  int count = 0;
  if (!soft || soft->DeviceGetCount(soft, &count) != WEIR_CU_SUCCESS)
    return 0;
  for (int i = 0; i < count; i++) {
    unsigned context_flags;
    int active;
    weir_cu_context context;
    assert_cu(soft->DevicePrimaryCtxGetState(soft, i, &context_flags, &active));
    if (!active)
      continue;
    assert_cu(soft->DevicePrimaryCtxRetain(soft, &context, i));
    kept |= 1ull << i;
  }
  return kept;
}

static void check_nothing_left(unsigned long long kept) {
  if (!soft)
    return;
  assert_cu(soft->Init(soft, 0)); /* a runtime that never started has none */
  device_check_clean(soft);
  for (int i = 0; i < WEIR_SOFT_MAX_DEVICES; i++)
    if (kept >> i & 1)
      assert_cu(soft->DevicePrimaryCtxRelease(soft, i));
  weir_soft_census c = {.size = sizeof c};
  assert_ok(weir_soft_get_census(soft, &c));
  assert_int_equal(c.contexts, 0);
}

/* Frees what hold and load_add created. */
static void free_kernels(void) {
  for (int i = 0; i < held_count; i++)
    unblock(&all_held[i]);
  held_count = 0;
  for (int i = 0; i < WEIR_MAX_DEVICES; i++) {
    if (!kernels[i].module)
      continue;
    assert_ok(weir_device_synchronize(i));
    assert_ok(weir_device_set_current(i));
    assert_cu(d->ModuleUnload(d, kernels[i].module));
    kernels[i].module = NULL;
  }
  if (flags)
    assert_cu(d->MemFreeHost(d, flags));
  flags = NULL;
}

void shut_down_clean(void) {
  free_kernels();
  unsigned long long kept = keep_contexts();
  assert_ok(weir_shutdown());
  check_nothing_left(kept);
}

int runtime_teardown(void **state) {
  (void)state;
  weir_log_set_sink(NULL, NULL);
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
  shut_down_clean();
  assert_ok(weir_use_driver(NULL));
  if (has_driver) {
    weir_driver_close(fault);
    device_close(soft);
  }
  d = soft = fault = NULL;
  has_driver = false;
  return 0;
}

void choose_driver_by_environment(void) {
  setenv("WEIR_DRIVER", is_soft() ? "soft" : "cuda", 1);
  setenv("WEIR_SOFT_CLOCK", is_stepped() ? "stepped" : "threads", 1);
  setenv("WEIR_SOFT_DEVICES", "2", 1);
  setenv("WEIR_SOFT_MEMORY", "1GiB", 1);
}

int devices(void) {
  int count;
  assert_ok(weir_init());
  assert_ok(weir_device_count(&count));
  return count;
}

/* ---- Checks ---- */

void runtime_same_stream(weir_stream a, weir_stream b, const char *file, int line) {
  if (weir_stream_equal(a, b))
    return;
  print_error("stream %lld of device %d is not stream %lld of device %d\n", (long long)a.id, (int)a.device,
              (long long)b.id, (int)b.device);
  _fail(file, line);
}

/* ---- Streams and memory ---- */

weir_stream new_stream(int device) {
  weir_stream stream;
  assert_ok(weir_stream_create(device, 0, &stream));
  return stream;
}

weir_stream default_stream(int device) {
  weir_stream stream;
  assert_ok(weir_stream_default(device, &stream));
  return stream;
}

weir_stream current_stream(int device) {
  weir_stream stream;
  assert_ok(weir_stream_get_current(device, &stream));
  return stream;
}

weir_cu_stream raw_of(weir_stream stream) {
  weir_cu_stream raw;
  assert_ok(weir_stream_raw(stream, &raw));
  return raw;
}

/* Driver calls need the context of the device to be current. */
void uuid_of(int device, char text[48]) {
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  assert_ok(weir_device_get_properties(device, &properties));
  memcpy(text, properties.uuid, sizeof properties.uuid);
}

void *device_memory(int device, size_t bytes) {
  int previous;
  weir_cu_deviceptr pointer;
  assert_ok(weir_device_exchange(device, &previous));
  assert_cu(d->MemAlloc(d, &pointer, bytes));
  assert_ok(weir_device_exchange(previous, &previous));
  return (void *)(uintptr_t)pointer;
}

void free_device_memory(int device, void *memory) {
  int previous;
  assert_ok(weir_device_exchange(device, &previous));
  assert_cu(d->MemFree(d, address_of(memory)));
  assert_ok(weir_device_exchange(previous, &previous));
}

void *pinned_memory(size_t bytes) {
  int device;
  void *pointer;
  assert_ok(weir_device_get_current(&device));
  assert_ok(weir_device_set_current(device));
  assert_cu(d->MemHostAlloc(d, &pointer, bytes, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  return pointer;
}

void free_pinned_memory(void *memory) { assert_cu(d->MemFreeHost(d, memory)); }

void runtime_is_filled(int device, const void *memory, uint8_t value, size_t bytes, const char *file, int line) {
  uint8_t *back = malloc(bytes);
  assert_non_null(back);
  memset(back, value + 1, bytes);
  assert_ok(weir_device_synchronize(device));
  assert_ok(weir_copy(back, memory, bytes, default_stream(device)));
  size_t i = 0;
  while (i < bytes && back[i] == value)
    i++;
  uint8_t found = i < bytes ? back[i] : value;
  free(back);
  if (i == bytes)
    return;
  print_error("byte %zu of %zu is %u, not %u\n", i, bytes, found, value);
  _fail(file, line);
}

/* ---- Work ---- */

static struct {
  pthread_mutex_t lock;
  int numbers[256];
  int count;
} marks = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void put_mark(void *data) {
  pthread_mutex_lock(&marks.lock);
  if (marks.count < 256)
    marks.numbers[marks.count++] = (int)(intptr_t)data;
  pthread_mutex_unlock(&marks.lock);
}

void mark(weir_stream stream, int number) {
  assert_ok(weir_stream_host_function(stream, put_mark, (void *)(intptr_t)number));
}

void forget_marks(void) {
  pthread_mutex_lock(&marks.lock);
  marks.count = 0;
  pthread_mutex_unlock(&marks.lock);
}

int mark_count(void) {
  pthread_mutex_lock(&marks.lock);
  int count = marks.count;
  pthread_mutex_unlock(&marks.lock);
  return count;
}

int place_of_mark(int number) {
  int place = -1;
  pthread_mutex_lock(&marks.lock);
  for (int i = 0; i < marks.count && place < 0; i++)
    if (marks.numbers[i] == number)
      place = i;
  pthread_mutex_unlock(&marks.lock);
  return place;
}

void runtime_marks_are(const int *numbers, size_t count, const char *file, int line) {
  char text[1024] = "";
  size_t at = 0;
  pthread_mutex_lock(&marks.lock);
  bool same = (size_t)marks.count == count;
  for (int i = 0; i < marks.count; i++) {
    same = same && marks.numbers[i] == numbers[i];
    if (at < sizeof text)
      at += (size_t)snprintf(text + at, sizeof text - at, " %d", marks.numbers[i]);
  }
  pthread_mutex_unlock(&marks.lock);
  if (same)
    return;
  print_error("the streams came by%s; expected was", at ? text : " nothing");
  for (size_t i = 0; i < count; i++)
    print_error(" %d", numbers[i]);
  print_error("\n");
  _fail(file, line);
}

/* NVIDIA's driver compiles this text. The software device runs the function that is registered under the name of the
 * entry. */
static const char kernels_ptx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry weir_test_add(.param .u64 p_to, .param .u64 p_from, .param .u32 p_value, .param .u32 p_count)\n"
    "{\n"
    "  .reg .pred %past;\n"
    "  .reg .u32 %i, %block, %width, %value, %count, %word;\n"
    "  .reg .u64 %to, %from, %offset;\n"
    "  ld.param.u64 %to, [p_to];\n"
    "  ld.param.u64 %from, [p_from];\n"
    "  ld.param.u32 %value, [p_value];\n"
    "  ld.param.u32 %count, [p_count];\n"
    "  mov.u32 %block, %ctaid.x;\n"
    "  mov.u32 %width, %ntid.x;\n"
    "  mov.u32 %i, %tid.x;\n"
    "  mad.lo.u32 %i, %block, %width, %i;\n"
    "  setp.ge.u32 %past, %i, %count;\n"
    "  @%past bra done;\n"
    "  cvta.to.global.u64 %to, %to;\n"
    "  cvta.to.global.u64 %from, %from;\n"
    "  mul.wide.u32 %offset, %i, 4;\n"
    "  add.u64 %to, %to, %offset;\n"
    "  add.u64 %from, %from, %offset;\n"
    "  ld.global.u32 %word, [%from];\n"
    "  add.u32 %word, %word, %value;\n"
    "  st.global.u32 [%to], %word;\n"
    "done:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry weir_test_gate(.param .u64 p_flag, .param .u64 p_limit)\n"
    "{\n"
    "  .reg .pred %closed, %early;\n"
    "  .reg .u32 %word;\n"
    "  .reg .u64 %flag, %limit, %start, %now;\n"
    "  ld.param.u64 %flag, [p_flag];\n"
    "  ld.param.u64 %limit, [p_limit];\n"
    "  cvta.to.global.u64 %flag, %flag;\n"
    "  mov.u64 %start, %clock64;\n"
    "again:\n"
    "  ld.volatile.global.u32 %word, [%flag];\n"
    "  setp.eq.u32 %closed, %word, 0;\n"
    "  mov.u64 %now, %clock64;\n"
    "  sub.u64 %now, %now, %start;\n"
    "  setp.lt.u64 %early, %now, %limit;\n"
    "  and.pred %closed, %closed, %early;\n"
    "  @%closed bra again;\n"
    "  ret;\n"
    "}\n";

static weir_cu_result add(const weir_soft_launch *launch) {
  uint64_t to, from;
  uint32_t value, count;
  memcpy(&to, launch->params[0], sizeof to);
  memcpy(&from, launch->params[1], sizeof from);
  memcpy(&value, launch->params[2], sizeof value);
  memcpy(&count, launch->params[3], sizeof count);
  for (uint32_t i = 0; i < count; i++)
    ((uint32_t *)(uintptr_t)to)[i] = ((const uint32_t *)(uintptr_t)from)[i] + value;
  return WEIR_CU_SUCCESS;
}

static void load_kernels(int device) {
  const size_t sizes[] = {8, 8, 4, 4};
  int previous;
  if (kernels[device].module)
    return;
  if (soft && !kernels_are_registered)
    assert_ok(weir_soft_register_kernel(soft, "weir_test_add", add, 4, sizes));
  kernels_are_registered = true;
  assert_ok(weir_device_exchange(device, &previous));
  assert_cu(d->ModuleLoadData(d, &kernels[device].module, kernels_ptx));
  assert_cu(d->ModuleGetFunction(d, &kernels[device].add, kernels[device].module, "weir_test_add"));
  if (!soft)
    assert_cu(d->ModuleGetFunction(d, &kernels[device].gate, kernels[device].module, "weir_test_gate"));
  assert_ok(weir_device_exchange(previous, &previous));
}

void load_add(int device) { load_kernels(device); }

weir_cu_result launch_add(void *to, const void *from, uint32_t value, uint32_t count, weir_stream stream) {
  weir_cu_deviceptr to_address = address_of(to), from_address = address_of(from);
  void *params[] = {&to_address, &from_address, &value, &count};
  return d->LaunchKernel(d, kernels[stream.device].add, (count + 255) / 256, 1, 1, 256, 1, 1, 0, raw_of(stream), params,
                         NULL);
}

/* On NVIDIA's driver, one thread runs the host functions of all streams, so a waiting one would block them all: a
 * kernel waits instead. It gives up after about 20 seconds, as a gate does. */
static void hold_with_kernel(weir_stream stream, int number) {
  const uint64_t limit = cycles_of(20000);
  load_kernels(stream.device);
  if (!flags)
    flags = pinned_memory(MAX_HELD * sizeof *flags);
  weir_cu_deviceptr flag = address_of(&flags[number]);
  void *params[] = {&flag, (void *)(uintptr_t)&limit};
  __atomic_store_n(&flags[number], 0, __ATOMIC_SEQ_CST);
  assert_cu(d->LaunchKernel(d, kernels[stream.device].gate, 1, 1, 1, 1, 1, 1, 0, raw_of(stream), params, NULL));
}

struct held *hold(weir_stream stream) {
  assert_in_range(held_count, 0, MAX_HELD - 1);
  struct held *held = &all_held[held_count];
  if (soft)
    held->gate = gate_close(raw_of(stream));
  else
    hold_with_kernel(stream, held_count);
  held_count++;
  return held;
}

void unblock(struct held *held) {
  if (soft)
    gate_open(held->gate);
  else
    __atomic_store_n(&flags[held - all_held], 1, __ATOMIC_SEQ_CST);
}

uint64_t cycles_of(double milliseconds) {
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  assert_ok(weir_device_get_properties(-1, &properties));
  return (uint64_t)(milliseconds * properties.clock_khz);
}

/* ---- Failing driver calls ---- */

bool fails_at(unsigned long n, weir_status (*scenario)(void)) {
  unsigned long before, after;
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, NULL, &before));
  assert_ok(weir_fault_nth_any(fault, n, WEIR_CU_OUT_OF_MEMORY));
  weir_status status = scenario();
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, NULL, &after));
  assert_ok(weir_fault_clear(fault));
  if (after == before)
    assert_ok(status);
  else if (status)
    assert_memory_equal(weir_last_error(), "weir_", 5);
  return after != before;
}

/* Calls whose failure the runtime tolerates: restoring the context or the capture mode of the thread, and querying an
 * address, which is then taken for a host address. */
static bool can_do_without(int call) {
  return call == WEIR_CALL_CtxSetCurrent || call == WEIR_CALL_CtxGetCurrent || call == WEIR_CALL_PointerGetAttribute ||
         call == WEIR_CALL_ThreadExchangeStreamCaptureMode;
}

/* The call that was made to fail; -1 if there was none. */
static int failed_call(void) {
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    unsigned long calls, faults;
    assert_ok(weir_fault_counts(fault, (weir_driver_call)call, &calls, &faults));
    if (faults > 0)
      return call;
  }
  return -1;
}

static bool hit_while_giving_back;

void only_giving_back(void) {
  unsigned long calls, faults;
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, &calls, &faults));
  hit_while_giving_back = faults == 0;
}

static void end_round(void) {
  shut_down_clean();
  assert_ok(weir_use_driver(NULL));
  weir_driver_close(fault);
  device_close(soft);
  d = soft = fault = NULL;
  has_driver = false;
}

void sweep_faults(weir_status (*scenario)(void)) {
  const weir_cu_result code = WEIR_CU_OUT_OF_MEMORY;
  int call = 0;
  unsigned long n;
  /* Even rounds retry at once, odd rounds continue with the shutdown. */
  for (n = 2; call >= 0; n++) {
    setup(2, true);
    assert_ok(weir_fault_nth_any(fault, n / 2, code));
    clear_last_error();
    hit_while_giving_back = false;
    weir_status status = scenario();
    call = failed_call();
    assert_ok(weir_fault_clear(fault));
    if (call < 0) {
      assert_ok(status);
    } else if (status == WEIR_OK) {
      if (!hit_while_giving_back && !can_do_without(call)) {
        print_error("the failure of call %lu, %s, went unnoticed\n", n / 2,
                    weir_driver_call_name((weir_driver_call)call));
        fail();
      }
    } else {
      if (status != WEIR_ERROR_OUT_OF_MEMORY)
        print_error("call %lu, %s, failed: %s\n", n / 2, weir_driver_call_name((weir_driver_call)call),
                    weir_last_error());
      assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
      assert_int_equal(weir_last_driver_result(), code);
      assert_memory_equal(weir_last_error(), "weir_", 5);
    }
    /* A capture whose end did not reach the driver continues until the shutdown. */
    if (n % 2 == 0 && call != WEIR_CALL_StreamEndCapture)
      assert_ok(scenario());
    end_round();
  }
  assert_in_range(n, 10, 100000);

  /* A failure in the shutdown leaks nothing. */
  for (call = 0, n = 1; call >= 0; n++) {
    setup(2, true);
    assert_ok(scenario());
    unsigned long long kept = keep_contexts();
    assert_ok(weir_fault_nth_any(fault, n, code));
    weir_shutdown(); /* whether it reports the failure or not */
    assert_int_equal(weir_is_initialized(), 0);
    call = failed_call();
    assert_ok(weir_fault_clear(fault));
    check_nothing_left(kept);
    end_round();
  }
}
