/*
 * Threads, locks and what else a process has only one of, behind names of our own: no other folder includes pthread.h.
 * On a system with threads these are pthread's calls and cost the same.
 *
 * WEIR_SINGLE_THREADED (implied by WASI) selects a variant for programs with one thread. Locks only count, no thread
 * can be started, and a wait that only another thread could end aborts.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__wasi__) && !defined(WEIR_SINGLE_THREADED)
#define WEIR_SINGLE_THREADED 1
#endif

/* The deadline of a wait that never times out. */
#define WEIR__NO_DEADLINE UINT64_MAX

/* Declares a function that runs when the library is loaded, those of lower order first. Handlers of forks that are
 * registered later take their locks earlier, so the order is that in which locks nest, innermost first: memory of the
 * library, lists of objects, the log, whose sink may call everything, and the service of recordings. */
#define WEIR__AT_LOAD(order) static __attribute__((constructor(order)))
#define WEIR__LOAD_MEMORY 1001
#define WEIR__LOAD_LISTS 1002
#define WEIR__LOAD_LOG 1003
#define WEIR__LOAD_SERVICE 1004

/* Defines a key, which exists from the time when the library is loaded, unless the process has too many: has_NAME. When
 * a thread ends, `end` gets the thread's value. */
#define WEIR__AT_THREAD_END(name, end)                                                                                 \
  static weir__thread_key name;                                                                                        \
  static bool has_##name;                                                                                              \
  WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void create_##name(void) { has_##name = !weir__thread_key_create(&name, end); }     \
  static __attribute__((destructor)) void delete_##name(void) { /* `end` is unloaded with the library */               \
    if (has_##name)                                                                                                    \
      weir__thread_key_delete(name);                                                                                   \
  }

#ifndef WEIR_SINGLE_THREADED

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <unistd.h>

/* ---- Locks ---- */

typedef pthread_mutex_t weir__mutex;
#define WEIR__MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#define WEIR__RECURSIVE_MUTEX_INIT PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP

static inline void weir__mutex_init(weir__mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static inline void weir__mutex_destroy(weir__mutex *mutex) { pthread_mutex_destroy(mutex); }
static inline void weir__mutex_lock(weir__mutex *mutex) { pthread_mutex_lock(mutex); }
static inline bool weir__mutex_trylock(weir__mutex *mutex) { return pthread_mutex_trylock(mutex) == 0; }
static inline void weir__mutex_unlock(weir__mutex *mutex) { pthread_mutex_unlock(mutex); }

/* Waits for the lock until weir__monotonic_ns reaches the deadline; returns false if it passed first. */
bool weir__mutex_lock_until(weir__mutex *mutex, uint64_t deadline_ns);

/* ---- Condition variables, whose deadlines are times of weir__monotonic_ns ---- */

typedef pthread_cond_t weir__cond;

void weir__cond_init(weir__cond *cond);
static inline void weir__cond_destroy(weir__cond *cond) { pthread_cond_destroy(cond); }
static inline void weir__cond_wait(weir__cond *cond, weir__mutex *mutex) { pthread_cond_wait(cond, mutex); }
static inline void weir__cond_signal(weir__cond *cond) { pthread_cond_signal(cond); }
static inline void weir__cond_broadcast(weir__cond *cond) { pthread_cond_broadcast(cond); }

/* Returns false once the deadline has passed. */
bool weir__cond_wait_until(weir__cond *cond, weir__mutex *mutex, uint64_t deadline_ns);

/* ---- Semaphores. weir__semaphore_post may be called from a signal handler ---- */

typedef sem_t weir__semaphore;

static inline void weir__semaphore_init(weir__semaphore *semaphore) { sem_init(semaphore, 0, 0); }
static inline void weir__semaphore_post(weir__semaphore *semaphore) { sem_post(semaphore); }
static inline void weir__semaphore_wait(weir__semaphore *semaphore) {
  while (sem_wait(semaphore) != 0) { /* interrupted by a signal */
  }
}

/* ---- Once ---- */

typedef pthread_once_t weir__once_flag;
#define WEIR__ONCE_INIT PTHREAD_ONCE_INIT

static inline void weir__once(weir__once_flag *flag, void (*run)(void)) { pthread_once(flag, run); }

/* ---- Threads ---- */

typedef pthread_t weir__thread_id;

/* Returns 0 or an errno value, as pthread_create does. */
static inline int weir__thread_start(weir__thread_id *thread, void *(*run)(void *), void *argument) {
  return pthread_create(thread, NULL, run, argument);
}
/* The same for a thread that gets no signals, which are for the program's own. */
int weir__thread_start_quiet(weir__thread_id *thread, void *(*run)(void *), void *argument);
static inline void weir__thread_join(weir__thread_id thread) { pthread_join(thread, NULL); }
static inline void weir__thread_detach(weir__thread_id thread) { pthread_detach(thread); }
static inline weir__thread_id weir__thread_self(void) { return pthread_self(); }
static inline bool weir__thread_equal(weir__thread_id a, weir__thread_id b) { return pthread_equal(a, b); }
static inline void weir__thread_yield(void) { sched_yield(); }

/* A value per thread; the destructor gets it when the thread ends. The calls that can fail return 0 or an errno
 * value. */
typedef pthread_key_t weir__thread_key;

static inline int weir__thread_key_create(weir__thread_key *key, void (*destructor)(void *value)) {
  return pthread_key_create(key, destructor);
}
static inline void weir__thread_key_delete(weir__thread_key key) { pthread_key_delete(key); }
static inline void *weir__thread_key_get(weir__thread_key key) { return pthread_getspecific(key); }
static inline int weir__thread_key_set(weir__thread_key key, void *value) { return pthread_setspecific(key, value); }

/* ---- Processes ---- */

/* Runs `before` ahead of every fork, in reverse order of registration, and the others after it in their process.
 *
 * Called by a function that runs when the library is loaded (WEIR__AT_LOAD). A registration at the first use could come
 * while another thread forks, after the handlers have run: the lock that the first use takes next would then be held in
 * the child, where no thread releases it. */
static inline void weir__at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  pthread_atfork(before, in_parent, in_child);
}

static inline int weir__process_id(void) { return (int)getpid(); }

#else

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* most of these do nothing */

/* How often it is locked. Of one thread, only a trylock can find it locked. */
typedef struct weir__mutex {
  int depth;
} weir__mutex;
#define WEIR__MUTEX_INIT                                                                                               \
  { 0 }
#define WEIR__RECURSIVE_MUTEX_INIT WEIR__MUTEX_INIT

static inline void weir__mutex_init(weir__mutex *mutex) { mutex->depth = 0; }
static inline void weir__mutex_destroy(weir__mutex *mutex) { (void)mutex; }
static inline void weir__mutex_lock(weir__mutex *mutex) { mutex->depth++; }
static inline bool weir__mutex_trylock(weir__mutex *mutex) { return mutex->depth ? false : ++mutex->depth; }
static inline void weir__mutex_unlock(weir__mutex *mutex) { mutex->depth--; }
static inline bool weir__mutex_lock_until(weir__mutex *mutex, uint64_t deadline_ns) {
  return weir__mutex_trylock(mutex);
}

typedef struct weir__cond {
  char unused;
} weir__cond;

static inline void weir__cond_init(weir__cond *cond) { (void)cond; }
static inline void weir__cond_destroy(weir__cond *cond) { (void)cond; }
static inline void weir__cond_signal(weir__cond *cond) { (void)cond; }
static inline void weir__cond_broadcast(weir__cond *cond) { (void)cond; }
static inline void weir__cond_wait(weir__cond *cond, weir__mutex *mutex) { abort(); }
static inline bool weir__cond_wait_until(weir__cond *cond, weir__mutex *mutex, uint64_t deadline_ns) { return false; }

typedef struct weir__semaphore {
  int count;
} weir__semaphore;

static inline void weir__semaphore_init(weir__semaphore *semaphore) { semaphore->count = 0; }
static inline void weir__semaphore_post(weir__semaphore *semaphore) { semaphore->count++; }
static inline void weir__semaphore_wait(weir__semaphore *semaphore) {
  if (!semaphore->count--)
    abort();
}

typedef struct weir__once_flag {
  bool is_done;
} weir__once_flag;
#define WEIR__ONCE_INIT                                                                                                \
  { false }

static inline void weir__once(weir__once_flag *flag, void (*run)(void)) {
  if (!flag->is_done) {
    flag->is_done = true;
    run();
  }
}

typedef int weir__thread_id;

static inline int weir__thread_start(weir__thread_id *thread, void *(*run)(void *), void *argument) { return ENOSYS; }
static inline int weir__thread_start_quiet(weir__thread_id *thread, void *(*run)(void *), void *argument) {
  return weir__thread_start(thread, run, argument);
}
static inline void weir__thread_join(weir__thread_id thread) { (void)thread; }
static inline void weir__thread_detach(weir__thread_id thread) { (void)thread; }
static inline weir__thread_id weir__thread_self(void) { return 1; }
static inline bool weir__thread_equal(weir__thread_id a, weir__thread_id b) { return a == b; }
static inline void weir__thread_yield(void) {}

/* The only thread ends with the process, when no destructor is needed. */
typedef struct weir__thread_key {
  void **value;
} weir__thread_key;

static inline int weir__thread_key_create(weir__thread_key *key, void (*destructor)(void *value)) {
  key->value = calloc(1, sizeof *key->value);
  return key->value ? 0 : ENOMEM;
}
static inline void weir__thread_key_delete(weir__thread_key key) { free(key.value); }
static inline void *weir__thread_key_get(weir__thread_key key) { return *key.value; }
static inline int weir__thread_key_set(weir__thread_key key, void *value) {
  *key.value = value;
  return 0;
}

static inline void weir__at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {}

static inline int weir__process_id(void) { return 1; }

#pragma GCC diagnostic pop

#endif

/* How many processors the process may run on, at least 1. */
unsigned weir__processor_count(void);

/* The calling thread's stack, from its lowest address to its end; false if the system does not tell. */
bool weir__thread_stack(uintptr_t *begin, uintptr_t *end);
