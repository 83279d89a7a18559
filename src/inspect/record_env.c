/*
 * Recording from the environment: WEIR_RECORD names a folder, and every allocator of the process writes a ring file
 * there (record/ring_file.h). A failure is logged once, and the program runs on without a recording.
 */
#include "inspect/record_env.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/allocator.h"
#include "alloc/cache/trace.h"
#include "base/base.h"
#include "base/clock.h"
#include "base/environment.h"
#include "base/system.h"
#include "base/thread.h"
#include "inspect/checkpoint.h"
#include "inspect/guard.h"
#include "inspect/publish.h"
#include "record/ring_file.h"
#include "weir/snapshot.h"

enum { DEFAULT_MB = 256, MAX_FILES = 1000, MAX_DUMPS = 3 };

/* An invalid value is logged, and the default is used. */
static uint64_t bytes_from_env(void) {
  int64_t mb = DEFAULT_MB;
  if (!weir__env_integer(WEIR__ENV_RECORD_MB, &mb))
    weir__env_ignore(WEIR__ENV_RECORD_MB, "the file may grow to 256 MiB");
  return (uint64_t)mb << 20;
}

/* Reads WEIR_RECORD_STACKS: which entries have stacks; ",native" adds native frames to those of a language runtime.
 * Findings of the guard name stacks, so it records all of them. */
static weir_history_context context_from_env(bool is_guarded, weir_history_stacks *stacks) {
  static const char *const names[] = {[WEIR_CONTEXT_NONE] = "none",
                                      [WEIR_CONTEXT_STATE] = "state",
                                      [WEIR_CONTEXT_ALLOC] = "alloc",
                                      [WEIR_CONTEXT_ALL] = "all"};
  const char *text = weir__env_value(WEIR__ENV_RECORD_STACKS);
  *stacks = WEIR_STACKS_EITHER;
  if (!text)
    return is_guarded ? WEIR_CONTEXT_ALL : WEIR_CONTEXT_NONE;
  const char *comma = strchr(text, ',');
  size_t length = comma ? (size_t)(comma - text) : strlen(text);
  for (size_t i = 0; i < WEIR_COUNT_OF(names) && (!comma || strcmp(comma, ",native") == 0); i++)
    if (strlen(names[i]) == length && strncmp(text, names[i], length) == 0) {
      *stacks = comma ? WEIR_STACKS_ALL : WEIR_STACKS_EITHER;
      return (weir_history_context)i;
    }
  weir__env_ignore(WEIR__ENV_RECORD_STACKS, "there are none");
  return WEIR_CONTEXT_NONE;
}

int64_t weir__rank_from_env(void) {
  const char *name = "";
  for (size_t i = 0; name; i++) {
    const char *text = weir__env_named(WEIR__ENV_RANK, i, &name);
    char *end;
    if (!text || !isdigit((unsigned char)*text))
      continue;
    errno = 0;
    long rank = strtol(text, &end, 10);
    if (!*end && !errno)
      return rank;
  }
  return -1;
}

/* Creates a folder, and those above it that are missing, readable by the user alone. 0 or an errno value. */
static int make_folder(const char *folder, char *path) {
  if (mkdir(folder, 0700) == 0 || errno == EEXIST)
    return 0;
  if (errno != ENOENT)
    return errno;
  memcpy(path, folder, strlen(folder) + 1);
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(path, 0700) && errno != EEXIST)
      return errno;
    *slash = '/';
  }
  return mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

/* Creates a file with a name that is not in use: a process may have several allocators, and process ids are reused. */
static weir__ring_file *create_file(const char *folder, int devices) {
  char host[64] = "", rank_text[32] = "";
  weir__host_name(host, sizeof host);
  if (!*host)
    strcpy(host, "host");
  for (char *c = host; *c; c++)
    if (*c == '/')
      *c = '_';
  int64_t rank = weir__rank_from_env();
  if (rank >= 0)
    snprintf(rank_text, sizeof rank_text, "-rank%lld", (long long)rank);
  size_t room = strlen(folder) + 192;
  char *path = malloc(room);
  if (!path) {
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD: not recording: out of host memory");
    return NULL;
  }
  uint64_t bytes = bytes_from_env();
  weir__ring_file *file = NULL;
  int why = make_folder(folder, path);
  for (int i = 1; !file && (!why || why == EEXIST) && i <= MAX_FILES; i++) {
    int length = snprintf(path, room, "%s/weir-%s%s-%ld", folder, host, rank_text, (long)weir__process_id());
    snprintf(path + length, room - (size_t)length, i > 1 ? "-%d.ring" : ".ring", i);
    file = weir__ring_file_create(path, bytes, devices, host, rank, &why);
  }
  if (!file)
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD=%s: not recording: cannot create a file there: %s", folder, strerror(why));
  free(path);
  return file;
}

/* ---- Snapshots beside the file ---- */

/* Blocks SIGXFSZ, so that a file over the size limit of the process is an error and does not kill it. */
static bool save_snapshot(weir_allocator *allocator, const char *path) {
  weir_snapshot *snapshot;
  sigset_t too_large, before, pending;
  if (weir_snapshot_take(allocator, NULL, &snapshot))
    return false;
  sigemptyset(&too_large);
  sigaddset(&too_large, SIGXFSZ);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &too_large, &before);
  weir_status status = weir_snapshot_save(snapshot, WEIR_SNAPSHOT_PICKLE, path);
  if (!sigismember(&pending, SIGXFSZ))
    sigtimedwait(&too_large, NULL, &(struct timespec){0});
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  weir_snapshot_destroy(snapshot);
  return !status;
}

/* Saves a snapshot next to the ring file. */
static void dump(weir_allocator *allocator, const weir__recorder *history, const char *why, int number) {
  const char *ring = history->file->path;
  size_t room = strlen(ring) + 64;
  char *path = malloc(room);
  if (!path)
    return;
  int stem = (int)(strlen(ring) - strlen(".ring"));
  snprintf(path, room, "%.*s-%s-%d.pickle", stem, ring, why, number);
  if (save_snapshot(allocator, path))
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD: %s: wrote a snapshot to %s", why, path);
  else
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD: %s: cannot write a snapshot: %s", why, weir_last_error());
  free(path);
}

static void dump_out_of_memory(weir_allocator *allocator) {
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (!history || !history->devices[0].ring.file)
    return;
  int number = atomic_fetch_add(&history->dumps, 1) + 1;
  if (number <= MAX_DUMPS)
    dump(allocator, history, "oom", number);
}

/* ---- Signals: a handler may do very little, so a service thread writes the snapshots ---- */

/* It is not the worker of base/maintain.h: a thread that aborts in the middle of an operation keeps its locks, for
 * which a task of the worker may be waiting, and the snapshot would be lost. */

typedef struct member {
  struct member *next;
  weir_allocator *allocator;
} member;

static member *members; /* allocators that have a file; guarded by members_lock */
static weir__mutex members_lock = WEIR__MUTEX_INIT;
static weir__semaphore asked; /* wakes the service thread */
static atomic_int last_signal;
static atomic_int asked_count, served_count; /* of signals */
static atomic_bool has_thread;
static pid_t owner; /* the process of the thread, which a fork does not copy; guarded by members_lock */
static struct sigaction before_abort;

static void *serve(void *unused) {
  (void)unused;
  for (;;) {
    weir__semaphore_wait(&asked);
    int number = atomic_load(&asked_count);
    bool is_abort = atomic_load(&last_signal) == SIGABRT;
    bool is_signal = number != atomic_load(&served_count);
    weir__mutex_lock(&members_lock);
    for (member *m = members; m; m = m->next) {
      const weir__recorder *history = atomic_load(&m->allocator->history);
      if (history->devices[0].ring.file)
        weir__ring_file_warn(history->file);
      if (is_signal && history->devices[0].ring.file) /* not the file of the parent process */
        dump(m->allocator, history, is_abort ? "abort" : "signal", number);
      weir__checkpoints_take(m->allocator, false);
    }
    weir__mutex_unlock(&members_lock);
    atomic_store(&served_count, number);
  }
  return NULL;
}

/* Called where a chunk begins, with locks held. The next allocating thread copies a small state itself: that is cheaper
 * than waking the service thread, and arena locks stay biased towards their threads. */
static void on_due(void *context, int device, bool is_urgent) {
  enum { few_blocks = 1000 };
  weir_allocator *allocator = context;
  weir__recorder *history;
  weir__ring_file *file = weir__checkpoint_file(&allocator->heaps[device], &history);
  if (!file)
    return;
  if (atomic_load(&file->warns_of_failure) || atomic_load(&file->warns_of_log))
    weir__semaphore_post(&asked);
  atomic_store(&file->is_due[device], true);
  if (is_urgent || file->blocks[device] < few_blocks || !atomic_load(&has_thread))
    weir__slow_reason_set(&allocator->heaps[device], WEIR__SLOW_CHECKPOINT, true);
  else
    weir__semaphore_post(&asked);
}

/* A thread that aborts waits for the snapshot, but not forever, since it may hold a lock that the service thread needs.
 * Then the previous handler of SIGABRT runs. */
static void on_signal(int number) {
  int saved = errno;
  if (weir__process_id() == owner) {
    atomic_store(&last_signal, number);
    int mine = atomic_fetch_add(&asked_count, 1) + 1;
    weir__semaphore_post(&asked);
    for (int i = 0; number == SIGABRT && i < 500 && atomic_load(&served_count) < mine; i++)
      weir__sleep_ns(10000000);
  }
  if (number == SIGABRT) {
    sigaction(SIGABRT, &before_abort, NULL);
    raise(SIGABRT);
  }
  errno = saved;
}

static int signal_from_env(void) {
  static const int signals[] = {SIGUSR1, SIGUSR2, SIGHUP}; /* as in the table of variables */
  int choice = -1;
  if (!weir__env_choice(WEIR__ENV_RECORD_SIGNAL, &choice))
    weir__env_ignore(WEIR__ENV_RECORD_SIGNAL, "there is none");
  return choice < 0 ? 0 : signals[choice];
}

static void start_service(void) {
  weir__thread_id thread;
  weir__semaphore_init(&asked);
  owner = weir__process_id();
  atomic_store(&served_count, atomic_load(&asked_count));
  int error = weir__thread_start_quiet(&thread, serve, NULL);
  atomic_store(&has_thread, !error);
  if (error) {
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD: no snapshots at an abort or a signal: cannot start a thread: %s",
              strerror(error));
    return;
  }
  weir__thread_detach(thread);
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  struct sigaction before_this;
  sigaction(SIGABRT, &action, &before_this);
  if (before_this.sa_handler != on_signal) /* not already installed, as in the child of a fork */
    before_abort = before_this;
  int chosen = signal_from_env();
  if (chosen)
    sigaction(chosen, &action, NULL);
}

static void lock_members(void) { weir__mutex_lock(&members_lock); }
static void unlock_members(void) { weir__mutex_unlock(&members_lock); }

/* A fork waits until the service thread holds no lock. This handler is registered last, so it waits before any other
 * lock is held for the fork. */
WEIR__AT_LOAD(WEIR__LOAD_SERVICE) void watch_forks(void) {
  weir__at_fork(lock_members, unlock_members, unlock_members);
}

/* A program may end without destroying its allocators. */
static void note_exit(void) {
  lock_members();
  for (const member *m = owner == weir__process_id() ? members : NULL; m; m = m->next) {
    weir__recorder *history = atomic_load_explicit(&m->allocator->history, memory_order_acquire);
    if (history && history->file)
      weir__ring_file_note_exit(history->file);
  }
  unlock_members();
}

static void join(weir_allocator *allocator) {
  static bool has_handler; /* guarded by members_lock */
  member *made = malloc(sizeof *made);
  if (!made)
    return;
  made->allocator = allocator;
  lock_members();
  if (owner != weir__process_id())
    start_service();
  has_handler = has_handler || atexit(note_exit) == 0;
  made->next = members;
  members = made;
  unlock_members();
}

static void leave(weir_allocator *allocator) {
  weir__mutex_lock(&members_lock);
  for (member **at = &members; *at; at = &(*at)->next)
    if ((*at)->allocator == allocator) {
      member *gone = *at;
      *at = gone->next;
      free(gone);
      break;
    }
  weir__mutex_unlock(&members_lock);
}

/* ---- The beginning ---- */

/* Gives an allocator a history whose entries go to a file. false if it has one already, or without host memory: then
 * the file is the caller's. */
static bool begin_history(weir_allocator *allocator, weir__ring_file *file, const weir__recording_hooks *hooks) {
  weir__recorder *history = weir__recorder_new(allocator->heap_count);
  if (!history)
    return false;
  weir__recorder_set_file(history, file);
  weir__mutex_lock(&allocator->configure_lock);
  bool is_first = !atomic_load(&allocator->history);
  if (is_first) {
    atomic_store(&allocator->hooks, hooks);
    if (!allocator->backend) { /* the memory of other back ends is not replayed */
      file->due = on_due;
      file->due_context = allocator;
    }
    atomic_store_explicit(&allocator->history, history, memory_order_release);
  }
  weir__mutex_unlock(&allocator->configure_lock);
  if (!is_first) {
    weir__recorder_set_file(history, NULL);
    weir__recorder_delete(history);
    return false;
  }
  weir__trace_settings(allocator);
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__mutex_lock(&allocator->heaps[i].lock);
    file->header->devices[i].memory = allocator->heaps[i].total;
    weir__trace_limit(&allocator->heaps[i]);
    weir__mutex_unlock(&allocator->heaps[i].lock);
  }
  return true;
}

static void record_from_env(weir_allocator *allocator) {
  static const weir__recording_hooks hooks = {
      .checkpoint = weir__checkpoint_take_due, .out_of_memory = dump_out_of_memory, .end = leave};
  const char *folder = weir__env_value(WEIR__ENV_RECORD);
  if (!folder)
    return;
  if (allocator->heap_count < 1 || allocator->heap_count > WEIR__RING_DEVICES) {
    weir__log(WEIR_LOG_WARN, "WEIR_RECORD: not recording: %d devices, and a file has room for 1 to %d",
              allocator->heap_count, (int)WEIR__RING_DEVICES);
    return;
  }
  weir__ring_file *file = create_file(folder, allocator->heap_count);
  if (!file)
    return;
  if (!begin_history(allocator, file, &hooks)) {
    unlink(file->path);
    weir__ring_file_close(file);
    return;
  }
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = context_from_env(allocator->guard != NULL, &options.stacks);
  options.max_entries = weir__ring_file_capacity(file);
  join(allocator);
  weir_history_record(allocator, &options);
  weir__log(WEIR_LOG_INFO, "WEIR_RECORD: recording to %s", file->path);
}

/* ---- On request ---- */

static void end_nothing(weir_allocator *allocator) { (void)allocator; }

const char *weir__record_start(weir_allocator *allocator, const char *path, uint64_t bytes,
                               const weir_history_options *given) {
  static const weir__recording_hooks hooks = {
      .checkpoint = weir__checkpoint_take_due, .out_of_memory = weir__record_stop, .end = end_nothing};
  char host[64] = "";
  int why = 0;
  if (atomic_load(&allocator->history))
    return "it keeps a history already, or was recorded before";
  if (allocator->heap_count < 1 || allocator->heap_count > WEIR__RING_DEVICES)
    return "it has more devices than a file has room for";
  weir__host_name(host, sizeof host);
  weir__ring_file *file = weir__ring_file_create(path, bytes, allocator->heap_count, host, weir__rank_from_env(), &why);
  if (!file)
    return why == EEXIST   ? "the file exists already"
           : why == ENOMEM ? "out of host memory"
                           : "it cannot create a file there";
  if (!begin_history(allocator, file, &hooks)) {
    unlink(path);
    weir__ring_file_close(file);
    return "it keeps a history already";
  }
  weir_history_options options = *given;
  options.max_entries = weir__ring_file_capacity(file);
  weir_history_record(allocator, &options);
  return NULL;
}

/* Threads that began an operation before may still write its entry. */
void weir__record_stop(weir_allocator *allocator) {
  weir__recorder *history = atomic_load(&allocator->history);
  if (!history || !history->file || !weir__recorder_is_on(history))
    return;
  weir__recorder_stop(history);
  weir__update_tracing(allocator);
  weir__ring_file_stop(history->file);
}

bool weir__record_has_stopped(const weir_allocator *allocator) {
  const weir__recorder *history = atomic_load(&allocator->history);
  return history && history->file && atomic_load(&history->file->header->ended) == WEIR__RING_CLOSED;
}

/* The public way to make an allocator is here because only this layer can record. */
weir_status weir_allocator_create(weir_driver *driver, const weir_allocator_options *options,
                                  weir_allocator **allocator) {
  WEIR__CHECK_ARGUMENT(driver);
  WEIR__CHECK_ARGUMENT(allocator);
  weir_allocator *made;
  weir_status status = weir__allocator_new(__func__, driver, options, &made);
  if (status)
    return status;
  status = weir__guard_begin(made, weir__guard_report);
  if (status) {
    weir_allocator_destroy(made);
    return weir__fail(status, "%s: %s", __func__, weir_last_error());
  }
  record_from_env(made);
  weir__guard_record(made);
  weir__publish_begin(made);
  *allocator = made;
  return WEIR_OK;
}
