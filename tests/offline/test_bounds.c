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

/* ---- Cases of about `n` bytes ---- */

static void many_events(pickle *p, const char *key, bool is_stack, size_t n);

/* Writes words: 'word' is a text, and key:1 a key with a number. =1 puts the value on top into place 1 of the memo,
 * from which 1*5 pushes it five times, 1/4 n/4 times, 1,3/8 n/8 times in turn with place 3, and 2T/6 n/6 times with
 * True. KEYS are n/6 keys that mean nothing. All else are opcodes. */
static void write_words(pickle *p, const char *line, size_t n) {
  char words[400], key[32], *next;
  int place, other, number;
  assert_in_range(strlen(line), 0, sizeof words - 1);
  strcpy(words, line);
  for (const char *w = strtok_r(words, " ", &next); w; w = strtok_r(NULL, " ", &next)) {
    if (sscanf(w, "%d*%d", &place, &number) == 2)
      again(p, (char)place, (size_t)number);
    else if (sscanf(w, "%d/%d", &place, &number) == 2)
      again(p, (char)place, n / (size_t)number);
    else if (sscanf(w, "%d,%d/%d", &place, &other, &number) == 3)
      for (size_t i = 0; i < n / (size_t)number; i++)
        op(p, (const char[]){'h', (char)place, 'h', (char)other}, 4);
    else if (sscanf(w, "%dT/%d", &place, &number) == 2)
      for (size_t i = 0; i < n / (size_t)number; i++)
        op(p, (const char[]){'h', (char)place, '\x88'}, 3);
    else if (sscanf(w, "=%d", &place) == 1)
      put(p, (char)place);
    else if (sscanf(w, "%31[a-z_]:%d", key, &number) == 2)
      key_and_number(p, key, number);
    else if (sscanf(w, "'%31[^']", key) == 1)
      text(p, key);
    else if (strcmp(w, "KEYS") == 0)
      many_keys(p, n / 6);
    else if (strcmp(w, "STACKS") == 0 || strcmp(w, "TEXTS") == 0)
      many_events(p, *w == 'S' ? "frames" : "user_metadata", *w == 'S', n);
    else
      op(p, w, strlen(w));
  }
}

#define BLOCK "}( size:512 address:512 'state' 'inactive' "
#define SEGMENT "'segments' ]( }( device:0 address:512 total_size:512 stream:0 'blocks' ]"
#define EVENT "'action' =10 'alloc' =11 addr:512 size:512 stream:0 "
#define FRAME "'name' 'f' 'filename' 'f.py' line:1 "
#define TRACES "'segments' ] 'device_traces' ]("

static const char segments_times_blocks[] = SEGMENT "( " BLOCK "u =1 1/4 eu =2 2/4 e";
static const char segments_times_keys[] = SEGMENT " KEYS u =2 2/4 e";
static const char blocks_times_keys[] = SEGMENT "( " BLOCK "KEYS u =1 1/4 eue";
static const char devices_times_events[] = TRACES "](}( " EVENT "u =1 1/2 e =2 2*1023 e";
static const char events_times_keys[] = TRACES "](}20( " EVENT "KEYS u =1 1/4 ee"; /* 20: no hook takes it */
static const char frames_times_keys[] = TRACES "](}( " EVENT "'frames' ](}20( " FRAME "KEYS u =1 1/4 euee";
static const char annotations_times_keys[] = "'segments' ] 'external_annotations' ](}( 'name' 'step' KEYS u =1 1/4 e";
static const char settings_times_settings[] =
    "'segments' ] 'allocator_settings' }( 'outer' =1 }( 'inner' =2 N 2T/6 u =3 1,3/8 u";
static const char events_times_frames[] = TRACES "](}( " EVENT "STACKS";
static const char events_times_text[] = TRACES "](}( " EVENT "TEXTS";

static void long_text(pickle *p, size_t n) {
  char *letters = malloc(n / 2 + 1);
  assert_non_null(letters);
  memset(letters, 'x', n / 2);
  letters[n / 2] = 0;
  text(p, letters);
  free(letters);
}

/* Events of a few bytes that share a stack of many frames, or a long text. */
static void many_events(pickle *p, const char *key, bool is_stack, size_t n) {
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
  if (is_stack)
    write_words(p, "](}( " FRAME "u =1 1/4 e", n);
  else
    long_text(p, n);
  put(p, 16);
  OP(p, "u");
  for (size_t i = 0; i < n / 50; i++)
    OP(p, "}(h\12h\13h\14K\1h\15K\1h\16K\0h\17h\20u");
  OP(p, "ee");
}

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
static void check(const char *words, size_t n, const char *said) {
  pickle p = {0};
  begin(&p);
  write_words(&p, words, n);
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

static weir__recording *read_case(const char *words, size_t n) {
  pickle p = {0};
  begin(&p);
  weir__recording *s = NULL;
  write_words(&p, words, n);
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
