/*
 * Making a report when the host has no memory: each allocation fails once. The report says so, and leaves nothing
 * behind.
 */
#include "offline/render/summary_report.h"

#include "offline/offline_data.h"
#include "support/no_memory.h"
#include "support/test.h"

#ifndef NO_MEMORY_WAIVED

FIXTURE(.begin = make_room_for_errors)

TEST(a_report_without_memory) {
  char path[1024];
  weir__recording *s = NULL;
  weir__summary summary = {0};
  weir__summary_classes classes = {0};
  snprintf(path, sizeof path, "%s/small_snapshot.pickle", WEIR_TEST_DATA);
  assert_int_equal(weir__recording_load(path, NULL, &s), WEIR_OK);
  assert_int_equal(s->device_count, 1);
  assert_int_equal(weir__summarize(s, 0, &summary), WEIR_OK);
  for (fail_at = 1;; fail_at++) {
    weir__report report;
    long before = live;
    made = 0;
    did_fail = false;
    counting = true;
    weir__summary_report(&report, path, s, &summary, &classes, NULL);
    weir_status status = weir__report_status(&report);
    counting = false;
    weir__report_clear(&report);
    assert_int_equal(status, did_fail ? WEIR_ERROR_HOST_OUT_OF_MEMORY : WEIR_OK);
    assert_int_equal(live, before);
    if (!did_fail)
      break;
  }
  assert_true(fail_at > 6);
  weir__recording_free(s);
}

#endif
