/*
 * Snapshots without host memory: each allocation of taking and writing one fails once. The call returns an error, and
 * nothing leaks. The test replaces malloc, as sanitizers do: with them it is waived.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "inspect/recorded.h"
#include "support/alloc.h"
#include "support/no_memory.h"
#include "weir/host.h"

#ifndef NO_MEMORY_WAIVED

static const recorded_frame frames[] = {{0, "forward", "model.py", 12}, {0, "step", "train.py", 7}};
static const recorded_stack stacks[] = {{NULL, 0}, {frames, 2}};
static const weir_pool_id pools[] = {{0, 0}, {0, 11}};
static const weir__recorded_context texts[] = {{NULL, NULL, NULL}, {"phase", "compiled", "data"}};
static const recorded_pair pairs[] = {{"name", "step 1"}, {"stage", "START"}};
static const recorded_annotation annotations[] = {{pairs, 2, 0, 1}};
static const weir__entry events[] = {{.bytes = 512, .stack = 1, .pool = 1, .context = 1}};

static weir_host_allocator *host;

/* Takes a snapshot and writes it. Returns WEIR_OK or WEIR_ERROR_HOST_OUT_OF_MEMORY; any other status fails the test. */
static weir_status script(FILE *file) {
  recorded r = {.events = events,
                .event_count = 1,
                .stacks = stacks,
                .pools = pools,
                .contexts = texts,
                .annotations = annotations,
                .annotation_count = 1,
                .block_stack = 1,
                .segment_stack = 1};
  weir__history_source source = recorded_source(&r);
  weir_snapshot *snapshot = NULL;
  weir_status status = weir__snapshot_collect("test", allocator, NULL, &source, &snapshot);
  if (!status)
    status = weir_snapshot_add_host(snapshot, host);
  if (!status) {
    status = weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, weir_write_file, file);
    if (!status)
      status = weir_snapshot_save(snapshot, WEIR_SNAPSHOT_JSON, "/dev/null/none");
    if (status == WEIR_ERROR_SYSTEM)
      status = WEIR_OK; /* expected for such a name */
    if (!status)
      status = weir_allocator_write_stats(allocator, 0, WEIR_STATS_NESTED, weir_write_file, file);
  }
  weir_snapshot_destroy(snapshot);
  return status;
}

FIXTURE(.teardown = alloc_teardown)

TEST(each_allocation_fails_once) {
  alloc_open("expandable_segments:True", 256 * MIB);
  void *p = get(700, NULL), *q = get(30 * MIB, work_stream());
  void *pinned = NULL;
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(""), &host));
  assert_ok(weir_host_alloc(host, 5000, &pinned));
  FILE *file = fopen("/dev/null", "w");
  assert_non_null(file);
  static char buffer[4096];
  setvbuf(file, buffer, _IOFBF, sizeof buffer);
  assert_int_equal(script(file), WEIR_OK);
  unsigned long refused = 0;
  for (fail_at = 1;; fail_at++) {
    long before = live;
    made = 0;
    counting = true;
    weir_status status = script(file);
    counting = false;
    if (live != before) {
      print_error("allocation %lu: %ld blocks are left\n", fail_at, live - before);
      fail();
    }
    if (status == WEIR_ERROR_HOST_OUT_OF_MEMORY)
      refused++;
    else
      assert_int_equal(status, WEIR_OK);
    assert_valid();
    if (made < fail_at)
      break;
  }
  fail_at = 0;
  assert_true(refused > 20);
  fclose(file);
  put(p);
  put(q);
  assert_ok(weir_host_free(host, pinned));
  weir_host_allocator_destroy(host);
  alloc_close();
}

#endif
