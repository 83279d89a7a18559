/*
 * Random programs in stepped time, compared with a simple model: a queue per stream, and the time at which each work
 * item ran. After every call the device must match the model: what ran, in which order, what is pending, and the time.
 */
#include <inttypes.h>
#include <string.h>

#include "support/soft.h"

enum { STREAMS = 6, EVENTS = 5, CALLS = 400, ITEMS = 100 * CALLS, LAUNCH_NS = 1000 };

/* ---- The model ---- */

enum kind { NOTE, SPIN, RECORD, WAIT };

struct item {
  enum kind kind;
  int number; /* of a note, and in the global order */
  uint64_t cost, issued, time;
  bool done;
  struct item *target; /* of a wait */
  struct queue *owner;
  struct item *next;
};

struct queue {
  weir_cu_stream stream; /* NULL for the legacy one */
  bool blocking, destroyed;
  struct item *first, *last;
  unsigned long count;
  uint64_t time;
  struct queue *next;
};

static struct {
  struct item items[ITEMS];
  int item_count;
  struct queue queues[CALLS + STREAMS + 1];
  int queue_count;
  struct queue *list;           /* in order of creation */
  struct queue *live[STREAMS];  /* usable by the program, besides the first of the list */
  struct item *records[EVENTS]; /* the record that each event stands for */
  weir_cu_event events[EVENTS];
  uint64_t now;
  int ran[ITEMS];
  int ran_count;
} m;

/* The trace of the device. */
static int seen[ITEMS], seen_count;

static void see(void *number) { seen[seen_count++] = ((struct item *)number)->number; }

static struct queue *model_queue(weir_cu_stream stream, bool blocking) {
  struct queue *q = &m.queues[m.queue_count++], **at = &m.list;
  *q = (struct queue){.stream = stream, .blocking = blocking, .time = m.now};
  while (*at)
    at = &(*at)->next;
  *at = q;
  return q;
}

static struct item *model_append(struct queue *q, enum kind kind, uint64_t cost, struct item *target) {
  assert_true(m.item_count < ITEMS);
  struct item *item = &m.items[m.item_count];
  *item =
      (struct item){.kind = kind, .number = m.item_count, .cost = cost, .issued = m.now, .target = target, .owner = q};
  m.item_count++;
  if (q->count++)
    q->last->next = item;
  else
    q->first = item;
  q->last = item;
  return item;
}

static void model_wait_for_all_of(struct queue *q, const struct queue *other) {
  if (other->count)
    model_append(q, WAIT, 0, other->last);
}

/* The legacy stream and blocking streams wait for each other before new work. */
static void model_implicit_waits(struct queue *q) {
  if (q->blocking)
    model_wait_for_all_of(q, m.list);
  if (q == m.list)
    for (struct queue *other = q->next; other; other = other->next)
      if (other->blocking)
        model_wait_for_all_of(q, other);
}

static struct item *model_enqueue(struct queue *q, enum kind kind, uint64_t cost) {
  model_implicit_waits(q);
  return model_append(q, kind, cost, NULL);
}

static bool model_run(struct queue *q) {
  struct item *item = q->first;
  uint64_t start = q->time;
  if (item->kind == WAIT) {
    if (!item->target->done)
      return false;
    if (item->target->time > start)
      start = item->target->time;
  }
  if (item->issued > start)
    start = item->issued;
  q->time = item->time = start + item->cost;
  if (q->time > m.now)
    m.now = q->time;
  item->done = true;
  if (item->kind == NOTE)
    m.ran[m.ran_count++] = item->number;
  q->first = item->next;
  q->count--;
  return true;
}

/* The next work item that `q` needs, its own or of another stream. */
static void model_advance(struct queue *q) {
  while (!model_run(q))
    q = q->first->target->owner;
}

static unsigned long model_step(struct queue *q, unsigned long count) {
  unsigned long done = 0;
  while (done < count && q->count && model_run(q))
    done++;
  return done;
}

static unsigned long model_step_all(void) {
  unsigned long done = 0;
  for (struct queue *q = m.list; q;)
    if (q->count && model_run(q)) {
      done++;
      q = m.list;
    } else
      q = q->next;
  return done;
}

static void model_synchronize(struct queue *q) {
  if (q == m.list)
    model_implicit_waits(q);
  while (q->count)
    model_advance(q);
}

static bool model_is_busy(const struct queue *q) {
  if (q->count)
    return true;
  for (const struct queue *other = q->next; q == m.list && other; other = other->next)
    if (other->blocking && other->count)
      return true;
  return false;
}

/* ---- Comparison ---- */

static void check_same(void) {
  assert_int_equal(seen_count, m.ran_count);
  assert_memory_equal(seen, m.ran, (size_t)seen_count * sizeof *seen);
  assert_int_equal(soft_now(), m.now);
  unsigned long streams = 0;
  for (const struct queue *q = m.list; q; q = q->next)
    if (!q->destroyed) {
      assert_int_equal(soft_pending(q->stream), q->count);
      streams += q != m.list;
    }
  assert_int_equal(soft_census().streams, streams);
}

static void new_stream(int i) {
  unsigned flags = soft_random(2) ? WEIR_CU_STREAM_NON_BLOCKING : WEIR_CU_STREAM_DEFAULT;
  m.live[i] = model_queue(soft_stream(flags), flags == WEIR_CU_STREAM_DEFAULT);
}

static void enqueue_note(struct queue *q) {
  struct item *item = model_enqueue(q, NOTE, LAUNCH_NS);
  assert_cu(d->LaunchHostFunc(d, q->stream, see, item));
}

static void enqueue_spin(struct queue *q) {
  uint64_t cycles = soft_random(5000);
  model_enqueue(q, SPIN, cycles + LAUNCH_NS);
  soft_spin(q->stream, cycles);
}

static void record(struct queue *q, int e) {
  m.records[e] = model_enqueue(q, RECORD, 0);
  assert_cu(d->EventRecord(d, m.events[e], q->stream));
}

static void wait(struct queue *q, int e) {
  if (m.records[e] && !m.records[e]->done)
    model_append(q, WAIT, 0, m.records[e]);
  assert_cu(d->StreamWaitEvent(d, q->stream, m.events[e], 0));
}

static void query(struct queue *q, int e) {
  assert_cu_result(model_is_busy(q) ? WEIR_CU_NOT_READY : WEIR_CU_SUCCESS, d->StreamQuery(d, q->stream));
  assert_cu_result(m.records[e] && !m.records[e]->done ? WEIR_CU_NOT_READY : WEIR_CU_SUCCESS,
                   d->EventQuery(d, m.events[e]));
}

static void elapsed(int e, int f) {
  const struct item *a = m.records[e], *b = m.records[f];
  float milliseconds = -1;
  weir_cu_result r = d->EventElapsedTime(d, &milliseconds, m.events[e], m.events[f]);
  if (!a || !b)
    assert_cu_result(WEIR_CU_INVALID_HANDLE, r);
  else if (!a->done || !b->done)
    assert_cu_result(WEIR_CU_NOT_READY, r);
  else {
    assert_cu(r);
    float expected = (float)((double)((int64_t)b->time - (int64_t)a->time) / 1e6);
    assert_memory_equal(&milliseconds, &expected, sizeof expected);
  }
}

static void replace_event(int e) {
  assert_cu(d->EventDestroy(d, m.events[e]));
  m.events[e] = soft_event();
  m.records[e] = NULL;
}

static void replace_stream(int i) {
  m.live[i]->destroyed = true;
  assert_cu(d->StreamDestroy(d, m.live[i]->stream));
  new_stream(i);
}

static void synchronize_event(int e) {
  while (m.records[e] && !m.records[e]->done)
    model_advance(m.records[e]->owner);
  assert_cu(d->EventSynchronize(d, m.events[e]));
}

static void synchronize_all(void) {
  for (struct queue *q = m.list; q;)
    if (q->count) {
      model_advance(q);
      q = m.list;
    } else
      q = q->next;
  assert_cu(d->CtxSynchronize(d));
}

static void one_call(void) {
  int i = (int)soft_random(STREAMS), e = (int)soft_random(EVENTS);
  struct queue *q = soft_random(6) ? m.live[i] : m.list;
  unsigned long count = soft_random(5);
  uint64_t what = soft_random(100);
  if (what < 25)
    enqueue_note(q);
  else if (what < 35)
    enqueue_spin(q);
  else if (what < 50)
    record(q, e);
  else if (what < 65)
    wait(q, e);
  else if (what < 80)
    assert_int_equal(soft_step(q->stream, count), model_step(q, count));
  else if (what < 84)
    query(q, e);
  else if (what < 88)
    elapsed(e, (int)soft_random(EVENTS));
  else if (what < 90)
    replace_event(e);
  else if (what < 92)
    replace_stream(i);
  else if (what < 94) {
    model_synchronize(q);
    assert_cu(d->StreamSynchronize(d, q->stream));
  } else if (what < 97)
    synchronize_event(e);
  else if (what < 98)
    synchronize_all();
  else if (what < 99)
    assert_int_equal(soft_step_all(), model_step_all());
  check_same();
}

FIXTURE(.teardown = soft_teardown)

TEST(random_programs) {
  int rounds = 40;
  for (uint64_t seed = soft_first_seed(&rounds), r = 0; r < (uint64_t)rounds; r++, seed++) {
    memset(&m, 0, sizeof m);
    seen_count = 0;
    soft_open(WEIR_SOFT_STEPPED, 1, 64 << 20);
    soft_seed(seed);
    model_queue(NULL, false);
    for (int i = 0; i < STREAMS; i++)
      new_stream(i);
    for (int i = 0; i < EVENTS; i++)
      m.events[i] = soft_event();
    for (int i = 0; i < CALLS; i++)
      one_call();
    assert_int_equal(soft_step_all(), model_step_all());
    check_same();
    for (const struct queue *q = m.list; q; q = q->next)
      assert_int_equal(q->count, 0); /* every wait can be satisfied */
    soft_close();
  }
}
