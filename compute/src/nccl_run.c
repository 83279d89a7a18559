/*
 * The work of one rank of a communicator on the software device: collectives one after the other, in pieces that fit
 * the staging memory, and messages to and from other ranks, which make progress whenever the rank would wait.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/nccl_ranks.h"

/* A message on its way. */
typedef struct mail {
  const weir__nccl_work *work;
  weir__nccl_mailbox *mailbox;
  uint64_t bytes, pieces;
  uint64_t done;  /* pieces that were sent or taken */
  uint64_t first; /* the mailbox's count of pieces before the message; valid once it has begun */
  bool has_begun, is_finished;
} mail;

typedef struct run {
  weir_nccl_comm *comm;
  weir__nccl_ranks *ranks;
  weir__nccl_slot *slot;
  mail *mails;
  size_t mail_count;
} run;

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- Messages ---- */

/* Messages of a direction and peer are sent and taken in their order. */
static bool is_its_turn(const run *r, size_t index) {
  for (size_t i = 0; i < index; i++)
    if (!r->mails[i].is_finished && r->mails[i].mailbox == r->mails[index].mailbox &&
        r->mails[i].work->kind == r->mails[index].work->kind)
      return false;
  return true;
}

static uint64_t piece_bytes(const mail *m, uint64_t piece) {
  return least(WEIR__NCCL_MAIL_BYTES, m->bytes - piece * WEIR__NCCL_MAIL_BYTES);
}

/* A mailbox has one piece at a time. A message is finished when its last piece was taken. */
static bool send_some(run *r, mail *m) {
  uint64_t taken = atomic_load(&m->mailbox->taken);
  if (atomic_load(&m->mailbox->sent) != taken)
    return false;
  if (!m->has_begun) {
    m->has_begun = true;
    m->first = taken;
    m->mailbox->count = m->work->count;
    m->mailbox->dtype = m->work->dtype;
  }
  m->done = taken - m->first;
  if (m->done == m->pieces) {
    m->is_finished = true;
    return true;
  }
  uint64_t at = m->done * WEIR__NCCL_MAIL_BYTES;
  memcpy(weir__nccl_mail_of(m->mailbox), (const char *)(uintptr_t)m->work->send + at, piece_bytes(m, m->done));
  weir__nccl_step();
  atomic_store(&m->mailbox->sent, taken + 1);
  weir__nccl_ring(r->ranks, m->work->peer);
  return true;
}

static bool take_some(run *r, mail *m) {
  uint64_t taken = atomic_load(&m->mailbox->taken);
  if (atomic_load(&m->mailbox->sent) == taken)
    return false;
  if (m->mailbox->count != m->work->count || m->mailbox->dtype != m->work->dtype) {
    char text[512], own[128], theirs[128];
    weir__nccl_work sent = {
        .kind = WEIR__NCCL_SEND, .count = m->mailbox->count, .dtype = m->mailbox->dtype, .peer = r->ranks->rank};
    weir__nccl_describe(m->work, own, sizeof own);
    weir__nccl_describe(&sent, theirs, sizeof theirs);
    snprintf(text, sizeof text, "the ranks' calls differ: %s on rank %d, %s on rank %d", theirs, m->work->peer, own,
             r->ranks->rank);
    weir__nccl_ranks_fail(r->comm, WEIR_ERROR_INVALID_ARGUMENT, text);
    return true;
  }
  uint64_t at = m->done * WEIR__NCCL_MAIL_BYTES;
  memcpy((char *)(uintptr_t)m->work->recv + at, weir__nccl_mail_of(m->mailbox), piece_bytes(m, m->done));
  m->is_finished = ++m->done == m->pieces;
  weir__nccl_step();
  atomic_store(&m->mailbox->taken, taken + 1);
  weir__nccl_ring(r->ranks, m->work->peer);
  return true;
}

static bool move_mail(void *context) {
  run *r = context;
  bool has_moved = false;
  for (size_t i = 0; i < r->mail_count && !r->comm->error; i++) {
    mail *m = &r->mails[i];
    if (m->is_finished || !is_its_turn(r, i))
      continue;
    has_moved |= m->work->kind == WEIR__NCCL_SEND ? send_some(r, m) : take_some(r, m);
    if (m->is_finished)
      atomic_fetch_add(&r->slot->completed, 1);
  }
  return has_moved;
}

static const mail *first_unfinished(const run *r) {
  for (size_t i = 0; i < r->mail_count; i++)
    if (!r->mails[i].is_finished)
      return &r->mails[i];
  return NULL;
}

static bool all_mail_is_done(void *context) {
  const run *r = context;
  const mail *next = first_unfinished(r);
  if (next)
    r->slot->current = *next->work;
  return !next;
}

static void list_peers(void *context, bool *is_missing) {
  const run *r = context;
  for (size_t i = 0; i < r->mail_count; i++)
    if (!r->mails[i].is_finished)
      is_missing[r->mails[i].work->peer] = true;
}

/* ---- Barriers ---- */

static bool all_have_arrived(void *context) {
  const run *r = context;
  for (int i = 0; i < r->ranks->ranks; i++)
    if (atomic_load(&weir__nccl_slot_of(r->ranks, i)->phase) < r->ranks->phase)
      return false;
  return true;
}

static void list_late(void *context, bool *is_missing) {
  const run *r = context;
  for (int i = 0; i < r->ranks->ranks; i++)
    is_missing[i] = atomic_load(&weir__nccl_slot_of(r->ranks, i)->phase) < r->ranks->phase;
}

static weir_status meet(run *r) {
  weir__nccl_step();
  atomic_store(&r->slot->phase, ++r->ranks->phase);
  weir__nccl_step();
  weir__nccl_ring_all(r->ranks);
  weir__nccl_wait wait = {.comm = r->comm,
                          .context = r,
                          .is_done = all_have_arrived,
                          .progress = r->mail_count ? move_mail : NULL,
                          .list_missing = list_late};
  return weir__nccl_await(&wait);
}

/* ---- Collectives ---- */

static bool is_same_call(const weir__nccl_work *a, const weir__nccl_work *b) {
  return a->kind == b->kind && a->count == b->count && a->dtype == b->dtype && a->peer == b->peer &&
         (a->op == b->op || !weir__nccl_is_reduction((weir__nccl_kind)a->kind));
}

/* Every rank has announced its call: they must be the same. */
static weir_status compare_calls(run *r) {
  int count = r->ranks->ranks;
  bool is_listed[WEIR_NCCL_MAX_SOFT_RANKS] = {false}, is_same = true;
  const weir__nccl_work *own = &r->slot->current;
  for (int i = 0; i < count; i++)
    is_same = is_same && is_same_call(own, &weir__nccl_slot_of(r->ranks, i)->current);
  if (is_same)
    return WEIR_OK;
  char text[WEIR__NCCL_ERROR_SIZE];
  size_t at = (size_t)snprintf(text, sizeof text, "the ranks' calls differ in operation %" PRIu64 ": ",
                               atomic_load(&r->slot->completed) + 1);
  const char *between = "";
  for (int i = 0; i < count && at < sizeof text; i++) {
    if (is_listed[i])
      continue;
    const weir__nccl_work *work = &weir__nccl_slot_of(r->ranks, i)->current;
    bool is_in[WEIR_NCCL_MAX_SOFT_RANKS] = {false};
    for (int k = i; k < count; k++)
      if (is_same_call(work, &weir__nccl_slot_of(r->ranks, k)->current))
        is_in[k] = is_listed[k] = true;
    char call[128], ranks[256];
    weir__nccl_describe(work, call, sizeof call);
    weir__nccl_list_ranks(is_in, count, ranks, sizeof ranks);
    at += (size_t)snprintf(text + at, sizeof text - at, "%s%s on %s", between, call, ranks);
    between = "; ";
  }
  weir__nccl_ranks_fail(r->comm, WEIR_ERROR_INVALID_ARGUMENT, text);
  return r->comm->error;
}

/* A piece of a collective: `elements` from element `at` on. */
typedef struct piece {
  const weir__nccl_work *work;
  size_t element; /* bytes */
  uint64_t at, elements;
} piece;

static void copy(void *to, const void *from, uint64_t bytes) {
  if (bytes && to != from)
    memmove(to, from, bytes);
}

/* Puts what other ranks need of this rank into its staging memory. */
static void stage(run *r, const piece *p) {
  unsigned char *to = weir__nccl_stage_of(r->ranks, r->ranks->rank);
  const char *send = (const char *)(uintptr_t)p->work->send;
  uint64_t bytes = p->elements * p->element;
  if (p->work->kind == WEIR__NCCL_BROADCAST && p->work->peer != r->ranks->rank)
    return;
  if (p->work->kind != WEIR__NCCL_REDUCE_SCATTER) {
    copy(to, send + p->at * p->element, bytes);
    return;
  }
  for (int i = 0; i < r->ranks->ranks; i++)
    copy(to + (uint64_t)i * bytes, send + ((uint64_t)i * p->work->count + p->at) * p->element, bytes);
}

/* Combines the elements from `first` on of all staging memories. */
static void combine(run *r, const piece *p, uint64_t first, uint64_t count, void *out) {
  const void *sources[WEIR_NCCL_MAX_SOFT_RANKS];
  for (int i = 0; i < r->ranks->ranks; i++)
    sources[i] = weir__nccl_stage_of(r->ranks, i) + first * p->element;
  if (count)
    weir__nccl_combine((weir_dtype)p->work->dtype, (weir_nccl_op)p->work->op, sources, r->ranks->ranks, count, out);
}

/* Each rank combines a slice of the piece, and those that need the results collect them. */
static weir_status reduce_slices(run *r, const piece *p) {
  uint64_t ranks = (uint64_t)r->ranks->ranks, rank = (uint64_t)r->ranks->rank;
  uint64_t begin = p->elements * rank / ranks, end = p->elements * (rank + 1) / ranks;
  combine(r, p, begin, end - begin, weir__nccl_result_of(r->ranks, r->ranks->rank) + begin * p->element);
  weir_status status = meet(r);
  if (status || (p->work->kind == WEIR__NCCL_REDUCE && p->work->peer != r->ranks->rank))
    return status;
  char *recv = (char *)(uintptr_t)p->work->recv + p->at * p->element;
  for (uint64_t i = 0; i < ranks; i++) {
    begin = p->elements * i / ranks;
    end = p->elements * (i + 1) / ranks;
    copy(recv + begin * p->element, weir__nccl_result_of(r->ranks, (int)i) + begin * p->element,
         (end - begin) * p->element);
  }
  return WEIR_OK;
}

/* After all have staged. */
static weir_status finish_piece(run *r, const piece *p) {
  char *recv = (char *)(uintptr_t)p->work->recv;
  uint64_t at = p->at * p->element, bytes = p->elements * p->element;
  switch ((weir__nccl_kind)p->work->kind) {
  case WEIR__NCCL_ALL_REDUCE:
  case WEIR__NCCL_REDUCE:
    return reduce_slices(r, p);
  case WEIR__NCCL_BROADCAST:
    if (r->ranks->rank == p->work->peer)
      copy(recv + at, (const char *)(uintptr_t)p->work->send + at, bytes);
    else
      copy(recv + at, weir__nccl_stage_of(r->ranks, p->work->peer), bytes);
    break;
  case WEIR__NCCL_ALL_GATHER:
    for (int i = 0; i < r->ranks->ranks; i++)
      copy(recv + (uint64_t)i * p->work->count * p->element + at, weir__nccl_stage_of(r->ranks, i), bytes);
    break;
  case WEIR__NCCL_REDUCE_SCATTER:
    combine(r, p, (uint64_t)r->ranks->rank * p->elements, p->elements, recv + at);
    break;
  default:
    break;
  }
  return meet(r); /* the staging memories are free again */
}

static void run_collective(run *r, const weir__nccl_work *work) {
  piece p = {.work = work, .element = weir_dtype_size((weir_dtype)work->dtype)};
  uint64_t room = WEIR__NCCL_STAGE_BYTES / p.element;
  if (work->kind == WEIR__NCCL_REDUCE_SCATTER)
    room /= (uint64_t)r->ranks->ranks;
  r->slot->current = *work;
  weir_status status;
  do {
    p.elements = least(room, work->count - p.at);
    stage(r, &p);
    status = meet(r);
    if (!status && !p.at)
      status = compare_calls(r);
    if (!status)
      status = finish_piece(r, &p);
    p.at += p.elements;
  } while (!status && p.at < work->count);
  if (!status)
    atomic_fetch_add(&r->slot->completed, 1);
}

/* ---- Batches ---- */

static void add_mail(run *r, const weir__nccl_work *work) {
  bool is_send = work->kind == WEIR__NCCL_SEND;
  uint64_t bytes = work->count * weir_dtype_size((weir_dtype)work->dtype);
  r->mails[r->mail_count++] = (mail){
      .work = work,
      .mailbox = is_send ? weir__nccl_mailbox_of(r->ranks, r->ranks->rank, work->peer)
                         : weir__nccl_mailbox_of(r->ranks, work->peer, r->ranks->rank),
      .bytes = bytes,
      .pieces = bytes ? (bytes + WEIR__NCCL_MAIL_BYTES - 1) / WEIR__NCCL_MAIL_BYTES : 1,
  };
}

void weir__nccl_ranks_run(weir_nccl_comm *comm, const weir__nccl_work *works, size_t count) {
  pthread_mutex_lock(&comm->run_lock);
  run r = {.comm = comm, .ranks = comm->shared, .slot = weir__nccl_slot_of(comm->shared, comm->shared->rank)};
  size_t mails = 0;
  for (size_t i = 0; i < count; i++)
    mails += weir__nccl_is_mail((weir__nccl_kind)works[i].kind);
  r.mails = mails ? malloc(mails * sizeof *r.mails) : NULL;
  if (mails && !r.mails)
    weir__nccl_ranks_fail(comm, WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the messages of a group");
  atomic_store(&r.slot->is_busy, 1);
  for (size_t i = 0; i < count && r.mails; i++)
    if (weir__nccl_is_mail((weir__nccl_kind)works[i].kind))
      add_mail(&r, &works[i]);
  for (size_t i = 0; i < count && !comm->error; i++)
    if (!weir__nccl_is_mail((weir__nccl_kind)works[i].kind))
      run_collective(&r, &works[i]);
  if (r.mail_count && !comm->error) {
    weir__nccl_wait wait = {
        .comm = comm, .context = &r, .is_done = all_mail_is_done, .progress = move_mail, .list_missing = list_peers};
    weir__nccl_await(&wait);
  }
  atomic_store(&r.slot->is_busy, 0);
  free(r.mails);
  pthread_mutex_unlock(&comm->run_lock);
}
