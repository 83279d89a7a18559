#include "support/soft.h"
#include "support/random.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

weir_cu_context contexts[WEIR_SOFT_MAX_DEVICES];

static int devices;
static weir_cu_module spin_modules[WEIR_SOFT_MAX_DEVICES];
static uint64_t seed, random_state;

/* ---- Opening and closing ---- */

void soft_open_with(const weir_soft_options *options) {
  unsetenv("CUDA_VISIBLE_DEVICES"); /* a setting for GPUs; the test sets it itself if needed */
  assert_null(d);
  if (weir_driver_open_soft(options, &d) != WEIR_OK) {
    print_error("%s\n", weir_last_error());
    fail();
  }
  assert_cu(d->Init(d, 0));
  assert_cu(d->DeviceGetCount(d, &devices));
  for (int i = 0; i < devices; i++)
    assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[i], i));
  memset(spin_modules, 0, sizeof spin_modules);
  ctx = contexts[0];
  soft_use(0);
}

void soft_open(weir_soft_clock clock, int count, unsigned long long bytes) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = clock;
  options.devices = count;
  options.bytes = bytes;
  soft_open_with(&options);
}

void soft_close(void) {
  for (int i = 0; i < devices; i++) {
    if (spin_modules[i])
      assert_cu(d->ModuleUnload(d, spin_modules[i]));
    assert_cu(d->DevicePrimaryCtxRelease(d, i));
  }
  soft_check_nothing();
  weir_driver_close(d);
  d = NULL;
  seed = 0;
}

int soft_teardown(void **state) {
  (void)state;
  if (seed)
    print_error("it ran with WEIR_TEST_SEED=%" PRIu64 "\n", seed);
  seed = 0;
  d = NULL;
  return 0;
}

void soft_use(int device) { assert_cu(d->CtxSetCurrent(d, contexts[device])); }

weir_cu_stream soft_stream(unsigned flags) {
  weir_cu_stream stream;
  assert_cu(d->StreamCreateWithPriority(d, &stream, flags, 0));
  return stream;
}

weir_cu_event soft_event(void) {
  weir_cu_event event;
  assert_cu(d->EventCreate(d, &event, WEIR_CU_EVENT_DEFAULT));
  return event;
}

weir_cu_deviceptr soft_alloc(size_t bytes) {
  weir_cu_deviceptr pointer;
  assert_cu(d->MemAlloc(d, &pointer, bytes));
  return pointer;
}

void soft_spin(weir_cu_stream stream, uint64_t cycles) {
  weir_cu_device device;
  weir_cu_function function;
  void *params[] = {&cycles};
  assert_cu(d->CtxGetDevice(d, &device));
  if (!spin_modules[device])
    assert_cu(d->ModuleLoadData(d, &spin_modules[device], spin_ptx));
  assert_cu(d->ModuleGetFunction(d, &function, spin_modules[device], "weir_spin"));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* ---- Stepping ---- */

unsigned long soft_step(weir_cu_stream stream, unsigned long count) {
  unsigned long done = 12345;
  assert_ok(weir_soft_step(d, stream, count, &done));
  return done;
}

unsigned long soft_step_all(void) {
  unsigned long done = 12345;
  assert_ok(weir_soft_step_all(d, &done));
  return done;
}

unsigned long soft_pending(weir_cu_stream stream) {
  unsigned long pieces = 12345;
  assert_ok(weir_soft_pending(d, stream, &pieces));
  return pieces;
}

uint64_t soft_now(void) {
  uint64_t now = 12345;
  assert_ok(weir_soft_now(d, &now));
  return now;
}

/* ---- Counting ---- */

weir_soft_census soft_census(void) {
  weir_soft_census census = {.size = sizeof census};
  assert_ok(weir_soft_get_census(d, &census));
  return census;
}

void soft_check_nothing(void) {
  weir_soft_census c = soft_census();
  const struct {
    const char *what;
    unsigned long long count;
  } lines[] = {{"contexts", c.contexts},
               {"streams", c.streams},
               {"events", c.events},
               {"graphs", c.graphs},
               {"executable graphs", c.graph_execs},
               {"modules", c.modules},
               {"pools", c.pools},
               {"allocations", c.allocations},
               {"host allocations", c.host_allocations},
               {"registrations", c.registrations},
               {"reservations", c.reservations},
               {"mappings", c.mappings},
               {"handles", c.handles},
               {"mappings of other processes", c.ipc_mappings},
               {"bytes", c.device_bytes},
               {"unmaps of memory in use", c.unmaps_in_use}};
  bool clean = true;
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (lines[i].count) {
      print_error("left behind: %llu %s\n", lines[i].count, lines[i].what);
      clean = false;
    }
  assert_true(clean);
}

/* ---- Chance ---- */

uint64_t soft_first_seed(int *rounds) {
  const char *text = getenv("WEIR_TEST_SEED");
  if (!text || !*text)
    return 1;
  *rounds = 1;
  return strtoull(text, NULL, 10);
}

void soft_seed(uint64_t value) {
  seed = value;
  random_state = value;
}

uint64_t soft_random_r(uint64_t *state, uint64_t limit) { return next_random(state) % limit; }

uint64_t soft_random(uint64_t limit) { return soft_random_r(&random_state, limit); }

/* ---- Children ---- */

int soft_in_child(void (*body)(void *data), void *data) {
  assert_null(d);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    /* Without the signal handlers of cmocka and of sanitizers, so that a fault ends the process. */
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
      signal(signals[i], SIG_DFL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failing assertion must not jump into the test of the parent */
    body(data);
    fflush(NULL);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return status;
}

double soft_milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}
