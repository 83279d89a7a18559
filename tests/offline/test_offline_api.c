/*
 * The public calls of weir/offline.h: bad input, and every recording of the tests, with the results of the program.
 */
#include "weir/offline.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "offline/load.h"
#include "support/length.h"

static const char small[] = WEIR_TEST_DATA "/small_snapshot.pickle";
static const char failing[] = WEIR_TEST_DATA "/traces/llama_oom.pickle.zst";

static weir_offline_recording *load_recording(const char *path) {
  weir_offline_recording *recording = NULL;
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: %s: built without libzstd\n", path);
  skip();
#endif
  if (weir_offline_recording_load(path, NULL, &recording))
    fail_msg("%s: %s", path, weir_offline_last_error());
  return recording;
}

static weir_offline_replayer *open_replayer(const weir_offline_recording *recording) {
  weir_offline_replayer *replayer = NULL;
  if (weir_offline_replayer_create(recording, NULL, &replayer))
    fail_msg("%s", weir_offline_last_error());
  return replayer;
}

static void *read_bytes(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  *size = (size_t)ftell(file);
  rewind(file);
  void *bytes = malloc(*size);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *size, file), *size);
  fclose(file);
  return bytes;
}

/* ---- Wrong arguments ---- */

#define INVALID(call) assert_int_equal(call, WEIR_ERROR_INVALID_ARGUMENT)

TEST(nulls) {
  weir_offline_recording *recording = (void *)1;
  weir_offline_replayer *replayer = (void *)1;
  weir_offline_result result;
  weir_offline_info info;
  weir_offline_explanation explanation;
  weir_offline_result_init(&result);
  weir_offline_info_init(&info);
  weir_offline_explanation_init(&explanation);
  weir_offline_load_options_init(NULL);
  weir_offline_info_init(NULL);
  weir_offline_replay_options_init(NULL);
  weir_offline_result_init(NULL);
  weir_offline_predict_options_init(NULL);
  weir_offline_explain_options_init(NULL);
  weir_offline_explanation_init(NULL);
  weir_offline_recording_destroy(NULL);
  weir_offline_replayer_destroy(NULL);
  INVALID(weir_offline_recording_load(NULL, NULL, &recording));
  INVALID(weir_offline_recording_load(small, NULL, NULL));
  INVALID(weir_offline_recording_load_memory(NULL, 1, NULL, &recording));
  INVALID(weir_offline_recording_load_memory("", 0, NULL, NULL));
  INVALID(weir_offline_recording_get_info(NULL, 0, &info));
  INVALID(weir_offline_replayer_create(NULL, NULL, &replayer));
  INVALID(weir_offline_replayer_check(NULL, &result));
  INVALID(weir_offline_replayer_predict(NULL, NULL, &result));
  INVALID(weir_offline_recording_explain(NULL, NULL, &explanation));
  assert_non_null(strstr(weir_offline_last_error(), "weir_offline_recording_explain"));
  assert_ptr_equal(recording, (void *)1);
  assert_ptr_equal(replayer, (void *)1);
  assert_string_equal(weir_offline_cause_name(WEIR_OFFLINE_CAUSE_FRAGMENTED), "fragmented");
  assert_string_equal(weir_offline_cause_name((weir_offline_cause)-1), "unknown");
  assert_string_equal(weir_offline_cause_name(WEIR_OFFLINE_CAUSES), "unknown");
}

/* Options and outputs whose size was not set. */
TEST(no_size) {
  weir_offline_recording *recording = load_recording(failing), *other;
  weir_offline_replayer *replayer = open_replayer(recording), *another;
  weir_offline_result result;
  weir_offline_explanation explanation;
  weir_offline_result_init(&result);
  weir_offline_explanation_init(&explanation);
  INVALID(weir_offline_recording_load(small, &(weir_offline_load_options){0}, &other));
  INVALID(weir_offline_recording_load_memory("", 0, &(weir_offline_load_options){0}, &other));
  INVALID(weir_offline_recording_get_info(recording, 0, NULL));
  INVALID(weir_offline_recording_get_info(recording, 0, &(weir_offline_info){0}));
  INVALID(weir_offline_replayer_create(recording, &(weir_offline_replay_options){0}, &another));
  INVALID(weir_offline_replayer_create(recording, NULL, NULL));
  INVALID(weir_offline_replayer_check(replayer, NULL));
  INVALID(weir_offline_replayer_check(replayer, &(weir_offline_result){0}));
  INVALID(weir_offline_replayer_predict(replayer, NULL, &(weir_offline_result){0}));
  INVALID(weir_offline_replayer_predict(replayer, &(weir_offline_predict_options){0}, &result));
  INVALID(weir_offline_recording_explain(recording, NULL, NULL));
  INVALID(weir_offline_recording_explain(recording, &(weir_offline_explain_options){0}, &explanation));
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}

TEST(bad_values) {
  weir_offline_recording *recording = load_recording(failing);
  weir_offline_replayer *replayer = open_replayer(recording), *other = NULL;
  weir_offline_info info;
  weir_offline_result result;
  weir_offline_replay_options replay;
  weir_offline_predict_options predict;
  weir_offline_explain_options explain;
  weir_offline_explanation explanation;
  weir_offline_info_init(&info);
  weir_offline_result_init(&result);
  weir_offline_replay_options_init(&replay);
  weir_offline_predict_options_init(&predict);
  weir_offline_explain_options_init(&explain);
  weir_offline_explanation_init(&explanation);
  assert_int_equal(weir_offline_recording_get_info(recording, 7, &info), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(weir_offline_recording_get_info(recording, -2, &info), WEIR_ERROR_INVALID_DEVICE);
  replay.device = explain.device = 7;
  assert_int_equal(weir_offline_replayer_create(recording, &replay, &other), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(weir_offline_recording_explain(recording, &explain, &explanation), WEIR_ERROR_INVALID_DEVICE);
  replay.device = explain.device = -1;
  replay.fraction = explain.fraction = predict.fraction = 0.5; /* of what? */
  INVALID(weir_offline_replayer_create(recording, &replay, &other));
  INVALID(weir_offline_replayer_predict(replayer, &predict, &result));
  INVALID(weir_offline_recording_explain(recording, &explain, &explanation));
  replay.memory = predict.memory = UINT64_MAX;
  INVALID(weir_offline_replayer_create(recording, &replay, &other));
  INVALID(weir_offline_replayer_predict(replayer, &predict, &result));
  replay.memory = predict.memory = 1 << 30;
  replay.fraction = predict.fraction = 2;
  INVALID(weir_offline_replayer_create(recording, &replay, &other));
  INVALID(weir_offline_replayer_predict(replayer, &predict, &result));
  predict.fraction = 0;
  predict.conf = "max_split_size_mb:none";
  INVALID(weir_offline_replayer_predict(replayer, &predict, &result));
  assert_non_null(strstr(weir_offline_last_error(), "max_split_size_mb"));
  predict.conf = "backend:cudaMallocAsync";
  assert_int_equal(weir_offline_replayer_predict(replayer, &predict, &result), WEIR_ERROR_NOT_SUPPORTED);
  assert_null(other);
  assert_int_equal(result.events, 0); /* nothing was written */
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}

TEST(bad_files) {
  weir_offline_recording *recording = NULL;
  weir_offline_load_options options;
  size_t size;
  weir_offline_load_options_init(&options);
  assert_int_equal(weir_offline_recording_load("/nowhere/at/all", NULL, &recording), WEIR_ERROR_SYSTEM);
  assert_int_equal(weir_offline_recording_load_memory("", 0, NULL, &recording), WEIR_ERROR_BAD_DATA);
  options.name = "a name of its own";
  assert_int_equal(weir_offline_recording_load_memory("garbage", 7, &options, &recording), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_offline_last_error(), "a name of its own"));
  void *bytes = read_bytes(small, &size);
  assert_int_equal(weir_offline_recording_load_memory(bytes, size - 1, NULL, &recording), WEIR_ERROR_BAD_DATA);
  options.memory = 1000;
  assert_int_not_equal(weir_offline_recording_load_memory(bytes, size, &options, &recording), WEIR_OK);
  assert_null(recording);
  free(bytes);
}

/* A caller of another version has a shorter struct: nothing behind it is written. */
TEST(short_structs) {
  weir_offline_recording *recording = load_recording(failing);
  weir_offline_replayer *replayer = open_replayer(recording);
  weir_offline_result result;
  memset(&result, 0x5a, sizeof result);
  result.size = offsetof(weir_offline_result, allocations);
  assert_int_equal(weir_offline_replayer_check(replayer, &result), WEIR_OK);
  assert_int_equal(result.is_exact, 1);
  assert_int_equal(result.events, 14531);
  assert_int_equal(result.allocations, 0x5a5a5a5a5a5a5a5a);
  struct {
    size_t size;
    const char *conf;
  } options = {sizeof options, "expandable_segments:True"};
  weir_offline_result_init(&result);
  assert_int_equal(
      weir_offline_replayer_predict(replayer, (const weir_offline_predict_options *)(const void *)&options, &result),
      WEIR_OK);
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}

/* ---- Results ---- */

/* Loaded from memory, plain or compressed, it is the same. */
TEST(memory) {
  weir_offline_recording *of_file = load_recording(failing), *of_memory = NULL;
  weir_offline_info a, b;
  size_t size;
  void *bytes = read_bytes(failing, &size);
  assert_int_equal(weir_offline_recording_load_memory(bytes, size, NULL, &of_memory), WEIR_OK);
  free(bytes);
  weir_offline_info_init(&a);
  weir_offline_info_init(&b);
  assert_int_equal(weir_offline_recording_get_info(of_file, -1, &a), WEIR_OK);
  assert_int_equal(weir_offline_recording_get_info(of_memory, 0, &b), WEIR_OK);
  assert_memory_equal(&a, &b, sizeof a);
  assert_int_equal(a.events, 14531);
  assert_int_equal(a.ooms, 1);
  assert_int_equal(a.device_count, 1);
  weir_offline_recording_destroy(of_memory);
  weir_offline_recording_destroy(of_file);
}

#ifdef WEIR_TEST_PROGRAM
/* What the program prints; free() it. */
static char *run_program(const char *arguments, const char *path) {
  char command[1024];
  char *text = malloc(1 << 20);
  snprintf(command, sizeof command, "'%s' %s '%s'", WEIR_TEST_PROGRAM, arguments, path);
  FILE *pipe = popen(command, "r"); /* NOLINT(cert-env33-c) */
  assert_non_null(pipe);
  text[fread(text, 1, (1 << 20) - 1, pipe)] = 0;
  pclose(pipe);
  return text;
}

/* The number behind a key, from the first one of that name behind `from` on. UINT64_MAX for null. */
static uint64_t number_of(const char *json, const char *from, const char *key) {
  char quoted[64];
  json = strstr(json, from);
  assert_non_null(json);
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  const char *at = strstr(json, quoted);
  if (!at)
    fail_msg("no %s in %s", key, json);
  at += strlen(quoted);
  if (strncmp(at, "true", 4) == 0)
    return 1;
  return strncmp(at, "null", 4) == 0 ? UINT64_MAX : strtoull(at, NULL, 10);
}

static void compare_replay(const char *path, const char *arguments, const weir_offline_result *result) {
  char *json = run_program(arguments, path);
  assert_int_equal(result->events, number_of(json, "{", "events"));
  assert_int_equal(result->allocations, number_of(json, "{", "allocations"));
  assert_int_equal(result->differences, number_of(json, "{", "differences"));
  assert_int_equal(result->ooms, number_of(json, "{", "failures"));
  assert_int_equal(result->limit, number_of(json, "{", "limit"));
  assert_int_equal(result->limit_is_inferred, number_of(json, "{", "limit_is_inferred"));
  assert_int_equal(result->peak_reserved, number_of(json, "{", "peak_reserved"));
  assert_int_equal(result->peak_allocated, number_of(json, "{", "peak_allocated"));
  assert_int_equal(result->peak_requested, number_of(json, "{", "peak_requested"));
  assert_int_equal(result->retries, number_of(json, "{", "num_alloc_retries"));
  free(json);
}

static void compare_predictions(const char *path, const weir_offline_replayer *replayer) {
  static const char *const confs[] = {"expandable_segments:True", "max_split_size_mb:64"};
  char *json = run_program("whatif --force --json --conf expandable_segments:True --conf max_split_size_mb:64", path),
       from[64];
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    weir_offline_predict_options options;
    weir_offline_result result;
    weir_offline_predict_options_init(&options);
    weir_offline_result_init(&result);
    options.conf = confs[i];
    assert_int_equal(weir_offline_replayer_predict(replayer, &options, &result), WEIR_OK);
    snprintf(from, sizeof from, "{\"conf\": \"%s\", \"recorded\": false", confs[i]);
    assert_int_equal(result.peak_reserved, number_of(json, from, "peak_reserved"));
    assert_int_equal(result.peak_allocated, number_of(json, from, "peak_allocated"));
    assert_int_equal(result.retries, number_of(json, from, "retries"));
    assert_int_equal(result.ooms, number_of(json, from, "failures"));
  }
  free(json);
}

static void compare_explanation(const char *path, const weir_offline_recording *recording) {
  weir_offline_explanation x;
  weir_offline_info info;
  weir_offline_explanation_init(&x);
  weir_offline_info_init(&info);
  assert_int_equal(weir_offline_recording_get_info(recording, -1, &info), WEIR_OK);
  weir_status status = weir_offline_recording_explain(recording, NULL, &x);
  if (!info.ooms) {
    assert_int_equal(status, WEIR_ERROR_INVALID_ARGUMENT);
    return;
  }
  assert_int_equal(status, WEIR_OK);
  char *json = run_program("explain --at oom --json", path);
  char cause[64], conf[WEIR_OFFLINE_TEXT + 32];
  snprintf(cause, sizeof cause, "\"cause\": \"%s\"", weir_offline_cause_name(x.cause));
  assert_non_null(strstr(json, cause));
  assert_int_equal(x.event, number_of(json, "{", "event"));
  assert_int_equal(x.request, number_of(json, "\"request\"", "bytes"));
  assert_int_equal(x.wanted, number_of(json, "{", "wanted"));
  assert_int_equal(x.reserved, number_of(json, "{", "reserved"));
  assert_int_equal(x.allocated, number_of(json, "{", "live"));
  assert_int_equal(x.largest_free, number_of(json, "{", "largest_hole"));
  assert_int_equal(x.limit, number_of(json, "{", "limit"));
  uint64_t enough = number_of(json, "{", "enough_for_request");
  assert_int_equal(x.enough_for_request, enough == UINT64_MAX ? 0 : enough);
  if (*x.conf) {
    snprintf(conf, sizeof conf, "\"conf\": \"%s\"", x.conf);
    assert_non_null(strstr(json, conf));
  }
  free(json);
}

static void compare_all(const char *path) {
  weir_offline_recording *recording = load_recording(path);
  weir_offline_replayer *replayer = open_replayer(recording);
  weir_offline_result result;
  weir_offline_result_init(&result);
  assert_int_equal(weir_offline_replayer_check(replayer, &result), WEIR_OK);
  assert_int_equal(result.is_exact, 1);
  assert_string_equal(result.first_difference, "");
  compare_replay(path, "replay --check --json", &result);
  assert_int_equal(weir_offline_replayer_predict(replayer, NULL, &result), WEIR_OK);
  assert_int_equal(result.is_exact, 1);
  compare_replay(path, "replay --json", &result);
  compare_predictions(path, replayer);
  compare_explanation(path, recording);
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}

/* Every recording in the long form, the small ones otherwise. */
TEST(like_program) {
  const off_t max_bytes = usual_or_long(256 << 10, INT_MAX);
  const size_t least_files = (size_t)usual_or_long(10, 30);
  static const char *const folders[] = {"traces", "histories", "late"};
  size_t files = 0;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, folders[i]);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
      if (!strstr(entry->d_name, ".pickle"))
        continue;
      snprintf(path, sizeof path, "%s/%s/%s", WEIR_TEST_DATA, folders[i], entry->d_name);
      struct stat status;
      assert_int_equal(stat(path, &status), 0);
      if (status.st_size > max_bytes)
        continue;
      compare_all(path);
      files++;
    }
    closedir(folder);
  }
  assert_true(files > least_files);
}
#endif

typedef struct text {
  char *bytes;
  size_t length;
} text;

static int add_text(void *context, const void *bytes, size_t length) {
  text *to = context;
  to->bytes = realloc(to->bytes, to->length + length);
  memcpy(to->bytes + to->length, bytes, length);
  to->length += length;
  return 0;
}

static int fail_to_write(void *context, const void *bytes, size_t length) {
  (void)context, (void)bytes, (void)length;
  return ENOSPC;
}

TEST(plot) {
  text svg = {0};
  weir_offline_recording *recording = load_recording(failing);
  weir_offline_plot_options options;
  weir_offline_plot_options_init(NULL);
  weir_offline_plot_options_init(&options);
  INVALID(weir_offline_recording_plot(NULL, NULL, add_text, &svg));
  INVALID(weir_offline_recording_plot(recording, NULL, NULL, &svg));
  INVALID(weir_offline_recording_plot(recording, &(weir_offline_plot_options){0}, add_text, &svg));
  options.kind = WEIR_OFFLINE_PLOTS;
  INVALID(weir_offline_recording_plot(recording, &options, add_text, &svg));
  options.kind = WEIR_OFFLINE_PLOT_SEGMENTS;
  options.width = 479;
  INVALID(weir_offline_recording_plot(recording, &options, add_text, &svg));
  options.width = 0;
  options.at = WEIR_OFFLINE_AT_EVENT;
  options.event = UINT64_MAX;
  INVALID(weir_offline_recording_plot(recording, &options, add_text, &svg));
  options.at = WEIR_OFFLINE_AT_OOM;
  options.device = 9;
  assert_int_equal(weir_offline_recording_plot(recording, &options, add_text, &svg), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(svg.length, 0);
  options.device = -1;
  for (int kind = 0; kind < WEIR_OFFLINE_PLOTS; kind++) {
    options.kind = (weir_offline_plot)kind;
    options.at = kind == WEIR_OFFLINE_PLOT_SEGMENTS ? WEIR_OFFLINE_AT_OOM : WEIR_OFFLINE_AT_AUTO;
    assert_int_equal(weir_offline_recording_plot(recording, &options, add_text, &svg), WEIR_OK);
    assert_int_equal(strncmp(svg.bytes, "<svg ", 5), 0);
    assert_memory_equal(svg.bytes + svg.length - 7, "</svg>\n", 7);
    svg.length = 0;
  }
  options.kind = WEIR_OFFLINE_PLOT_MEMORY;
  assert_int_equal(weir_offline_recording_plot(recording, &options, fail_to_write, NULL), WEIR_ERROR_SYSTEM);
  assert_non_null(strstr(weir_offline_last_error(), "No space left"));
  free(svg.bytes);
  weir_offline_recording_destroy(recording);
}

/* An explanation without remedies is the same but for them. */
TEST(no_remedies) {
  weir_offline_recording *recording = load_recording(failing);
  weir_offline_explain_options options;
  weir_offline_explanation with, without;
  weir_offline_explain_options_init(&options);
  weir_offline_explanation_init(&with);
  weir_offline_explanation_init(&without);
  assert_int_equal(weir_offline_recording_explain(recording, NULL, &with), WEIR_OK);
  options.no_remedies = 1;
  assert_int_equal(weir_offline_recording_explain(recording, &options, &without), WEIR_OK);
  assert_string_not_equal(with.conf, "");
  assert_true(with.enough_for_request > with.limit);
  assert_string_equal(without.conf, "");
  assert_int_equal(without.enough_for_request, 0);
  assert_int_equal(with.cause, without.cause);
  assert_int_equal(with.free, without.free);
  assert_int_equal(with.is_exact, 1);
  weir_offline_recording_destroy(recording);
}

/* With pages that move, the two ends of a range; without, streams make no difference. */
TEST(busy_streams) {
  weir_offline_recording *recording = load_recording(WEIR_TEST_DATA "/traces/cuda_graphs.pickle.zst");
  weir_offline_replayer *replayer = open_replayer(recording);
  static const char *const confs[] = {"expandable_segments:True", "moving_pages:True"};
  for (size_t i = 0; i < 2; i++) {
    weir_offline_predict_options options;
    weir_offline_result idle, busy;
    weir_offline_predict_options_init(&options);
    weir_offline_result_init(&idle);
    weir_offline_result_init(&busy);
    options.conf = confs[i];
    assert_int_equal(weir_offline_replayer_predict(replayer, &options, &idle), WEIR_OK);
    options.streams_are_busy = 1;
    assert_int_equal(weir_offline_replayer_predict(replayer, &options, &busy), WEIR_OK);
    assert_int_equal(idle.peak_reserved != busy.peak_reserved || idle.driver_calls != busy.driver_calls, i);
  }
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}
