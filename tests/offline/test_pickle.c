#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/offline_data.h"
#include "offline/read/pickle.h"
#include "offline/read/pickle_text.h"
#include "support/length.h"
#include "support/test.h"

/* ---- Reading, and a text form of what was read: the one of make_pickles.py ---- */

typedef struct reading {
  weir__input *source;
  weir__pickle *pickle;
  weir__pickle_value root;
  weir_status status;
} reading;

static reading read_with(const void *data, size_t size, const weir__pickle_limits *limits, weir__pickle_hook hook,
                         void *context) {
  reading r = {0};
  assert_int_equal(weir__input_open_memory("test", data, size, &r.source), WEIR_OK);
  r.status = weir__pickle_open(r.source, limits, &r.pickle);
  if (r.status == WEIR_OK)
    r.status = weir__pickle_read(r.pickle, hook, context, &r.root);
  return r;
}

static void close_reading(reading *r) {
  weir__pickle_close(r->pickle);
  weir__input_close(r->source);
}

typedef struct text {
  char *data;
  size_t size, capacity;
} text;

static void put(text *t, const char *format, ...) WEIR_PRINTF(2, 3);
static void put(text *t, const char *format, ...) {
  char piece[64];
  va_list args;
  va_start(args, format);
  size_t size = (size_t)vsnprintf(piece, sizeof piece, format, args);
  va_end(args);
  assert_true(size < sizeof piece);
  if (t->size + size + 1 > t->capacity) {
    t->capacity = 2 * t->capacity + sizeof piece;
    t->data = realloc(t->data, t->capacity);
    assert_non_null(t->data);
  }
  memcpy(t->data + t->size, piece, size + 1);
  t->size += size;
}

static void put_quoted(text *t, weir__string s) {
  put(t, "\"");
  for (uint32_t i = 0; i < s.length; i++) {
    unsigned char c = (unsigned char)s.text[i];
    if (c >= 32 && c < 127 && c != '"' && c != '\\')
      put(t, "%c", c);
    else
      put(t, "\\x%02x", c);
  }
  assert_int_equal(s.text[s.length], '\0');
  put(t, "\"");
}

static void put_value(text *t, const weir__pickle *p, weir__pickle_value v);

static void put_items(text *t, const weir__pickle *p, weir__pickle_value v, const char *open, const char *close) {
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(p, v, &count);
  put(t, "%s", open);
  bool is_dict = weir__pickle_tag_of(v) == WEIR__PICKLE_DICT;
  for (size_t i = 0; i < count; i++) {
    if (i > 0)
      put(t, "%s", is_dict && i % 2 == 1 ? ":" : ",");
    put_value(t, p, items[i]);
  }
  put(t, "%s", close);
}

static void put_value(text *t, const weir__pickle *p, weir__pickle_value v) {
  int64_t number;
  uint64_t bits;
  double real;
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_NONE:
    put(t, "None");
    break;
  case WEIR__PICKLE_BOOL:
    put(t, "%s", weir__pickle_payload(v) ? "True" : "False");
    break;
  case WEIR__PICKLE_INT:
  case WEIR__PICKLE_WIDE_INT:
    assert_true(weir__pickle_int64(p, v, &number));
    assert_int_equal(weir__pickle_uint64(p, v, &bits), number >= 0);
    put(t, "%lld", (long long)number);
    break;
  case WEIR__PICKLE_WIDE_UINT:
    assert_false(weir__pickle_int64(p, v, &number));
    assert_true(weir__pickle_uint64(p, v, &bits));
    put(t, "%llu", (unsigned long long)bits);
    break;
  case WEIR__PICKLE_FLOAT:
    assert_true(weir__pickle_double(p, v, &real));
    memcpy(&bits, &real, sizeof bits);
    put(t, "f%016llx", (unsigned long long)bits);
    break;
  case WEIR__PICKLE_STR:
    put_quoted(t, weir__pickle_string(p, v));
    break;
  case WEIR__PICKLE_BYTES:
    put(t, "b");
    put_quoted(t, weir__pickle_string(p, v));
    break;
  case WEIR__PICKLE_OBJECT:
    put(t, "<%llu>", (unsigned long long)weir__pickle_payload(v));
    break;
  case WEIR__PICKLE_LIST:
    put_items(t, p, v, "[", "]");
    break;
  case WEIR__PICKLE_TUPLE:
    put_items(t, p, v, "(", ")");
    break;
  case WEIR__PICKLE_DICT:
    put_items(t, p, v, "{", "}");
    break;
  case WEIR__PICKLE_SET:
    put_items(t, p, v, "s<", ">");
    break;
  case WEIR__PICKLE_FROZENSET:
    put_items(t, p, v, "z<", ">");
    break;
  case WEIR__PICKLE_NOTHING:
    fail_msg("nothing is not a value");
  }
}

static void check_text(const reading *r, const char *expected) {
  if (r->status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  text t = {0};
  put_value(&t, r->pickle, r->root);
  assert_string_equal(t.data, expected);
  free(t.data);
}

/* A pickle in a string literal; NULs are fine. */
#define READS(literal, expected)                                                                                       \
  do {                                                                                                                 \
    bytes copy_ = exact_copy(literal, sizeof(literal) - 1);                                                            \
    reading r_ = read_with(copy_.data, copy_.size, NULL, NULL, NULL);                                                  \
    check_text(&r_, expected);                                                                                         \
    close_reading(&r_);                                                                                                \
    free(copy_.data);                                                                                                  \
  } while (0)

static void check_fails(const void *data, size_t size, const weir__pickle_limits *limits, unsigned long long at,
                        const char *why) {
  bytes copy = exact_copy(data, size);
  reading r = read_with(copy.data, copy.size, limits, NULL, NULL);
  assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
  char begin[64];
  snprintf(begin, sizeof begin, "test: byte %llu: ", at);
  if (strncmp(weir_last_error(), begin, strlen(begin)) != 0 || strstr(weir_last_error(), why) == NULL)
    fail_msg("\"%s\" is not \"%s...%s\"", weir_last_error(), begin, why);
  close_reading(&r);
  free(copy.data);
}

#define FAILS(literal, at, why) check_fails(literal, sizeof(literal) - 1, NULL, at, why)

/* ---- Pickles of CPython ---- */

typedef struct pickle_case {
  char name[32];
  int protocol;
  char *text;
  bytes data;
} pickle_case;

static pickle_case *cases;
static size_t case_count;

static int load_cases(void **state) {
  (void)state;
  bytes all = read_test_file("pickle_cases.bin");
  size_t at = 0;
  while (at < all.size) {
    pickle_case c = {0};
    size_t text_size;
    int header;
    char line[96];
    const unsigned char *end = memchr(all.data + at, '\n', all.size - at);
    assert_non_null(end);
    snprintf(line, sizeof line, "%.*s", (int)(end - all.data - at), all.data + at);
    header = sscanf(line, "%31s %d %zu %zu", c.name, &c.protocol, &text_size, &c.data.size);
    assert_int_equal(header, 4);
    at = (size_t)(end - all.data) + 1;
    assert_true(text_size + c.data.size <= all.size - at);
    c.text = strndup((char *)all.data + at, text_size);
    c.data = exact_copy(all.data + at + text_size, c.data.size);
    at += text_size + c.data.size;
    pickle_case *grown = realloc(cases, (case_count + 1) * sizeof *grown);
    assert_non_null(grown);
    cases = grown;
    cases[case_count++] = c;
  }
  free(all.data);
  return 0;
}

static int free_cases(void **state) {
  (void)state;
  for (size_t i = 0; i < case_count; i++) {
    free(cases[i].text);
    free(cases[i].data.data);
  }
  free(cases);
  return 0;
}

FIXTURE(.begin = load_cases, .end = free_cases)

TEST(every_protocol) {
  size_t read_whole[6] = {0}, refused = 0;
  for (size_t i = 0; i < case_count; i++) {
    const pickle_case *c = &cases[i];
    reading r = read_with(c->data.data, c->data.size, NULL, NULL, NULL);
    if (strcmp(c->text, "refused") == 0) {
      assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
      assert_non_null(strstr(weir_last_error(), "GLOBAL is refused: it would import a name and so run code"));
      refused++;
    } else {
      if (r.status != WEIR_OK)
        fail_msg("%s, protocol %d: %s", c->name, c->protocol, weir_last_error());
      check_text(&r, c->text);
      if (c->protocol >= 0)
        read_whole[c->protocol]++;
    }
    close_reading(&r);
  }
  /* bytes need GLOBAL up to 2, sets up to 3, a bytearray up to 4. */
  const size_t expected[6] = {13, 13, 13, 14, 16, 17};
  for (int protocol = 0; protocol <= 5; protocol++)
    assert_int_equal(read_whole[protocol], expected[protocol]);
  assert_int_equal(refused, 4 + 4 + 4 + 3 + 1);
}

/* Behind the first bytes, each in the long form alone. */
TEST(every_truncation) {
  const size_t stride = (size_t)usual_or_long(17, 1);
  for (size_t i = 0; i < case_count; i++) {
    const pickle_case *c = &cases[i];
    for (size_t size = 0; size < c->data.size; size += size < 512 ? 1 : stride) {
      bytes copy = exact_copy(c->data.data, size);
      reading r = read_with(copy.data, size, NULL, NULL, NULL);
      assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
      assert_non_null(strstr(weir_last_error(), size ? "test: byte " : "test: the file is empty"));
      close_reading(&r);
      free(copy.data);
    }
  }
}

/* Takes every second dict, so that boxes go and come back. */
static weir_status take_some(void *context, weir__pickle *p, const weir__pickle_value *pairs, size_t count,
                             weir__pickle_value *taken) {
  uint64_t *calls = context;
  int64_t number;
  for (size_t i = 0; i < 2 * count; i++)
    if (weir__pickle_int64(p, pairs[i], &number))
      *calls += (uint64_t)number & 1;
  if (++*calls % 2)
    *taken = weir__pickle_make(WEIR__PICKLE_OBJECT, count);
  return WEIR_OK;
}

/* A number behind every box, so that a walk sees each once however often it is shared. */
static uint64_t walk(weir__pickle *p, weir__pickle_value v) {
  uint64_t sum = v;
  if (weir__pickle_tag_of(v) == WEIR__PICKLE_STR || weir__pickle_tag_of(v) == WEIR__PICKLE_BYTES)
    return sum + weir__pickle_string(p, v).text[0];
  if (!weir__pickle_is_box(v) || *weir__pickle_note(p, v) != 0)
    return sum;
  *weir__pickle_note(p, v) = 1;
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(p, v, &count);
  for (size_t i = 0; i < count; i++)
    sum += walk(p, items[i]);
  return sum;
}

TEST(spoiled_bytes) {
  uint64_t random = 1, sum = 0, calls = 0;
  size_t accepted = 0;
  const size_t rounds = (size_t)repetitions(20000, 60000);
  for (size_t round = 0; round < rounds; round++) {
    const pickle_case *c = &cases[next_random(&random) % case_count];
    if (c->data.size > 1000) /* the short ones have all opcodes */
      continue;
    unsigned char data[1000 + 64];
    size_t size = c->data.size;
    memcpy(data, c->data.data, size);
    spoil(data, &size, &random);
    bytes copy = exact_copy(data, size);
    reading r = read_with(copy.data, copy.size, NULL, round % 2 ? take_some : NULL, &calls);
    if (r.status == WEIR_OK) {
      sum += walk(r.pickle, r.root);
      accepted++;
    } else {
      assert_non_null(strstr(weir_last_error(), size ? "test: byte " : "test: the file is empty"));
    }
    close_reading(&r);
    free(copy.data);
  }
  assert_true(accepted > 0 && sum != 0);
}

/* ---- Refused pickles ---- */

TEST(refused_opcodes) {
  static const struct {
    unsigned char op;
    const char *name, *why;
  } refused[] = {{'c', "GLOBAL", "import"},
                 {0x93, "STACK_GLOBAL", "import"},
                 {0x82, "EXT1", "import"},
                 {0x83, "EXT2", "import"},
                 {0x84, "EXT4", "import"},
                 {'R', "REDUCE", "call"},
                 {'b', "BUILD", "call"},
                 {'i', "INST", "class"},
                 {'o', "OBJ", "class"},
                 {0x81, "NEWOBJ", "class"},
                 {0x92, "NEWOBJ_EX", "class"},
                 {'P', "PERSID", "ask the program"},
                 {'Q', "BINPERSID", "ask the program"},
                 {0x97, "NEXT_BUFFER", "not in the pickle"},
                 {0x98, "READONLY_BUFFER", "not in the pickle"}};
  for (size_t i = 0; i < WEIR_COUNT_OF(refused); i++) {
    unsigned char data[] = "NN?os\nsystem\nN.";
    char expected[96];
    data[2] = refused[i].op;
    snprintf(expected, sizeof expected, "opcode %s is refused: it", refused[i].name);
    check_fails(data, sizeof data - 1, NULL, 2, expected);
    assert_non_null(strstr(weir_last_error(), refused[i].why));
  }
}

TEST(what_is_no_opcode) {
  static const char known[] = "(.012FIJKLMNSTUVXade}]ghjpqrstlu)GBC"
                              "cRbioPQ"
                              "\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x94\x95\x96"
                              "\x81\x82\x83\x84\x92\x93\x97\x98";
  size_t none = 0;
  for (unsigned op = 0; op < 256; op++) {
    if (op != 0 && strchr(known, (int)op) != NULL)
      continue;
    unsigned char data[] = {'N', (unsigned char)op, '.'};
    char expected[64];
    snprintf(expected, sizeof expected, "0x%02x is not an opcode", op);
    check_fails(data, sizeof data, NULL, 1, expected);
    none++;
  }
  assert_int_equal(none, 256 - 68);
}

TEST(the_exploit_runs_nothing) {
  FAILS("cos\nsystem\n(S'touch /tmp/weir_was_here'\ntR.", 0, "GLOBAL");
  FAILS("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", 14, "STACK_GLOBAL");
}

TEST(memo) {
  FAILS("h\0.", 0, "the memo has no entry 0");
  FAILS("Nq\0h\1.", 3, "the memo has no entry 1");
  FAILS("Nq\2h\1.", 3, "the memo has no entry 1"); /* between two that are there */
  FAILS("j\xff\xff\xff\xff.", 0, "the memo has no entry 4294967295");
  FAILS("g7\n.", 0, "the memo has no entry 7");
  FAILS("g-7\n.", 0, "number cannot be read");
  FAILS("gx\n.", 0, "number cannot be read");
  FAILS("q\0.", 0, "too few values");
  FAILS("\x94.", 0, "too few values");
  FAILS("N(\x94.", 2, "too few values"); /* not across a mark */
  FAILS("Nr\xff\xff\xff\x7f.", 1, "memo entry 2147483647 is out of order");
  FAILS("Np99999999999999999999\n.", 1, "number cannot be read");
}

TEST(cycles) {
  FAILS("]\x94h\0a.", 4, "contain itself");
  FAILS("]\x94(h\0e.", 5, "contain itself");
  FAILS("}\x94K\1h\0s.", 6, "contain itself");
  FAILS("\x8f\x94(h\0\x90.", 5, "a set cannot be a key");
  FAILS("]\x94]h\0aa.", 6, "may contain itself"); /* a list in a list in the first one */
  FAILS("]\x94}K\1h\0sa.", 8, "may contain itself");
  FAILS("](h\0t\x94"
        "0.",
        2, "the memo has no entry 0");
  FAILS("]\x94h\0\x85"
        "a.",
        5, "may contain itself");     /* a tuple of the list, as CPython writes a recursive tuple */
  READS("]\x94(h\0h\0l.", "[[],[]]"); /* twice the same is no cycle */
}

TEST(what_is_sealed_stays) {
  FAILS("]\x94]q\1ah\1K\1a.", 10, "a list changes after it was put into another one");
  FAILS("]\x94}q\1ah\1K\1K\1s.", 12, "a dict changes after");
  FAILS("]\x94\x8fq\1ah\1(K\1\x90.", 11, "a set changes after");
}

TEST(stack) {
  static const char *const poor[] = {"0", "2", "a", "s", "Na", "NNs", "\x85", "N\x86", "NN\x87", "(N\x86"};
  for (size_t i = 0; i < WEIR_COUNT_OF(poor); i++) {
    char data[16];
    snprintf(data, sizeof data, "%s.", poor[i]);
    check_fails(data, strlen(data), NULL, strlen(poor[i]) - 1, "too few values");
  }
  static const char *const markless[] = {"e", "u", "1", "l", "t", "d", "\x90", "\x91", "NNe"};
  for (size_t i = 0; i < WEIR_COUNT_OF(markless); i++)
    check_fails(markless[i], strlen(markless[i]), NULL, strlen(markless[i]) - 1, "there is no mark");
  FAILS(".", 0, "without a value");
  FAILS("(.", 1, "with a mark left over");
  FAILS("N(.", 2, "with a mark left over");
  FAILS("N", 1, "the data end here, before the pickle does");
  FAILS("NNa.", 2, "adds to a list, and finds None");
  FAILS("]NNs.", 3, "adds to a dict, and finds a list");
  FAILS("K\1(Ne.", 4, "adds to a list, and finds an int");
  FAILS("](N\x90.", 3, "adds to a set, and finds a list");
  FAILS("}(Nu.", 3, "a key without a value");
  FAILS("(Nd.", 2, "a key without a value");
  FAILS("}]Ns.", 3, "a list cannot be a key");
  FAILS("(}Nd.", 3, "a dict cannot be a key");
  FAILS("\x8f(]\x90.", 3, "a list cannot be a key");
}

TEST(end) {
  FAILS("N.N", 2, "bytes follow the end");
  FAILS("N.\n", 2, "bytes follow the end");
  FAILS("K", 0, "the data end at byte 1, in the middle of this opcode");
  FAILS("M\1", 0, "the data end at byte 2, in the middle");
  FAILS("NX\5\0\0\0abc", 1, "the data end at byte 9, in the middle");
  FAILS("I12", 0, "the data end at byte 3, in the middle");
}

TEST(frames) {
  FAILS("\x80\4\x95\3\0\0\0\0\0\0\0N.", 12, "stops before its frame does, at byte 14");
  FAILS("\x80\4\x95\x10\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N.", 11, "inside another one, which ends at byte 27");
  FAILS("\x95\xff\xff\xff\xff\xff\xff\xff\xff.", 0, "a frame of 18446744073709551615 bytes is beyond the limit");
  FAILS("\x95\1\0", 0, "in the middle");
  FAILS("\x80\6N.", 0, "protocol 6 is not known");
}

TEST(numbers) {
  FAILS("\x8a\x09\0\0\0\0\0\0\0\0\1.", 0, "an integer of more than 64 bits");
  FAILS("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff.", 0, "more than 64 bits"); /* one below the lowest */
  FAILS("\x8a\x09\0\0\0\0\0\0\0\0\x80.", 0, "more than 64 bits");
  FAILS("N\x8b\x09\0\0\0\0\0\0\0\0\0\0\0\1.", 1, "more than 64 bits");
  FAILS("L18446744073709551616L\n.", 0, "more than 64 bits");
  FAILS("I-9223372036854775809\n.", 0, "more than 64 bits");
  static const char *const bad[] = {"I\n.",    "I-\n.", "I1 2\n.", "I0x10\n.", "L1LL\n.",
                                    "I+-1\n.", "IL\n.", "I010\n.", "L-00L\n."};
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++)
    check_fails(bad[i], strlen(bad[i]), NULL, 0, "an integer that cannot be read");
  static const char *const bad_floats[] = {"F\n.",     "F0x1p3\n.",    "Fnan(1)\n.", "F1,5\n.",
                                           "F 1.0\n.", "Finfinity\n.", "F1.0.0\n.",  "F--1\n."};
  for (size_t i = 0; i < WEIR_COUNT_OF(bad_floats); i++)
    check_fails(bad_floats[i], strlen(bad_floats[i]), NULL, 0, "a float that cannot be read");
  READS("Fnan\n.", "f7ff8000000000000");
  READS("I+7\n.", "7");
  READS("L0L\n.", "0");
  READS("I-0\n.", "0");
  char digits[200];
  memset(digits, '1', sizeof digits);
  digits[0] = 'I';
  check_fails(digits, sizeof digits, NULL, 0, "a line of more than 128 bytes");
}

TEST(texts) {
  static const char *const bad[] = {"\x80",
                                    "\xc2",
                                    "\xc0\x80",
                                    "\xc1\xbf",
                                    "\xe2\x82",
                                    "\xe0\x9f\xbf",
                                    "\xf0\x8f\xbf\xbf",
                                    "\xf4\x90\x80\x80",
                                    "\xf5\x80\x80\x80",
                                    "\xff",
                                    "abcdefgh\xe9i"};
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++) {
    unsigned char data[32] = {0x8c, (unsigned char)strlen(bad[i])};
    memcpy(data + 2, bad[i], strlen(bad[i]));
    data[2 + strlen(bad[i])] = '.';
    check_fails(data, strlen(bad[i]) + 3, NULL, 0, "a text that is not UTF-8");
  }
  READS("\x8c\x0a\xc2\x80\xed\xa0\x80\xf4\x8f\xbf\xbf"
        "a.",
        "\"\\xc2\\x80\\xed\\xa0\\x80\\xf4\\x8f\\xbf\\xbfa\"");
  FAILS("U\1\xe9.", 0, "not ASCII");
  FAILS("T\1\0\0\0\xe9.", 0, "not ASCII");
  FAILS("S'\\xe9'\n.", 0, "not ASCII");
  static const char *const escapes[] = {"Sabc\n.",     "S'abc\n.", "S'\n.",      "S'\\'\n.",        "S'\\x4'\n.",
                                        "S'\\xgg'\n.", "S\n.",     "V\\u123\n.", "V\\U00110000\n.", "V\\uzzzz\n."};
  for (size_t i = 0; i < WEIR_COUNT_OF(escapes); i++)
    check_fails(escapes[i], strlen(escapes[i]), NULL, 0, "bad escape or quote");
  READS("V\n.", "\"\"");
  READS("V\\\n.", "\"\\x5c\"");
  READS("S'\\\\\\0\\7z\\18'\n.", "\"\\x5c\\x00\\x07z\\x018\"");
}

/* Short texts that differ in their length alone, or in what lies behind them. */
TEST(short_texts_are_told_apart) {
  READS("(\x8c\1a\x8c\2a\0\x8c\1a\x8c\0\x8c\1\0\x8c\1a\x8c\x08"
        "abcdefgh\x8c\x07"
        "abcdefg\x8c\x08"
        "abcdefghl.",
        "[\"a\",\"a\\x00\",\"a\",\"\",\"\\x00\",\"a\",\"abcdefgh\",\"abcdefg\",\"abcdefgh\"]");
  READS("(\x8c\1a\x8c\2\0a\x8c\1al.", "[\"a\",\"\\x00a\",\"a\"]");
}

/* ---- Limits ---- */

TEST(claims) {
  FAILS("X\xff\xff\xff\xff.", 0, "a length of 4294967295 bytes is beyond the limit of 67108864");
  FAILS("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 0, "a length of 18446744073709551615 bytes");
  FAILS("\x8e\0\0\0\0\0\0\0\x80.", 0, "a length of 9223372036854775808 bytes");
  FAILS("\x96\0\0\0\0\1\0\0\0.", 0, "a length of 4294967296 bytes");
  FAILS("\x8b\xff\xff\xff\x7f.", 0, "a length of 2147483647 bytes");
  FAILS("T\xff\xff\xff\xff.", 0, "beyond the limit");
  /* A length that is allowed, but not there: no more is taken than there is. */
  const weir__pickle_limits little = {.memory = 1 << 20};
  check_fails("B\0\0\0\4abc.", 9, &little, 0, "the data end at byte 9");
}

static void append(bytes *all, const void *data, size_t size) {
  all->data = realloc(all->data, all->size + size);
  assert_non_null(all->data);
  memcpy(all->data + all->size, data, size);
  all->size += size;
}

/* `times` times the piece, between two texts. */
static bytes repeat(const char *begin, const char *piece, size_t size, size_t times, const char *end) {
  bytes all = {0};
  append(&all, begin, strlen(begin));
  all.data = realloc(all.data, all.size + size * times);
  assert_non_null(all.data);
  for (size_t i = 0; i < times; i++, all.size += size)
    memcpy(all.data + all.size, piece, size);
  append(&all, end, strlen(end));
  return all;
}

TEST(depth) {
  const weir__pickle_limits limits = {.depth = 5};
  reading r = read_with("]]]]]aaaa.", 10, &limits, NULL, NULL);
  check_text(&r, "[[[[[]]]]]");
  close_reading(&r);
  check_fails("]]]]]]aaaaa.", 12, &limits, 10, "nested more than 5 deep");
  check_fails("((((((tttttt.", 13, &limits, 5, "nested more than 5 deep");
  check_fails(")\x85\x85\x85\x85\x85.", 7, &limits, 5, "nested more than 5 deep");

  bytes deep = repeat("", "(", 1, 1000000, "");
  check_fails(deep.data, deep.size, NULL, 100, "nested more than 100 deep");
  free(deep.data);
  deep = repeat("", "]", 1, 1000000, "a");
  memset(deep.data + 500000, 'a', 500000);
  check_fails(deep.data, deep.size, NULL, 500099, "nested more than 100 deep");
  free(deep.data);
  deep = repeat("", "}K\1", 3, 300000, "N");
  for (int i = 0; i < 200; i++)
    append(&deep, "s", 1);
  check_fails(deep.data, deep.size, NULL, 900101, "nested more than 100 deep");
  free(deep.data);
  /* Deeper than any machine's stack would allow, where the caller allows it. */
  const weir__pickle_limits most = {.depth = 1000000};
  deep = repeat(")", "\x85", 1, 70000, ".");
  check_fails(deep.data, deep.size, &most, 65535, "nested more than 65535 deep");
  free(deep.data);
}

TEST(memory_limit) {
  const weir__pickle_limits limits = {.memory = 4 << 20};
  static const struct {
    const char *piece;
    size_t size;
  } hungry[] = {{"N", 1},
                {"]", 1},
                {"}", 1},
                {"]\x94", 2},
                {"N\x94", 2},
                {"F1.5\n", 5},
                {"\x8f", 1},
                {"C\x08qwertyui", 10},
                {"\x8a\x08zzzzzzzz", 10},
                {"]N\x85\x85\x85", 5}};
  for (size_t i = 0; i < WEIR_COUNT_OF(hungry); i++) {
    bytes much = repeat("", hungry[i].piece, hungry[i].size, 2000000, ".");
    reading r = read_with(much.data, much.size, &limits, NULL, NULL);
    assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
    assert_non_null(strstr(weir_last_error(), "more memory than the limit of 4.00 MiB"));
    assert_true(weir__pickle_budget(r.pickle)->used <= limits.memory);
    close_reading(&r);
    free(much.data);
  }
  /* A list of many takes memory too. */
  bytes list = repeat("](", "N", 1, 2000000, "e.");
  reading r = read_with(list.data, list.size, &limits, NULL, NULL);
  assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
  close_reading(&r);
  /* Where the limit is below what it takes to begin, that is said too. */
  const weir__pickle_limits none = {.memory = 1000};
  r = read_with("N.", 2, &none, NULL, NULL);
  assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "test: byte 0: reading it takes more memory than the limit"));
  close_reading(&r);
  free(list.data);
}

TEST(other_limits) {
  weir__pickle_limits limits = {.objects = 10};
  check_fails("]]]]]]]]]]]]]]", 14, &limits, 10, "more objects than the limit of 10");
  limits = (weir__pickle_limits){.string = 3};
  check_fails("X\4\0\0\0abcd.", 10, &limits, 0, "beyond the limit of 3");
  check_fails("Vabcd\n.", 7, &limits, 0, "a line of more than 3 bytes");
  limits = (weir__pickle_limits){.input = 4};
  check_fails("NNNN.", 5, &limits, 0, "more bytes than the limit of 4");
}

/* ---- The window ---- */

/* Opcodes and their arguments, long and short, lie across every border of the window in turn. */
TEST(across_windows) {
  enum { COUNT = 40000 };
  bytes all = {malloc((size_t)COUNT * 320 + 16), 0};
  assert_non_null(all.data);
  unsigned char *at = all.data;
  *at++ = ']';
  uint64_t random = 7;
  *at++ = '(';
  for (uint32_t i = 0; i < COUNT; i++) {
    size_t length = next_random(&random) % 300;
    switch (i % 4) {
    case 0: /* a text of `length` bytes that tells i */
      length = length > 255 ? 255 : length < 9 ? 9 : length;
      *at++ = 0x8c;
      *at++ = (unsigned char)length;
      memset(at, 'x', length);
      snprintf((char *)at, 9, "%08u", i);
      at[8] = 'x';
      at += length;
      break;
    case 1:
      *at++ = 'J';
      memcpy(at, &i, 4);
      at += 4;
      break;
    case 2:
      *at++ = 'X';
      memcpy(at, &length, 4);
      memset(at + 4, 'y', length);
      at += 4 + length;
      break;
    default:
      at += sprintf((char *)at, "I%u\n", i);
    }
  }
  *at++ = 'e';
  *at++ = '.';
  all.size = (size_t)(at - all.data);
  reading r = read_with(all.data, all.size, NULL, NULL, NULL);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(r.pickle, r.root, &count);
  assert_int_equal(count, COUNT);
  random = 7;
  for (uint32_t i = 0; i < COUNT; i++) {
    size_t length = next_random(&random) % 300;
    int64_t number;
    if (i % 4 == 0) {
      assert_int_equal(atoi(weir__pickle_string(r.pickle, items[i]).text), i);
    } else if (i % 4 == 2) {
      assert_int_equal(weir__pickle_string(r.pickle, items[i]).length, length);
    } else {
      assert_true(weir__pickle_int64(r.pickle, items[i], &number));
      assert_int_equal(number, i);
    }
  }
  close_reading(&r);
  free(all.data);
}

/* A text far longer than the window, with much behind it that pushes values. */
TEST(long_texts) {
  const uint32_t length = 3000000;
  bytes all = repeat("", "N", 1, length + 1000000, "l.");
  all.data[0] = '(';
  all.data[1] = 'X';
  memcpy(all.data + 2, &length, 4);
  const weir__pickle_limits limits = {.memory = 64 << 20};
  reading r = read_with(all.data, all.size, &limits, NULL, NULL);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(r.pickle, r.root, &count);
  assert_int_equal(count, 1 + 1000000 - 6);
  assert_int_equal(weir__pickle_string(r.pickle, items[0]).length, length);
  close_reading(&r);

  all.data[0] = 'N'; /* and as a line */
  memset(all.data + 1, 'V', 5);
  all.data[length] = '\n';
  all.data[length + 1] = '.';
  r = read_with(all.data, length + 2, &limits, NULL, NULL);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  assert_int_equal(weir__pickle_string(r.pickle, r.root).length, length - 2);
  close_reading(&r);
  free(all.data);
}

/* A text that reaches over the window's end brings in as many bytes as a look ahead does, and so as many values. */
TEST(values_behind_texts) {
  enum { RUN = 20000, RUNS = 400 };
  const uint32_t length = RUN;
  bytes run = repeat("X", "N", 1, 2 * RUN + 4, "");
  memcpy(run.data + 1, &length, 4);
  bytes all = repeat("(", (char *)run.data, run.size, RUNS, "l.");
  reading r = read_with(all.data, all.size, NULL, NULL, NULL);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(r.pickle, r.root, &count);
  assert_int_equal(count, RUNS * (RUN + 1));
  for (size_t i = 0; i < count; i++)
    assert_int_equal(weir__pickle_tag_of(items[i]), i % (RUN + 1) == 0 ? WEIR__PICKLE_STR : WEIR__PICKLE_NONE);
  close_reading(&r);
  free(all.data);
  free(run.data);
}

/* ---- The hook ---- */

typedef struct taker {
  size_t calls, taken;
  size_t pairs; /* of those that were taken */
} taker;

/* Takes what has the key "t". */
static weir_status take_t(void *context, weir__pickle *p, const weir__pickle_value *pairs, size_t count,
                          weir__pickle_value *taken) {
  taker *t = context;
  t->calls++;
  for (size_t i = 0; i < count; i++)
    if (weir__pickle_tag_of(pairs[2 * i]) == WEIR__PICKLE_STR &&
        strcmp(weir__pickle_string(p, pairs[2 * i]).text, "t") == 0) {
      *taken = weir__pickle_make(WEIR__PICKLE_OBJECT, t->taken++);
      t->pairs += count;
    }
  return WEIR_OK;
}

static void check_taken(const char *data, size_t size, const char *expected, size_t calls, size_t taken) {
  taker t = {0};
  reading r = read_with(data, size, NULL, take_t, &t);
  check_text(&r, expected);
  assert_int_equal(t.calls, calls);
  assert_int_equal(t.taken, taken);
  close_reading(&r);
}

#define TAKES(literal, expected, calls, taken) check_taken(literal, sizeof(literal) - 1, expected, calls, taken)

TEST(hook) {
  /* As soon as it is complete; the memo has the object from then on. */
  TAKES("](}q\0(U\1tK\1U\1uK\2u}(U\1xK\1uh\0e.", "[<0>,{\"x\":1},<0>]", 2, 1);
  /* Built pair by pair: when it goes into a list or tuple. */
  TAKES("]}U\1tK\1sU\1uK\2sa.", "[<0>]", 1, 1);
  TAKES("](}U\1tK\1s}U\1tK\2se.", "[<0>,<1>]", 2, 2);
  TAKES("}U\1tK\1s\x85.", "(<0>)", 1, 1);
  TAKES("((U\1tK\1dl.", "[<0>]", 1, 1);
}

TEST(hook_leaves_what_is_shared) {
  /* Two references are on the stack before it is complete. */
  TAKES("]}2(U\1tK\1u0a.", "[{\"t\":1}]", 0, 0);
  TAKES("]}q\0q\1(U\1tK\1ua.", "[{\"t\":1}]", 0, 0);
  /* The memo's entry was given to another value meanwhile: it keeps that. */
  TAKES("]}q\0Nq\0"
        "0(U\1tK\1uah\0a.",
        "[<0>,None]", 1, 1);
}

TEST(hook_objects_do_not_change) {
  taker t = {0};
  const char data[] = "]}q\0(U\1tK\1uah\0U\1aK\1s.";
  reading r = read_with(data, sizeof data - 1, NULL, take_t, &t);
  assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
  assert_non_null(strstr(weir_last_error(), "byte 19: this opcode adds to a dict, and finds a record"));
  close_reading(&r);
}

static weir_status take_none(void *context, weir__pickle *p, const weir__pickle_value *pairs, size_t count,
                             weir__pickle_value *taken) {
  (void)context, (void)pairs, (void)count, (void)taken;
  return weir__pickle_fail(p, "no dict is good enough");
}

TEST(hook_fails) {
  reading r = read_with("N}(K\1K\2u.", 9, NULL, take_none, NULL);
  assert_int_equal(r.status, WEIR_ERROR_BAD_DATA);
  assert_string_equal(weir_last_error(), "test: byte 7: no dict is good enough");
  close_reading(&r);
}

/* A history of a million entries in the space of its list and memo: what is taken leaves nothing behind. */
TEST(hook_saves_memory) {
  bytes all = repeat("](", "}\x94(\x8c\1tK\1u", 9, 1000000, "e.");
  taker t = {0};
  const weir__pickle_limits limits = {.memory = 48 << 20, .objects = 100};
  reading r = read_with(all.data, all.size, &limits, take_t, &t);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  assert_int_equal(t.taken, 1000000);
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(r.pickle, r.root, &count);
  assert_int_equal(count, 1000000);
  for (size_t i = 0; i < count; i++)
    assert_int_equal(items[i], weir__pickle_make(WEIR__PICKLE_OBJECT, i));
  close_reading(&r);
  free(all.data);
}

/* Takes lists of two. Dicts are taken as above, and are object 7 all of them. */
static taker lists;

static weir_status take_list(void *context, weir__pickle *p, const weir__pickle_value *items, size_t count,
                             weir__pickle_value *taken) {
  (void)context, (void)p, (void)items;
  lists.calls++;
  if (count == 2)
    *taken = weir__pickle_make(WEIR__PICKLE_OBJECT, 100 + lists.taken++);
  return WEIR_OK;
}

static weir_status take_t_and_lists(void *context, weir__pickle *p, const weir__pickle_value *pairs, size_t count,
                                    weir__pickle_value *taken) {
  taker t = {.taken = 7};
  (void)context;
  weir__pickle_set_list_hook(p, take_list);
  return take_t(&t, p, pairs, count, taken);
}

static void check_lists(const char *data, size_t size, const char *expected, size_t calls, size_t taken) {
  lists = (taker){0};
  reading r = read_with(data, size, NULL, take_t_and_lists, NULL);
  check_text(&r, expected);
  assert_int_equal(lists.calls, calls);
  assert_int_equal(lists.taken, taken);
  close_reading(&r);
}

#define TAKES_LISTS(literal, expected, calls, taken) check_lists(literal, sizeof(literal) - 1, expected, calls, taken)
#define T "}(U\1tK\1u" /* becomes <7> */

TEST(list_hook) {
  /* When it goes into a dict; the memo has the object from then on. */
  TAKES_LISTS("]" T "a(}(U\1a]q\0(" T T "eu}(U\1bh\0ue.", "[<7>,{\"a\":<100>},{\"b\":<100>}]", 1, 1);
  /* It is offered and not taken, has something else in it, is empty, or does not go into a dict. */
  TAKES_LISTS("]" T "a}(U\1a](" T "eua.", "[<7>,{\"a\":[<7>]}]", 1, 0);
  TAKES_LISTS("]" T "a}(U\1a](" T "K\1eua.", "[<7>,{\"a\":[<7>,1]}]", 0, 0);
  TAKES_LISTS("]" T "a}(U\1a]ua.", "[<7>,{\"a\":[]}]", 0, 0);
  TAKES_LISTS("]" T "a](" T T "ea.", "[<7>,[<7>,<7>]]", 0, 0);
  /* There is another reference to it. */
  TAKES_LISTS("]" T "a}(U\1a]q\0(" T T "eU\1bh\0ua.", "[<7>,{\"a\":[<7>,<7>],\"b\":[<7>,<7>]}]", 0, 0);
}

/* Small tuples are kept once: a million pool ids are one box. */
TEST(tuples_are_kept_once) {
  const weir__pickle_limits limits = {.objects = 4};
  bytes all = repeat("(", "K\0K\1\x86\x94", 6, 1000000, "l.");
  reading r = read_with(all.data, all.size, &limits, NULL, NULL);
  if (r.status != WEIR_OK)
    fail_msg("%s", weir_last_error());
  size_t count;
  weir__pickle_items(r.pickle, r.root, &count);
  assert_int_equal(count, 1000000);
  close_reading(&r);
  free(all.data);
}
