/*
 * Hostile files, such as those that use the same few values in many places: the memory and time that reading and
 * replaying them takes is bounded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offline/read/recording.h"
#include "offline/replay/replay.h"
#include "support/sanitized.h"
#include "support/test.h"

#ifdef WEIR_HAVE_ZSTD
#include <zstd.h>
#endif

/* ---- Pickles of protocol 2 ---- */

typedef struct pickle {
  char *data;
  size_t size;
  FILE *file;
} pickle;

static void op(pickle *p, const char *bytes, size_t size) { assert_int_equal(fwrite(bytes, 1, size, p->file), size); }
#define OP(p, literal) op(p, literal, sizeof(literal) - 1)

static void text(pickle *p, const char *string) {
  uint32_t size = (uint32_t)strlen(string);
  OP(p, "X");
  op(p, (const char *)&size, 4);
  op(p, string, size);
}

static void key_and_number(pickle *p, const char *key, int32_t number) {
  text(p, key);
  OP(p, "J");
  op(p, (const char *)&number, 4);
}

/* The value on top gets a place in the memo; `again` pushes it `count` times. */
static void put(pickle *p, char number) { op(p, (const char[]){'q', number}, 2); }
static void again(pickle *p, char number, size_t count) {
  for (size_t i = 0; i < count; i++)
    op(p, (const char[]){'h', number}, 2);
}

/* A key that means nothing, as often as that, each time with None. */
static void many_keys(pickle *p, size_t count) {
  text(p, "zz");
  put(p, 7);
  OP(p, "N");
  for (size_t i = 0; i < count; i++)
    OP(p, "h\7N");
}

static void begin(pickle *p) {
  p->file = open_memstream(&p->data, &p->size);
  assert_non_null(p->file);
  OP(p, "\x80\2}(");
}

static void end(pickle *p) {
  OP(p, "u.");
  fclose(p->file);
  p->file = NULL;
}

static void empty(pickle *p, const char *key) {
  text(p, key);
  OP(p, "]");
}

static void block(pickle *p) {
  OP(p, "}(");
  key_and_number(p, "size", 512);
  key_and_number(p, "address", 512);
  text(p, "state");
  text(p, "inactive");
}

static void segment(pickle *p) {
  OP(p, "}(");
  key_and_number(p, "device", 0);
  key_and_number(p, "address", 512);
  key_and_number(p, "total_size", 512);
  key_and_number(p, "stream", 0);
}

static void event(pickle *p) {
  text(p, "action");
  put(p, 10);
  text(p, "alloc");
  put(p, 11);
  key_and_number(p, "addr", 512);
  key_and_number(p, "size", 512);
  key_and_number(p, "stream", 0);
}

/* ---- Cases of about `n` bytes ---- */

static void segments_times_blocks(pickle *p, size_t n) {
  text(p, "segments");
  OP(p, "](");
  segment(p);
  text(p, "blocks");
  OP(p, "](");
  block(p);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "eu");
  put(p, 2);
  again(p, 2, n / 4);
  OP(p, "e");
}

static void segments_times_keys(pickle *p, size_t n) {
  text(p, "segments");
  OP(p, "](");
  segment(p);
  empty(p, "blocks");
  many_keys(p, n / 6);
  OP(p, "u");
  put(p, 2);
  again(p, 2, n / 4);
  OP(p, "e");
}

static void blocks_times_keys(pickle *p, size_t n) {
  text(p, "segments");
  OP(p, "](");
  segment(p);
  text(p, "blocks");
  OP(p, "](");
  block(p);
  many_keys(p, n / 6);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "eue");
}

static void devices_times_events(pickle *p, size_t n) {
  empty(p, "segments");
  text(p, "device_traces");
  OP(p, "](](}(");
  event(p);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 2);
  OP(p, "e");
  put(p, 2);
  again(p, 2, 1023);
  OP(p, "e");
}

/* Two references before it is complete: no hook takes it. */
static void events_times_keys(pickle *p, size_t n) {
  empty(p, "segments");
  text(p, "device_traces");
  OP(p, "](](}20(");
  event(p);
  many_keys(p, n / 6);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "ee");
}

static void frames_times_keys(pickle *p, size_t n) {
  empty(p, "segments");
  text(p, "device_traces");
  OP(p, "](](}(");
  event(p);
  text(p, "frames");
  OP(p, "](}20(");
  text(p, "name");
  text(p, "f");
  text(p, "filename");
  text(p, "f.py");
  key_and_number(p, "line", 1);
  many_keys(p, n / 6);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "euee");
}

static void annotations_times_keys(pickle *p, size_t n) {
  empty(p, "segments");
  text(p, "external_annotations");
  OP(p, "](}(");
  text(p, "name");
  text(p, "step");
  many_keys(p, n / 6);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "e");
}

static void settings_times_settings(pickle *p, size_t n) {
  empty(p, "segments");
  text(p, "allocator_settings");
  OP(p, "}(");
  text(p, "outer");
  put(p, 1);
  OP(p, "}(");
  text(p, "inner");
  put(p, 2);
  OP(p, "N");
  for (size_t i = 0; i < n / 6; i++)
    OP(p, "h\2\x88");
  OP(p, "u");
  put(p, 3);
  for (size_t i = 0; i < n / 8; i++)
    OP(p, "h\1h\3");
  OP(p, "u");
}

/* Events of a few bytes that share a stack of many frames, or a long text. */
static void many_events(pickle *p, const char *key, void (*shared)(pickle *, size_t), size_t n) {
  empty(p, "segments");
  text(p, "device_traces");
  OP(p, "](](}(");
  event(p);
  text(p, "addr");
  put(p, 12);
  OP(p, "K\1");
  text(p, "size");
  put(p, 13);
  OP(p, "K\1");
  text(p, "stream");
  put(p, 14);
  OP(p, "K\0");
  text(p, key);
  put(p, 15);
  shared(p, n);
  put(p, 16);
  OP(p, "u");
  for (size_t i = 0; i < n / 50; i++)
    OP(p, "}(h\12h\13h\14K\1h\15K\1h\16K\0h\17h\20u");
  OP(p, "ee");
}

static void deep_stack(pickle *p, size_t n) {
  OP(p, "](}(");
  text(p, "name");
  text(p, "f");
  text(p, "filename");
  text(p, "f.py");
  key_and_number(p, "line", 1);
  OP(p, "u");
  put(p, 1);
  again(p, 1, n / 4);
  OP(p, "e");
}

static void long_text(pickle *p, size_t n) {
  char *letters = malloc(n / 2 + 1);
  assert_non_null(letters);
  memset(letters, 'x', n / 2);
  letters[n / 2] = 0;
  text(p, letters);
  free(letters);
}

static void events_times_frames(pickle *p, size_t n) { many_events(p, "frames", deep_stack, n); }
static void events_times_text(pickle *p, size_t n) { many_events(p, "user_metadata", long_text, n); }

/* ---- Memory and time ---- */

static weir_status read_pickle(const pickle *p, weir__recording **s) {
  weir__input *source;
  weir_status status = weir__input_open_memory("test", p->data, p->size, &source);
  if (status == WEIR_OK) {
    status = weir__recording_read(source, NULL, s);
    weir__input_close(source);
  }
  return status;
}

/* Reads it in a process of its own, and checks what that took. `said` is in the error; NULL if there must be none. */
static void check(void (*make)(pickle *, size_t), size_t n, const char *said) {
  pickle p = {0};
  begin(&p);
  make(&p, n);
  end(&p);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    weir__recording *s = NULL;
    struct rlimit seconds = {30, 30};
    setrlimit(RLIMIT_CPU, &seconds);
    weir_status status = read_pickle(&p, &s);
    if (said ? status == WEIR_ERROR_BAD_DATA && strstr(weir_last_error(), said) : status == WEIR_OK)
      _exit(0);
    print_error("%s\n", weir_last_error());
    _exit(1);
  }
  int status;
  struct rusage used;
  assert_int_equal(wait4(child, &status, 0, &used), child);
  assert_int_equal(status, 0);
#ifndef SANITIZED
  assert_in_range(used.ru_maxrss, 0, (64 << 10) + 100 * n / 1024); /* KiB; 64 MiB for the test and the beginning */
#endif
  free(p.data);
}

TEST(products_are_refused) {
  static const size_t sizes[] = {108000, 400000};
  for (size_t i = 0; i < 2; i++) {
    check(segments_times_blocks, sizes[i], "64 bytes for each byte");
    check(segments_times_keys, sizes[i], "more than 4 to visit for each byte");
    check(devices_times_events, sizes[i], "64 bytes for each byte");
    check(settings_times_settings, sizes[i], "64 bytes for each byte");
    check(events_times_frames, sizes[i], "more than 32 frames for each byte");
  }
  check(events_times_text, 1000000, "more than 1024 times the size");
}

/* Values that are used in many places are read once. */
TEST(shared_values_are_read_once) {
  static const size_t sizes[] = {108000, 400000};
  for (size_t i = 0; i < 2; i++) {
    check(blocks_times_keys, sizes[i], NULL);
    check(events_times_keys, sizes[i], NULL);
    check(frames_times_keys, sizes[i], NULL);
    check(annotations_times_keys, sizes[i], NULL);
  }
}

static weir__recording *read_case(void (*make)(pickle *, size_t), size_t n) {
  pickle p = {0};
  begin(&p);
  weir__recording *s = NULL;
  make(&p, n);
  end(&p);
  assert_int_equal(read_pickle(&p, &s), WEIR_OK);
  free(p.data);
  return s;
}

/* ... and means the same in each. */
TEST(shared_values_are_in_all_places) {
  weir__recording *s = read_case(segments_times_blocks, 40);
  assert_int_equal(s->segment_count, 11);
  assert_int_equal(s->block_count, 121);
  for (size_t i = 0; i < 11; i++) {
    assert_int_equal(s->segments[i].block_count, 11);
    assert_int_equal(s->segments[i].blocks[10].size, 512);
    assert_int_equal(s->segments[i].blocks[10].address, 512);
  }
  weir__recording_free(s);
  s = read_case(events_times_keys, 600);
  assert_int_equal(s->devices[0].event_count, 151);
  for (size_t i = 0; i < 151; i++)
    assert_memory_equal(&s->devices[0].events[i], &s->devices[0].events[0], sizeof *s->events);
  assert_int_equal(s->devices[0].events[150].size, 512);
  weir__recording_free(s);
  s = read_case(frames_times_keys, 600);
  assert_int_equal(s->frame_count, 1);
  assert_int_equal(s->stacks[s->devices[0].events[0].stack].count, 151);
  weir__recording_free(s);
  s = read_case(annotations_times_keys, 600);
  assert_int_equal(s->annotation_count, 151);
  assert_string_equal(s->strings.items[s->annotations[150].name].text, "step");
  weir__recording_free(s);
  s = read_case(devices_times_events, 20);
  assert_int_equal(s->device_count, 1024);
  assert_int_equal(s->event_count, 1024 * 11);
  assert_int_equal(s->devices[1023].events[10].address, 512);
  weir__recording_free(s);
  s = read_case(events_times_frames, 1000);
  assert_int_equal(s->devices[0].event_count, 21);
  assert_int_equal(s->stacks[s->devices[0].events[20].stack].count, 251);
  weir__recording_free(s);
}

/* A small file that unpacks to very much: a number that is taken back at once, again and again. */
TEST(unpacking_is_bounded) {
#ifdef WEIR_HAVE_ZSTD
  size_t size = 100 << 20, room = ZSTD_compressBound(size);
  pickle p = {.data = malloc(room)};
  char *unpacked = malloc(size);
  assert_non_null(p.data);
  assert_non_null(unpacked);
  for (size_t i = 0; i < size; i++)
    unpacked[i] = "N0"[i % 2];
  p.size = ZSTD_compress(p.data, room, unpacked, size, 1);
  assert_in_range(p.size, 1, 100000);
  free(unpacked);
  weir__recording *s = NULL;
  assert_int_equal(read_pickle(&p, &s), WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "it unpacks to more than 1024 times its size"));
  free(p.data);
#else
  skip();
#endif
}

/* A replay takes memory for the addresses that are reserved and time for the bytes, which a small file can ask for. */
TEST(replay_is_bounded) {
  enum { SEGMENTS = 2000 };
  const uint64_t tebi = 1ull << 40;
  int64_t stream = 0;
  weir__recording_pool pool = {0};
  weir__recording_remark remark = {0};
  weir__recording_stack stack = {0};
  weir__string none = {"", 0};
  weir__recording_entry entries[2 * SEGMENTS];
  weir__recording_device device = {.events = entries, .event_count = 2 * SEGMENTS};
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .streams = &stream,
                               .stream_count = 1,
                               .pools = &pool,
                               .pool_count = 1,
                               .remarks = &remark,
                               .remark_count = 1,
                               .stacks = &stack,
                               .stack_count = 1,
                               .has_history = true,
                               .strings = {.items = &none, .count = 1}};
  weir__replayer *replayer = NULL;
  for (int moves = 0; moves < 2; moves++) { /* one address, or another each time */
    for (size_t i = 0; i < 2 * SEGMENTS; i++)
      entries[i] = (weir__recording_entry){.action = i % 2 ? WEIR_TRACE_SEGMENT_FREE : WEIR_TRACE_SEGMENT_ALLOC,
                                           .address = 0x700000000000 + (moves ? i / 2 * tebi : 0),
                                           .size = tebi,
                                           .time_us = (int64_t)i,
                                           .pool = WEIR__RECORDING_NO_POOL};
    assert_int_equal(weir__replayer_open(&recording, 0, 0, 0, &replayer), WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), moves ? "more than 64 TiB of addresses" : "more than 1 PiB"));
  }
}
