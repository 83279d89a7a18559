/*
 * A CUDA runtime program without any code for Weir, for a machine with a GPU. It checks its results with any allocator;
 * with LD_PRELOAD=libweir_preload.so it also checks that Weir serves it. run.sh builds and runs it.
 */
#include <cuda.h>
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

#define assert_that(condition)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      static char text[400];                                                                                           \
      snprintf(text, sizeof text, "line %d: %s (last error: %s)", __LINE__, #condition,                                \
               cudaGetErrorName(cudaGetLastError()));                                                                  \
      why = text;                                                                                                      \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

#define assert_cuda(call) assert_that((call) == cudaSuccess)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void hold(void *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

/* Looks up a driver function as libraries do. */
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
  assert_that(function && dladdr(function, &info));
  assert_that((strstr(info.dli_fname, "weir_preload") != NULL) == is_served);
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  assert_that(library && dladdr(dlsym(library, "cuMemAlloc_v2"), &info));
  assert_that((strstr(info.dli_fname, "weir_preload") != NULL) == is_served);
  assert_that(dladdr(dlsym(library, "cuInit"), &info) && strstr(info.dli_fname, "libcuda"));
}

static void small_allocations(void) {
  enum { COUNT = 64 };
  void *pointers[COUNT];
  unsigned char bytes[1000];
  uintptr_t low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < COUNT; i++) {
    assert_cuda(cudaMalloc(&pointers[i], sizeof bytes));
    uintptr_t at = (uintptr_t)pointers[i];
    assert_that(at % 256 == 0);
    low = at < low ? at : low;
    high = at > high ? at : high;
    assert_cuda(cudaMemset(pointers[i], i, sizeof bytes));
  }
  if (is_served)
    assert_that(high - low < 2 * MIB);
  for (int i = 0; i < COUNT; i++) {
    assert_cuda(cudaMemcpy(bytes, pointers[i], sizeof bytes, cudaMemcpyDeviceToHost));
    assert_that(bytes[0] == i && bytes[999] == i);
    assert_cuda(cudaFree(pointers[i]));
  }
}

static void attributes(void) {
  struct cudaPointerAttributes a;
  void *pointer;
  assert_cuda(cudaMalloc(&pointer, 5000));
  assert_cuda(cudaPointerGetAttributes(&a, pointer));
  assert_that(a.type == cudaMemoryTypeDevice && a.device == 0 && a.devicePointer == pointer);
  assert_cuda(cudaFree(pointer));
  assert_cuda(cudaFree(NULL));
}

static void wrong_frees(void) {
  void *pointer;
  int host;
  assert_cuda(cudaMalloc(&pointer, 32 * MIB));
  assert_cuda(cudaFree(pointer));
  assert_that(cudaFree(pointer) == cudaErrorInvalidValue);
  assert_that(cudaGetLastError() == cudaErrorInvalidValue);
  assert_that(cudaFree(&host) == cudaErrorInvalidValue);
  assert_that(cudaGetLastError() == cudaErrorInvalidValue);
  assert_that(cudaGetLastError() == cudaSuccess);
  assert_cuda(cudaMalloc(&pointer, 32 * MIB));
  assert_cuda(cudaMemset(pointer, 1, 32 * MIB));
  assert_cuda(cudaDeviceSynchronize());
  assert_cuda(cudaFree(pointer));
}

static void limit_and_out_of_memory(void) {
  size_t free_bytes, total_bytes;
  void *pointer = NULL;
  assert_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
  assert_that(free_bytes <= total_bytes);
  if (is_served)
    assert_that(total_bytes == 4096 * MIB);
  assert_that(cudaMalloc(&pointer, total_bytes + MIB) == cudaErrorMemoryAllocation);
  assert_that(!pointer);
  assert_that(cudaGetLastError() == cudaErrorMemoryAllocation);
  assert_that(cudaGetLastError() == cudaSuccess);
  assert_that(cudaMallocAsync(&pointer, total_bytes + MIB, 0) == cudaErrorMemoryAllocation);
  assert_that(cudaGetLastError() == cudaErrorMemoryAllocation);
  assert_cuda(cudaMalloc(&pointer, MIB));
  assert_cuda(cudaFree(pointer));
}

static void other_kinds(void) {
  void *pointer, *host;
  size_t pitch;
  assert_cuda(cudaMallocPitch(&pointer, &pitch, 1000, 16));
  assert_that(pitch >= 1000 && pitch % 256 == 0);
  assert_cuda(cudaMemset2D(pointer, pitch, 7, 1000, 16));
  assert_cuda(cudaFree(pointer));
  struct cudaPitchedPtr pitched;
  assert_cuda(cudaMalloc3D(&pitched, make_cudaExtent(300, 20, 4)));
  assert_cuda(cudaMemset3D(pitched, 1, make_cudaExtent(300, 20, 4)));
  assert_cuda(cudaFree(pitched.ptr));
  assert_cuda(cudaMallocManaged(&pointer, MIB, cudaMemAttachGlobal));
  memset(pointer, 1, MIB);
  assert_cuda(cudaFree(pointer));
  assert_cuda(cudaMallocHost(&host, MIB));
  assert_cuda(cudaFreeHost(host));
  cudaArray_t array;
  struct cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  assert_cuda(cudaMallocArray(&array, &floats, 64, 64, 0));
  assert_cuda(cudaFreeArray(array));
  assert_cuda(cudaDeviceSynchronize());
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
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaMalloc(&f.pointer, MIB));
  assert_cuda(cudaLaunchHostFunc(stream, hold, &semaphore));
  assert_cuda(cudaMemsetAsync(f.pointer, 1, MIB, stream));
  assert_that(pthread_create(&thread, NULL, free_it, &f) == 0);
  usleep(50000);
  bool was_early = atomic_load(&f.is_done);
  sem_post(&semaphore);
  pthread_join(thread, NULL);
  assert_that(!was_early);
  assert_cuda(f.result);
  assert_cuda(cudaStreamDestroy(stream));
}

static void streams_in_order(void) {
  cudaStream_t one, two;
  sem_t semaphore;
  void *a, *b, *c, *d;
  unsigned char bytes[16];
  sem_init(&semaphore, 0, 0);
  assert_cuda(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  assert_cuda(cudaMallocAsync(&a, 3 * MIB, one));
  assert_cuda(cudaLaunchHostFunc(one, hold, &semaphore));
  assert_cuda(cudaMemsetAsync(a, 1, 3 * MIB, one));
  assert_cuda(cudaFreeAsync(a, one));
  assert_cuda(cudaMallocAsync(&b, 3 * MIB, one));
  assert_cuda(cudaMallocAsync(&c, 3 * MIB, two));
  assert_cuda(cudaMemsetAsync(c, 2, 3 * MIB, two));
  assert_cuda(cudaMalloc(&d, 3 * MIB));
  if (is_served)
    assert_that(a == b);
  assert_that(c != a && d != a && d != c);
  assert_cuda(cudaFreeAsync(b, one));
  assert_cuda(cudaStreamSynchronize(two));
  sem_post(&semaphore);
  assert_cuda(cudaStreamSynchronize(one));
  assert_cuda(cudaMemcpy(bytes, c, sizeof bytes, cudaMemcpyDeviceToHost));
  assert_that(bytes[0] == 2 && bytes[15] == 2);
  assert_cuda(cudaFreeAsync(c, two));
  assert_cuda(cudaFree(d));
  assert_cuda(cudaStreamDestroy(one));
  assert_cuda(cudaStreamDestroy(two));
}

static void freed_on_another_stream(void) {
  cudaStream_t one, two;
  sem_t semaphore;
  void *a, *b, *c;
  sem_init(&semaphore, 0, 0);
  assert_cuda(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
  assert_cuda(cudaMallocAsync(&a, 5 * MIB, one));
  assert_cuda(cudaStreamSynchronize(one));
  assert_cuda(cudaLaunchHostFunc(two, hold, &semaphore));
  assert_cuda(cudaMemsetAsync(a, 1, 5 * MIB, two));
  assert_cuda(cudaFreeAsync(a, two));
  assert_cuda(cudaMallocAsync(&b, 5 * MIB, one));
  assert_that(a != b);
  sem_post(&semaphore);
  assert_cuda(cudaStreamSynchronize(two));
  assert_cuda(cudaMallocAsync(&c, 5 * MIB, one));
  if (is_served)
    assert_that(c == a);
  assert_cuda(cudaFreeAsync(b, one));
  assert_cuda(cudaFreeAsync(c, one));
  assert_cuda(cudaDeviceSynchronize());
  /* Memory without a stream that is freed in one, and the reverse. */
  assert_cuda(cudaMalloc(&a, MIB));
  assert_cuda(cudaFreeAsync(a, one));
  assert_cuda(cudaMallocAsync(&a, MIB, one));
  assert_cuda(cudaFree(a));
  assert_cuda(cudaStreamDestroy(one));
  assert_cuda(cudaStreamDestroy(two));
}

static void graphs(void) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  void *node, *result, *freed;
  unsigned char bytes[16] = {0};
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaMalloc(&result, sizeof bytes));
  assert_cuda(cudaMalloc(&freed, 6 * MIB));
  assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  assert_cuda(cudaMallocAsync(&node, MIB, stream));
  assert_cuda(cudaMemsetAsync(node, 9, MIB, stream));
  assert_cuda(cudaMemcpyAsync(result, node, sizeof bytes, cudaMemcpyDeviceToDevice, stream));
  assert_cuda(cudaFreeAsync(node, stream));
  assert_cuda(cudaFree(freed)); /* allowed in a relaxed capture, which must stay valid */
  assert_cuda(cudaStreamEndCapture(stream, &graph));
  assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++)
    assert_cuda(cudaGraphLaunch(exec, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaMemcpy(bytes, result, sizeof bytes, cudaMemcpyDeviceToHost));
  assert_that(bytes[0] == 9 && bytes[15] == 9);
  assert_cuda(cudaGraphExecDestroy(exec));
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaFree(result));
  assert_cuda(cudaStreamDestroy(stream));
}

/* Memory that the program creates itself: 6 MiB, and none in the end. The recording counts it. */
static void pages_of_its_own(void) {
  enum { PAGES = 3 };
  CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
  CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*retain)(CUmemGenericAllocationHandle *, void *);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*leave)(CUdeviceptr, size_t);
  static const char *const names[] = {
      "cuMemCreate",  "cuMemAddressReserve", "cuMemMap",        "cuMemRetainAllocationHandle",
      "cuMemRelease", "cuMemUnmap",          "cuMemAddressFree"};
  void *found[7];
  for (int i = 0; i < 7; i++)
    assert_that((found[i] = entry(names[i])) != NULL);
  memcpy(&create, &found[0], sizeof create);
  memcpy(&reserve, &found[1], sizeof reserve);
  memcpy(&map, &found[2], sizeof map);
  memcpy(&retain, &found[3], sizeof retain);
  memcpy(&release, &found[4], sizeof release);
  memcpy(&unmap, &found[5], sizeof unmap);
  memcpy(&leave, &found[6], sizeof leave);
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
  CUmemGenericAllocationHandle handle, again;
  CUdeviceptr base;
  assert_that(reserve(&base, PAGES * 2 * MIB, 0, 0, 0) == 0);
  for (int i = 0; i < PAGES; i++)
    assert_that(create(&handle, 2 * MIB, &prop, 0) == 0 &&
                map(base + (size_t)i * 2 * MIB, 2 * MIB, 0, handle, 0) == 0 && release(handle) == 0);
  assert_that(retain(&again, (void *)(uintptr_t)base) == 0); /* the first page lives on without a mapping */
  assert_that(unmap(base, PAGES * 2 * MIB) == 0 && leave(base, PAGES * 2 * MIB) == 0);
  assert_that(release(again) == 0);
}

static void *post_later(void *semaphore) {
  usleep(300000);
  sem_post(semaphore);
  return NULL;
}

/* A free that waits for the device does not invalidate a capture that begins meanwhile. */
static void capture_while_a_free_waits(void) {
  cudaStream_t stream, busy;
  cudaGraph_t graph;
  sem_t semaphore;
  freeing f = {0};
  pthread_t freer, poster;
  void *memory;
  sem_init(&semaphore, 0, 0);
  assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  assert_cuda(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  assert_cuda(cudaMalloc(&memory, MIB));
  assert_cuda(cudaMalloc(&f.pointer, MIB));
  assert_cuda(cudaLaunchHostFunc(busy, hold, &semaphore));
  assert_that(pthread_create(&freer, NULL, free_it, &f) == 0);
  usleep(50000);
  assert_that(pthread_create(&poster, NULL, post_later, &semaphore) == 0);
  double begin = now();
  cudaError_t began = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  double waited = now() - begin;
  cudaError_t captured = cudaMemsetAsync(memory, 1, MIB, stream), ended = cudaStreamEndCapture(stream, &graph);
  pthread_join(poster, NULL);
  pthread_join(freer, NULL);
  printf("  the capture began after %.1f ms\n", waited * 1e3);
  assert_cuda(began);
  assert_cuda(captured);
  assert_cuda(ended);
  assert_cuda(f.result);
  if (is_served)
    assert_that(waited < 0.2);
  assert_cuda(cudaGraphDestroy(graph));
  assert_cuda(cudaFree(memory));
  assert_cuda(cudaStreamDestroy(stream));
  assert_cuda(cudaStreamDestroy(busy));
}

/* Memory of destroyed streams is used by others when memory runs short. */
static void streams_that_are_gone(void) {
  size_t most = 1000 * MIB;
  cudaStream_t streams[3];
  void *memory[3], *large;
  for (int i = 0; i < 3; i++) {
    assert_cuda(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    assert_cuda(cudaMallocAsync(&memory[i], most, streams[i]));
    assert_cuda(cudaMemsetAsync(memory[i], i, most, streams[i]));
  }
  for (int i = 0; i < 3; i++) {
    assert_cuda(cudaFreeAsync(memory[i], streams[i]));
    assert_cuda(cudaStreamDestroy(streams[i]));
  }
  assert_cuda(cudaMalloc(&large, 3 * most));
  assert_cuda(cudaMemset(large, 1, 3 * most));
  assert_cuda(cudaDeviceSynchronize());
  assert_cuda(cudaFree(large));
}

static void pools(void) {
  cudaMemPool_t usual, own;
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                   .location = {.type = cudaMemLocationTypeDevice, .id = 0}};
  cudaStream_t stream;
  void *a, *b, *c;
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(cudaDeviceGetDefaultMemPool(&usual, 0));
  assert_cuda(cudaMemPoolCreate(&own, &props));
  assert_cuda(cudaMallocFromPoolAsync(&a, MIB, usual, stream));
  assert_cuda(cudaMallocFromPoolAsync(&b, MIB, own, stream));
  assert_cuda(cudaMemsetAsync(a, 1, MIB, stream));
  assert_cuda(cudaMemsetAsync(b, 2, MIB, stream));
  assert_cuda(cudaFreeAsync(a, stream));
  assert_cuda(cudaFreeAsync(b, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaMemPoolDestroy(own));
  /* A shareable pool stays with the driver. */
  props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  assert_cuda(cudaMemPoolCreate(&own, &props));
  assert_cuda(cudaMallocFromPoolAsync(&c, MIB, own, stream));
  int file = -1;
  struct cudaMemPoolPtrExportData data;
  assert_cuda(cudaMemPoolExportToShareableHandle(&file, own, cudaMemHandleTypePosixFileDescriptor, 0));
  assert_cuda(cudaMemPoolExportPointer(&data, c));
  close(file);
  assert_cuda(cudaFreeAsync(c, stream));
  assert_cuda(cudaStreamSynchronize(stream));
  assert_cuda(cudaMemPoolDestroy(own));
  assert_cuda(cudaStreamDestroy(stream));
}

/* A context other than the primary context of the device has separate memory. */
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
    assert_that((found[i] = dlsym(library, names[i])) != NULL);
  memcpy(&create, &found[0], sizeof create);
  memcpy(&destroy, &found[1], sizeof destroy);
  memcpy(&alloc, &found[2], sizeof alloc);
  memcpy(&set, &found[3], sizeof set);
  memcpy(&release, &found[4], sizeof release);
  unsigned long long pointer = 0;
  assert_that(create(&context, 0, 0) == 0);
  int r1 = alloc(&pointer, 1000), r2 = r1 ? r1 : set(pointer, 3, 1000), r3 = r1 ? r1 : release(pointer);
  int r4 = destroy(context);
  assert_that(r1 == 0 && r2 == 0 && r3 == 0 && r4 == 0);
  assert_cuda(cudaSetDevice(0));
  void *again;
  assert_cuda(cudaMalloc(&again, 1000));
  assert_cuda(cudaMemset(again, 1, 1000));
  assert_cuda(cudaFree(again));
}

static void shared_with_processes(void) {
  void *whole;
  cudaIpcMemHandle_t handle;
  const char *conf = getenv("WEIR_ALLOC_CONF");
  bool is_expandable = is_served && conf && strstr(conf, "expandable_segments:True");
  assert_cuda(cudaMalloc(&whole, 32 * MIB));
  cudaError_t result = cudaIpcGetMemHandle(&handle, whole);
  assert_that(result == (is_expandable ? cudaErrorNotSupported : cudaSuccess));
  assert_that(cudaGetLastError() == result);
  if (is_served) {
    assert_that(cudaIpcGetMemHandle(&handle, (char *)whole + MIB) != cudaSuccess);
    assert_that(cudaGetLastError() != cudaSuccess);
  }
  assert_cuda(cudaFree(whole));
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
    assert_that(pthread_create(&all[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
  for (int i = 0; i < COUNT; i++) {
    void *result;
    pthread_join(all[i], &result);
    wrong += result != NULL;
  }
  assert_that(wrong == 0);
}

static void forks(void) {
  void *pointer;
  assert_cuda(cudaMalloc(&pointer, 1000));
  pid_t child = fork();
  assert_that(child >= 0);
  if (child == 0) {
    void *childs = NULL;
    _exit(cudaMalloc(&childs, 1000) != cudaSuccess ? 0 : 1);
  }
  int status = 0;
  assert_that(waitpid(child, &status, 0) == child);
  assert_that(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  assert_cuda(cudaFree(pointer));
}

static void pairs_are_fast(void) {
  enum { COUNT = 2000 };
  cudaStream_t stream;
  void *pointer;
  assert_cuda(cudaStreamCreate(&stream));
  assert_cuda(cudaMalloc(&pointer, 64 * MIB));
  assert_cuda(cudaFree(pointer));
  double begin = now();
  for (int i = 0; i < COUNT / 10; i++) {
    assert_cuda(cudaMalloc(&pointer, 64 * MIB));
    assert_cuda(cudaFree(pointer));
  }
  double plain = (now() - begin) / (COUNT / 10.0);
  begin = now();
  for (int i = 0; i < COUNT; i++) {
    assert_cuda(cudaMallocAsync(&pointer, 64 * MIB, stream));
    assert_cuda(cudaFreeAsync(pointer, stream));
  }
  assert_cuda(cudaStreamSynchronize(stream));
  printf("  cudaMalloc and cudaFree of 64 MiB: %.2f us; cudaMallocAsync and cudaFreeAsync: %.2f us\n", plain * 1e6,
         (now() - begin) / COUNT * 1e6);
  assert_cuda(cudaStreamDestroy(stream));
}

static void reset(void) {
  void *pointer;
  assert_cuda(cudaMalloc(&pointer, 10 * MIB));
  assert_cuda(cudaDeviceReset());
  assert_cuda(cudaMalloc(&pointer, 10 * MIB));
  assert_cuda(cudaMemset(pointer, 1, 10 * MIB));
  assert_cuda(cudaDeviceSynchronize());
  assert_cuda(cudaFree(pointer));
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
      {"pages_of_its_own", pages_of_its_own},
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
