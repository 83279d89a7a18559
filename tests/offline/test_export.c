#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/base.h"
#include "offline/analyse/behaviour.h"
#include "offline/analyse/levels.h"
#include "offline/analyse/summary.h"
#include "offline/offline_data.h"
#include "offline/render/export.h"
#include "offline/render/output_file.h"
#include "offline/render/redact_file.h"
#include "support/test.h"

static weir__recording *load(const char *name) {
  char path[1024];
  weir__recording *recording;
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  weir_status status = weir__recording_load(path, NULL, &recording);
#ifndef WEIR_HAVE_ZSTD
  if (status == WEIR_ERROR_NOT_SUPPORTED)
    skip();
#endif
  assert_int_equal(status, WEIR_OK);
  return recording;
}

/* What is written, as a text; free() it. */
typedef weir_status (*writing)(const weir__recording *recording, int device, FILE *file);

static char *written(const weir__recording *recording, int device, writing write, size_t *size) {
  char *text = NULL;
  FILE *file = open_memstream(&text, size);
  assert_non_null(file);
  assert_int_equal(write(recording, device, file), WEIR_OK);
  fclose(file);
  return text;
}

static weir_status write_pickle(const weir__recording *s, int device, FILE *file) {
  return weir__rewrite(s, device, &weir__pickle_format, NULL, NULL, file);
}

static weir_status write_segments(const weir__recording *s, int device, FILE *file) {
  return weir__export_csv(s, device, WEIR__EXPORT_SEGMENTS, NULL, NULL, file);
}

static weir_status write_frames(const weir__recording *s, int device, FILE *file) {
  return weir__export_csv(s, device, WEIR__EXPORT_FRAMES, NULL, NULL, file);
}

/* What is written reads back with all numbers and texts, and is written in the same way again. */
static void assert_round_trip(const weir__recording *s) {
  size_t size, again_size;
  char *first = written(s, -1, write_pickle, &size);
  weir__input *source;
  weir__recording *back;
  assert_int_equal(weir__input_open_memory("copy", first, size, &source), WEIR_OK);
  weir_status status = weir__recording_read(source, NULL, &back);
  weir__input_close(source);
  if (status)
    fail_msg("%s", weir_last_error());
  weir__behaviour before, after;
  assert_int_equal(weir__behaviour_of(s, &before), WEIR_OK);
  assert_int_equal(weir__behaviour_of(back, &after), WEIR_OK);
  if (weir__behaviour_compare(&before, &after))
    fail_msg("%s", weir_last_error());
  assert_int_equal(back->ignored_count, 0);
  assert_int_equal(back->frame_count, s->frame_count);
  assert_int_equal(back->stack_count, s->stack_count);
  char *second = written(back, -1, write_pickle, &again_size);
  assert_int_equal(again_size, size);
  assert_memory_equal(first, second, size);
  free(first);
  free(second);
  weir__behaviour_free(&before);
  weir__behaviour_free(&after);
  weir__recording_free(back);
}

TEST(round_trips) {
  static const char *const names[] = {"small_snapshot.pickle", "histories/pools.pickle.zst",
                                      "histories/expandable_pools.pickle.zst", "traces/resnet_stacks.pickle.zst",
                                      "traces/llama_oom.pickle.zst"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    weir__recording *s = load(names[i]);
    assert_round_trip(s);
    weir__recording_free(s);
  }
}

/* What PyTorch does not write, and the reader accepts. */
TEST(odd_round_trip) {
  weir__recording *s = load("small_snapshot.pickle");
  weir__recording_pool pools[] = {{{0, 0}}, {{3, -5}}}, *pools_before = s->pools;
  int64_t streams[] = {0, -1, 0x55d0c8}, *streams_before = s->streams;
  assert_int_equal(s->pool_count, 1);
  assert_int_equal(s->stream_count, 1);
  s->pools = pools;
  s->pool_count = WEIR_COUNT_OF(pools);
  s->streams = streams;
  s->stream_count = WEIR_COUNT_OF(streams);
  s->events[3].pool = 1;
  s->events[4].time_us = 0;
  s->events[5].address = UINT64_MAX - 511;
  s->events[6].stream = 1;
  s->events[7].stream = 2;
  s->annotations[0].device = -1;
  assert_round_trip(s);
  s->setting_count = 0;
  assert_round_trip(s);
  s->has_history = false;
  s->devices[0].event_count = 0;
  s->event_count = 0;
  size_t size;
  char *text = written(s, -1, write_pickle, &size);
  assert_null(memmem(text, size, "device_traces", 13));
  assert_null(memmem(text, size, "allocator_settings", 18));
  free(text);
  s->pools = pools_before;
  s->streams = streams_before;
  weir__recording_free(s);
}

/* The level after the last event is what the segments say. */
TEST(levels) {
  static const char *const names[] = {"traces/llama_oom.pickle.zst", "histories/expandable_emptied.pickle.zst"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    weir__recording *s = load(names[i]);
    weir__levels levels;
    weir__summary summary;
    int64_t most = 0;
    assert_int_equal(weir__summarize(s, 0, &summary), WEIR_OK);
    assert_int_equal(weir__levels_begin(s, 0, &levels), WEIR_OK);
    for (size_t k = 0; k < s->devices[0].event_count; k++) {
      weir__levels_move(&levels, &s->devices[0].events[k]);
      most = levels.allocated > most ? levels.allocated : most;
    }
    assert_int_equal(levels.reserved, summary.end_reserved);
    assert_int_equal(levels.allocated, summary.end_requested);
    assert_int_equal(most, summary.live.bytes);
    weir__recording_free(s);
  }
}

TEST(csv) {
  weir__recording *s = load("small_snapshot.pickle");
  char odd[] = "a \"b\", c\nd", cut[] = "n\0l", surrogate[] = "x\xed\xb2\x80y", half[] = "z\xed\xb2";
  size_t size;
  weir__string *items = s->strings.items;
  items[s->frames[0].name] = (weir__string){odd, sizeof odd - 1};
  items[s->frames[0].filename] = (weir__string){cut, sizeof cut - 1};
  weir__recording_clean_texts(s);
  char *text = written(s, -1, write_frames, &size);
  static const char expected[] = "frame,name,filename,line\r\n0,\"a \"\"b\"\", c\nd\",n?l,";
  assert_memory_equal(text, expected, sizeof expected - 1);
  free(text);
  items[s->frames[0].name] = (weir__string){surrogate, sizeof surrogate - 1};
  items[s->frames[0].filename] = (weir__string){half, sizeof half - 1};
  weir__recording_clean_texts(s);
  assert_string_equal(surrogate, "x\xef\xbf\xbdy");
  assert_string_equal(half, "z??");            /* no UTF-8 at all, as a recording may have it */
  text = written(s, 1, write_segments, &size); /* none of that device: the names of the columns alone */
  assert_string_equal(text, "segment,device,address,size,allocated,active,requested,stream,type,pool_first,pool_second,"
                            "is_expandable,stack\r\n");
  free(text);
  weir__recording_free(s);
}

/* ---- Targets ---- */

TEST(targets) {
  char folder[] = "/tmp/weir_export_XXXXXX", path[64];
  weir__output_file target;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/out", folder);
  for (int keeps = 0; keeps < 2; keeps++) {
    assert_int_equal(weir__output_file_begin(&target, path, WEIR__OUTFILE_WRITE), WEIR_OK);
    assert_int_equal(weir__output_file_open(&target), WEIR_OK);
    fputs("text", target.file);
    assert_int_not_equal(access(path, F_OK), 0);
    if (keeps) {
      assert_int_equal(weir__output_file_close(&target), WEIR_OK);
      assert_int_equal(weir__output_file_keep(&target), WEIR_OK);
    }
    weir__output_file_end(&target);
    assert_int_equal(access(path, F_OK), keeps ? 0 : -1);
  }
  unlink(path);

  /* A full disk, plain and compressed. */
  static const char *const ends[] = {"out", "out.zst"};
  for (size_t i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, ends[i]);
    if (mknod(path, S_IFCHR | 0666, makedev(1, 7)) != 0 || access(path, W_OK) != 0)
      break; /* for root alone */
    assert_int_equal(weir__output_file_begin(&target, path, WEIR__OUTFILE_WRITE), WEIR_OK);
    weir_status status = weir__output_file_open(&target);
    if (status != WEIR_ERROR_NOT_SUPPORTED) { /* zstd */
      assert_int_equal(status, WEIR_OK);
      fputs("text", target.file);
      assert_int_equal(weir__output_file_close(&target), WEIR_ERROR_SYSTEM);
    }
    weir__output_file_end(&target);
    unlink(path);
  }
  assert_int_equal(rmdir(folder), 0);
}
