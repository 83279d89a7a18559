/*
 * Pictures: the same input gives the same bytes, which are few, whatever the kind, the groups and the size. What is in
 * them is compared with `weir summary` by tests/cli/plot.sh.
 */
#include "offline/render/plot.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/summary.h"
#include "offline/fuzz_history.h"
#include "offline/load.h"
#include "offline/offline_data.h"
#include "offline/render/plot_svg.h"

static char *draw(const weir__recording *recording, const weir__plot_options *options, size_t *size) {
  char *text = NULL;
  FILE *file = open_memstream(&text, size);
  assert_non_null(file);
  if (weir__plot_write(recording, options, file))
    fail_msg("%s", weir_last_error());
  fclose(file);
  return text;
}

TEST(sizes) {
  static const char *const names[] = {"traces/llm_generate_small", "traces/llama_lora_ckpt", "traces/streams_prefetch",
                                      "histories/expandable_pools"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    weir__recording *recording = load(names[i]);
    for (int kind = 0; kind < WEIR_OFFLINE_PLOTS; kind++) {
      weir__plot_options options = {.kind = (weir_offline_plot)kind, .name = names[i]};
      size_t size, again, small;
      char *text = draw(recording, &options, &size), *same = draw(recording, &options, &again);
      if (size > 300000)
        fail_msg("%s, kind %d: %zu bytes", names[i], kind, size);
      assert_int_equal(size, again);
      assert_memory_equal(text, same, size);
      options.width = WEIR__PLOT_MIN_WIDTH;
      options.height = WEIR__PLOT_MIN_HEIGHT;
      options.is_dark = true;
      options.axis = WEIR__PLOT_AXIS_ENTRIES;
      char *other = draw(recording, &options, &small);
      assert_non_null(strstr(other, "width=\"480\" height=\"320\""));
      free(other);
      free(same);
      free(text);
    }
    weir__recording_free(recording);
  }
}

/* A history in which no memory is reserved: an axis from 0 to 0 has no scale. */
TEST(nothing) {
  static const uint8_t history[] = {0x0d, 0x03, 0, 0, 0, 0, 0, 0, 0, 0x61, 0x62, 0x63};
  weir__recording *recording = read_fuzzed(history, sizeof history);
  for (int kind = 0; kind < WEIR_OFFLINE_PLOTS; kind++) {
    weir__plot_options options = {.kind = (weir_offline_plot)kind, .name = "nothing"};
    size_t size;
    char *text = NULL;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    weir__plot_write(recording, &options, file); /* some kinds need segments */
    fclose(file);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "V-")); /* above the picture, where NaN is drawn */
    free(text);
  }
  weir__recording_free(recording);
}

/* A segment of more than half of what 64 bits hold is not taken for a negative one. No device has its addresses, so it
 * is not on their axis, and has no hole. */
TEST(huge_segment) {
  weir__plot_options options = {.kind = WEIR_OFFLINE_PLOT_FRAGMENTATION, .name = "huge"};
  size_t size;
  weir__recording *recording = load("histories/pools");
  for (size_t i = 0; i < recording->event_count; i++)
    recording->events[i].action = i ? WEIR_TRACE_SNAPSHOT : WEIR_TRACE_SEGMENT_ALLOC;
  recording->devices[0].segment_count = 0;
  recording->events[0].address = 1 << 20;
  recording->events[0].size = (1ull << 63) + (1ull << 62);
  char *text = draw(recording, &options, &size);
  assert_non_null(strstr(text, ">12582912.00 TiB<"));
  assert_non_null(strstr(text, "<path class=\"reserved\" d=\"M78 78H1096\"")); /* along the top of the axis */
  assert_non_null(strstr(text, "<path class=\"hole\" d=\"M78 422.1H1096\""));  /* and along the bottom */
  free(text);
  weir__recording_free(recording);
}

/* The map of any moment has the bytes that are reserved then. */
TEST(moments) {
  weir__recording *recording = load("traces/llama_oom");
  const weir__recording_device *d = &recording->devices[0];
  uint64_t reserved = 0, used = 0;
  for (size_t i = 0; i < d->event_count; i++) {
    const weir__recording_entry *e = &d->events[i];
    reserved += e->action == WEIR_TRACE_SEGMENT_ALLOC  ? e->size
                : e->action == WEIR_TRACE_SEGMENT_FREE ? 0 - e->size
                                                       : 0;
    used += e->action == WEIR_TRACE_ALLOC ? e->size : e->action == WEIR_TRACE_FREE_COMPLETED ? 0 - e->size : 0;
    if (i % 2900 != 17)
      continue;
    size_t size;
    char expected[96];
    weir__plot_options options = {.kind = WEIR_OFFLINE_PLOT_SEGMENTS, .moment = WEIR_OFFLINE_AT_EVENT, .event = i};
    char *text = draw(recording, &options, &size);
    snprintf(expected, sizeof expected, "data-reserved=\"%llu\" data-used=\"%llu\"", (unsigned long long)reserved,
             (unsigned long long)used);
    if (!strstr(text, expected))
      fail_msg("event %zu: no %s", i, expected);
    free(text);
  }
  weir__recording_free(recording);
}

/* Recordings with any numbers are drawn, and quickly. */
TEST(any_numbers) {
  uint64_t random = 1;
  for (int round = 0; round < 60; round++) {
    weir__recording *recording = load("histories/pools");
    weir__recording_entry *entries = recording->events;
    for (size_t i = 0; i < recording->event_count; i++) {
      uint64_t r = next_random(&random);
      int shift = (int)(r >> 58);
      if (r % 16 == (unsigned)round % 16)
        entries[i].size = next_random(&random) >> shift;
      if (r % 16 == 1 + (unsigned)round % 15)
        entries[i].address = next_random(&random) >> shift;
      if (r % 64 == 2)
        entries[i].time_us = (int64_t)(next_random(&random) >> shift);
      if (r % 64 == 3)
        entries[i].action = (uint8_t)(next_random(&random) % (WEIR_TRACE_OOM + 1));
    }
    for (int kind = 0; kind < WEIR_OFFLINE_PLOTS; kind++) {
      weir__plot_options options = {.kind = (weir_offline_plot)kind,
                                    .by = (weir_offline_group)(round % WEIR_OFFLINE_GROUPS)};
      size_t size;
      free(draw(recording, &options, &size));
      assert_true(size < 400000);
    }
    weir__recording_free(recording);
  }
}

TEST(errors) {
  weir__recording *recording = load("traces/cuda_graphs");
  size_t count = recording->devices[0].event_count;
  weir__plot_options options = {.kind = WEIR_OFFLINE_PLOT_SEGMENTS, .moment = WEIR_OFFLINE_AT_OOM};
  char buffer[16];
  FILE *file = fmemopen(buffer, sizeof buffer, "w");
  assert_int_equal(weir__plot_write(recording, &options, file), WEIR_ERROR_INVALID_ARGUMENT);
  options = (weir__plot_options){.kind = WEIR_OFFLINE_PLOT_SEGMENTS, .moment = WEIR_OFFLINE_AT_EVENT, .event = count};
  assert_int_equal(weir__plot_write(recording, &options, file), WEIR_ERROR_INVALID_ARGUMENT);
  /* A snapshot without a history has a map, and nothing over time. */
  recording->devices[0].event_count = 0;
  options = (weir__plot_options){.kind = WEIR_OFFLINE_PLOT_MEMORY};
  assert_int_equal(weir__plot_write(recording, &options, file), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "no history"));
  fclose(file);
  options.kind = WEIR_OFFLINE_PLOT_SEGMENTS;
  size_t size;
  char *text = draw(recording, &options, &size);
  assert_non_null(strstr(text, "data-reserved=\"891289600\""));
  free(text);
  recording->devices[0].event_count = count;
  weir__recording_free(recording);
}

TEST(numbers) {
  static const struct {
    double value;
    const char *text;
  } cases[] = {{0, "0"}, {0.04, "0"}, {0.06, "0.1"}, {12, "12"}, {12.34, "12.3"}, {-3.25, "-3.3"}, {1199.96, "1200"}};
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char *text = NULL;
    size_t size;
    weir__svg svg = {.file = open_memstream(&text, &size), .colors = weir__svg_colors_of(false)};
    weir__svg_number(&svg, cases[i].value);
    fclose(svg.file);
    assert_string_equal(text, cases[i].text);
    free(text);
  }
}

TEST(escapes) {
  char *text = NULL;
  size_t size;
  weir__svg svg = {.file = open_memstream(&text, &size), .colors = weir__svg_colors_of(false)};
  weir__svg_escaped(&svg, "a<b>&\"'\x01\xff\xed\xa0\x80\xef\xbf\xbe\xc3\xa9", 0);
  fputc('|', svg.file);
  weir__svg_escaped(&svg, "\xc3\xa9\xc3\xa9\xc3\xa9", 2);
  fclose(svg.file);
  assert_string_equal(text, "a&lt;b&gt;&amp;&quot;&#39;\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                            "\xef\xbf\xbd\xc3\xa9|\xc3\xa9\xc3\xa9\xe2\x80\xa6");
  free(text);
}
