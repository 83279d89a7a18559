/*
 * Predicted histories: under the recorded settings they are the recording, and under others they are a recording that
 * replays exactly.
 */
#include "offline/analyse/whatif_history.h"

#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "offline/analyse/summary.h"
#include "offline/render/rewrite.h"
#include "support/length.h"

static const char *const traces[] = {"traces/cuda_graphs",
                                     "traces/cuda_graphs_expandable",
                                     "traces/gpt2_fixed",
                                     "traces/llama_lora_ckpt",
                                     "traces/llama_lora_gc",
                                     "traces/llama_oom",
                                     "traces/llama_varlen",
                                     "traces/llama_varlen_capped",
                                     "traces/llama_varlen_expandable",
                                     "traces/llama_varlen_expandable_capped",
                                     "traces/llama_varlen_split200",
                                     "traces/llama_varlen_split200_capped",
                                     "traces/llm_generate_small",
                                     "traces/resnet_multiscale",
                                     "traces/resnet_roundup",
                                     "traces/resnet_stacks",
                                     "traces/streams_prefetch",
                                     "traces/streams_prefetch_expandable",
                                     "histories/capped_oom",
                                     "histories/capped_streams",
                                     "histories/collected",
                                     "histories/collected_retried",
                                     "histories/collected_split",
                                     "histories/emptied",
                                     "histories/expandable_capped",
                                     "histories/expandable_emptied",
                                     "histories/expandable_pools",
                                     "histories/large_pages",
                                     "histories/large_segments",
                                     "histories/pools",
                                     "histories/pools_capped",
                                     "histories/roundup_intervals",
                                     "histories/split_capped",
                                     "histories/split_rounding"};

static weir__replayer *open_first(const weir__recording *recording) {
  weir__replayer *replayer = NULL;
  if (weir__replayer_open(recording, weir__recording_first_device(recording), 0, 0, &replayer))
    fail_msg("%s", weir_last_error());
  return replayer;
}

static void compare_entries(const char *name, const weir__recording_device *a, const weir__recording_device *b) {
  if (a->event_count != b->event_count)
    print_error("%s: %zu entries, expected %zu\n", name, b->event_count, a->event_count);
  for (size_t i = 0; i < a->event_count && i < b->event_count; i++) {
    const weir__recording_entry *x = &a->events[i], *y = &b->events[i];
    if (memcmp(x, y, sizeof *x) != 0)
      fail_msg(
          "%s: entry %zu: %s of %llu at 0x%llx, stream %u, pool %u, stack %u, remark %u, time %lld; expected %s of "
          "%llu at 0x%llx, stream %u, pool %u, stack %u, remark %u, time %lld",
          name, i, weir_trace_action_name(y->action), (unsigned long long)y->size, (unsigned long long)y->address,
          y->stream, y->pool, y->stack, y->remark, (long long)y->time_us, weir_trace_action_name(x->action),
          (unsigned long long)x->size, (unsigned long long)x->address, x->stream, x->pool, x->stack, x->remark,
          (long long)x->time_us);
  }
  assert_int_equal(a->event_count, b->event_count);
}

static int by_address(const void *a, const void *b) {
  uint64_t x = (*(const weir__recording_segment *const *)a)->address;
  uint64_t y = (*(const weir__recording_segment *const *)b)->address;
  return (x > y) - (x < y);
}

static const weir__recording_segment **sorted(const weir__recording_device *d) {
  const weir__recording_segment **list = calloc(d->segment_count + 1, sizeof *list);
  assert_non_null(list);
  for (size_t i = 0; i < d->segment_count; i++)
    list[i] = &d->segments[i];
  qsort(list, d->segment_count, sizeof *list, by_address);
  return list;
}

static void compare_segments(const char *name, const weir__recording_device *a, const weir__recording_device *b) {
  const weir__recording_segment **x = sorted(a), **y = sorted(b);
  bool is_of_pytorch = strncmp(name, "traces/", 7) == 0; /* PyTorch wrote it */
  assert_int_equal(a->segment_count, b->segment_count);
  for (size_t i = 0; i < a->segment_count; i++) {
    assert_int_equal(x[i]->address, y[i]->address);
    assert_int_equal(x[i]->size, y[i]->size);
    if (is_of_pytorch) {
      assert_int_equal(x[i]->allocated, y[i]->allocated);
      assert_int_equal(x[i]->active, y[i]->active);
      assert_int_equal(x[i]->requested, y[i]->requested);
    }
    assert_int_equal(x[i]->stream, y[i]->stream);
    assert_int_equal(x[i]->pool, y[i]->pool);
    assert_int_equal(x[i]->device, y[i]->device);
    assert_int_equal(x[i]->is_large, y[i]->is_large);
    assert_int_equal(x[i]->is_expandable, y[i]->is_expandable);
    assert_int_equal(x[i]->block_count, y[i]->block_count);
    for (size_t k = 0; k < x[i]->block_count; k++) {
      const weir__recording_block *p = &x[i]->blocks[k], *q = &y[i]->blocks[k];
      assert_int_equal(p->address, q->address);
      assert_int_equal(p->size, q->size);
      assert_int_equal(p->state == WEIR_BLOCK_INACTIVE, q->state == WEIR_BLOCK_INACTIVE);
      if (is_of_pytorch)
        assert_int_equal(p->state, q->state);
      if (p->state != WEIR_BLOCK_INACTIVE)
        assert_int_equal(p->requested, q->requested);
      if (p->state != WEIR_BLOCK_INACTIVE && p->stack)
        assert_int_equal(p->stack, q->stack);
    }
  }
  free(x);
  free(y);
}

TEST(recorded) {
  size_t exact = 0;
  for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
    weir__recording *recording = load(traces[i]);
    weir__replayer *replayer = open_first(recording);
    weir__whatif_history *history = NULL;
    weir__replay_report report;
    const weir__replay_report *check = weir__replayer_check(replayer);
    weir__capacity capacity = weir__replayer_capacity(replayer);
    int device = weir__recording_first_device(recording);
    assert_int_equal(weir__whatif_history_make(replayer, NULL, &capacity, &report, &history), WEIR_OK);
    const weir__recording *made = weir__whatif_history_recording(history);
    if (!check->differences && !check->rescued) {
      exact++;
      compare_entries(traces[i], &recording->devices[device], &made->devices[device]);
      compare_segments(traces[i], &recording->devices[device], &made->devices[device]);
    } else
      print_message("%s: %zu differences, %zu rescued\n", traces[i], check->differences, check->rescued);
    weir__whatif_history_free(history);
    weir__replayer_close(replayer);
    weir__recording_free(recording);
  }
  print_message("%zu of %zu are exact\n", exact, sizeof traces / sizeof *traces);
  assert_true(exact >= 30);
}

/* ---- Other settings ---- */

static void check_figures(const char *name, const weir__recording *made, int device,
                          const weir__replay_report *report) {
  weir__summary summary;
  assert_int_equal(weir__summarize(made, device, &summary), WEIR_OK);
  if (report->begin == WEIR__BEGINS_EMPTY &&
      summary.reserved.bytes != (uint64_t)report->stats.reserved_bytes[WEIR_STAT_ALL].peak)
    fail_msg("%s: %llu bytes reserved at the peak, the replay has %llu", name,
             (unsigned long long)summary.reserved.bytes,
             (unsigned long long)report->stats.reserved_bytes[WEIR_STAT_ALL].peak);
}

/* The same through a file. */
static weir__recording *through_file(const weir__recording *made) {
  char *bytes = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&bytes, &size);
  weir__recording *read = NULL;
  assert_int_equal(weir__rewrite(made, -1, &weir__pickle_format, NULL, NULL, file), WEIR_OK);
  fclose(file);
  if (weir__recording_load_memory("a prediction", bytes, size, NULL, &read))
    fail_msg("%s", weir_last_error());
  free(bytes);
  return read;
}

static void check_replay(const char *name, const char *conf, const weir__recording *made) {
  weir__replayer *again = open_first(made);
  const weir__replay_report *check = weir__replayer_check(again);
  if (check->differences)
    fail_msg("%s under %s: the prediction is not reproduced: %s", name, conf, check->shown[0]);
  weir__replayer_close(again);
}

TEST(others) {
  static const char *const confs[] = {"",
                                      "expandable_segments:True",
                                      "max_split_size_mb:200",
                                      "garbage_collection_threshold:0.8",
                                      "moving_pages:True",
                                      "roundup_power2_divisions:4,max_split_size_mb:64"};
  size_t step = (size_t)usual_or_long(3, 1);
  for (size_t i = 0; i < sizeof traces / sizeof *traces; i += step) {
    weir__recording *recording = load(traces[i]);
    weir__replayer *replayer = open_first(recording);
    int device = weir__recording_first_device(recording);
    for (size_t k = 0; k < sizeof confs / sizeof *confs; k++) {
      if ((i / 3 + k) % 2 && usual_or_long(1, 0)) /* every other one */
        continue;
      weir__settings settings;
      weir__whatif_history *history = NULL;
      weir__replay_report report;
      weir__capacity capacity = weir__replayer_capacity(replayer);
      assert_int_equal(weir__settings_parse(NULL, confs[k], &settings), WEIR_OK);
      assert_int_equal(weir__whatif_history_make(replayer, &settings, &capacity, &report, &history), WEIR_OK);
      const weir__recording *made = weir__whatif_history_recording(history);
      check_figures(traces[i], made, device, &report);
      const uint32_t *origins = weir__whatif_history_origins(history);
      for (size_t e = 1; e < made->devices[device].event_count; e++)
        assert_true(origins[e - 1] <= origins[e]);
      weir__recording *read = through_file(made);
      assert_int_equal(read->devices[device].event_count, made->devices[device].event_count);
      if (!settings.moving_pages && !report.stats.num_alloc_retries) /* where pages move depends on streams */
        check_replay(traces[i], confs[k], read);
      weir__recording_free(read);
      weir__whatif_history_free(history);
    }
    weir__replayer_close(replayer);
    weir__recording_free(recording);
  }
}
