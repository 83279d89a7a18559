#include "support/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/cuda.h"

weir_driver *d;
weir_cu_context ctx;

static weir_cu_module spin_module; /* 0 until used */

/* ---- Which driver ---- */

static const char *driver_name(void) {
  const char *name = getenv("WEIR_TEST_DRIVER");
  if (!name || !*name)
    return "soft";
  if (strcmp(name, "soft") && strcmp(name, "soft-stepped") && strcmp(name, "cuda") && strcmp(name, "ledger")) {
    fprintf(stderr, "WEIR_TEST_DRIVER is \"%s\"; allowed are soft, soft-stepped, cuda and ledger\n", name);
    exit(1);
  }
  return name;
}

bool is_cuda(void) { return strcmp(driver_name(), "cuda") == 0; }
bool is_ledger(void) { return strcmp(driver_name(), "ledger") == 0; }
bool is_soft(void) { return !is_cuda() && !is_ledger(); }
bool is_stepped(void) { return strcmp(driver_name(), "soft-stepped") == 0; }

_Noreturn void waived(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("waived: ");
  vprintf(format, arguments);
  printf("\n");
  va_end(arguments);
  fflush(stdout);
  exit(77);
}

void device_print_waived(const char *what, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("waived: %s: ", what);
  vprintf(format, arguments);
  printf("\n");
  va_end(arguments);
  fflush(stdout);
}

/* ---- Opening ---- */

static weir_driver *open_cuda(void) {
  static weir_driver *cuda;
  char reason[WEIR__CUDA_REASON];
  if (!cuda && weir__cuda_open(reason, &cuda) != WEIR_OK)
    waived("%s", reason);
  return cuda;
}

static weir_driver *open_ledger(const weir_soft_options *options) {
  weir_ledger_options o;
  weir_ledger_options_init(&o);
  if (options) {
    o.devices = options->devices;
    o.bytes = options->bytes;
  }
  weir_driver *driver;
  assert_ok(weir_driver_open_ledger(&o, &driver));
  return driver;
}

weir_driver *device_open_bare(const weir_soft_options *options) {
  if (is_cuda())
    return open_cuda();
  if (is_ledger())
    return open_ledger(options);
  unsetenv("CUDA_VISIBLE_DEVICES"); /* a setting for GPUs; the test sets it itself if needed */
  weir_soft_options o;
  weir_soft_options_init(&o);
  if (options)
    o = *options;
  o.clock = is_stepped() ? WEIR_SOFT_STEPPED : WEIR_SOFT_THREADS;
  weir_driver *driver;
  if (weir_driver_open_soft(&o, &driver) != WEIR_OK) {
    print_error("%s\n", weir_last_error());
    fail();
  }
  return driver;
}

weir_driver *device_open(const weir_soft_options *options) {
  weir_driver *driver = device_open_bare(options);
  char reason[WEIR__CUDA_REASON];
  if (!is_cuda())
    assert_cu(driver->Init(driver, 0));
  else if (!weir__cuda_has_device(driver, reason))
    waived("%s", reason);
  return driver;
}

void device_close(weir_driver *driver) {
  if (!is_cuda())
    weir_driver_close(driver);
}

/* The ledger has no census, but counts every byte. */
static void check_no_bytes(weir_driver *driver) {
  weir_cu_context before, context;
  size_t free_bytes, total;
  assert_cu(driver->CtxGetCurrent(driver, &before));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->CtxSetCurrent(driver, context));
  assert_cu(driver->MemGetInfo(driver, &free_bytes, &total));
  assert_int_equal(free_bytes, total);
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  driver->CtxSetCurrent(driver, before); /* fails if that context was destroyed */
}

void device_check_clean(weir_driver *driver) {
  if (is_ledger())
    check_no_bytes(driver);
  if (!is_soft())
    return;
  weir_soft_census c = {.size = sizeof c};
  assert_ok(weir_soft_get_census(driver, &c));
  int devices;
  assert_cu(driver->DeviceGetCount(driver, &devices));
  const struct {
    const char *what;
    unsigned long long count, allowed;
  } lines[] = {{"streams", c.streams, 0},
               {"events", c.events, 0},
               {"graphs", c.graphs, 0},
               {"executable graphs", c.graph_execs, 0},
               {"modules", c.modules, 0},
               {"pools", c.pools, (unsigned)devices},
               {"allocations", c.allocations, 0},
               {"host allocations", c.host_allocations, 0},
               {"registrations", c.registrations, 0},
               {"reservations", c.reservations, 0},
               {"mappings", c.mappings, 0},
               {"handles", c.handles, 0},
               {"mappings of other processes", c.ipc_mappings, 0},
               {"bytes", c.device_bytes, 0}};
  bool clean = true;
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (lines[i].count > lines[i].allowed) {
      print_error("left behind: %llu %s\n", lines[i].count, lines[i].what);
      clean = false;
    }
  assert_true(clean);
}

/* ---- A device for each test ---- */

/* NVIDIA's driver takes long to create a context, so one reference is kept. It also loads the kernels for fills and
 * copies on first use, and may synchronize then, which would deadlock behind a gate. */
static void keep_context(void) {
  static bool is_kept;
  if (is_kept)
    return;
  is_kept = true;
  weir_cu_context context;
  weir_cu_deviceptr memory;
  void *host;
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->MemAlloc(d, &memory, 8192));
  assert_cu(d->MemHostAlloc(d, &host, 8192, 0));
  weir_cu_deviceptr both[] = {memory, (weir_cu_deviceptr)(uintptr_t)host};
  for (int to = 0; to < 2; to++) {
    assert_cu(d->MemsetD8Async(d, both[to], 0, 4096, NULL));
    assert_cu(d->MemsetD32Async(d, both[to], 0, 1024, NULL));
    for (int from = 0; from < 2; from++)
      assert_cu(d->MemcpyAsync(d, both[to], both[from] + 4096, 4096, NULL));
  }
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, memory));
}

static int setup(int devices, unsigned long long bytes) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.devices = devices;
  options.bytes = bytes;
  d = device_open(&options);
  spin_module = NULL;
  assert_cu(d->DevicePrimaryCtxRetain(d, &ctx, 0));
  assert_cu(d->CtxSetCurrent(d, ctx));
  if (is_cuda())
    keep_context();
  return 0;
}

int device_setup(void **state) {
  (void)state;
  return setup(1, 16ull << 30);
}

int device_setup_two(void **state) {
  (void)state;
  return setup(2, 16ull << 30);
}

int device_setup_small(void **state) {
  (void)state;
  return setup(1, 64ull << 20);
}

int device_count(void) {
  int count;
  assert_cu(d->DeviceGetCount(d, &count));
  return count;
}

/* ---- Gates ---- */

struct gate {
  bool open;
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t opened;
  struct gate gates[64];
  int count;
} gates = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

/* Ends the wait of a test that failed, or that waits for work behind its own gate. */
static void wait_at_gate(void *data) {
  struct gate *gate = data;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 20;
  pthread_mutex_lock(&gates.lock);
  while (!gate->open)
    if (pthread_cond_timedwait(&gates.opened, &gates.lock, &end)) {
      fprintf(stderr, "a gate was not opened in time\n");
      break;
    }
  pthread_mutex_unlock(&gates.lock);
}

struct gate *gate_close(weir_cu_stream stream) {
  if (is_ledger())
    fail_msg("work on the ledger takes no time, so no gate can hold it: list this test in rules_waived.h");
  pthread_mutex_lock(&gates.lock);
  struct gate *gate = &gates.gates[gates.count++ % 64];
  gate->open = false;
  pthread_mutex_unlock(&gates.lock);
  assert_cu(d->LaunchHostFunc(d, stream, wait_at_gate, gate));
  return gate;
}

void gate_open(struct gate *gate) {
  pthread_mutex_lock(&gates.lock);
  gate->open = true;
  pthread_cond_broadcast(&gates.opened);
  pthread_mutex_unlock(&gates.lock);
}

static void open_all_gates(void) {
  for (int i = 0; i < 64; i++)
    gate_open(&gates.gates[i]);
}

int device_teardown(void **state) {
  (void)state;
  open_all_gates();
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->CtxSynchronize(d));
  if (spin_module)
    assert_cu(d->ModuleUnload(d, spin_module));
  spin_module = NULL;
  device_check_clean(d);
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  if (is_soft()) {
    weir_soft_census census = {.size = sizeof census};
    assert_ok(weir_soft_get_census(d, &census));
    assert_int_equal(census.contexts, 0);
  }
  device_close(d);
  d = NULL;
  return 0;
}

/* ---- Checks ---- */

/* ---- Spinning ---- */

const char spin_ptx[] = ".version 6.0\n"
                        ".target sm_50\n"
                        ".address_size 64\n"
                        ".visible .entry weir_spin(.param .u64 cycles)\n"
                        "{\n"
                        "  .reg .pred %more;\n"
                        "  .reg .u64 %wanted, %start, %now;\n"
                        "  ld.param.u64 %wanted, [cycles];\n"
                        "  mov.u64 %start, %clock64;\n"
                        "again:\n"
                        "  mov.u64 %now, %clock64;\n"
                        "  sub.u64 %now, %now, %start;\n"
                        "  setp.lt.u64 %more, %now, %wanted;\n"
                        "  @%more bra again;\n"
                        "  ret;\n"
                        "}\n";

weir_cu_function spin_function(void) {
  weir_cu_function function;
  if (!spin_module)
    assert_cu(d->ModuleLoadData(d, &spin_module, spin_ptx));
  assert_cu(d->ModuleGetFunction(d, &function, spin_module, "weir_spin"));
  return function;
}

void spin(weir_cu_stream stream, double milliseconds) {
  int khz;
  assert_cu(d->DeviceGetAttribute(d, &khz, WEIR_CU_ATTR_CLOCK_RATE, 0));
  uint64_t cycles = (uint64_t)(milliseconds * khz);
  void *params[] = {&cycles};
  assert_cu(d->LaunchKernel(d, spin_function(), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}
