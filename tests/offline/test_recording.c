#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offline/offline_data.h"
#include "offline/read/recording.h"
#include "support/length.h"
#include "support/test.h"

#ifdef WEIR_HAVE_ZLIB
#include <zlib.h>
#endif

#ifdef WEIR_HAVE_ZSTD
#define NEEDS_ZSTD (void)0
#else
#define NEEDS_ZSTD skip()
#endif

/* ---- Pickles from the text of a Python value ---- */

typedef struct writer {
  const char *at; /* in the text */
  unsigned char *data;
  size_t size, capacity;
} writer;

static void write_bytes(writer *w, const void *data, size_t size) {
  if (w->size + size > w->capacity) {
    w->capacity = 2 * (w->capacity + size);
    w->data = realloc(w->data, w->capacity);
    assert_non_null(w->data);
  }
  memcpy(w->data + w->size, data, size);
  w->size += size;
}

static void write_op(writer *w, char op) { write_bytes(w, &op, 1); }

static void write_value(writer *w);

/* Up to `end`, with the opening bracket read. */
static void write_values(writer *w, char end) {
  write_op(w, '(');
  while (*w->at != end) {
    if (strchr(" ,:", *w->at))
      w->at++;
    else
      write_value(w);
  }
  w->at++;
}

/* None, True, False, integers, floats with a point, 'texts', [lists], (tuples), {dicts}; PUT n: <n=value>, GET n: <n>.
 * */
static void write_value(writer *w) {
  char c = *w->at;
  char *end;
  if (c == '[') {
    w->at++;
    write_op(w, ']');
    write_values(w, ']');
    write_op(w, 'e');
  } else if (c == '(') {
    w->at++;
    write_values(w, ')');
    write_op(w, 't');
  } else if (c == '{') {
    w->at++;
    write_op(w, '}');
    write_values(w, '}');
    write_op(w, 'u');
  } else if (c == '\'') {
    const char *quote = strchr(w->at + 1, '\'');
    uint32_t size = (uint32_t)(quote - w->at - 1);
    write_op(w, 'X');
    write_bytes(w, &size, 4);
    write_bytes(w, w->at + 1, size);
    w->at = quote + 1;
  } else if (c == '<') {
    char number = (char)strtol(w->at + 1, &end, 10);
    w->at = end + 1;
    if (*end == '=') {
      write_value(w);
      assert_int_equal(*w->at++, '>');
    }
    write_op(w, *end == '=' ? 'q' : 'h');
    write_op(w, number);
  } else if (c == 'N' || c == 'T' || c == 'F') {
    w->at += c == 'F' ? 5 : 4;
    write_op(w, c == 'N' ? 'N' : c == 'T' ? '\x88' : '\x89');
  } else {
    size_t size = strspn(w->at, "-0123456789.");
    if (size == 0)
      fail_msg("no value begins with \"%s\"", w->at);
    write_op(w, memchr(w->at, '.', size) != NULL ? 'F' : 'L');
    write_bytes(w, w->at, size);
    write_op(w, '\n');
    w->at += size;
  }
}

static bytes pickle_of(const char *value) {
  writer w = {.at = value};
  write_value(&w);
  assert_string_equal(w.at, "");
  write_op(&w, '.');
  return (bytes){w.data, w.size};
}

static weir_status read_bytes(const void *data, size_t size, const weir__recording_limits *limits,
                              weir__recording **recording) {
  weir__input *source;
  weir_status status = weir__input_open_memory("test", data, size, &source);
  if (status != WEIR_OK)
    return status;
  status = weir__recording_read(source, limits, recording);
  weir__input_close(source);
  return status;
}

static weir__recording *snapshot_of(const char *value) {
  bytes b = pickle_of(value);
  weir__recording *s = NULL;
  if (read_bytes(b.data, b.size, NULL, &s) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  free(b.data);
  return s;
}

static void check_fails(const char *value, const char *why) {
  bytes b = pickle_of(value);
  weir__recording *s = NULL;
  assert_int_equal(read_bytes(b.data, b.size, NULL, &s), WEIR_ERROR_BAD_DATA);
  assert_null(s);
  if (strncmp(weir_last_error(), "test: ", 6) != 0 || strstr(weir_last_error(), why) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", weir_last_error(), why);
  free(b.data);
}

static weir__recording *load_test_file(const char *name) {
  char path[1024];
  weir__recording *s = NULL;
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  if (weir__recording_load(path, NULL, &s) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  return s;
}

static const char *string_of(const weir__recording *s, uint32_t id) {
  assert_true(id < s->strings.count);
  return s->strings.items[id].text;
}

/* Every number leads somewhere. */
static void check_whole(const weir__recording *s) {
  size_t events = 0, segments = 0, blocks = 0;
  for (size_t i = 0; i < s->stack_count; i++)
    for (size_t j = 0; j < s->stacks[i].count; j++)
      assert_true(s->stack_frames[s->stacks[i].first + j] < s->frame_count);
  for (size_t i = 0; i < s->frame_count; i++) {
    string_of(s, s->frames[i].name);
    string_of(s, s->frames[i].filename);
  }
  for (size_t i = 0; i < s->remark_count; i++) {
    string_of(s, s->remarks[i].compile_context);
    string_of(s, s->remarks[i].user_metadata);
    string_of(s, s->remarks[i].action);
  }
  for (size_t i = 0; i < s->annotation_count; i++) {
    string_of(s, s->annotations[i].name);
    string_of(s, s->annotations[i].stage);
  }
  for (size_t d = 0; d < s->device_count; d++) {
    const weir__recording_device *device = &s->devices[d];
    for (size_t i = 0; i < device->event_count; i++) {
      const weir__recording_entry *e = &device->events[i];
      assert_true(e->stack < s->stack_count && e->remark < s->remark_count && e->stream < s->stream_count);
      assert_true(e->pool < s->pool_count || e->pool == WEIR__RECORDING_NO_POOL);
      assert_true(e->action <= WEIR__ACTION_UNKNOWN);
    }
    for (size_t i = 0; i < device->segment_count; i++) {
      const weir__recording_segment *segment = &device->segments[i];
      assert_true(segment->stack < s->stack_count && segment->pool < s->pool_count &&
                  segment->stream < s->stream_count);
      assert_int_equal(segment->device, d);
      for (size_t j = 0; j < segment->block_count; j++)
        assert_true(segment->blocks[j].stack < s->stack_count &&
                    segment->blocks[j].state <= WEIR_BLOCK_ACTIVE_PENDING_FREE);
      blocks += segment->block_count;
    }
    events += device->event_count;
    segments += device->segment_count;
  }
  assert_int_equal(events, s->event_count);
  for (size_t i = 0; i < s->host.event_count; i++)
    assert_true(s->host.events[i].stack < s->stack_count && s->host.events[i].stream < s->stream_count);
  for (size_t i = 0; i < s->host.segment_count; i++) {
    assert_int_equal(s->host.segments[i].device, -1);
    blocks += s->host.segments[i].block_count;
  }
  assert_int_equal(segments, s->segment_count);
  assert_int_equal(blocks, s->block_count);
}

/* ---- Recorded jobs ---- */

/* PyTorch's own counters at the end of each job. */
static const struct {
  const char *name;
  uint64_t allocs, device_alloc, device_free;
  uint64_t peak_reserved, peak_requested;
  const char *conf;
  size_t segments, stacks, annotations;
} jobs[] = {
    {"cuda_graphs", 594, 49, 5, 891289600, 808566800, "", 44, 1, 0},
    {"cuda_graphs_expandable", 594, 49, 4, 939524096, 808566800, "expandable_segments:True", 25, 1, 0},
    {"gpt2_fixed", 7612, 179, 0, 17989369856, 16983980232, "", 179, 1, 20},
    {"llama_lora_ckpt", 37816, 97, 0, 23139975168, 8229536592, "", 97, 1, 60},
    {"llama_lora_gc", 37816, 97, 10, 12213813248, 8229536592, "garbage_collection_threshold:0.6", 87, 1, 60},
    {"llama_oom", 4780, 158, 36, 13050576896, 11573073048, "", 122, 1, 16},
    {"llama_varlen", 26458, 165, 0, 34955329536, 19507403152, "", 165, 1, 100},
    {"llama_varlen_capped", 26458, 197, 53, 21527265280, 19507403152, "", 144, 1, 100},
    {"llama_varlen_expandable", 26458, 169, 0, 21443379200, 19507403152, "expandable_segments:True", 2, 1, 100},
    {"llama_varlen_expandable_capped", 26458, 184, 8, 19740491776, 19507403152, "expandable_segments:True", 7, 1, 100},
    {"llama_varlen_split200", 26458, 357, 0, 112600285184, 19507403152, "max_split_size_mb:200", 357, 1, 100},
    {"llama_varlen_split200_capped", 26458, 393, 184, 25513951232, 19507403152, "max_split_size_mb:200", 209, 1, 100},
    {"llm_generate_small", 104486, 84, 0, 3841982464, 2944148736, "", 84, 1, 0},
    {"resnet_multiscale", 17435, 121, 0, 12807307264, 9454177936, "", 121, 1, 100},
    {"resnet_roundup", 17435, 118, 0, 13333692416, 9454177936, "roundup_power2_divisions:4", 118, 1, 100},
    {"resnet_stacks", 3209, 121, 0, 12807307264, 9454177936, "", 121, 47, 16},
    {"streams_prefetch", 19184, 76, 0, 6926893056, 3302798423, "", 76, 1, 160},
    {"streams_prefetch_expandable", 19184, 95, 0, 3391094784, 3302798423, "expandable_segments:True", 3, 1, 160},
};

TEST(recorded_jobs) {
  NEEDS_ZSTD;
  for (size_t i = 0; i < WEIR_COUNT_OF(jobs); i++) {
    char name[128];
    snprintf(name, sizeof name, "traces/%s.pickle.zst", jobs[i].name);
    weir__recording *s = load_test_file(name);
    check_whole(s);
    assert_int_equal(s->device_count, 1);
    assert_true(s->has_history);
    uint64_t counts[WEIR__ACTION_UNKNOWN + 1] = {0}, reserved = 0, peak_reserved = 0, requested = 0, peak_requested = 0;
    const weir__recording_device *device = &s->devices[0];
    for (size_t j = 0; j < device->event_count; j++) {
      const weir__recording_entry *e = &device->events[j];
      counts[e->action]++;
      reserved += e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP ? e->size : 0;
      reserved -= e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP ? e->size : 0;
      requested += e->action == WEIR_TRACE_ALLOC ? e->size : 0;
      requested -= e->action == WEIR_TRACE_FREE_COMPLETED ? e->size : 0;
      peak_reserved = reserved > peak_reserved ? reserved : peak_reserved;
      peak_requested = requested > peak_requested ? requested : peak_requested;
      assert_int_equal(e->pool, WEIR__RECORDING_NO_POOL);
      assert_true(j == 0 || e->time_us >= e[-1].time_us);
    }
    assert_int_equal(counts[WEIR_TRACE_ALLOC], jobs[i].allocs);
    assert_int_equal(counts[WEIR_TRACE_SEGMENT_ALLOC] + counts[WEIR_TRACE_SEGMENT_MAP], jobs[i].device_alloc);
    assert_int_equal(counts[WEIR_TRACE_SEGMENT_FREE] + counts[WEIR_TRACE_SEGMENT_UNMAP], jobs[i].device_free);
    assert_int_equal(counts[WEIR_TRACE_OOM], strcmp(jobs[i].name, "llama_oom") == 0);
    assert_int_equal(peak_reserved, jobs[i].peak_reserved);
    assert_int_equal(peak_requested, jobs[i].peak_requested);
    assert_int_equal(device->segment_count, jobs[i].segments);
    assert_int_equal(s->stack_count, jobs[i].stacks);
    assert_int_equal(s->annotation_count, jobs[i].annotations);
    assert_string_equal(s->conf, jobs[i].conf);

    /* What is still reserved is in the segments, and the blocks fill each of them. */
    uint64_t in_segments = 0;
    for (size_t j = 0; j < device->segment_count; j++) {
      const weir__recording_segment *segment = &device->segments[j];
      uint64_t end = segment->address;
      for (size_t k = 0; k < segment->block_count; k++) {
        assert_int_equal(segment->blocks[k].address, end);
        end += segment->blocks[k].size;
      }
      assert_int_equal(end, segment->address + segment->size);
      in_segments += segment->size;
    }
    assert_int_equal(in_segments, reserved);
    weir__recording_free(s);
  }
}

TEST(settings) {
  NEEDS_ZSTD;
  weir__recording *s = load_test_file("traces/llama_lora_gc.pickle.zst");
  assert_string_equal(s->conf, "garbage_collection_threshold:0.6");
  const weir__recording_setting *setting = weir__recording_find_setting(s, "garbage_collection_threshold", NULL);
  assert_non_null(setting);
  assert_int_equal(setting->kind, WEIR__SETTING_FLOAT);
  assert_true(setting->real == 0.6);
  setting = weir__recording_find_setting(s, "max_split_size", NULL);
  assert_int_equal(setting->kind, WEIR__SETTING_INT);
  assert_int_equal(setting->integer, -1);
  setting = weir__recording_find_setting(s, "expandable_segments", NULL);
  assert_int_equal(setting->kind, WEIR__SETTING_BOOL);
  assert_int_equal(setting->integer, 0);
  assert_null(weir__recording_find_setting(s, "roundup_power2_divisions", NULL));
  assert_null(weir__recording_find_setting(s, "max_split_size", "1"));
  setting = weir__recording_find_setting(s, "roundup_power2_divisions", "32768");
  assert_int_equal(setting->kind, WEIR__SETTING_INT);
  assert_int_equal(setting->integer, 0);
  assert_int_equal(s->setting_count, 8 + 16);
  weir__recording_free(s);

  s = load_test_file("traces/resnet_roundup.pickle.zst");
  assert_int_equal(weir__recording_find_setting(s, "roundup_power2_divisions", "1")->integer, 4);
  weir__recording_free(s);
}

/* Each field of the small snapshot, which has stacks. */
TEST(small_snapshot) {
  weir__recording *s = load_test_file("small_snapshot.pickle");
  check_whole(s);
  assert_int_equal(s->event_count, 40);
  assert_int_equal(s->ignored_count, 0);
  const weir__recording_entry *e = s->devices[0].events;
  assert_int_equal(e->action, WEIR_TRACE_SEGMENT_ALLOC);
  assert_string_equal(weir_trace_action_name(e->action), "segment_alloc");
  assert_int_equal(e->address, 139710754193408);
  assert_int_equal(e->size, 2097152);
  assert_int_equal(s->streams[e->stream], 0);
  assert_int_equal(e->time_us, 1794709598142736);
  assert_int_equal(e->remark, 0);
  assert_string_equal(string_of(s, s->remarks[0].compile_context), "N/A");
  assert_string_equal(string_of(s, s->remarks[0].user_metadata), "");
  const weir__recording_stack *stack = &s->stacks[e->stack];
  assert_int_equal(stack->count, 6);
  const weir__recording_frame *frame = &s->frames[s->stack_frames[stack->first]];
  assert_string_equal(string_of(s, frame->name), "convert");
  assert_string_equal(string_of(s, frame->filename), "/job/module.py");
  assert_int_equal(frame->line, 1370);
  frame = &s->frames[s->stack_frames[stack->first + 5]];
  assert_string_equal(string_of(s, frame->name), "<module>");
  assert_int_equal(frame->line, 107);
  assert_int_equal(e[1].stack, e[0].stack); /* kept once */
  assert_int_equal(e[39].action, WEIR_TRACE_ALLOC);
  assert_int_equal(e[39].address, 139710754759168);
  assert_int_equal(e[39].size, 256);

  assert_int_equal(s->segment_count, 6);
  const weir__recording_segment *segment = s->devices[0].segments;
  assert_int_equal(segment->address, 139695421915136);
  assert_int_equal(segment->size, 520093696);
  assert_true(segment->is_large);
  assert_false(segment->is_expandable);
  assert_int_equal(segment->pool, 0);
  assert_int_equal(segment->block_count, 1);
  assert_int_equal(segment->blocks[0].state, WEIR_BLOCK_INACTIVE);
  assert_int_equal(segment->blocks[0].requested, 517997199);

  assert_int_equal(s->annotation_count, 4);
  assert_string_equal(string_of(s, s->annotations[0].name), "Optimizer.step#SGD.step");
  assert_string_equal(string_of(s, s->annotations[1].stage), "END");
  assert_int_equal(s->annotations[1].time_us, 1794709599262217);
  assert_int_equal(s->annotations[1].device, 0);
  weir__recording_free(s);
}

/* ---- Other versions of the schema ---- */

#define SEGMENT                                                                                                        \
  "{'device': 0, 'address': 4096, 'total_size': 1024, 'stream': 7, 'segment_type': 'small', 'segment_pool_id': (0, "   \
  "1), "                                                                                                               \
  "'is_expandable': True, 'blocks': [{'size': 512, 'state': 'active_allocated', 'requested_size': 500}, "              \
  "{'size': 512, 'state': 'active_pending_free'}]}"
#define EVENT "'addr': 4096, 'size': 512, 'stream': 7"

TEST(segments_alone) {
  weir__recording *s = snapshot_of("[" SEGMENT "]");
  check_whole(s);
  assert_false(s->has_history);
  assert_null(s->conf);
  assert_int_equal(s->device_count, 1);
  const weir__recording_segment *segment = s->devices[0].segments;
  assert_int_equal(segment->block_count, 2);
  assert_false(segment->is_large);
  assert_true(segment->is_expandable);
  assert_int_equal(s->streams[segment->stream], 7);
  assert_int_equal(s->pools[segment->pool].id[0], 0);
  assert_int_equal(s->pools[segment->pool].id[1], 1);
  assert_int_equal(segment->blocks[0].requested, 500);
  assert_int_equal(segment->blocks[0].state, WEIR_BLOCK_ACTIVE_ALLOCATED);
  assert_int_equal(segment->blocks[1].address, 4096 + 512); /* it was not said */
  assert_int_equal(segment->blocks[1].requested, 512);
  assert_int_equal(segment->blocks[1].state, WEIR_BLOCK_ACTIVE_PENDING_FREE);
  weir__recording_free(s);

  s = snapshot_of("[]");
  assert_int_equal(s->device_count, 0);
  weir__recording_free(s);
  s = snapshot_of("{'segments': []}");
  assert_int_equal(s->device_count, 0);
  assert_false(s->has_history);
  weir__recording_free(s);
  s = snapshot_of("{'segments': [], 'device_traces': []}");
  assert_true(s->has_history);
  weir__recording_free(s);
}

TEST(newer_schema) {
  weir__recording *s = snapshot_of(
      "{'segments': [" SEGMENT "], 'host_segments': [], 'host_traces': [{'action': 'alloc', " EVENT ", 'new': 1}],"
      "'device_traces': [[{'action': 'alloc', " EVENT ", 'pool_id': (3, 4), 'user_metadata': 'step 1', 'new': 1},"
      "{'action': 'annotate', 'addr': 0, 'size': 0, 'stream': 0, 'user_metadata': 'here'},"
      "{'action': 'user_defined', 'addr': 0, 'size': 0, 'stream': 0, 'user_metadata': 'there'},"
      "{'action': 'teleport', " EVENT ", 'pool_id': (3, 4), 'compile_context': '0/1', 'new': 1, 'newer': 2},"
      "{'action': 'oom', 'device_free': 99, 'size': 5, 'stream': -1, 'frames': [], 'pool_id': None}], [],"
      "[{'action': 'free_requested', 'addr': 18446744073709551615, 'size': 512, 'stream': 0, 5: 6}]],"
      "'allocator_settings': {'max_split_size': 18446744073709551615, 'x': None, 'y': 'text', 'z': {'1': 0.5}, 'y': "
      "'last'},"
      "'external_annotations': [{'name': 'a', 'device': 0, 'extra': 1}, {}]}");
  check_whole(s);
  assert_int_equal(s->device_count, 3);
  assert_int_equal(s->event_count, 6);
  const weir__recording_entry *e = s->devices[0].events;
  assert_int_equal(s->devices[0].event_count, 5);
  assert_int_equal(s->pools[e[0].pool].id[0], 3);
  assert_int_equal(s->pools[e[0].pool].id[1], 4);
  assert_string_equal(string_of(s, s->remarks[e[0].remark].user_metadata), "step 1");
  assert_int_equal(e[1].action, WEIR_TRACE_ANNOTATE);
  assert_int_equal(e[1].pool, WEIR__RECORDING_NO_POOL);
  assert_string_equal(string_of(s, s->remarks[e[1].remark].user_metadata), "here");
  e++;
  assert_int_equal(e[1].action, WEIR_TRACE_USER_DEFINED);
  assert_string_equal(string_of(s, s->remarks[e[1].remark].user_metadata), "there");
  assert_int_equal(e[2].action, WEIR__ACTION_UNKNOWN);
  assert_string_equal(string_of(s, s->remarks[e[2].remark].action), "teleport");
  assert_string_equal(string_of(s, s->remarks[e[2].remark].compile_context), "0/1");
  assert_int_equal(e[2].pool, e[-1].pool);
  assert_int_equal(e[3].action, WEIR_TRACE_OOM);
  assert_int_equal(e[3].address, 99);
  assert_int_equal(s->streams[e[3].stream], -1);
  assert_int_equal(e[3].remark, 0);
  assert_int_equal(e[3].pool, WEIR__RECORDING_NO_POOL);
  assert_int_equal(s->devices[1].event_count, 0);
  assert_int_equal(s->devices[2].event_count, 1);
  assert_true(s->devices[2].events[0].address == UINT64_MAX);
  assert_int_equal(weir__recording_find_setting(s, "max_split_size", NULL)->integer, -1);
  assert_string_equal(weir__recording_find_setting(s, "y", NULL)->text, "last");
  assert_true(weir__recording_find_setting(s, "z", "1")->real == 0.5);
  assert_null(weir__recording_find_setting(s, "x", NULL));
  assert_int_equal(s->annotation_count, 2);
  assert_int_equal(s->annotations[1].device, -1);

  static const struct {
    const char *where, *key;
    uint64_t count;
  } ignored[] = {{"event", "new", 3},
                 {"event", "newer", 1},
                 {"event", "an int", 1},
                 {"setting", "x", 1},
                 {"annotation", "extra", 1}};
  assert_int_equal(s->ignored_count, WEIR_COUNT_OF(ignored));
  for (size_t i = 0; i < WEIR_COUNT_OF(ignored); i++) {
    assert_string_equal(s->ignored[i].where, ignored[i].where);
    assert_string_equal(s->ignored[i].key, ignored[i].key);
    assert_int_equal(s->ignored[i].count, ignored[i].count);
  }
  weir__recording_free(s);
}

/* Pinned host memory is kept beside the devices, and annotations with all that the program said. */
TEST(host_memory) {
  weir__recording *s = snapshot_of(
      "{'segments': [" SEGMENT "], 'device_traces': [[{'action': 'alloc', " EVENT "}]],"
      "'host_segments': [{'device': -1, 'address': 4096, 'total_size': 512, 'active_size': 512, 'stream': 0,"
      "'segment_type': 'small', 'blocks': [{'address': 4096, 'size': 512, 'state': 'active_allocated', 'frames': "
      "[]}]}],"
      "'host_traces': [{'action': 'alloc', " EVENT "}, {'action': 'segment_alloc', " EVENT "}],"
      "'external_annotations': [{'name': 'a', 'epoch': '3', 'device': 0}, {'note': 'text', 'name': 'b'}]}");
  check_whole(s);
  assert_int_equal(s->ignored_count, 0);
  assert_true(s->has_host);
  assert_int_equal(s->device_count, 1);
  assert_int_equal(s->event_count, 1);
  assert_int_equal(s->segment_count, 1);
  assert_int_equal(s->host.segment_count, 1);
  assert_int_equal(s->host.segments[0].size, 512);
  assert_int_equal(s->host.segments[0].blocks[0].address, 4096);
  assert_int_equal(s->host.event_count, 2);
  assert_int_equal(s->host.events[1].action, WEIR_TRACE_SEGMENT_ALLOC);
  assert_int_equal(s->annotations[0].pair_count, 1);
  assert_int_equal(s->annotations[1].pair_count, 1);
  const weir__recording_pair *pair = &s->pairs[s->annotations[1].first_pair];
  assert_string_equal(string_of(s, pair->key), "note");
  assert_string_equal(string_of(s, pair->value), "text");
  weir__recording_free(s);
}

/* A history need not lie in the file in its own order. */
TEST(events_in_any_order) {
  weir__recording *s = snapshot_of("{'x': [<0={'action': 'alloc', 'addr': 1, 'size': 1, 'stream': 0}>,"
                                   "<1={'action': 'alloc', 'addr': 2, 'size': 2, 'stream': 0}>],"
                                   "'device_traces': [[<1>, <0>, <0>], [<0>, <1>]], 'segments': []}");
  check_whole(s);
  assert_int_equal(s->event_count, 5);
  assert_int_equal(s->devices[0].events[0].size, 2);
  assert_int_equal(s->devices[0].events[1].size, 1);
  assert_int_equal(s->devices[0].events[2].size, 1);
  assert_int_equal(s->devices[1].events[0].size, 1);
  assert_int_equal(s->devices[1].events[1].size, 2);
  weir__recording_free(s);
}

TEST(stacks_are_kept_once) {
  weir__recording *s = snapshot_of(
      "{'segments': [], 'device_traces': [["
      "{'action': 'alloc', " EVENT ", 'frames': [{'name': 'f', 'filename': 'a.py', 'line': 1}]},"
      "{'action': 'alloc', " EVENT ", 'frames': [{'name': 'f', 'filename': 'a.py', 'line': 1}]},"
      "{'action': 'alloc', " EVENT ", 'frames': [{'name': 'f', 'filename': 'a.py', 'line': 1, 'fx_node_op': 'x'},"
      "{'name': 'g', 'filename': 'a.py', 'line': -2}]},"
      "{'action': 'alloc', " EVENT ", 'frames': [{'name': 'g', 'filename': 'a.py', 'line': -2}]},"
      "{'action': 'alloc', " EVENT ", 'frames': None}, {'action': 'alloc', " EVENT "}]]}");
  check_whole(s);
  const weir__recording_entry *e = s->devices[0].events;
  assert_int_equal(s->frame_count, 2);
  assert_int_equal(s->stack_count, 4);
  assert_int_equal(e[0].stack, 1);
  assert_int_equal(e[1].stack, 1);
  assert_int_equal(e[2].stack, 2);
  assert_int_equal(e[3].stack, 3);
  assert_int_equal(e[4].stack, 0);
  assert_int_equal(e[5].stack, 0);
  assert_int_equal(s->stacks[2].count, 2);
  assert_int_equal(s->frames[s->stack_frames[s->stacks[2].first + 1]].line, -2);
  weir__recording_free(s);
}

/* ---- Damaged recordings ---- */

TEST(errors) {
  check_fails("5", "the snapshot: it is an int, not a dict");
  check_fails("{'action': 'alloc', " EVENT "}", "the snapshot: it is a record, not a dict");
  check_fails("{'device_traces': []}", "the snapshot: there is no key 'segments'");
  check_fails("{'segments': {}}", "the snapshot: 'segments' is a dict, not a list");
  check_fails("{'segments': [], 'device_traces': 1}", "'device_traces' is an int, not a list");
  check_fails("{'segments': [], 'device_traces': [1]}", "device_traces[0]: it is an int, not a list");
  check_fails("{'segments': [], 'device_traces': [[1]]}", "device_traces[0][0]: it is an int, not a dict");
  check_fails("{'segments': [], 'device_traces': [[], [{'action': 'alloc', " EVENT "}, {'action': 'alloc', 'addr': 1, "
              "'stream': 0}]]}",
              "device_traces[1][1]: there is no key 'size'");
  check_fails("{'segments': [], 'device_traces': [[{'addr': 1, 'size': 5, 'stream': 0}]]}", "no key 'action'");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', 'size': 5, 'stream': 0}]]}", "no key 'addr'");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', 'size': 5, 'addr': 1}]]}", "no key 'stream'");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', 'addr': 0, 'size': -1, 'stream': 0}]]}",
              "'size' is an int, not an int from 0 to 2^64 - 1");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', 'addr': 'x', 'size': 1, 'stream': 0}]]}",
              "'addr' is a str, not an int of 64 bits");
  check_fails("{'segments': [], 'device_traces': [[{'action': 1, 'addr': 0, 'size': 1, 'stream': 0}]]}",
              "'action' is an int, not a str");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'pool_id': (1, 2, 3)}]]}",
              "'pool_id' is not a pair of ints");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'pool_id': 7}]]}",
              "'pool_id' is not a pair of ints");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'frames': 7}]]}",
              "'frames' is an int, not a list");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'frames': [7]}]]}",
              "frame 0 of a stack is an int, not a dict");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'frames': [{'name': 'f'}]}]]}",
              "there is no key 'filename'");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'time_us': 'now'}]]}",
              "'time_us' is a str");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'user_metadata': 1}]]}",
              "'user_metadata' is an int, not a str");
  check_fails("[{'device': 0, 'address': 1, 'total_size': 1, 'stream': 0}]", "segments[0]: there is no key 'blocks'");
  check_fails("[{'device': 1024, 'address': 1, 'total_size': 1, 'stream': 0, 'blocks': []}]",
              "'device' is 1024, not 0 to");
  check_fails("[{'device': -1, 'address': 1, 'total_size': 1, 'stream': 0, 'blocks': []}]", "'device' is -1, not 0 to");
  check_fails("[{'device': 0, 'address': 1, 'total_size': 1, 'stream': 0, 'blocks': [{'size': 1, 'state': 'odd'}]}]",
              "segments[0].blocks[0]: 'state' is \"odd\", which is not known");
  check_fails("[{'device': 0, 'address': 1, 'total_size': 1, 'stream': 0, 'blocks': [{'size': 1, 'state': 1}]}]",
              "'state' is an int, not a str");
  check_fails("[{'device': 0, 'address': 1, 'total_size': 1, 'stream': 0, 'blocks': [{'state': 'inactive'}]}]",
              "segments[0].blocks[0]: there is no key 'size'");
  check_fails("[5]", "segments[0]: it is an int, not a dict");
  check_fails("{'segments': [], 'host_segments': 5}", "'host_segments' is an int, not a list");
  check_fails("{'segments': [], 'host_segments': [5]}", "host_segments[0]: it is an int, not a dict");
  check_fails("{'segments': [], 'host_traces': [5]}", "host_traces[0]: it is an int, not a dict");
  check_fails("{'segments': [], 'allocator_settings': []}", "'allocator_settings' is a list, not a dict");
  check_fails("{'segments': [], 'allocator_settings': {1: 2}}", "allocator_settings: a key is an int, not a str");
  check_fails("{'segments': [], 'external_annotations': [1]}", "external_annotations[0]: it is an int, not a dict");
}

/* While the pickle is read, an error has the byte too. */
TEST(errors_name_the_byte) {
  check_fails("{'segments': [], 'device_traces': [[{'action': 1, 'addr': 0, 'size': 1, 'stream': 0}]]}", "test: byte ");
}

/* The same list as the id of a pool and as a stack: each reading of it stands for itself. */
TEST(one_list_two_meanings) {
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT ", 'pool_id': <0=[60000, 1]>},"
              "{'action': 'alloc', " EVENT ", 'frames': <0>}]]}",
              "frame 0 of a stack is an int");
  check_fails("{'segments': [], 'device_traces': [[{'action': 'alloc', " EVENT
              ", 'frames': <0=[{'name': 'f', 'filename': 'a', 'line': 1}]>}, {'action': 'alloc', " EVENT
              ", 'pool_id': <0>}]]}",
              "'pool_id' is not a pair of ints");
}

TEST(too_many_streams) {
  char *value = NULL;
  size_t size = 0;
  FILE *text = open_memstream(&value, &size);
  assert_non_null(text);
  fputs("{'segments': [], 'device_traces': [[", text);
  for (int i = 0; i < 70000; i++)
    fprintf(text, "{'action': 'alloc', 'addr': 1, 'size': 1, 'stream': %d},", i);
  fputs("]]}", text);
  fclose(text);
  check_fails(value, "there are more than 65535 streams");
  free(value);
}

/* ---- Files ---- */

static weir_status load_bytes_as_file(const void *data, size_t size, weir__recording **s) {
  char path[] = "/tmp/weir_snapshot_XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, data, size), size);
  close(file);
  weir_status status = weir__recording_load(path, NULL, s);
  unlink(path);
  return status;
}

TEST(files) {
  weir__recording *s = NULL;
  assert_int_equal(weir__recording_load("/nonexistent/file", NULL, &s), WEIR_ERROR_SYSTEM);
  assert_string_equal(weir_last_error(), "/nonexistent/file: cannot open it: No such file or directory");
  assert_int_equal(weir__recording_load("/", NULL, &s), WEIR_ERROR_SYSTEM);
  assert_string_equal(weir_last_error(), "/: this is a folder; name a file in it");
  assert_int_equal(weir__recording_load("/dev/null", NULL, &s), WEIR_ERROR_BAD_DATA);
  assert_string_equal(weir_last_error(), "/dev/null: the file is empty");
  assert_int_equal(load_bytes_as_file("{\"segments\": []}", 16, &s), WEIR_ERROR_BAD_DATA);
  assert_non_null(
      strstr(weir_last_error(), ": not a recording: expected a file of torch.cuda.memory._dump_snapshot()"));
  /* Protocols 0 and 1: what is missing is the rest. */
  static const char *const cut[] = {"(dp0\nV", "}q\001(X"};
  for (size_t i = 0; i < WEIR_COUNT_OF(cut); i++) {
    assert_int_equal(load_bytes_as_file(cut[i], strlen(cut[i]), &s), WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), "the file is incomplete; copy or record it again"));
  }
  assert_null(s);
}

TEST(compressed_files) {
  NEEDS_ZSTD;
  bytes whole = read_test_file("traces/cuda_graphs.pickle.zst");
  weir__recording *s = NULL;
  /* Two frames, one of them to be skipped, are one stream. */
  static const unsigned char skipped[12] = {0x50, 0x2a, 0x4d, 0x18, 4};
  unsigned char *two = malloc(whole.size + 12);
  assert_non_null(two);
  memcpy(two, skipped, sizeof skipped);
  memcpy(two + 12, whole.data, whole.size);
  assert_int_equal(load_bytes_as_file(two, whole.size + 12, &s), WEIR_OK);
  assert_int_equal(s->event_count, 1792);
  weir__recording_free(s);
  s = NULL;
  free(two);

  for (size_t size = 4; size < whole.size; size += size < 200 || size > whole.size - 200 ? 1 : 101) {
    assert_int_equal(read_bytes(whole.data, size, NULL, &s), WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), "of the compressed file: it ends in the middle"));
  }
  unsigned char *more = malloc(whole.size + 1);
  assert_non_null(more);
  memcpy(more, whole.data, whole.size);
  more[whole.size] = 'x';
  assert_int_equal(read_bytes(more, whole.size + 1, NULL, &s), WEIR_ERROR_BAD_DATA);
  free(more);

  uint64_t random = 3;
  size_t failed = 0;
  for (int round = 0; round < 300; round++) {
    size_t size = whole.size;
    unsigned char *data = malloc(size + 64);
    assert_non_null(data);
    memcpy(data, whole.data, size);
    spoil(data, &size, &random);
    if (read_bytes(data, size, NULL, &s) == WEIR_OK)
      weir__recording_free(s);
    else
      failed++;
    free(data);
  }
  assert_true(failed > 200);
  free(whole.data);
}

/* Frames whose bytes are written out. What they unpack to is no recording. */
TEST(frames) {
  NEEDS_ZSTD;
  static const struct {
    unsigned char bytes[16];
    size_t size;
    const char *error;
  } frames[] = {
      {{0x28, 0xb5, 0x2f, 0xfd, 0x20, 3, 0x19, 0, 0, 'a', 'b', 'c'}, 12, "not a recording"},
      {{0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x19, 0, 0, 'a', 'b', 'c', 0, 0, 0, 0}, 16, "checksum"},
      {{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 3, 0x19, 0, 0, 'a', 'b', 'c'}, 13, "zstd: Dictionary mismatch"},
      {{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x19, 0, 0, 'a', 'b', 'c'}, 12, "zstd: "}, /* a window of 2 TiB */
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(frames); i++) {
    weir__recording *s = NULL;
    assert_int_equal(load_bytes_as_file(frames[i].bytes, frames[i].size, &s), WEIR_ERROR_BAD_DATA);
    if (!strstr(weir_last_error(), frames[i].error))
      fail_msg("frame %zu: %s", i, weir_last_error());
  }
}

#ifdef WEIR_HAVE_ZLIB
/* `data` as a member of gzip's, behind those that are there. */
static void pack(bytes *packed, const void *data, size_t size) {
  z_stream z = {0};
  assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  size_t room = deflateBound(&z, size);
  packed->data = realloc(packed->data, packed->size + room);
  assert_non_null(packed->data);
  z.next_in = (z_const Bytef *)data;
  z.avail_in = (uInt)size;
  z.next_out = packed->data + packed->size;
  z.avail_out = (uInt)room;
  assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
  packed->size += room - z.avail_out;
  deflateEnd(&z);
}

TEST(gzip) {
  bytes plain = read_test_file("small_snapshot.pickle"), packed = {0};
  weir__recording *s = NULL;
  pack(&packed, plain.data, plain.size);
  assert_int_equal(load_bytes_as_file(packed.data, packed.size, &s), WEIR_OK);
  assert_int_equal(s->event_count, 40);
  weir__recording_free(s);
  s = NULL;
  for (size_t size = 4; size < packed.size; size++) {
    assert_int_equal(read_bytes(packed.data, size, NULL, &s), WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), "of the compressed file: it ends in the middle"));
  }
  /* A check over all of it: no byte may change but those of the name and time in the header. */
  for (size_t i = 18; i < packed.size; i++) {
    packed.data[i] ^= 0x55;
    assert_int_equal(read_bytes(packed.data, packed.size, NULL, &s), WEIR_ERROR_BAD_DATA);
    packed.data[i] ^= 0x55;
  }
  free(packed.data);

  /* Members follow each other, and zeros may follow the last. */
  packed = (bytes){0};
  pack(&packed, plain.data, 1000);
  pack(&packed, "", 0);
  pack(&packed, plain.data + 1000, plain.size - 1000);
  packed.data = realloc(packed.data, packed.size + 1000);
  assert_non_null(packed.data);
  memset(packed.data + packed.size, 0, 1000);
  assert_int_equal(load_bytes_as_file(packed.data, packed.size + 1000, &s), WEIR_OK);
  assert_int_equal(s->event_count, 40);
  weir__recording_free(s);
  s = NULL;
  packed.data[packed.size + 500] = 'x';
  assert_int_equal(read_bytes(packed.data, packed.size + 1000, NULL, &s), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "of the compressed file: gzip: "));
  free(packed.data);
  free(plain.data);
}
#endif

/* A few bytes that unpack to a lot stop at the limit. */
TEST(bomb) {
  NEEDS_ZSTD;
  bytes bomb = read_test_file("bomb.zst");
  weir__recording *s = NULL;
  const weir__recording_limits limits = {.input = 8 << 20};
  assert_true(bomb.size < 4096);
  assert_int_equal(read_bytes(bomb.data, bomb.size, &limits, &s), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "there are more bytes than the limit of 8388608"));
  const weir__recording_limits memory = {.memory = 8 << 20};
  assert_int_equal(read_bytes(bomb.data, bomb.size, &memory, &s), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "more memory than the limit of 8.00 MiB"));
  free(bomb.data);
}

/* Bytes that come a few at a time, as through a pipe. */
TEST(pipe) {
  bytes whole = read_test_file("small_snapshot.pickle");
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    close(ends[0]);
    for (size_t at = 0; at < whole.size; at += 7)
      if (write(ends[1], whole.data + at, whole.size - at < 7 ? whole.size - at : 7) < 0)
        _exit(1);
    _exit(0);
  }
  close(ends[1]);
  char path[64];
  snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
  weir__recording *s = NULL;
  if (weir__recording_load(path, NULL, &s) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  assert_int_equal(s->event_count, 40);
  weir__recording_free(s);
  close(ends[0]);
  free(whole.data);
}

/* ---- Damage ---- */

static void check_truncations(const bytes *whole, size_t step) {
  for (size_t size = 0; size < whole->size; size += step) {
    bytes copy = exact_copy(whole->data, size);
    weir__recording *s = NULL;
    assert_int_equal(read_bytes(copy.data, size, NULL, &s), WEIR_ERROR_BAD_DATA);
    assert_null(s);
    assert_non_null(strstr(weir_last_error(), size ? "test: byte " : "test: the file is empty"));
    assert_true(!size || strstr(weir_last_error(), "the data end"));
    free(copy.data);
  }
}

TEST(every_truncation) {
  bytes small = read_test_file("small_snapshot.pickle");
  check_truncations(&small, 1);
  free(small.data);
}

TEST(spoiled_bytes) {
  bytes small = read_test_file("small_snapshot.pickle");
  uint64_t random = 5;
  size_t accepted = 0;
  const size_t rounds = (size_t)repetitions(10000, 100000);
  for (size_t round = 0; round < rounds; round++) {
    unsigned char *data = malloc(small.size + 64);
    assert_non_null(data);
    size_t size = small.size;
    memcpy(data, small.data, size);
    spoil(data, &size, &random);
    bytes copy = exact_copy(data, size);
    weir__recording *s = NULL;
    weir_status status = read_bytes(copy.data, copy.size, NULL, &s);
    if (status == WEIR_OK) {
      check_whole(s);
      weir__recording_free(s);
      accepted++;
    } else {
      assert_int_equal(status, WEIR_ERROR_BAD_DATA);
      assert_null(s);
    }
    free(copy.data);
    free(data);
  }
  assert_true(accepted > 0 && accepted < rounds);
  free(small.data);
}

/* With any memory limit, reading results in an error or a whole recording. */
TEST(memory_limits) {
  bytes small = read_test_file("small_snapshot.pickle");
  size_t failed = 0, succeeded = 0;
  for (uint64_t memory = 1000; memory < 400000; memory += 997) {
    const weir__recording_limits limits = {.memory = memory};
    weir__recording *s = NULL;
    if (read_bytes(small.data, small.size, &limits, &s) == WEIR_OK) {
      check_whole(s);
      weir__recording_free(s);
      succeeded++;
    } else {
      assert_non_null(strstr(weir_last_error(), "more memory than the limit"));
      assert_int_equal(succeeded, 0);
      failed++;
    }
  }
  assert_true(failed > 100 && succeeded > 100);
  free(small.data);
}
