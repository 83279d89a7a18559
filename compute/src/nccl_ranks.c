#include "src/nccl_ranks.h"
#include "src/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, POLL_NS = 5000000, SPINS = 100 };

/* The contents of an id. */
typedef struct ticket {
  char magic[16];
  int32_t process, file;
  uint64_t secret[2];
} ticket;
#define ID_MAGIC "weir nccl id 1"
#define FILE_MAGIC "weir nccl 1"
#define FILE_NAME "weir-nccl"

_Static_assert(sizeof(ticket) <= sizeof(weir_nccl_unique_id), "a ticket fits an id");
_Static_assert(sizeof(weir__nccl_header) <= PAGE && sizeof(weir__nccl_slot) <= PAGE, "they fit a page");

void (*weir__nccl_on_step)(void);

/* ---- The places in the file ---- */

static size_t slots_end(int ranks) { return PAGE + (size_t)ranks * PAGE; }
static size_t stages_end(int ranks) { return slots_end(ranks) + (size_t)ranks * 2 * WEIR__NCCL_STAGE_BYTES; }
static size_t file_bytes(int ranks) {
  return stages_end(ranks) + (size_t)ranks * (size_t)ranks * (PAGE + WEIR__NCCL_MAIL_BYTES);
}

weir__nccl_slot *weir__nccl_slot_of(const weir__nccl_ranks *ranks, int rank) {
  return (weir__nccl_slot *)(ranks->base + PAGE + (size_t)rank * PAGE);
}

unsigned char *weir__nccl_stage_of(const weir__nccl_ranks *ranks, int rank) {
  return ranks->base + slots_end(ranks->ranks) + (size_t)rank * 2 * WEIR__NCCL_STAGE_BYTES;
}

unsigned char *weir__nccl_result_of(const weir__nccl_ranks *ranks, int rank) {
  return weir__nccl_stage_of(ranks, rank) + WEIR__NCCL_STAGE_BYTES;
}

weir__nccl_mailbox *weir__nccl_mailbox_of(const weir__nccl_ranks *ranks, int from, int to) {
  size_t index = (size_t)from * (size_t)ranks->ranks + (size_t)to;
  return (weir__nccl_mailbox *)(ranks->base + stages_end(ranks->ranks) + index * (PAGE + WEIR__NCCL_MAIL_BYTES));
}

unsigned char *weir__nccl_mail_of(const weir__nccl_mailbox *mailbox) { return (unsigned char *)mailbox + PAGE; }

uint64_t weir__nccl_ranks_bytes(const weir__nccl_ranks *ranks) { return stages_end(ranks->ranks); }

/* ---- Ids ---- */

/* The files of ids of this process that are still to be opened. */
typedef struct open_id {
  int file, process;
  uint64_t secret[2];
} open_id;

static pthread_mutex_t ids_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */
static open_id *ids;
static size_t id_count, id_room;

/* Whether no rank needs to open the file any more: all have, or the communicator has failed. */
static bool is_used_up(int file) {
  struct stat about;
  weir__nccl_ranks all = {0};
  if (fstat(file, &about) || about.st_size <= PAGE || !(all.base = weir__shared_map(file, (size_t)about.st_size)))
    return false;
  const weir__nccl_header *header = (const weir__nccl_header *)all.base;
  uint32_t ranks = atomic_load(&header->ranks);
  bool is_complete = ranks && ranks < (uint64_t)about.st_size / PAGE;
  for (uint32_t i = 0; i < ranks && is_complete; i++)
    is_complete = atomic_load(&weir__nccl_slot_of(&all, (int)i)->presence) != WEIR__NCCL_ABSENT;
  bool has_failed = atomic_load(&header->failed) != 0;
  munmap(all.base, (size_t)about.st_size);
  return is_complete || has_failed;
}

/* A process that makes ids for others is not told when they have been used. `ids_lock` is held. */
static void close_used_ids(void) {
  for (size_t i = id_count; i-- > 0;)
    if (is_used_up(ids[i].file)) {
      close(ids[i].file);
      ids[i] = ids[--id_count];
    }
}

weir_status weir__nccl_ranks_new_id(const char *caller, weir_nccl_unique_id *id) {
  ticket made = {.magic = ID_MAGIC, .process = (int)getpid()};
  weir__nccl_header *header = NULL;
  made.file = weir__shared_file(FILE_NAME, PAGE);
  if (made.file >= 0 && getrandom(made.secret, sizeof made.secret, GRND_NONBLOCK) == (ssize_t)sizeof made.secret)
    header = weir__shared_map(made.file, PAGE);
  if (!header) {
    int reason = errno;
    if (made.file >= 0)
      close(made.file);
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: no memory to share could be made: %s", caller, strerror(reason));
  }
  memcpy(header->magic, FILE_MAGIC, sizeof FILE_MAGIC);
  memcpy(header->secret, made.secret, sizeof header->secret);
  munmap(header, PAGE);
  pthread_mutex_lock(&ids_lock);
  close_used_ids();
  bool is_kept = WEIR__RESERVE(ids, id_room, id_count + 1);
  if (is_kept)
    ids[id_count++] = (open_id){made.file, made.process, {made.secret[0], made.secret[1]}};
  pthread_mutex_unlock(&ids_lock);
  if (!is_kept) {
    close(made.file);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the id", caller);
  }
  memset(id, 0, sizeof *id);
  memcpy(id, &made, sizeof made);
  return WEIR_OK;
}

/* All ranks have the file open. */
static void forget_id(const uint64_t secret[2]) {
  pthread_mutex_lock(&ids_lock);
  for (size_t i = 0; i < id_count; i++)
    if (!memcmp(ids[i].secret, secret, sizeof ids[i].secret)) {
      close(ids[i].file);
      ids[i] = ids[--id_count];
      break;
    }
  pthread_mutex_unlock(&ids_lock);
}

void weir__nccl_ranks_end(void) {
  pthread_mutex_lock(&ids_lock);
  for (size_t i = 0; i < id_count; i++)
    close(ids[i].file);
  free(ids);
  ids = NULL;
  id_count = id_room = 0;
  pthread_mutex_unlock(&ids_lock);
}

static weir_status open_file(const char *caller, const ticket *of, int *file) {
  if (memcmp(of->magic, ID_MAGIC, sizeof ID_MAGIC) != 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the id is not one of weir_nccl_get_unique_id on the software device", caller);
  char path[64], target[64] = "";
  snprintf(path, sizeof path, "/proc/%d/fd/%d", of->process, of->file);
  ssize_t length = readlink(path, target, sizeof target - 1);
  *file = -1;
  if (length > 0 && !strncmp(target, "/memfd:" FILE_NAME, sizeof "/memfd:" FILE_NAME - 1))
    *file = open(path, O_RDWR | O_CLOEXEC);
  struct stat about;
  bool has_header = *file >= 0 && !fstat(*file, &about) && about.st_size >= PAGE;
  weir__nccl_header *header = has_header ? weir__shared_map(*file, PAGE) : NULL;
  bool is_it = header && !memcmp(header->magic, FILE_MAGIC, sizeof FILE_MAGIC) &&
               !memcmp(header->secret, of->secret, sizeof of->secret);
  if (header)
    munmap(header, PAGE);
  if (is_it)
    return WEIR_OK;
  if (*file >= 0)
    close(*file);
  return weir__fail(
      WEIR_ERROR_REMOTE,
      "%s: the communicator of this id cannot be joined: process %d, which made the id, has ended, or all "
      "ranks have been created",
      caller, of->process);
}

/* ---- Claiming a place ---- */

/* Sets the error of all ranks, unless it is set. */
static void write_error(weir__nccl_header *header, weir_status status, const char *text) {
  uint32_t failed = 0;
  if (atomic_compare_exchange_strong(&header->failed, &failed, 1)) {
    header->status = (int32_t)status;
    weir__nccl_step();
    snprintf(header->text, sizeof header->text, "%s", text);
    atomic_store(&header->has_error, 1);
  }
}

/* The ranks that have joined would wait for this one in vain; they see the error when they next look for dead ranks.
 * It is of no concern to a communicator that is complete. */
static weir_status fail_for_number(const char *caller, const weir_nccl_comm *comm, weir__nccl_ranks *ranks,
                                   uint32_t others) {
  char text[128];
  snprintf(text, sizeof text, "rank %d gives %d ranks, and an earlier rank gave %u", comm->rank, comm->ranks, others);
  if (!is_used_up(ranks->file))
    write_error(ranks->header, WEIR_ERROR_INVALID_ARGUMENT, text);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s", caller, text);
}

static weir_status take_place(const char *caller, weir_nccl_comm *comm, weir__nccl_ranks *ranks) {
  uint32_t others = 0;
  if (!atomic_compare_exchange_strong(&ranks->header->ranks, &others, (uint32_t)comm->ranks) &&
      others != (uint32_t)comm->ranks)
    return fail_for_number(caller, comm, ranks, others);
  if (ftruncate(ranks->file, (off_t)file_bytes(comm->ranks)))
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: no memory to share: %s", caller, strerror(errno));
  munmap(ranks->base, PAGE);
  ranks->bytes = file_bytes(comm->ranks);
  ranks->base = weir__shared_map(ranks->file, ranks->bytes);
  if (!ranks->base)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: the shared memory cannot be mapped: %s", caller, strerror(errno));
  ranks->header = (weir__nccl_header *)ranks->base;
  weir__nccl_slot *slot = weir__nccl_slot_of(ranks, comm->rank);
  int32_t process = 0;
  if (!atomic_compare_exchange_strong(&slot->process, &process, (int)getpid()))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: rank %d of this communicator exists already, in process %d",
                      caller, comm->rank, process);
  slot->device = comm->device;
  if (!weir__peer_start_time((int)getpid(), &slot->started))
    slot->started = 0;
  weir__nccl_step();
  atomic_store(&slot->presence, WEIR__NCCL_PRESENT);
  weir__nccl_ring_all(ranks);
  weir__nccl_step();
  return WEIR_OK;
}

static void free_ranks(weir__nccl_ranks *ranks) {
  if (ranks->base)
    munmap(ranks->base, ranks->bytes);
  for (int i = 0; ranks->processes && i < ranks->ranks; i++)
    if (ranks->processes[i] >= 0)
      close(ranks->processes[i]);
  close(ranks->file);
  free(ranks->processes);
  free(ranks);
}

weir_status weir__nccl_ranks_claim(const char *caller, weir_nccl_comm *comm, weir__nccl_ranks **ranks) {
  ticket of;
  int file = -1;
  memcpy(&of, &comm->id, sizeof of);
  weir_status status = open_file(caller, &of, &file);
  if (status)
    return status;
  weir__nccl_ranks *made = calloc(1, sizeof *made);
  int *processes = malloc((size_t)comm->ranks * sizeof *processes);
  if (!made || !processes) {
    free(made);
    free(processes);
    close(file);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the communicator", caller);
  }
  for (int i = 0; i < comm->ranks; i++)
    processes[i] = -1;
  *made =
      (weir__nccl_ranks){.file = file, .rank = comm->rank, .ranks = comm->ranks, .bytes = PAGE, .processes = processes};
  made->base = weir__shared_map(file, PAGE);
  made->header = (weir__nccl_header *)made->base;
  status = made->base
               ? take_place(caller, comm, made)
               : weir__fail(WEIR_ERROR_SYSTEM, "%s: the shared memory cannot be mapped: %s", caller, strerror(errno));
  if (status)
    free_ranks(made);
  else
    *ranks = made;
  return status;
}

void weir__nccl_ranks_leave(weir__nccl_ranks *ranks) {
  weir__nccl_step();
  atomic_store(&weir__nccl_slot_of(ranks, ranks->rank)->presence, WEIR__NCCL_GONE);
  weir__nccl_ring_all(ranks);
  free_ranks(ranks);
}

/* ---- Bells ---- */

void weir__nccl_ring(const weir__nccl_ranks *ranks, int rank) {
  weir__nccl_slot *slot = weir__nccl_slot_of(ranks, rank);
  atomic_fetch_add(&slot->bell, 1);
  if (atomic_load(&slot->is_sleeping))
    weir__shared_wake(&slot->bell);
}

void weir__nccl_ring_all(const weir__nccl_ranks *ranks) {
  for (int i = 0; i < ranks->ranks; i++)
    if (i != ranks->rank)
      weir__nccl_ring(ranks, i);
}

/* ---- Errors ---- */

void weir__nccl_list_ranks(const bool *is_in, int ranks, char *text, size_t size) {
  int left = 0;
  size_t at = 0;
  for (int i = 0; i < ranks; i++)
    left += is_in[i];
  const char *between = left == 1 ? "rank " : "ranks ";
  *text = 0;
  for (int i = 0; i < ranks && at < size; i++)
    if (is_in[i]) {
      at += (size_t)snprintf(text + at, size - at, "%s%d", between, i);
      between = --left == 1 ? " and " : ", ";
    }
}

/* Without the name of the communicator's type: that of a reduction is its operation's. */
void weir__nccl_describe(const weir__nccl_work *work, char *text, size_t size) {
  weir__nccl_kind kind = (weir__nccl_kind)work->kind;
  const char *type = weir_dtype_name((weir_dtype)work->dtype), *op = weir_nccl_op_name((weir_nccl_op)work->op);
  char detail[64] = "";
  type = type ? type : "?"; /* of another process, whose numbers may be anything */
  op = op ? op : "?";
  if (kind == WEIR__NCCL_REDUCE)
    snprintf(detail, sizeof detail, " (%s) to rank %d", op, work->peer);
  else if (weir__nccl_is_reduction(kind))
    snprintf(detail, sizeof detail, " (%s)", op);
  else if (kind == WEIR__NCCL_BROADCAST || kind == WEIR__NCCL_RECV)
    snprintf(detail, sizeof detail, " from rank %d", work->peer);
  else if (kind == WEIR__NCCL_SEND)
    snprintf(detail, sizeof detail, " to rank %d", work->peer);
  snprintf(text, size, "%s of %" PRIu64 " %s%s", weir__nccl_kind_name(kind), work->count, type, detail);
}

static bool has_failed(const weir__nccl_ranks *ranks) { return atomic_load(&ranks->header->failed); }

/* Takes over the error of the ranks. The rank that reports it may have died before the text was complete. */
static weir_status adopt_error(weir_nccl_comm *comm) {
  weir__nccl_header *header = comm->shared->header;
  uint64_t deadline = weir__monotonic_ns() + 200000000;
  while (!atomic_load(&header->has_error) && weir__monotonic_ns() < deadline)
    sched_yield();
  if (!atomic_load(&header->has_error))
    return weir__nccl_set_error(comm, WEIR_ERROR_REMOTE, "another rank failed and gave no reason");
  char text[WEIR__NCCL_ERROR_SIZE];
  memcpy(text, header->text, sizeof text); /* other processes can change it */
  text[sizeof text - 1] = 0;
  weir_status status = (weir_status)header->status;
  return weir__nccl_set_error(comm, status == WEIR_OK ? WEIR_ERROR_REMOTE : status, text);
}

void weir__nccl_ranks_fail(weir_nccl_comm *comm, weir_status status, const char *text) {
  write_error(comm->shared->header, status, text);
  weir__nccl_ring_all(comm->shared);
  adopt_error(comm);
}

/* Opens the descriptor of a rank's process; false if the process has ended. Its id may be that of a later process. */
static bool open_process(weir__nccl_ranks *ranks, int rank, int process) {
  uint64_t known = weir__nccl_slot_of(ranks, rank)->started, started;
  ranks->processes[rank] = weir__peer_open(process);
  if (ranks->processes[rank] < 0)
    return errno != ESRCH;
  return !known || !weir__peer_start_time(process, &started) || started == known;
}

/* A rank whose process has ended without leaving; -1 if there is none. */
static int find_dead(weir__nccl_ranks *ranks) {
  for (int i = 0; i < ranks->ranks; i++) {
    weir__nccl_slot *slot = weir__nccl_slot_of(ranks, i);
    int process = atomic_load(&slot->process);
    if (!process || process == (int)getpid() || atomic_load(&slot->presence) == WEIR__NCCL_GONE)
      continue;
    bool is_dead = ranks->processes[i] < 0 && !open_process(ranks, i, process);
    if (!is_dead && ranks->processes[i] >= 0)
      is_dead = weir__peer_has_ended(ranks->processes[i]);
    if (is_dead && atomic_load(&slot->presence) != WEIR__NCCL_GONE)
      return i;
  }
  return -1;
}

static weir_status fail_for_dead(weir_nccl_comm *comm, int rank) {
  char text[128];
  snprintf(text, sizeof text, "rank %d has died (process %d)", rank,
           (int)atomic_load(&weir__nccl_slot_of(comm->shared, rank)->process));
  weir__nccl_ranks_fail(comm, WEIR_ERROR_REMOTE, text);
  return comm->error;
}

void weir__nccl_ranks_check(weir_nccl_comm *comm) {
  if (comm->error)
    return;
  pthread_mutex_lock(&comm->lock); /* one thread at a time opens the descriptors of processes */
  int dead = has_failed(comm->shared) ? -1 : find_dead(comm->shared);
  pthread_mutex_unlock(&comm->lock);
  if (has_failed(comm->shared))
    adopt_error(comm);
  else if (dead >= 0)
    fail_for_dead(comm, dead);
}

/* ---- Waiting ---- */

/* "rank 2 has completed 3 and is in all_reduce of 10 float32 (sum)". */
static void describe_rank(const weir__nccl_ranks *ranks, int rank, char *text, size_t size) {
  const weir__nccl_slot *slot = weir__nccl_slot_of(ranks, rank);
  char work[128];
  int length = snprintf(text, size, "rank %d has completed %" PRIu64, rank, atomic_load(&slot->completed));
  if (atomic_load(&slot->is_busy) && length > 0 && (size_t)length < size) {
    weir__nccl_work current = slot->current;
    weir__nccl_describe(&current, work, sizeof work);
    snprintf(text + length, size - (size_t)length, " and is in %s", work);
  }
}

static weir_status fail_for_time(const weir__nccl_wait *wait, const bool *is_missing) {
  weir_nccl_comm *comm = wait->comm;
  const weir__nccl_ranks *ranks = comm->shared;
  const weir__nccl_slot *own = weir__nccl_slot_of(ranks, ranks->rank);
  char text[WEIR__NCCL_ERROR_SIZE], missing[256], work[128];
  weir__nccl_list_ranks(is_missing, ranks->ranks, missing, sizeof missing);
  size_t at = 0;
  if (!comm->is_joined) {
    snprintf(text, sizeof text, "%s of %d did not join within %.3g s", missing, ranks->ranks,
             (double)comm->timeout_ns / 1e9);
  } else {
    weir__nccl_describe(&own->current, work, sizeof work);
    char how[64] = "was destroyed while it waited";
    if (!comm->is_ending)
      snprintf(how, sizeof how, "has waited %.3g s", (double)comm->timeout_ns / 1e9);
    at = (size_t)snprintf(text, sizeof text, "rank %d %s for %s in operation %" PRIu64 ", %s", ranks->rank, how,
                          missing, atomic_load(&own->completed) + 1, work);
    for (int i = 0; i < ranks->ranks && at + 2 < sizeof text; i++)
      if (is_missing[i] && i != ranks->rank) {
        char state[200];
        describe_rank(ranks, i, state, sizeof state);
        at += (size_t)snprintf(text + at, sizeof text - at, "; %s", state);
      }
  }
  weir__nccl_ranks_fail(comm, WEIR_ERROR_TIMEOUT, text);
  return comm->error;
}

/* A rank that it waits for has left. */
static weir_status fail_for_gone(const weir__nccl_wait *wait, int rank) {
  const weir__nccl_ranks *ranks = wait->comm->shared;
  char text[512], work[128], state[64];
  weir__nccl_describe(&weir__nccl_slot_of(ranks, ranks->rank)->current, work, sizeof work);
  snprintf(state, sizeof state, "%" PRIu64, atomic_load(&weir__nccl_slot_of(ranks, rank)->completed));
  snprintf(text, sizeof text,
           "rank %d has destroyed its communicator after %s operations, and rank %d waits for it in %s", rank, state,
           ranks->rank, wait->comm->is_joined ? work : "the creation");
  weir__nccl_ranks_fail(wait->comm, WEIR_ERROR_REMOTE, text);
  return wait->comm->error;
}

/* Whether there is something to do after all. What another rank did before it left is visible here. */
static bool can_go_on(const weir__nccl_wait *wait) {
  return wait->is_done(wait->context) || (wait->progress && wait->progress(wait->context));
}

static void list_missing(const weir__nccl_wait *wait, bool *is_missing) {
  memset(is_missing, 0, (size_t)wait->comm->ranks * sizeof *is_missing);
  wait->list_missing(wait->context, is_missing);
}

/* A rank that it waits for and that has left; -1 if there is none. */
static int find_gone(const weir__nccl_wait *wait, bool *is_missing) {
  const weir__nccl_ranks *ranks = wait->comm->shared;
  bool is_gone[WEIR_NCCL_MAX_SOFT_RANKS];
  for (int i = 0; i < ranks->ranks; i++)
    is_gone[i] = atomic_load(&weir__nccl_slot_of(ranks, i)->presence) == WEIR__NCCL_GONE;
  if (can_go_on(wait))
    return -1;
  list_missing(wait, is_missing);
  for (int i = 0; i < ranks->ranks; i++)
    if (is_gone[i] && is_missing[i] && i != ranks->rank)
      return i;
  return -1;
}

/* Looks for reasons to give up. */
static weir_status look_around(const weir__nccl_wait *wait, uint64_t begin) {
  weir_nccl_comm *comm = wait->comm;
  bool is_missing[WEIR_NCCL_MAX_SOFT_RANKS];
  weir__nccl_ranks_check(comm);
  if (comm->error)
    return comm->error;
  int gone = find_gone(wait, is_missing);
  if (gone >= 0)
    return fail_for_gone(wait, gone);
  if (!weir__nccl_has_timed_out(comm, begin) || can_go_on(wait))
    return WEIR_OK;
  list_missing(wait, is_missing);
  return fail_for_time(wait, is_missing);
}

weir_status weir__nccl_await(const weir__nccl_wait *wait) {
  weir_nccl_comm *comm = wait->comm;
  weir__nccl_slot *slot = weir__nccl_slot_of(comm->shared, comm->shared->rank);
  uint64_t begin = weir__monotonic_ns(), /* of the latest progress */
      next_ns = 0;
  for (unsigned spins = 0;; spins++) {
    uint32_t bell = atomic_load(&slot->bell);
    if (comm->error)
      return comm->error;
    if (wait->is_done(wait->context))
      return WEIR_OK;
    if (has_failed(comm->shared))
      return adopt_error(comm);
    if (wait->progress && wait->progress(wait->context)) {
      begin = weir__monotonic_ns();
      continue;
    }
    if (spins < SPINS) {
      sched_yield();
      continue;
    }
    atomic_store(&slot->is_sleeping, 1);
    if (atomic_load(&slot->bell) == bell)
      weir__shared_wait(&slot->bell, bell, POLL_NS);
    atomic_store(&slot->is_sleeping, 0);
    if (wait->is_of_program)
      weir__nccl_ask_interrupt(comm, &next_ns);
    weir_status status = look_around(wait, begin);
    if (status)
      return status;
  }
}

/* ---- Joining ---- */

static bool all_have_come(void *context) {
  const weir__nccl_ranks *ranks = context;
  for (int i = 0; i < ranks->ranks; i++)
    if (atomic_load(&weir__nccl_slot_of(ranks, i)->presence) == WEIR__NCCL_ABSENT)
      return false;
  return true;
}

static void list_absent(void *context, bool *is_missing) {
  const weir__nccl_ranks *ranks = context;
  for (int i = 0; i < ranks->ranks; i++)
    is_missing[i] = atomic_load(&weir__nccl_slot_of(ranks, i)->presence) == WEIR__NCCL_ABSENT;
}

/* Two ranks of a process on one device. */
static void check_devices(weir_nccl_comm *comm) {
  const weir__nccl_ranks *ranks = comm->shared;
  for (int i = 0; i < ranks->ranks; i++)
    for (int k = 0; k < i; k++) {
      const weir__nccl_slot *a = weir__nccl_slot_of(ranks, k), *b = weir__nccl_slot_of(ranks, i);
      if (a->process == b->process && a->device == b->device) {
        char text[128];
        snprintf(text, sizeof text, "Duplicate GPU detected : rank %d and rank %d both on device %d", i, k, a->device);
        weir__nccl_ranks_fail(comm, WEIR_ERROR_INVALID_ARGUMENT, text);
        return;
      }
    }
}

weir_status weir__nccl_ranks_join(const char *caller, weir_nccl_comm *comm) {
  weir__nccl_wait wait = {.comm = comm,
                          .is_of_program = true,
                          .context = comm->shared,
                          .is_done = all_have_come,
                          .list_missing = list_absent};
  if (!weir__nccl_await(&wait)) {
    weir__nccl_ranks_check(comm); /* others may have failed or died since they joined */
    check_devices(comm);
    forget_id(comm->shared->header->secret);
  }
  return weir__nccl_check_error(caller, comm);
}
