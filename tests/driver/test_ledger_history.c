/*
 * Streams of a recording on the ledger: it did not create them, and a callback says how far they got.
 */
#include "support/ledger.h"

typedef struct history {
  weir_driver *d;
  bool done;
  int asked;
  weir_cu_stream about;
} history;

#define RECORDED ((weir_cu_stream)0x55d0c0ffee40)

static int answer(void *context, weir_cu_stream stream) {
  history *h = context;
  h->asked++;
  h->about = stream;
  return h->done;
}

static void open_history(history *h) {
  *h = (history){0};
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  assert_true(options.is_done == NULL);
  options.is_done = answer;
  options.is_done_context = h;
  assert_ok(weir_driver_open_ledger(&options, &h->d));
  weir_cu_context context;
  assert_cu(h->d->Init(h->d, 0));
  assert_cu(h->d->DevicePrimaryCtxRetain(h->d, &context, 0));
  assert_cu(h->d->CtxSetCurrent(h->d, context));
}

TEST(events_complete_by_callback) {
  history h;
  open_history(&h);
  weir_driver *d = h.d;
  weir_cu_event event = make_event(d), here = make_event(d);
  float ms;
  assert_cu(d->EventQuery(d, event)); /* not recorded */
  assert_cu(d->EventRecord(d, event, RECORDED));
  assert_cu(d->EventRecord(d, here, NULL));
  assert_int_equal(h.asked, 0);
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  assert_ptr_equal(h.about, RECORDED);
  assert_cu_error(NOT_READY, d->EventElapsedTime(d, &ms, here, event));
  h.done = true;
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventElapsedTime(d, &ms, here, event));

  /* A completed record stays complete; a new record calls back again. */
  h.done = false;
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventRecord(d, event, RECORDED));
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventRecord(d, event, RECORDED));
  assert_cu(d->EventRecord(d, event, NULL)); /* the latest record counts */
  assert_cu(d->EventQuery(d, event));
  weir_driver_close(d);
}

TEST(streams_made_here_are_not_asked_about) {
  history h;
  open_history(&h);
  weir_driver *d = h.d;
  weir_cu_event event = make_event(d);
  weir_cu_stream made = make_stream(d, WEIR_CU_STREAM_NON_BLOCKING);
  const weir_cu_stream streams[] = {NULL, WEIR_CU_STREAM_LEGACY, WEIR_CU_STREAM_PER_THREAD, made};
  for (int i = 0; i < 4; i++) {
    assert_cu(d->EventRecord(d, event, streams[i]));
    assert_cu(d->EventQuery(d, event));
  }
  assert_int_equal(h.asked, 0);
  assert_cu(d->StreamDestroy(d, made));
  assert_cu_error(INVALID_HANDLE,
                  d->EventRecord(d, event, made)); /* destroyed, and not mistaken for a recorded stream */
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, made));
  weir_driver_close(d);
}

TEST(the_rest_of_a_recorded_stream) {
  history h;
  open_history(&h);
  weir_driver *d = h.d;
  weir_cu_deviceptr p, pooled;
  weir_cu_event event = make_event(d);
  weir_cu_context context, current;
  assert_cu(d->MemAlloc(d, &p, 4096));
  assert_cu(d->MemsetD8Async(d, p, 0, 100, RECORDED));
  assert_cu(d->MemAllocAsync(d, &pooled, 100, RECORDED));
  assert_cu(d->MemFreeAsync(d, pooled, RECORDED));
  assert_cu(d->EventRecord(d, event, RECORDED));
  assert_cu(d->StreamWaitEvent(d, RECORDED, event, 0));
  assert_cu(d->StreamSynchronize(d, RECORDED));
  assert_cu(d->StreamGetCtx(d, RECORDED, &context));
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_ptr_equal(context, current);
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, RECORDED)); /* not created here, so it cannot be destroyed */
  weir_driver_close(d);

  /* Without the callback there are no such streams. */
  d = open_ledger(1, 1 << 30);
  event = make_event(d);
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, event, RECORDED));
  weir_driver_close(d);
}
