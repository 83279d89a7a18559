/*
 * A CUDA runtime program that knows nothing of Weir, for a machine with a GPU. It checks the results with any
 * allocator; with LD_PRELOAD=libweir_preload.so it also checks that Weir serves it. run.sh builds and runs it.
 */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static int passed, failed;
static bool is_served; /* by Weir */
static _Thread_local const char *why;

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      static char text[400];                                                                                           \
      snprintf(text, sizeof text, "line %d: %s (last error: %s)", __LINE__, #condition,                                \
               cudaGetErrorName(cudaGetLastError()));                                                                  \
      why = text;                                                                                                      \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

#define OK(call) CHECK((call) == cudaSuccess)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hold(void *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

/* Returns a driver function, found as libraries find it. */
static void *entry(const char *name) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) != cudaSuccess)
    return NULL;
  return function;
}

/* ---- Tests ---- */

static void finds_functions(void) {
  Dl_info info;
  void *function = entry("cuMemAlloc");
  CHECK(function && dladdr(function, &info));
  CHECK((strstr(info.dli_fname, "weir_preload") != NULL) == is_served);
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(library && dladdr(dlsym(library, "cuMemAlloc_v2"), &info));
  CHECK((strstr(info.dli_fname, "weir_preload") != NULL) == is_served);
  CHECK(dladdr(dlsym(library, "cuInit"), &info) && strstr(info.dli_fname, "libcuda"));
}

static void small_allocations(void) {
  enum { COUNT = 64 };
  void *pointers[COUNT];
  unsigned char bytes[1000];
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < COUNT; i++) {
    OK(cudaMalloc(&pointers[i], sizeof bytes));
    uintptr_t at = (uintptr_t)pointers[i];
    CHECK(at % 256 == 0);
    low = at < low ? at : low;
    high = at > high ? at : high;
    OK(cudaMemset(pointers[i], i, sizeof bytes));
  }
  if (is_served)
    CHECK(high - low < 2 * MIB);
  for (int i = 0; i < COUNT; i++) {
    OK(cudaMemcpy(bytes, pointers[i], sizeof bytes, cudaMemcpyDeviceToHost));
    CHECK(bytes[0] == i && bytes[999] == i);
    OK(cudaFree(pointers[i]));
  }
}

static void attributes(void) {
  struct cudaPointerAttributes a;
  void *pointer;
  OK(cudaMalloc(&pointer, 5000));
  OK(cudaPointerGetAttributes(&a, pointer));
  CHECK(a.type == cudaMemoryTypeDevice && a.device == 0 && a.devicePointer == pointer);
  OK(cudaFree(pointer));
  OK(cudaFree(NULL));
}

static void wrong_frees(void) {
  void *pointer;
  int host;
  OK(cudaMalloc(&pointer, 32 * MIB));
  OK(cudaFree(pointer));
  CHECK(cudaFree(pointer) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaFree(&host) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  OK(cudaMalloc(&pointer, 32 * MIB));
  OK(cudaMemset(pointer, 1, 32 * MIB));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(pointer));
}

static void limit_and_out_of_memory(void) {
  size_t free_bytes, total_bytes;
  void *pointer = NULL;
  OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  CHECK(free_bytes <= total_bytes);
  if (is_served)
    CHECK(total_bytes == 4096 * MIB);
  CHECK(cudaMalloc(&pointer, total_bytes + MIB) == cudaErrorMemoryAllocation);
  CHECK(!pointer);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMallocAsync(&pointer, total_bytes + MIB, 0) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  OK(cudaMalloc(&pointer, MIB));
  OK(cudaFree(pointer));
}

static void other_kinds(void) {
  void *pointer, *host;
  size_t pitch;
  OK(cudaMallocPitch(&pointer, &pitch, 1000, 16));
  CHECK(pitch >= 1000 && pitch % 256 == 0);
  OK(cudaMemset2D(pointer, pitch, 7, 1000, 16));
  OK(cudaFree(pointer));
  struct cudaPitchedPtr pitched;
  OK(cudaMalloc3D(&pitched, make_cudaExtent(300, 20, 4)));
  OK(cudaMemset3D(pitched, 1, make_cudaExtent(300, 20, 4)));
  OK(cudaFree(pitched.ptr));
  OK(cudaMallocManaged(&pointer, MIB, cudaMemAttachGlobal));
  memset(pointer, 1, MIB);
  OK(cudaFree(pointer));
  OK(cudaMallocHost(&host, MIB));
  OK(cudaFreeHost(host));
  cudaArray_t array;
  struct cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  OK(cudaMallocArray(&array, &floats, 64, 64, 0));
  OK(cudaFreeArray(array));
  OK(cudaDeviceSynchronize());
}

typedef struct freeing {
  void *pointer;
  cudaError_t result;
  atomic_bool is_done;
} freeing;

static void *free_it(void *argument) {
  freeing *f = argument;
  f->result = cudaFree(f->pointer);
  atomic_store(&f->is_done, true);
  return NULL;
}

static void free_waits(void) {
  cudaStream_t stream;
  sem_t semaphore;
  freeing f = {0};
  pthread_t thread;
  sem_init(&semaphore, 0, 0);
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaMalloc(&f.pointer, MIB));
  OK(cudaLaunchHostFunc(stream, hold, &semaphore));
  OK(cudaMemsetAsync(f.pointer, 1, MIB, stream));
  CHECK(pthread_create(&thread, NULL, free_it, &f) == 0);
  usleep(50000);
  bool was_early = atomic_load(&f.is_done);
  sem_post(&semaphore);
  pthread_join(thread, NULL);
  CHECK(!was_early);
  OK(f.result);
  OK(cudaStreamDestroy(stream));
}

static void streams_in_order(void) {
  cudaStream_t one, two;
  sem_t semaphore;
  void *a, *b, *c, *d;
  unsigned char bytes[16];
  sem_init(&semaphore, 0, 0);
  OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  OK(cudaMallocAsync(&a, 3 * MIB, one));
  OK(cudaLaunchHostFunc(one, hold, &semaphore));
  OK(cudaMemsetAsync(a, 1, 3 * MIB, one));
  OK(cudaFreeAsync(a, one));
  OK(cudaMallocAsync(&b, 3 * MIB, one));
  OK(cudaMallocAsync(&c, 3 * MIB, two));
  OK(cudaMemsetAsync(c, 2, 3 * MIB, two));
  OK(cudaMalloc(&d, 3 * MIB));
  if (is_served)
    CHECK(a == b);
  CHECK(c != a && d != a && d != c);
  OK(cudaFreeAsync(b, one));
  OK(cudaStreamSynchronize(two));
  sem_post(&semaphore);
  OK(cudaStreamSynchronize(one));
  OK(cudaMemcpy(bytes, c, sizeof bytes, cudaMemcpyDeviceToHost));
  CHECK(bytes[0] == 2 && bytes[15] == 2);
  OK(cudaFreeAsync(c, two));
  OK(cudaFree(d));
  OK(cudaStreamDestroy(one));
  OK(cudaStreamDestroy(two));
}

static void freed_on_another_stream(void) {
  cudaStream_t one, two;
  sem_t semaphore;
  void *a, *b, *c;
  sem_init(&semaphore, 0, 0);
  OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  OK(cudaMallocAsync(&a, 5 * MIB, one));
  OK(cudaStreamSynchronize(one));
  OK(cudaLaunchHostFunc(two, hold, &semaphore));
  OK(cudaMemsetAsync(a, 1, 5 * MIB, two));
  OK(cudaFreeAsync(a, two));
  OK(cudaMallocAsync(&b, 5 * MIB, one));
  CHECK(a != b);
  sem_post(&semaphore);
  OK(cudaStreamSynchronize(two));
  OK(cudaMallocAsync(&c, 5 * MIB, one));
  if (is_served)
    CHECK(c == a);
  OK(cudaFreeAsync(b, one));
  OK(cudaFreeAsync(c, one));
  OK(cudaDeviceSynchronize());
  /* Memory of no stream, freed in a stream, and the other way round. */
  OK(cudaMalloc(&a, MIB));
  OK(cudaFreeAsync(a, one));
  OK(cudaMallocAsync(&a, MIB, one));
  OK(cudaFree(a));
  OK(cudaStreamDestroy(one));
  OK(cudaStreamDestroy(two));
}

static void graphs(void) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  void *node, *result, *freed;
  unsigned char bytes[16] = {0};
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaMalloc(&result, sizeof bytes));
  OK(cudaMalloc(&freed, 6 * MIB));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  OK(cudaMallocAsync(&node, MIB, stream));
  OK(cudaMemsetAsync(node, 9, MIB, stream));
  OK(cudaMemcpyAsync(result, node, sizeof bytes, cudaMemcpyDeviceToDevice, stream));
  OK(cudaFreeAsync(node, stream));
  OK(cudaFree(freed)); /* allowed in a relaxed capture, and must not break it */
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++)
    OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemcpy(bytes, result, sizeof bytes, cudaMemcpyDeviceToHost));
  CHECK(bytes[0] == 9 && bytes[15] == 9);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(result));
  OK(cudaStreamDestroy(stream));
}

static void *post_later(void *semaphore) {
  usleep(300000);
  sem_post(semaphore);
  return NULL;
}

/* A free that waits for the device does not break a capture that begins in the meantime. */
static void capture_while_a_free_waits(void) {
  cudaStream_t stream, busy;
  cudaGraph_t graph;
  sem_t semaphore;
  freeing f = {0};
  pthread_t freer, poster;
  void *memory;
  sem_init(&semaphore, 0, 0);
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  OK(cudaMalloc(&memory, MIB));
  OK(cudaMalloc(&f.pointer, MIB));
  OK(cudaLaunchHostFunc(busy, hold, &semaphore));
  CHECK(pthread_create(&freer, NULL, free_it, &f) == 0);
  usleep(50000);
  CHECK(pthread_create(&poster, NULL, post_later, &semaphore) == 0);
  double begin = now();
  cudaError_t began = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  double waited = now() - begin;
  cudaError_t captured = cudaMemsetAsync(memory, 1, MIB, stream), ended = cudaStreamEndCapture(stream, &graph);
  pthread_join(poster, NULL);
  pthread_join(freer, NULL);
  printf("  the capture began after %.1f ms\n", waited * 1e3);
  OK(began);
  OK(captured);
  OK(ended);
  OK(f.result);
  if (is_served)
    CHECK(waited < 0.2);
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(memory));
  OK(cudaStreamDestroy(stream));
  OK(cudaStreamDestroy(busy));
}

/* When memory runs short, memory of destroyed streams is used by others. */
static void streams_that_are_gone(void) {
  size_t most = 1000 * MIB;
  cudaStream_t streams[3];
  void *memory[3], *large;
  for (int i = 0; i < 3; i++) {
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    OK(cudaMallocAsync(&memory[i], most, streams[i]));
    OK(cudaMemsetAsync(memory[i], i, most, streams[i]));
  }
  for (int i = 0; i < 3; i++) {
    OK(cudaFreeAsync(memory[i], streams[i]));
    OK(cudaStreamDestroy(streams[i]));
  }
  OK(cudaMalloc(&large, 3 * most));
  OK(cudaMemset(large, 1, 3 * most));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(large));
}

static void pools(void) {
  cudaMemPool_t usual, own;
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                   .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
  cudaStream_t stream;
  void *a, *b, *c;
  OK(cudaStreamCreate(&stream));
  OK(cudaDeviceGetDefaultMemPool(&usual, 0));
  OK(cudaMemPoolCreate(&own, &props));
  OK(cudaMallocFromPoolAsync(&a, MIB, usual, stream));
  OK(cudaMallocFromPoolAsync(&b, MIB, own, stream));
  OK(cudaMemsetAsync(a, 1, MIB, stream));
  OK(cudaMemsetAsync(b, 2, MIB, stream));
  OK(cudaFreeAsync(a, stream));
  OK(cudaFreeAsync(b, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolDestroy(own));
  /* The driver serves a pool that can be shared. */
  props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  OK(cudaMemPoolCreate(&own, &props));
  OK(cudaMallocFromPoolAsync(&c, MIB, own, stream));
  int file = -1;
  struct cudaMemPoolPtrExportData data;
  OK(cudaMemPoolExportToShareableHandle(&file, own, cudaMemHandleTypePosixFileDescriptor, 0));
  OK(cudaMemPoolExportPointer(&data, c));
  close(file);
  OK(cudaFreeAsync(c, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolDestroy(own));
  OK(cudaStreamDestroy(stream));
}

/* The driver serves contexts other than the primary one. */
static void other_contexts(void) {
  int (*create)(void **, unsigned, int);
  int (*destroy)(void *);
  int (*alloc)(unsigned long long *, size_t);
  int (*set)(unsigned long long, unsigned char, size_t);
  int (*release)(unsigned long long);
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *found[5];
  static const char *const names[] = {"cuCtxCreate_v2", "cuCtxDestroy_v2", "cuMemAlloc_v2", "cuMemsetD8_v2",
                                      "cuMemFree_v2"};
  for (int i = 0; i < 5; i++)
    CHECK((found[i] = dlsym(library, names[i])) != NULL);
  memcpy(&create, &found[0], sizeof create);
  memcpy(&destroy, &found[1], sizeof destroy);
  memcpy(&alloc, &found[2], sizeof alloc);
  memcpy(&set, &found[3], sizeof set);
  memcpy(&release, &found[4], sizeof release);
  unsigned long long pointer = 0;
  CHECK(create(&context, 0, 0) == 0);
  int r1 = alloc(&pointer, 1000), r2 = r1 ? r1 : set(pointer, 3, 1000), r3 = r1 ? r1 : release(pointer);
  int r4 = destroy(context);
  CHECK(r1 == 0 && r2 == 0 && r3 == 0 && r4 == 0);
  OK(cudaSetDevice(0));
  void *again;
  OK(cudaMalloc(&again, 1000));
  OK(cudaMemset(again, 1, 1000));
  OK(cudaFree(again));
}

static void shared_with_processes(void) {
  void *whole;
  cudaIpcMemHandle_t handle;
  const char *conf = getenv("WEIR_ALLOC_CONF");
  bool is_expandable = is_served && conf && strstr(conf, "expandable_segments:True");
  OK(cudaMalloc(&whole, 32 * MIB));
  cudaError_t result = cudaIpcGetMemHandle(&handle, whole);
  CHECK(result == (is_expandable ? cudaErrorNotSupported : cudaSuccess));
  CHECK(cudaGetLastError() == result);
  if (is_served) {
    CHECK(cudaIpcGetMemHandle(&handle, (char *)whole + MIB) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
  }
  OK(cudaFree(whole));
}

static void *work(void *argument) {
  unsigned random = (unsigned)(uintptr_t)argument;
  cudaStream_t stream;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
    return argument;
  for (int i = 0; i < 300; i++) {
    random = random * 1664525 + 1013904223;
    size_t bytes = (random >> 8) % 1000000 + 16;
    unsigned char first = 0, last = 0, value = (unsigned char)random;
    unsigned char *pointer;
    cudaStream_t own = random & 1 << 28 ? cudaStreamPerThread : stream;
    cudaError_t e =
        random & 1 << 30 ? cudaMallocAsync((void **)&pointer, bytes, own) : cudaMalloc((void **)&pointer, bytes);
    if (e == cudaSuccess)
      e = cudaMemsetAsync(pointer, value, bytes, own);
    if (e == cudaSuccess)
      e = cudaMemcpyAsync(&first, pointer, 1, cudaMemcpyDeviceToHost, own);
    if (e == cudaSuccess)
      e = cudaMemcpyAsync(&last, pointer + bytes - 1, 1, cudaMemcpyDeviceToHost, own);
    if (e == cudaSuccess)
      e = cudaStreamSynchronize(own);
    if (e != cudaSuccess || first != value || last != value)
      return argument;
    e = random & 1 << 29 ? cudaFree(pointer) : cudaFreeAsync(pointer, own);
    if (e != cudaSuccess)
      return argument;
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? NULL : argument;
}

static void threads(void) {
  enum { COUNT = 8 };
  pthread_t all[COUNT];
  int wrong = 0;
  for (int i = 0; i < COUNT; i++)
    CHECK(pthread_create(&all[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
  for (int i = 0; i < COUNT; i++) {
    void *result;
    pthread_join(all[i], &result);
    wrong += result != NULL;
  }
  CHECK(wrong == 0);
}

static void forks(void) {
  void *pointer;
  OK(cudaMalloc(&pointer, 1000));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    void *childs = NULL;
    _exit(cudaMalloc(&childs, 1000) != cudaSuccess ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(cudaFree(pointer));
}

static void pairs_are_fast(void) {
  enum { COUNT = 2000 };
  cudaStream_t stream;
  void *pointer;
  OK(cudaStreamCreate(&stream));
  OK(cudaMalloc(&pointer, 64 * MIB));
  OK(cudaFree(pointer));
  double begin = now();
  for (int i = 0; i < COUNT / 10; i++) {
    OK(cudaMalloc(&pointer, 64 * MIB));
    OK(cudaFree(pointer));
  }
  double plain = (now() - begin) / (COUNT / 10.0);
  begin = now();
  for (int i = 0; i < COUNT; i++) {
    OK(cudaMallocAsync(&pointer, 64 * MIB, stream));
    OK(cudaFreeAsync(pointer, stream));
  }
  OK(cudaStreamSynchronize(stream));
  printf("  cudaMalloc and cudaFree of 64 MiB: %.2f us; cudaMallocAsync and cudaFreeAsync: %.2f us\n", plain * 1e6,
         (now() - begin) / COUNT * 1e6);
  OK(cudaStreamDestroy(stream));
}

static void reset(void) {
  void *pointer;
  OK(cudaMalloc(&pointer, 10 * MIB));
  OK(cudaDeviceReset());
  OK(cudaMalloc(&pointer, 10 * MIB));
  OK(cudaMemset(pointer, 1, 10 * MIB));
  OK(cudaDeviceSynchronize());
  OK(cudaFree(pointer));
}

/* ---- */

static void *left;

static void free_at_exit(void) { cudaFree(left); }
__attribute__((destructor)) static void free_at_the_end(void) { cudaFree(left); }

int main(void) {
  static const struct {
    const char *name;
    void (*test)(void);
  } tests[] = {
      {"finds_functions", finds_functions},
      {"small_allocations", small_allocations},
      {"attributes", attributes},
      {"wrong_frees", wrong_frees},
      {"limit_and_out_of_memory", limit_and_out_of_memory},
      {"other_kinds", other_kinds},
      {"free_waits", free_waits},
      {"streams_in_order", streams_in_order},
      {"freed_on_another_stream", freed_on_another_stream},
      {"graphs", graphs},
      {"capture_while_a_free_waits", capture_while_a_free_waits},
      {"streams_that_are_gone", streams_that_are_gone},
      {"pools", pools},
      {"other_contexts", other_contexts},
      {"shared_with_processes", shared_with_processes},
      {"threads", threads},
      {"forks", forks},
      {"pairs_are_fast", pairs_are_fast},
      {"reset", reset},
  };
  const char *preload = getenv("LD_PRELOAD");
  is_served = preload && strstr(preload, "weir_preload");
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    why = NULL;
    tests[i].test();
    printf("%s %s%s%s\n", why ? "FAILED" : "passed", tests[i].name, why ? ": " : "", why ? why : "");
    fflush(stdout);
    if (why)
      failed++;
    else
      passed++;
  }
  printf("program: %d passed, %d failed\n", passed, failed);
  fflush(stdout);
  if (cudaMalloc(&left, 1000) == cudaSuccess)
    atexit(free_at_exit);
  return failed ? 1 : 0;
}
