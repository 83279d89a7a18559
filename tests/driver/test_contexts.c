/*
 * The table that asks the program for a context.
 */
#include "driver/echo_driver.h"
#include "driver/every_call.h"
#include "support/check.h"
#include "weir/alloc.h"
#include "weir/soft.h"

static int never(void *context) {
  (void)context;
  return 0;
}

TEST(every_call_is_passed_on) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_contexts(&echo.table, never, NULL, &d));
  assert_string_equal(d->name, echo.table.name);
  assert_int_equal(d->size, sizeof *d);
  every_call(d, results);
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    assert_int_equal(results[call], ECHO_OF(call));
    assert_int_equal(echo.calls[call], 1);
  }
  weir_driver_close(d);
}

typedef struct program {
  weir_driver *soft;
  weir_cu_context context; /* that it wants; NULL for none */
  int calls;
} program;

static int provide(void *context) {
  program *p = context;
  p->calls++;
  if (p->context)
    assert_cu(p->soft->CtxSetCurrent(p->soft, p->context));
  return p->context != NULL;
}

TEST(only_threads_without_a_context_ask) {
  program p = {0};
  weir_driver *d;
  weir_cu_context primary, current = (weir_cu_context)&p;
  assert_ok(weir_driver_open_soft(NULL, &p.soft));
  assert_ok(weir_driver_open_contexts(p.soft, provide, &p, &d));
  assert_cu(d->Init(d, 0));
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_null(current);
  assert_int_equal(p.calls, 1);
  assert_cu(d->DevicePrimaryCtxRetain(d, &primary, 0));
  p.context = primary;
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_ptr_equal(current, primary);
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_int_equal(p.calls, 2);

  /* The context stays current after calls of an allocator. */
  weir_allocator *allocator;
  void *memory;
  assert_cu(d->CtxSetCurrent(d, NULL));
  assert_ok(weir_allocator_create(d, NULL, &allocator));
  assert_ok(weir_allocator_alloc(allocator, 0, 100, NULL, &memory));
  assert_cu(p.soft->CtxGetCurrent(p.soft, &current));
  assert_ptr_equal(current, primary);
  weir_allocator_destroy(allocator);
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  weir_driver_close(d);
  weir_driver_close(p.soft);
}
