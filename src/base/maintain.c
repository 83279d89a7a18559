#include "base/maintain.h"

#include "base/base.h"
#include "base/clock.h"
#include "weir/maintain.h"

typedef enum worker_state { NO_WORKER, WORKS, ENDS } worker_state;

static weir__mutex lock = WEIR__MUTEX_INIT; /* guards what follows; no other lock is acquired under it */
static weir__cond changed;                  /* a task became due or returned, or the worker's state changed */
static bool has_cond;
static weir__task *tasks;
static weir__task *running;
static uint64_t passes;
static bool is_woken; /* since the worker last looked */
static bool wants_worker = true;
static worker_state worker;
static weir__thread_id thread;

static void lock_all(void) {
  weir__mutex_lock(&lock);
  if (!has_cond)
    weir__cond_init(&changed);
  has_cond = true;
}

static void unlock_all(void) { weir__mutex_unlock(&lock); }

/* Threads of the parent waited for the condition, so it is made anew. */
static void begin_child(void) {
  tasks = running = NULL;
  worker = NO_WORKER;
  has_cond = false;
  weir__mutex_unlock(&lock);
}

WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void watch_forks(void) { weir__at_fork(lock_all, unlock_all, begin_child); }

static weir__task *next_due(uint64_t now, uint64_t pass) {
  weir__task *task = tasks;
  while (task && (task->pass == pass || atomic_load(&task->due) > now))
    task = task->next;
  return task;
}

uint64_t weir__tasks_run(uint64_t now) {
  uint64_t next = WEIR__NO_DEADLINE;
  lock_all();
  const uint64_t pass = ++passes;
  for (weir__task *task; (task = next_due(now, pass));) {
    if (running) { /* by another thread */
      weir__cond_wait(&changed, &lock);
      continue;
    }
    running = task;
    task->pass = pass;
    atomic_store(&task->due, WEIR__NO_DEADLINE); /* from here on it can be woken for the pass after this one */
    unlock_all();
    uint64_t again = task->run(task->context, now);
    lock_all();
    if (again < atomic_load(&task->due))
      atomic_store(&task->due, again);
    running = NULL;
    weir__cond_broadcast(&changed);
  }
  for (const weir__task *task = tasks; task; task = task->next)
    next = atomic_load(&task->due) < next ? atomic_load(&task->due) : next;
  unlock_all();
  return next;
}

static void *work(void *unused) {
  (void)unused;
  lock_all();
  while (worker == WORKS) {
    is_woken = false;
    unlock_all();
    uint64_t next = weir__tasks_run(weir__monotonic_ns());
    lock_all();
    while (worker == WORKS && !is_woken)
      if (next == WEIR__NO_DEADLINE)
        weir__cond_wait(&changed, &lock);
      else if (!weir__cond_wait_until(&changed, &lock, next))
        break;
  }
  unlock_all();
  return NULL;
}

bool weir__task_add(weir__task *task) {
  lock_all();
  while (worker == ENDS)
    weir__cond_wait(&changed, &lock);
  bool done = worker == WORKS || !wants_worker || weir__thread_start_quiet(&thread, work, NULL) == 0;
  if (done) {
    worker = wants_worker ? WORKS : worker;
    atomic_store(&task->due, WEIR__NO_DEADLINE);
    task->pass = 0;
    task->next = tasks;
    tasks = task;
  }
  unlock_all();
  return done;
}

void weir__task_remove(weir__task *task) {
  lock_all();
  weir__task **at = &tasks;
  while (*at && *at != task)
    at = &(*at)->next;
  if (*at) {
    *at = task->next;
    while (running == task)
      weir__cond_wait(&changed, &lock);
  }
  bool is_last = !tasks && worker == WORKS;
  weir__thread_id ended = thread;
  if (is_last) {
    worker = ENDS;
    weir__cond_broadcast(&changed);
    unlock_all();
    weir__thread_join(ended);
    lock_all();
    worker = NO_WORKER;
    weir__cond_broadcast(&changed);
  }
  unlock_all();
}

void weir__task_wake(weir__task *task) {
  if (atomic_load(&task->due) != WEIR__NO_DEADLINE)
    return;
  lock_all();
  atomic_store(&task->due, 0);
  is_woken = true;
  weir__cond_broadcast(&changed);
  unlock_all();
}

void weir_maintain_set_worker(int on) {
  lock_all();
  wants_worker = on != 0;
  unlock_all();
}

uint64_t weir_maintain(void) {
  uint64_t now = weir__monotonic_ns(), next = weir__tasks_run(now);
  return next == WEIR__NO_DEADLINE ? next : next > now ? next - now : 0;
}
