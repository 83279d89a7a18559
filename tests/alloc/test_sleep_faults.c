/*
 * Each driver call of a sleep and of a wake fails once. The tag is then awake or asleep, whole, with its bytes.
 */
#include <string.h>

#include "moving_fixture.h"
#include "weir/tag.h"

enum { BLOCKS = 14 };
static weir_tag *tag;
static void *blocks[BLOCKS];
static weir_tag_content content;

static uint64_t size_of(int i) { return i % 8 ? (uint64_t)(i + 1) * 24 * KIB : (uint64_t)(i + 1) * 200 * KIB; }

static weir_tag_state tag_state(void) {
  weir_tag_info info;
  weir_tag_info_init(&info);
  assert_ok(weir_tag_get_info(tag, &info));
  return info.state;
}

static void open_blocks(const void *keeps) {
  content = keeps ? WEIR_TAG_KEEP : WEIR_TAG_DISCARD;
  alloc_open(NULL, 256 * MIB);
  assert_ok(weir_tag_open(allocator, 0, "weights", &tag));
  assert_ok(weir_tag_begin(tag));
  void *gaps[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    blocks[i] = get_live(0, size_of(i), NULL);
    memset(blocks[i], i + 1, size_of(i));
    gaps[i] = get_live(0, 512, NULL); /* else all blocks would be one range */
  }
  for (int i = 0; i < BLOCKS; i++)
    put_live(gaps[i]);
  assert_ok(weir_tag_end(tag));
}

static void sleep_and_wake(void) {
  for (int round = 0; round < (content == WEIR_TAG_KEEP ? 1 : 3); round++) {
    weir_tag_sleep(tag, content, NULL);
    assert_valid();
    assert_true(tag_state() == WEIR_TAG_AWAKE || tag_state() == WEIR_TAG_ASLEEP);
    weir_tag_wake(tag, NULL);
    assert_valid();
  }
  weir_tag_prepare(tag);
}

static void close_blocks(void) {
  assert_ok(weir_fault_clear(faults)); /* the call that was to fail need not have been made */
  if (tag_state() == WEIR_TAG_ASLEEP)
    assert_ok(weir_tag_wake(tag, NULL));
  assert_int_equal(tag_state(), WEIR_TAG_AWAKE);
  assert_valid();
  for (int i = 0; i < BLOCKS && content == WEIR_TAG_KEEP; i++)
    for (uint64_t k = 0; k < size_of(i); k++)
      if (((unsigned char *)blocks[i])[k] != i + 1)
        fail_msg("byte %d of block %d was lost", (int)k, i);
  assert_ok(weir_tag_begin(tag));
  void *p = get(3 * MIB, NULL); /* and it serves requests */
  assert_ok(weir_tag_end(tag));
  put(p);
  put_all_live();
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(keep) {
  const fault_sweep sweep = {open_blocks, sleep_and_wake, close_blocks, "keeps"};
  sweep_driver_calls(&sweep);
}

/* Calls that release are not in the sweep. */
TEST(unmap_and_release) {
  static const weir_driver_call failing[] = {WEIR_CALL_MemUnmap, WEIR_CALL_MemRelease, WEIR_CALL_MemHostUnregister};
  for (size_t c = 0; c < WEIR_COUNT_OF(failing); c++)
    for (unsigned n = 1; n < 8; n++) {
      open_blocks("keeps");
      assert_ok(weir_fault_nth(faults, failing[c], n, WEIR_CU_UNKNOWN, 0));
      sleep_and_wake();
      assert_ok(weir_fault_clear(faults));
      close_blocks();
    }
}

/* What is unmapped cannot be mapped again when a later call fails: then the tag is asleep, with its bytes. */
TEST(a_sleep_that_cannot_be_undone) {
  static const weir_driver_call undo[] = {WEIR_CALL_MemMap, WEIR_CALL_MemSetAccess};
  for (size_t c = 0; c < WEIR_COUNT_OF(undo); c++) {
    unsigned long unmapped = 0;
    open_blocks("keeps");
    assert_ok(
        weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL)); /* releases what is free, so that the next one has no such call */
    assert_ok(weir_tag_wake(tag, NULL));
    unmapped = calls(WEIR_CALL_MemUnmap);
    assert_ok(weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL));
    assert_ok(weir_tag_wake(tag, NULL));
    assert_int_equal(calls(WEIR_CALL_MemUnmap) - unmapped, 2); /* one for each segment */
    assert_ok(weir_fault_nth(faults, WEIR_CALL_MemUnmap, 2, WEIR_CU_UNKNOWN, 0));
    assert_ok(weir_fault_nth(faults, undo[c], 1, WEIR_CU_UNKNOWN, 0));
    assert_int_equal(weir_tag_sleep(tag, WEIR_TAG_KEEP, NULL), WEIR_ERROR_DRIVER);
    assert_non_null(strstr(weir_last_error(), "cuMemUnmap"));
    assert_ok(weir_fault_clear(faults));
    assert_int_equal(tag_state(), WEIR_TAG_ASLEEP);
    assert_valid();
    close_blocks();
  }
}

TEST(discard) {
  const fault_sweep sweep = {open_blocks, sleep_and_wake, close_blocks, NULL};
  sweep_driver_calls(&sweep);
}
