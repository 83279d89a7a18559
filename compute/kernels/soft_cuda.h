/*
 * CUDA C++ for the software device. A kernel's source is compiled for the host with this header in front of it, and
 * needs no CUDA header. compute/docs/kernels.md lists what is supported.
 *
 * The thread of a stream runs the blocks of a launch one after the other, and the threads of a block one after the
 * other on a fiber. A thread that waits in a barrier keeps its fiber, and the next thread gets another one. So a kernel
 * without barriers is a plain loop, and costs two switches per block. All threads of a block run on one thread of the
 * host, so a variable in shared memory is thread-local.
 *
 * The header needs libc and libm, but no C++ runtime. It is compiled into the library (built-in kernels) and written
 * out for the compiler at run time.
 */
#ifndef WEIR_SOFT_CUDA_H
#define WEIR_SOFT_CUDA_H

#define WEIR_SOFT_CUDA 1
#define __CUDA_ARCH__ 900

#include <stddef.h>
#include <stdint.h>

extern "C" {
int printf(const char *format, ...);
void *memcpy(void *to, const void *from, size_t bytes) noexcept;
void *memset(void *to, int value, size_t bytes) noexcept;
void *aligned_alloc(size_t alignment, size_t bytes) noexcept;
void free(void *pointer) noexcept;
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, long offset) noexcept;
int munmap(void *address, size_t bytes) noexcept;
int mprotect(void *address, size_t bytes, int protection) noexcept;
}

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)

/* ---- Vector types ---- */

#define WEIR_SOFT_VECTORS(T, name)                                                                                     \
  struct name##1 {                                                                                                     \
    T x;                                                                                                               \
  };                                                                                                                   \
  struct alignas(2 * sizeof(T)) name##2 {                                                                              \
    T x, y;                                                                                                            \
  };                                                                                                                   \
  struct name##3 {                                                                                                     \
    T x, y, z;                                                                                                         \
  };                                                                                                                   \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 {                                                         \
    T x, y, z, w;                                                                                                      \
  };                                                                                                                   \
  static inline name##1 make_##name##1(T x) { return {x}; }                                                            \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                    \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                            \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
WEIR_SOFT_VECTORS(signed char, char)
WEIR_SOFT_VECTORS(unsigned char, uchar)
WEIR_SOFT_VECTORS(short, short)
WEIR_SOFT_VECTORS(unsigned short, ushort)
WEIR_SOFT_VECTORS(int, int)
WEIR_SOFT_VECTORS(unsigned, uint)
WEIR_SOFT_VECTORS(long long, longlong)
WEIR_SOFT_VECTORS(unsigned long long, ulonglong)
WEIR_SOFT_VECTORS(float, float)
WEIR_SOFT_VECTORS(double, double)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

/* ---- What the device calls: the structs of weir/soft.h ---- */

namespace weir_soft {

struct launch {
  unsigned grid[3], block[3], shared_bytes;
  void **params;
  int device;
};
using kernel = int (*)(const launch *);

struct entry {
  const char *name;
  kernel function;
  int param_count;
  const size_t *param_bytes;
  unsigned shared_bytes, reserved;
};

struct image {
  char magic[16];
  size_t size;
  const entry *const *begin, *const *end;
  void (*release)(void *context);
  void *context;
};

enum { assert_failed = 710, launch_failed = 719, out_of_memory = 2 };

/* ---- Fibers ---- */

enum : size_t { page_bytes = 4096, stack_bytes = 128 << 10 };

/* At the upper end of its stack. The lowest page of the stack is a guard. */
struct fiber {
  void *stack_pointer; /* while it does not run */
  fiber *next;         /* in the list that holds it */
  fiber *older;        /* of the same launch; in spare_stacks, the next one */
  unsigned thread;     /* that it runs, as a linear index */
  bool is_idle;        /* it runs none */
};

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void weir_soft_switch(void **from, void *to);
asm(".text\n.p2align 4\n.type weir_soft_switch,@function\nweir_soft_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size weir_soft_switch,.-weir_soft_switch\n");
static inline void *first_frame(void *top, void (*entry)()) {
  void **at = static_cast<void **>(top);
  *--at = nullptr; /* the return address of the entry, which never returns */
  *--at = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; i++)
    *--at = nullptr;
  return at;
}
#elif defined(__aarch64__)
extern "C" __attribute__((visibility("hidden"))) void weir_soft_switch(void **from, void *to);
asm(".text\n.p2align 4\n.type weir_soft_switch,%function\nweir_soft_switch:\n"
    "sub sp,sp,#160\n"
    "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
    "stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
    "ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n"
    ".size weir_soft_switch,.-weir_soft_switch\n");
static inline void *first_frame(void *top, void (*entry)()) {
  void **at = static_cast<void **>(top) - 20;
  memset(at, 0, 160);
  at[11] = reinterpret_cast<void *>(entry); /* x30 */
  return at;
}
#else
#error "the software device switches fibers on x86-64 and AArch64 only"
#endif

/* Stacks that are not in use, kept for the next launch. */
static fiber *spare_stacks;
static bool stacks_lock;

static inline void lock_stacks() {
  while (__atomic_test_and_set(&stacks_lock, __ATOMIC_ACQUIRE)) {
  }
}
static inline void unlock_stacks() { __atomic_clear(&stacks_lock, __ATOMIC_RELEASE); }

static inline char *stack_of(fiber *f) { return reinterpret_cast<char *>(f + 1) - stack_bytes; }

static fiber *take_stack() {
  lock_stacks();
  fiber *f = spare_stacks;
  if (f)
    spare_stacks = f->older;
  unlock_stacks();
  if (f)
    return f;
  enum { read_write = 3, none = 0, private_anonymous = 0x22 };
  void *stack = mmap(nullptr, stack_bytes, read_write, private_anonymous, -1, 0);
  if (stack == reinterpret_cast<void *>(-1))
    return nullptr;
  mprotect(stack, page_bytes, none);
  return reinterpret_cast<fiber *>(static_cast<char *>(stack) + stack_bytes) - 1;
}

static void give_stacks(fiber *newest) {
  if (!newest)
    return;
  fiber *last = newest;
  while (last->older)
    last = last->older;
  lock_stacks();
  last->older = spare_stacks;
  spare_stacks = newest;
  unlock_stacks();
}

__attribute__((destructor)) static void free_stacks() {
  while (spare_stacks) {
    fiber *f = spare_stacks;
    spare_stacks = f->older;
    munmap(stack_of(f), stack_bytes);
  }
}

/* ---- A block and its threads ---- */

struct warp {
  unsigned arrived, exited; /* lanes that wait for others of the warp, and lanes that are done or do not exist */
  unsigned mask[32];        /* of the lanes that wait: for whom */
  fiber *waiting[32];
  unsigned long long value[32]; /* what they exchange */
};

struct list {
  fiber *first, *last;
};

static inline void append(list *to, fiber *f) {
  f->next = nullptr;
  (to->first ? to->last->next : to->first) = f;
  to->last = f;
}

static inline fiber *take_first(list *from) {
  fiber *f = from->first;
  if (f)
    from->first = f->next;
  return f;
}

struct block {
  void (*body)(void **params);
  void **params;
  unsigned count, next; /* threads, and the next one to start */
  unsigned live;        /* threads that started and have not ended */
  unsigned at_barrier;
  int votes, result; /* of __syncthreads_count and others */
  int error;
  fiber *running, *newest;
  list ready, barrier, idle;
  void *scheduler; /* its stack pointer while a fiber runs */
  warp *warps;     /* NULL until a warp function is called */
};

/* What the built-in variables show. */
struct state {
  uint3 thread, block_index;
  dim3 block_dim, grid_dim;
  unsigned char *dynamic;
  block *b;
};
/* One for all kernels of a library: space for thread-local variables is scarce in a library that is loaded late. With
 * `thread_local` each access would check whether it has been initialized. */
inline __thread state current_state __attribute__((visibility("hidden"))) = {};
static inline state &current() { return current_state; }

static inline void set_thread(unsigned index) {
  state &s = current();
  if (index < s.block_dim.x) {
    s.thread = {index, 0, 0};
    return;
  }
  s.thread.x = index % s.block_dim.x;
  s.thread.y = index / s.block_dim.x % s.block_dim.y;
  s.thread.z = index / s.block_dim.x / s.block_dim.y;
}

/* Lets other threads run until this one is taken from the list that holds it. */
static __attribute__((noinline)) void park() {
  block *b = current().b;
  fiber *f = b->running;
  weir_soft_switch(&f->stack_pointer, b->scheduler);
  set_thread(f->thread);
}

static inline void release_warp(block *b, warp *w, unsigned mask) {
  if ((w->arrived & mask) != (mask & ~w->exited))
    return;
  for (unsigned lane = 0; lane < 32; lane++)
    if (w->arrived & mask & 1u << lane)
      append(&b->ready, w->waiting[lane]);
  w->arrived &= ~mask;
}

static inline void thread_ends(block *b, unsigned thread) {
  b->live--;
  if (!b->warps)
    return;
  warp *w = &b->warps[thread / 32];
  w->exited |= 1u << thread % 32;
  for (unsigned lane = 0; lane < 32; lane++)
    if (w->arrived & 1u << lane)
      release_warp(b, w, w->mask[lane]);
}

static void fiber_main() {
  for (;;) {
    block *b = current().b;
    fiber *f = b->running;
    while (b->next < b->count) {
      f->thread = b->next++;
      b->live++;
      set_thread(f->thread);
      b->body(b->params);
      thread_ends(b, f->thread);
    }
    f->is_idle = true;
    weir_soft_switch(&f->stack_pointer, b->scheduler);
  }
}

/* Ends the launch with an error. */
[[noreturn]] static __attribute__((noinline)) void fail(int error) {
  block *b = current().b;
  b->error = error;
  for (;;)
    weir_soft_switch(&b->running->stack_pointer, b->scheduler);
}

static inline fiber *new_fiber(block *b) {
  fiber *f = take_stack();
  if (!f)
    return nullptr;
  f->stack_pointer = first_frame(reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(f) & ~uintptr_t(15)), fiber_main);
  f->older = b->newest;
  b->newest = f;
  return f;
}

/* Threads that can continue come first, then new ones, so that few fibers are needed. */
static int run_block(block *b) {
  b->next = b->live = b->at_barrier = 0;
  for (;;) {
    fiber *f = take_first(&b->ready);
    if (!f && b->next < b->count) {
      f = take_first(&b->idle);
      if (!f)
        f = new_fiber(b);
      if (!f)
        return out_of_memory;
    }
    if (!f && b->live && b->at_barrier == b->live) {
      b->ready = b->barrier;
      b->barrier.first = nullptr;
      b->at_barrier = 0;
      b->result = b->votes;
      b->votes = 0;
      continue;
    }
    if (!f) /* threads wait for others that never come: a GPU would hang */
      return b->live ? launch_failed : 0;
    f->is_idle = false;
    b->running = f;
    weir_soft_switch(&b->scheduler, f->stack_pointer);
    if (f->is_idle)
      append(&b->idle, f);
    if (b->error)
      return b->error;
  }
}

static inline void reset_warps(block *b) {
  for (unsigned first = 0; first < b->count; first += 32) {
    warp *w = &b->warps[first / 32];
    w->arrived = 0;
    w->exited = b->count - first >= 32 ? 0 : ~0u << (b->count - first);
  }
}

/* A failure abandons the fibers of all threads. A kernel has no destructors that would have to run. */
static int run_grid(const launch *l, void (*body)(void **params)) {
  state &s = current();
  state outer = s;
  block b = {};
  b.body = body;
  b.params = l->params;
  b.count = l->block[0] * l->block[1] * l->block[2];
  s.block_dim = dim3(l->block[0], l->block[1], l->block[2]);
  s.grid_dim = dim3(l->grid[0], l->grid[1], l->grid[2]);
  s.b = &b;
  s.dynamic = nullptr;
  if (l->shared_bytes) {
    s.dynamic = static_cast<unsigned char *>(aligned_alloc(128, (size_t(l->shared_bytes) + 127) / 128 * 128));
    if (!s.dynamic) {
      s = outer;
      return out_of_memory;
    }
  }
  int result = 0;
  for (unsigned z = 0; z < l->grid[2] && !result; z++)
    for (unsigned y = 0; y < l->grid[1] && !result; y++)
      for (unsigned x = 0; x < l->grid[0] && !result; x++) {
        s.block_index = {x, y, z};
        if (b.warps)
          reset_warps(&b);
        result = run_block(&b);
      }
  give_stacks(b.newest);
  free(b.warps);
  free(s.dynamic);
  s = outer;
  return result;
}

/* ---- Barriers ---- */

static inline int barrier(int vote) {
  block *b = current().b;
  b->votes += vote;
  b->at_barrier++;
  append(&b->barrier, b->running);
  park();
  return b->result;
}

static inline unsigned lane_of_thread() { return current().b->running->thread % 32; }

static inline warp *warp_of_thread() {
  block *b = current().b;
  if (!b->warps) {
    size_t bytes = (b->count + 31) / 32 * sizeof(warp);
    b->warps = static_cast<warp *>(aligned_alloc(16, (bytes + 15) / 16 * 16));
    if (!b->warps)
      fail(out_of_memory);
    reset_warps(b);
    /* Threads that ended before the first warp function was called. Their number is known, and which they are
     * follows from the others: those that wait in the barrier, those that are ready, and this one. */
    if (b->next - b->live) {
      for (unsigned i = 0; i < b->next; i++)
        b->warps[i / 32].exited |= 1u << i % 32;
      for (fiber *f = b->barrier.first; f; f = f->next)
        b->warps[f->thread / 32].exited &= ~(1u << f->thread % 32);
      for (fiber *f = b->ready.first; f; f = f->next)
        b->warps[f->thread / 32].exited &= ~(1u << f->thread % 32);
      b->warps[b->running->thread / 32].exited &= ~(1u << b->running->thread % 32);
    }
  }
  return &b->warps[b->running->thread / 32];
}

/* Waits until all lanes of the mask have come here, or have ended. */
static inline void warp_barrier(warp *w, unsigned mask) {
  block *b = current().b;
  unsigned lane = lane_of_thread();
  w->arrived |= 1u << lane;
  w->mask[lane] = mask;
  w->waiting[lane] = b->running;
  release_warp(b, w, mask);
  park();
}

template <class T> static inline T exchange(unsigned mask, T value, unsigned from, bool takes) {
  static_assert(sizeof(T) <= 8, "a shuffle exchanges at most 8 bytes");
  warp *w = warp_of_thread();
  memcpy(&w->value[lane_of_thread()], &value, sizeof value);
  warp_barrier(w, mask);
  if (takes)
    memcpy(&value, &w->value[from], sizeof value);
  warp_barrier(w, mask);
  return value;
}

template <class Fold> static inline unsigned fold_warp(unsigned mask, unsigned value, Fold fold) {
  warp *w = warp_of_thread();
  w->value[lane_of_thread()] = value;
  warp_barrier(w, mask);
  bool is_first = true;
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; lane++)
    if (mask & ~w->exited & 1u << lane) {
      unsigned other = static_cast<unsigned>(w->value[lane]);
      result = is_first ? other : fold(result, other);
      is_first = false;
    }
  warp_barrier(w, mask);
  return result;
}

/* ---- Entries ---- */

template <size_t... I> struct indices {};
template <size_t N, size_t... I> struct count_to : count_to<N - 1, N - 1, I...> {};
template <size_t... I> struct count_to<0, I...> { using type = indices<I...>; };

template <auto Function> struct runner;
template <class... Params, void (*Function)(Params...)> struct runner<Function> {
  static constexpr int count = sizeof...(Params);
  static constexpr size_t bytes[] = {sizeof(Params)..., 0};
  template <size_t... I> static inline void call(void **params, indices<I...>) {
    Function(*static_cast<Params *>(params[I])...);
    (void)params;
  }
  static void body(void **params) { call(params, typename count_to<sizeof...(Params)>::type()); }
  static int run(const launch *l) { return run_grid(l, body); }
};

} // namespace weir_soft

#ifndef WEIR_SOFT_FILE
#define WEIR_SOFT_SECTION weir_kernels
#define WEIR_SOFT_IMAGE weir_soft_kernels
#define WEIR_SOFT_EXPORT __attribute__((visibility("default"), used))
#else /* a built-in file */
#define WEIR_SOFT_SECTION WEIR_SOFT_JOIN(weir_kernels_, WEIR_SOFT_FILE)
#define WEIR_SOFT_IMAGE WEIR_SOFT_JOIN(weir__builtin_image_, WEIR_SOFT_FILE)
#define WEIR_SOFT_EXPORT __attribute__((visibility("hidden"), used))
#endif
#define WEIR_SOFT_JOIN(a, b) WEIR_SOFT_JOIN_(a, b)
#define WEIR_SOFT_JOIN_(a, b) a##b
#define WEIR_SOFT_TEXT(a) WEIR_SOFT_TEXT_(a)
#define WEIR_SOFT_TEXT_(a) #a

/* The linker collects the addresses of all entries in a section, and marks its begin and end. */
extern "C" {
extern const weir_soft::entry *const WEIR_SOFT_JOIN(__start_, WEIR_SOFT_SECTION)[]
    __attribute__((weak, visibility("hidden")));
extern const weir_soft::entry *const WEIR_SOFT_JOIN(__stop_, WEIR_SOFT_SECTION)[]
    __attribute__((weak, visibility("hidden")));
extern weir_soft::image WEIR_SOFT_IMAGE;
WEIR_SOFT_EXPORT weir_soft::image WEIR_SOFT_IMAGE = {"\177weir kernels 1",
                                                     sizeof(weir_soft::image),
                                                     WEIR_SOFT_JOIN(__start_, WEIR_SOFT_SECTION),
                                                     WEIR_SOFT_JOIN(__stop_, WEIR_SOFT_SECTION),
                                                     nullptr,
                                                     nullptr};
}

/* Makes a kernel known by a name. With NVRTC, WEIR_KERNEL is empty: a kernel with C linkage is known by its name. */
#define WEIR_SOFT_ENTRY(text, ...) WEIR_SOFT_ENTRY_(text, __COUNTER__, __VA_ARGS__)
#define WEIR_SOFT_ENTRY_(text, number, ...) WEIR_SOFT_ENTRY__(text, number, __VA_ARGS__)
#define WEIR_SOFT_ENTRY__(text, number, ...)                                                                           \
  static const weir_soft::entry weir_soft_entry_##number = {text,                                                      \
                                                            weir_soft::runner<(__VA_ARGS__)>::run,                     \
                                                            weir_soft::runner<(__VA_ARGS__)>::count,                   \
                                                            weir_soft::runner<(__VA_ARGS__)>::bytes,                   \
                                                            0,                                                         \
                                                            0};                                                        \
  __attribute__((section(WEIR_SOFT_TEXT(WEIR_SOFT_SECTION)),                                                           \
                 used)) static const weir_soft::entry *const weir_soft_listed_##number = &weir_soft_entry_##number;
#define WEIR_KERNEL(name) WEIR_SOFT_ENTRY(#name, &name)

/* The dynamic shared memory of a launch, as `extern __shared__ T name[]` is with NVRTC. */
#define WEIR_DYNAMIC_SHARED(T, name) T *const name = reinterpret_cast<T *>(weir_soft::current().dynamic)

namespace weir_soft {
/* `extern __shared__ T name[]` outside of a function becomes one of these. */
template <class T> struct dynamic_array {
  operator T *() const { return reinterpret_cast<T *>(current().dynamic); }
  template <class U> explicit operator U *() const { return reinterpret_cast<U *>(current().dynamic); }
};
} // namespace weir_soft

#define threadIdx (weir_soft::current().thread)
#define blockIdx (weir_soft::current().block_index)
#define blockDim (weir_soft::current().block_dim)
#define gridDim (weir_soft::current().grid_dim)
static constexpr int warpSize = 32;

#include "soft_cuda_functions.h"

#endif
