/*
 * The text of a log, reduced to what the messages consist of: no colours, no prefixes, no blanks. Without blanks it
 * does not matter where a line was wrapped, even if that was within a word.
 */
#include <string.h>

#include "offline/read/message.h"

typedef struct line {
  const char *at, *end;
  weir__message_source source;
  uint64_t number;
} line;

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* Reads decimal digits, at most 18. Returns their number. */
static size_t read_digits(const char *at, const char *end, uint64_t *number) {
  size_t count = 0;
  *number = 0;
  for (; at + count < end && is_digit(at[count]) && count < 18; count++)
    *number = *number * 10 + (uint64_t)(at[count] - '0');
  return count;
}

static bool begins(const char *at, const char *end, const char *word) {
  size_t length = strlen(word);
  return (size_t)(end - at) >= length && memcmp(at, word, length) == 0;
}

/* A rank that is named explicitly takes precedence over other sources, and the first of equals over later ones. */
static void set_source(line *l, weir__message_source source, uint64_t number) {
  if (l->source && l->source <= source)
    return;
  l->source = source;
  l->number = number;
}

/* After `word` in the text of a prefix: "pid=1234". */
static bool read_after(const char *at, const char *end, const char *word, uint64_t *number) {
  for (; at < end; at++) {
    if (!begins(at, end, word))
      continue;
    const char *digits = at + strlen(word);
    while (digits < end && (*digits == '=' || *digits == ' ' || *digits == ':'))
      digits++;
    if (read_digits(digits, end, number))
      return true;
  }
  return false;
}

/* Reads "rank3", "rank=3", "Rank 3" or "local_rank: 3". Returns what follows, NULL if there is no rank. */
static const char *read_rank(const char *at, const char *end, weir__message_source *source, uint64_t *number) {
  static const struct {
    const char *word;
    weir__message_source source;
  } names[] = {{"local_rank", WEIR__SOURCE_LOCAL}, {"LOCAL_RANK", WEIR__SOURCE_LOCAL}, {"node_rank", WEIR__SOURCE_NONE},
               {"NODE_RANK", WEIR__SOURCE_NONE},   {"rank", WEIR__SOURCE_RANK},        {"Rank", WEIR__SOURCE_RANK},
               {"RANK", WEIR__SOURCE_RANK}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (!begins(at, end, names[i].word))
      continue;
    const char *digits = at + strlen(names[i].word);
    while (digits < end && (*digits == '=' || *digits == ' ' || *digits == ':'))
      digits++;
    size_t count = read_digits(digits, end, number);
    *source = names[i].source;
    return count ? digits + count : NULL;
  }
  return NULL;
}

/* All ranks in the text of a prefix. Returns whether there are any. */
static bool find_ranks(line *l, const char *at, const char *end) {
  bool is_found = false;
  while (at < end) {
    weir__message_source source;
    uint64_t number;
    const char *next = read_rank(at, end, &source, &number);
    if (next && source)
      set_source(l, source, number);
    is_found |= next != NULL;
    at = next ? next : at + 1;
  }
  return is_found;
}

/* "[rank3]:", "[default3]:", "[2026-11-16 21:37:46]", "[1,3]<stderr>:", "(Worker rank=3 pid=1234)". */
static bool skip_brackets(line *l) {
  enum { LONGEST = 160 };
  char open = l->at < l->end ? *l->at : 0;
  if (open != '[' && open != '(')
    return false;
  const char *from = l->at + 1, *most = l->end - from > LONGEST ? from + LONGEST : l->end;
  const char *close = memchr(from, open == '[' ? ']' : ')', (size_t)(most - from));
  uint64_t number, world;
  if (!close)
    return false;
  bool has_rank = find_ranks(l, from, close);
  bool has_pid = read_after(from, close, "pid", &number);
  if (has_pid)
    set_source(l, WEIR__SOURCE_PROCESS, number);
  if (open == '(' && !has_rank && !has_pid)
    return false; /* "(GPU 0; 15.90 GiB total capacity" */
  if (begins(from, close, "executable_name="))
    return false; /* a part of XLA's message */
  if (begins(from, close, "default") && read_digits(from + 7, close, &number))
    set_source(l, WEIR__SOURCE_LOCAL, number);
  size_t digits = read_digits(from, close, &world);
  l->at = close + 1;
  if (begins(l->at, l->end, "<std")) { /* mpirun --tag-output */
    if (digits && from[digits] == ',' && read_digits(from + digits + 1, close, &number))
      set_source(l, WEIR__SOURCE_TASK, number);
    while (l->at < l->end && *l->at != '>')
      l->at++;
    l->at += l->at < l->end;
  }
  l->at += l->at < l->end && *l->at == ':';
  return true;
}

/* "2026-11-16 21:37:46,123", "11-16 21:37:46", "21:37:46.123", "2026-11-16T21:37:46Z". */
static bool skip_time(line *l) {
  const char *at = l->at;
  int colons = 0, dashes = 0;
  if (at >= l->end || !is_digit(*at))
    return false;
  for (; at < l->end; at++) {
    if (*at == ':')
      colons++;
    else if (*at == '-' || *at == '/')
      dashes++;
    else if (*at == ' ' && (colons || !dashes || at + 1 == l->end || !is_digit(at[1])))
      break; /* a blank separates a date from its time */
    else if (!is_digit(*at) && !strchr(" .,TZ+", *at))
      return false;
  }
  if (colons < 2)
    return false;
  l->at = at;
  return true;
}

/* "3: " of srun --label. */
static bool skip_task(line *l) {
  uint64_t number;
  size_t digits = read_digits(l->at, l->end, &number);
  if (!digits || digits > 6 || l->end - l->at < (ptrdiff_t)digits + 2 || l->at[digits] != ':' ||
      l->at[digits + 1] != ' ')
    return false;
  set_source(l, WEIR__SOURCE_TASK, number);
  l->at += digits + 2;
  return true;
}

/* "rank 3: ", "Rank 3 - ", "rank=3 ", "local_rank=3 ". The words of a sentence have no such punctuation. */
static bool skip_rank(line *l) {
  enum { MAX_RANK = 999999 };
  weir__message_source source;
  uint64_t number;
  const char *at = read_rank(l->at, l->end, &source, &number), *from = l->at;
  if (!at || !source || number > MAX_RANK)
    return false;
  bool is_assigned = memchr(from, '=', (size_t)(at - from)) != NULL;
  if (begins(at, l->end, ": ") || (is_assigned && begins(at, l->end, " ")))
    l->at = at + 1;
  else if (begins(at, l->end, " - ") || begins(at, l->end, " | "))
    l->at = at + 3;
  else
    return false;
  set_source(l, source, number);
  return true;
}

/* "worker-3", a name as Docker and Kubernetes make them. */
static void read_worker(line *l, const char *end) {
  static const char name[] = "worker-";
  const char *digits = l->at + strlen(name);
  uint64_t number;
  if (begins(l->at, end, name) && digits < end && digits + read_digits(digits, end, &number) == end)
    set_source(l, WEIR__SOURCE_TASK, number);
}

/* "ERROR", "worker-1 |", "Nov 16 21:37:46 host python[42]:". */
static bool skip_word(line *l) {
  static const char *const levels[] = {"ERROR",    "WARNING", "WARN",   "INFO",  "DEBUG",
                                       "CRITICAL", "FATAL",   "stderr", "stdout"};
  static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    const char *after = l->at + strlen(levels[i]);
    if (begins(l->at, l->end, levels[i]) && (after == l->end || is_blank(*after) || *after == ':')) {
      l->at = after + (after < l->end && *after == ':');
      return true;
    }
  }
  const char *at = l->at;
  while (at < l->end && (is_letter(*at) || is_digit(*at) || *at == '-' || *at == '_' || *at == '.'))
    at++;
  if (at == l->at)
    return false;
  if (at - l->at == 3 && at < l->end && *at == ' ')
    for (const char *month = months; *month; month += 3)
      if (memcmp(month, l->at, 3) == 0) {
        const char *most = l->end - at > 80 ? at + 80 : l->end, *colon = at;
        while (colon + 2 < most && !(colon[0] == ']' && colon[1] == ':' && colon[2] == ' '))
          colon++;
        if (colon + 2 >= most)
          return false;
        l->at = colon + 2;
        return true;
      }
  const char *end = at;
  while (at < l->end && *at == ' ')
    at++;
  if (at + 1 < l->end && at[0] == '|' && at[1] == ' ') {
    read_worker(l, end);
    l->at = at + 2;
    return true;
  }
  return false;
}

static void skip_prefixes(line *l) {
  enum { MAX = 12 };
  for (int i = 0; i < MAX && l->at < l->end; i++) {
    while (l->at < l->end && (is_blank(*l->at) || *l->at == '>' || *l->at == '|' || (unsigned char)*l->at >= 0x80))
      l->at++;
    if (!skip_brackets(l) && !skip_time(l) && !skip_task(l) && !skip_rank(l) && !skip_word(l))
      break;
  }
}

/* Removes terminal sequences and control characters other than newlines, and the zero bytes of UTF-16. */
static size_t strip_controls(char *text, size_t size) {
  size_t to = 0;
  for (size_t i = 0; i < size; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == 0x1b && i + 1 < size && text[i + 1] == '[') {
      for (i += 2; i < size && ((unsigned char)text[i] < 0x40 || (unsigned char)text[i] > 0x7e); i++)
        if (text[i] == '\n')
          break;
      if (i < size && text[i] == '\n')
        text[to++] = '\n';
    } else if (c == 0x1b && i + 1 < size && text[i + 1] == ']') {
      while (i < size && text[i] != '\a' && text[i] != '\n' && text[i] != '\\')
        i++;
      if (i < size && text[i] == '\n')
        text[to++] = '\n';
    } else if (c == '\\' && i + 1 < size && text[i + 1] == 'n') { /* in JSON */
      text[to++] = ' ';
      i++;
    } else if (c >= ' ' || c == '\n' || c == '\t')
      text[to++] = c == 0x7f ? ' ' : (char)c;
  }
  return to;
}

/* At most as long as the prefix that it stands for: "3: " is the shortest. */
static char *put_source(char *to, const line *l) {
  char digits[20];
  size_t count = 0;
  uint64_t number = l->number;
  do
    digits[count++] = (char)('0' + number % 10);
  while ((number /= 10) != 0);
  *to++ = (char)l->source;
  while (count)
    *to++ = digits[--count];
  *to++ = WEIR__SOURCE_END;
  return to;
}

size_t weir__message_squeeze(char *text, size_t size) {
  size = strip_controls(text, size);
  char *to = text;
  const char *end = text + size;
  for (const char *at = text; at < end;) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    line l = {.at = at, .end = newline ? newline : end};
    skip_prefixes(&l);
    if (l.source)
      to = put_source(to, &l);
    for (; l.at < l.end; l.at++)
      if (*l.at > ' ' && *l.at < 0x7f && *l.at != '|')
        *to++ = *l.at;
    if (newline)
      *to++ = '\n';
    at = newline ? newline + 1 : end;
  }
  return (size_t)(to - text);
}
