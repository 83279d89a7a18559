#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "support/check.h"
#include "support/heard.h"

/* The level is read from the environment once per process, so each case runs in a child. `text` receives what the child
 * writes to stderr. */
static void in_child(const char *weir_log, void (*body)(void), char *text, size_t size) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (weir_log != NULL)
      setenv("WEIR_LOG", weir_log, 1);
    else
      unsetenv("WEIR_LOG");
    body();
    _exit(0);
  }
  close(ends[1]);
  size_t length = 0;
  ssize_t got;
  while (length < size - 1 && (got = read(ends[0], text + length, size - 1 - length)) > 0)
    length += (size_t)got;
  text[length] = '\0';
  close(ends[0]);
  assert_int_equal(child_outcome(child), 0);
}

static void one_of_each(void) {
  weir__log(WEIR_LOG_ERROR, "e%d", 1);
  weir__log(WEIR_LOG_WARN, "w%d", 2);
  weir__log(WEIR_LOG_INFO, "i%d", 3);
  weir__log(WEIR_LOG_DEBUG, "d%d", 4);
}

/* First: it needs a process that has not read the environment yet. */
TEST(the_environment_sets_the_level) {
  static const struct {
    const char *weir_log, *text;
  } cases[] = {
      {NULL, "weir: error: e1\nweir: warning: w2\n"},
      {"", "weir: error: e1\nweir: warning: w2\n"},
      {"error", "weir: error: e1\n"},
      {"warn", "weir: error: e1\nweir: warning: w2\n"},
      {"info", "weir: error: e1\nweir: warning: w2\nweir: info: i3\n"},
      {"debug", "weir: error: e1\nweir: warning: w2\nweir: info: i3\nweir: debug: d4\n"},
      {"loud", "weir: warning: WEIR_LOG is none of error, warn, info and debug; taking warn\n"
               "weir: error: e1\nweir: warning: w2\n"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char text[1024];
    in_child(cases[i].weir_log, one_of_each, text, sizeof text);
    assert_string_equal(text, cases[i].text);
  }
}

static void set_info_and_say_one_of_each(void) {
  weir_log_set_level(WEIR_LOG_INFO);
  one_of_each();
}

TEST(the_program_overrides_the_environment) {
  char text[1024];
  in_child("error", set_info_and_say_one_of_each, text, sizeof text);
  assert_string_equal(text, "weir: error: e1\nweir: warning: w2\nweir: info: i3\n");
}

TEST(a_level_out_of_range_is_clamped) {
  weir_log_set_level((weir_log_level)99);
  assert_int_equal(weir_log_get_level(), WEIR_LOG_DEBUG);
  weir_log_set_level((weir_log_level)-1);
  assert_int_equal(weir_log_get_level(), WEIR_LOG_ERROR);
  weir_log_set_level(WEIR_LOG_WARN);
  assert_int_equal(weir_log_get_level(), WEIR_LOG_WARN);
}

TEST(a_sink_gets_only_the_message) {
  struct heard heard = {0};
  weir_log_set_sink(hear, &heard);
  weir__log(WEIR_LOG_WARN, "two %s", "words");
  weir__log(WEIR_LOG_INFO, "too quiet to be heard");
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(heard.count, 1);
  assert_int_equal(heard.level, WEIR_LOG_WARN);
  assert_string_equal(heard.message, "two words");
}

TEST(a_long_message_is_marked_as_truncated) {
  static struct heard heard;
  char whole[4000];
  memset(whole, 'm', sizeof whole - 1);
  whole[sizeof whole - 1] = '\0';
  weir_log_set_sink(hear, &heard);
  weir__log(WEIR_LOG_WARN, "%s", whole);
  weir_log_set_sink(NULL, NULL);
  size_t length = strlen(heard.message);
  assert_in_range(length, 1024, sizeof whole - 2);
  assert_string_equal(heard.message + length - 5, "mm...");
}

static void set_sink_and_take_it_back(void) {
  static struct heard heard;
  weir_log_set_sink(hear, &heard);
  weir_log_set_sink(NULL, NULL);
  weir__log(WEIR_LOG_WARN, "to stderr again");
}

TEST(without_a_sink_messages_go_to_stderr) {
  char text[1024];
  in_child(NULL, set_sink_and_take_it_back, text, sizeof text);
  assert_string_equal(text, "weir: warning: to stderr again\n");
}

static void fork_in_sink(void *context, weir_log_level level, const char *message) {
  (void)level;
  (void)message;
  int *outcome = context;
  pid_t child = fork();
  if (child == 0) {
    alarm(30); /* ends a child that deadlocks on a lock whose holder does not exist after fork */
    weir_log_set_sink(NULL, NULL);
    weir_log_set_level(WEIR_LOG_ERROR);
    weir__log(WEIR_LOG_WARN, "dropped");
    _exit(7);
  }
  *outcome = child_outcome(child);
}

TEST(a_sink_may_fork) {
  int outcome = -1;
  weir_log_set_sink(fork_in_sink, &outcome);
  weir__log(WEIR_LOG_WARN, "now");
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(outcome, 7);
}
