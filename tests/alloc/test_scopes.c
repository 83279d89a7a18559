/*
 * Scopes of threads: which pool serves a request, without the heap's lock, and how scopes end.
 */
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "record/this_thread.h"
#include "support/alloc.h"
#include "weir/adapter.h"
#include "weir/history.h"

static const weir_pool_id default_pool = {0, 0}, pool_a = {0, 11}, pool_b = {0, 12}, stream_pool = {13, 0};

static void begin(weir_pool_id id) { assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL)); }
static void end(weir_pool_id id) { assert_ok(weir_pool_end(allocator, 0, id)); }
static void release(weir_pool_id id) { assert_ok(weir_pool_release(allocator, 0, id)); }

static bool exists(weir_pool_id id) {
  int count;
  return weir_pool_use_count(allocator, 0, id, &count) == WEIR_OK;
}

static bool is_in(const void *p, weir_pool_id id) {
  weir_pool_id found = pool_of(p);
  return found.first == id.first && found.second == id.second;
}

/* A thread that stops between its steps, so that the test interleaves them with its own. */
typedef struct other {
  pthread_t thread;
  sem_t go, done;
  void (*const *steps)(struct other *);
  void *p;
  weir_status status;
} other;

static void *take_steps(void *data) {
  other *o = data;
  for (int i = 0; o->steps[i]; i++) {
    sem_wait(&o->go);
    o->steps[i](o);
    sem_post(&o->done);
  }
  return NULL;
}

static void step(other *o) {
  sem_post(&o->go);
  sem_wait(&o->done);
}

/* Also takes the first step. */
static void start(other *o, void (*const *steps)(other *)) {
  o->steps = steps;
  sem_init(&o->go, 0, 0);
  sem_init(&o->done, 0, 0);
  assert_int_equal(pthread_create(&o->thread, NULL, take_steps, o), 0);
  step(o);
}

static void finish(other *o) {
  pthread_join(o->thread, NULL);
  sem_destroy(&o->go);
  sem_destroy(&o->done);
}

static void begins_a(other *o) { o->status = weir_pool_begin(allocator, 0, pool_a, NULL, NULL); }
static void ends_a(other *o) { o->status = weir_pool_end(allocator, 0, pool_a); }
static void allocates(other *o) { o->status = weir_allocator_alloc(allocator, 0, 512, NULL, &o->p); }

FIXTURE(.teardown = alloc_teardown)

/* ---- Two threads ---- */

TEST(two_threads_scope_one_pool) {
  alloc_open(NULL, GIB);
  other o;
  begin(pool_a);
  start(&o, (void (*const[])(other *)){begins_a, allocates, ends_a, allocates, NULL});
  assert_ok(o.status);
  assert_valid();
  void *mine = get(512, NULL);
  step(&o);
  assert_true(is_in(mine, pool_a));
  assert_true(is_in(o.p, pool_a));
  put(o.p);
  step(&o);
  assert_ok(o.status);
  assert_true(is_in(get(512, NULL), pool_a)); /* this thread's scope is still open */
  step(&o);
  assert_true(is_in(o.p, default_pool));
  end(pool_a);
  finish(&o);
  alloc_close();
}

/* A scope of a thread is closed by that thread. */
TEST(scope_of_another_thread) {
  alloc_open(NULL, GIB);
  other o;
  begin(pool_a);
  start(&o, (void (*const[])(other *)){ends_a, NULL});
  assert_int_equal(o.status, WEIR_ERROR_BAD_STATE);
  finish(&o);
  assert_true(is_in(get(512, NULL), pool_a));
  end(pool_a);
  alloc_close();
}

TEST(the_same_pool_twice) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  assert_error(BAD_STATE, weir_pool_begin(allocator, 0, pool_a, NULL, NULL));
  end(pool_a);
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, pool_a));
  alloc_close();
}

/* ---- The order of scopes ---- */

static int asked;
static int every_stream(void *context, weir_cu_stream stream) {
  (void)stream;
  asked++;
  return *(const bool *)context;
}

/* The thread's innermost scope, then scopes of streams, newest first. */
TEST(order) {
  alloc_open(NULL, GIB);
  bool yes = true, no = false;
  begin(pool_a);
  assert_ok(weir_pool_begin(allocator, 0, stream_pool, every_stream, &yes));
  assert_true(is_in(get(512, NULL), pool_a));
  begin(pool_b);
  assert_true(is_in(get(512, NULL), pool_b));
  end(pool_a); /* in any order */
  assert_true(is_in(get(512, NULL), pool_b));
  end(pool_b);
  assert_int_equal(asked, 0);
  assert_true(is_in(get(512, NULL), stream_pool));
  assert_ok(weir_pool_begin(allocator, 0, pool_b, every_stream, &yes));
  assert_true(is_in(get(512, NULL), pool_b));
  assert_int_equal(asked, 2);
  end(pool_b);
  assert_ok(weir_pool_begin(allocator, 0, pool_b, every_stream, &no));
  assert_true(is_in(get(512, NULL), stream_pool));
  end(stream_pool);
  assert_true(is_in(get(512, NULL), default_pool));
  end(pool_b);
  alloc_close();
}

/* ---- The heap's lock ---- */

/* A block of each pool, and one of the default pool, are cached. The test holds the heap's lock, and would wait for
 * itself if an allocation took it. */
static void get_without_the_lock(weir_pool_id expected) {
  void *p = NULL;
  alarm(20);
  weir__mutex_lock(&allocator->heaps[0].lock);
  weir_status status = weir_allocator_alloc(allocator, 0, 512, NULL, &p);
  weir_status freed = weir_allocator_free(allocator, p);
  weir__mutex_unlock(&allocator->heaps[0].lock);
  alarm(0);
  assert_ok(status);
  assert_ok(freed);
  p = get(512, NULL);
  assert_true(is_in(p, expected));
  put(p);
}

TEST(cached_allocations_need_no_heap_lock) {
  for (int recorded = 0; recorded < 3; recorded++) {
    weir_history_options options;
    weir_history_options_init(&options);
    options.context = recorded == 2 ? WEIR_CONTEXT_STATE : WEIR_CONTEXT_NONE;
    alloc_open(NULL, GIB);
    if (recorded)
      assert_ok(weir_history_record(allocator, &options));
    bool yes = true;
    asked = 0;
    put(get(512, NULL));
    begin(pool_a);
    put(get(512, NULL));
    get_without_the_lock(pool_a);
    assert_ok(weir_pool_begin(allocator, 0, stream_pool, every_stream, &yes));
    get_without_the_lock(pool_a); /* no filter is asked either */
    assert_int_equal(asked, 0);
    end(stream_pool);
    end(pool_a);
    other o;
    start(&o, (void (*const[])(other *)){begins_a, ends_a, NULL});
    get_without_the_lock(default_pool); /* another thread has a scope */
    step(&o);
    finish(&o);
    assert_int_equal(weir__slow_reasons(&allocator->heaps[0]) & WEIR__SLOW_SCOPED, 0);
    alloc_close();
  }
}

/* ---- PyTorch's rules ---- */

static void open_as_pytorch(void) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.scopes_as_pytorch = 1;
  alloc_open_with(&options);
  asked = 0;
}

/* The newest scope that takes the request, of the thread or of streams. */
TEST(order_of_pytorch) {
  open_as_pytorch();
  bool yes = true, no = false;
  assert_ok(weir_pool_begin(allocator, 0, stream_pool, every_stream, &yes));
  begin(pool_a);
  assert_true(is_in(get(512, NULL), pool_a));
  assert_int_equal(asked, 0); /* an older scope is not asked */
  assert_ok(weir_pool_begin(allocator, 0, pool_b, every_stream, &no));
  assert_true(is_in(get(512, NULL), pool_a));
  assert_int_equal(asked, 1);
  end(pool_b);
  assert_ok(weir_pool_begin(allocator, 0, pool_b, every_stream, &yes));
  assert_true(is_in(get(512, NULL), pool_b));
  begin((weir_pool_id){0, 14});
  assert_true(is_in(get(512, NULL), (weir_pool_id){0, 14}));
  end((weir_pool_id){0, 14});
  assert_true(is_in(get(512, NULL), pool_b));
  assert_valid();
  end(pool_b);
  end(pool_a);
  assert_true(is_in(get(512, NULL), stream_pool));
  end(stream_pool);
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  alloc_close();
}

/* The lock is needed only where a scope of streams has to be asked. */
TEST(pytorchs_order_needs_no_heap_lock) {
  open_as_pytorch();
  put(get(512, NULL));
  begin(pool_a);
  put(get(512, NULL));
  get_without_the_lock(pool_a);
  end(pool_a);
  alloc_close();
}

TEST(scope_is_closed_by_another_thread) {
  open_as_pytorch();
  other o;
  start(&o, (void (*const[])(other *)){begins_a, allocates, allocates, begins_a, allocates, NULL});
  step(&o);
  assert_true(is_in(o.p, pool_a));
  put(o.p);
  release(pool_a);
  end(pool_a);
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, pool_a));
  empty_cache();
  assert_true(exists(pool_a)); /* until its thread opens a scope, or ends: it may have been in an allocation */
  assert_valid();
  step(&o);
  assert_true(is_in(o.p, default_pool));
  step(&o);
  assert_ok(o.status);
  step(&o);
  assert_true(is_in(o.p, pool_a));
  finish(&o);
  put(o.p);
  assert_valid();
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  release(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  alloc_close();
}

/* A thread closes its own scope of a pool, although another one has a newer scope of it. */
TEST(own_scope_comes_first) {
  open_as_pytorch();
  other o;
  begin(pool_a);
  start(&o, (void (*const[])(other *)){begins_a, allocates, ends_a, NULL});
  end(pool_a);
  assert_true(is_in(get(512, NULL), default_pool));
  step(&o);
  assert_true(is_in(o.p, pool_a));
  step(&o);
  assert_ok(o.status);
  finish(&o);
  alloc_close();
}

/* The thread deletes a scope that another one has closed after the allocator was destroyed. */
TEST(closed_scope_outlives_the_allocator) {
  open_as_pytorch();
  other o;
  start(&o, (void (*const[])(other *)){begins_a, begins_a, NULL});
  end(pool_a);
  alloc_close();
  open_as_pytorch();
  step(&o);
  assert_ok(o.status);
  finish(&o);
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  alloc_close();
}

/* ---- Ends ---- */

/* The scope ends with its thread; the use of the pool lasts until the release. */
TEST(thread_ends_with_an_open_scope) {
  alloc_open(NULL, GIB);
  other o;
  start(&o, (void (*const[])(other *)){begins_a, allocates, NULL});
  step(&o);
  finish(&o);
  assert_valid();
  assert_true(is_in(o.p, pool_a));
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  int uses;
  assert_ok(weir_pool_use_count(allocator, 0, pool_a, &uses));
  assert_int_equal(uses, 1);
  put(o.p);
  release(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  alloc_close();
}

/* A released pool stays while a thread's scope selects it. */
TEST(pool_is_released_in_a_scope) {
  alloc_open(NULL, GIB);
  begin(pool_a);
  put(get(512, NULL));
  release(pool_a);
  empty_cache();
  assert_true(exists(pool_a));
  void *p = get(512, NULL);
  assert_true(is_in(p, pool_a));
  put(p);
  end(pool_a);
  empty_cache();
  assert_false(exists(pool_a));
  alloc_close();
}

static int closes_its_scope(void *context, int device) {
  int *calls = context;
  if (!*calls && weir_pool_end(allocator, device, pool_a) == WEIR_OK &&
      weir_pool_release(allocator, device, pool_a) == WEIR_OK && weir_allocator_empty_cache(allocator) == WEIR_OK)
    ++*calls;
  return 0;
}

/* A callback closes the scope and releases the pool while an allocation of the scope is under way. */
TEST(callback_closes_the_scope) {
  for (int cached = 0; cached < 2; cached++) {
    alloc_open(NULL, GIB);
    int calls = 0;
    weir_observer observer = {.size = sizeof observer, .free_memory = closes_its_scope, .context = &calls};
    begin(pool_a);
    if (cached) /* the arena exists */
      put(get(30 * MIB, NULL));
    assert_ok(weir_allocator_attach(allocator, &observer));
    void *p = get(40 * MIB, NULL);
    assert_int_equal(calls, 1);
    assert_true(is_in(p, pool_a));
    assert_true(is_in(get(512, NULL), default_pool));
    assert_ok(weir_allocator_detach(allocator, &observer));
    put(p);
    empty_cache();
    assert_false(exists(pool_a));
    alloc_close();
  }
}

/* A scope of an allocator that was destroyed does not select anything, not even in one at the same address. */
TEST(allocator_is_destroyed) {
  alloc_open(NULL, GIB);
  other o;
  begin(pool_b);
  start(&o, (void (*const[])(other *)){begins_a, allocates, begins_a, allocates, NULL});
  alloc_close();
  alloc_open(NULL, GIB);
  assert_true(is_in(get(512, NULL), default_pool));
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, pool_b));
  step(&o);
  assert_true(is_in(o.p, default_pool));
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  step(&o);
  assert_ok(o.status);
  step(&o);
  assert_true(is_in(o.p, pool_a));
  finish(&o);
  begin(pool_b); /* deletes the old one */
  assert_true(is_in(get(512, NULL), pool_b));
  end(pool_b);
  alloc_close();
}

/* ---- Fork ---- */

/* Destroys the value of a key of the thread, after that of the scopes, whose key is older. Ends the child without the
 * checks of a sanitizer. */
static void end_child(void *unused) {
  (void)unused;
  _exit(weir__this_thread.scope != NULL);
}

/* In the child no scope is open: it has no allocator that has one. The parent's stay. */
TEST(fork_in_a_scope) {
  alloc_open(NULL, GIB);
  other o;
  begin(pool_a);
  start(&o, (void (*const[])(other *)){begins_a, ends_a, NULL});
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    weir_driver *driver;
    weir_allocator *mine;
    weir_pool_id id;
    void *p;
    alarm(10);
    child_assert(weir_pool_end(allocator, 0, pool_a) == WEIR_ERROR_BAD_FORK);
    child_assert(weir_driver_open("soft", &driver) == WEIR_OK && driver->Init(driver, 0) == WEIR_CU_SUCCESS);
    child_assert(weir_allocator_create(driver, NULL, &mine) == WEIR_OK);
    child_assert(weir_allocator_alloc(mine, 0, 512, NULL, &p) == WEIR_OK);
    allocator = mine;
    id = pool_of(p);
    child_assert(!id.first && !id.second);
    child_assert(weir_pool_begin(mine, 0, pool_a, NULL, NULL) == WEIR_OK);
    child_assert(weir_allocator_alloc(mine, 0, 512, NULL, &p) == WEIR_OK);
    id = pool_of(p);
    child_assert(id.second == pool_a.second);
    pthread_key_t key;
    child_assert(pthread_key_create(&key, end_child) == 0 && pthread_setspecific(key, &key) == 0);
    pthread_exit(NULL); /* ends the scopes of the parent's allocator and of the child's */
  }
  assert_int_equal(child_outcome(child), 0);
  assert_true(is_in(get(512, NULL), pool_a));
  step(&o);
  assert_ok(o.status);
  finish(&o);
  end(pool_a);
  alloc_close();
}
