#include "support/check.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

static const char no_error[] = "no call has failed since";

void clear_last_error(void) { weir__fail(WEIR_ERROR_SYSTEM, "%s", no_error); }

void test_check_status(weir_status status, weir_status expected, const char *call, const char *file, int line) {
  if (status == expected)
    return;
  print_error("%s\n  is %s, expected %s (last error: %s)\n", call, weir_status_name(status), weir_status_name(expected),
              weir_last_error());
  _fail(file, line);
}

void test_check_error(weir_status status, weir_status expected, const char *words, const char *call, const char *file,
                      int line) {
  test_check_status(status, expected, call, file, line);
  const char *text = weir_last_error();
  size_t name = strcspn(call, "(");
  if (strncmp(text, call, name) != 0 || strncmp(text + name, ": ", 2) != 0 || strlen(text) < name + 4) {
    print_error("%s\n  the last error \"%s\" does not begin with the function's name and a reason\n", call, text);
    _fail(file, line);
  }
  if (!strstr(text, words)) {
    print_error("%s\n  the last error \"%s\" does not contain \"%s\"\n", call, text, words);
    _fail(file, line);
  }
}

void test_check_not_ready(weir_status status, const char *call, const char *file, int line) {
  test_check_status(status, WEIR_ERROR_NOT_READY, call, file, line);
  if (strcmp(weir_last_error(), no_error) != 0) {
    print_error("%s\n  is not ready, which is not an error, but set the last error \"%s\"\n", call, weir_last_error());
    _fail(file, line);
  }
}

void test_check_cu_result(weir_cu_result result, weir_cu_result expected, const char *call, const char *file,
                          int line) {
  if (result == expected)
    return;
  print_error("%s\n  is %s (%d), expected %s (%d)\n", call, weir_cu_result_name(result), result,
              weir_cu_result_name(expected), expected);
  _fail(file, line);
}

_Noreturn void test_child_failed(const char *condition, const char *file, int line) {
  fprintf(stderr, "%s:%d: in process %d: %s is false (last error: %s)\n", file, line, (int)getpid(), condition,
          weir_last_error());
  _exit(1);
}

int child_outcome(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
