#include "top_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/text.h"
#include "cli.h"

/* The other screen, without a cursor; and back. */
#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

/* ---- Lines ---- */

static void append(weir_cli_frame *frame, const char *text, size_t length) {
  if (frame->length + length + 1 > frame->room) {
    size_t room = 2 * (frame->length + length + 1024);
    char *grown = realloc(frame->text, room);
    if (!grown)
      return;
    frame->text = grown;
    frame->room = room;
  }
  memcpy(frame->text + frame->length, text, length);
  frame->length += length;
  frame->text[frame->length] = '\0';
}

void weir_cli_frame_line(weir_cli_frame *frame, bool is_bold, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  size_t at = 0;
  for (int column = 0; column < frame->width && line[at]; column++) {
    uint32_t code;
    size_t length = weir__utf8_length(line + at, &code);
    at += length ? length : 1;
  }
  if (is_bold && frame->is_bold)
    append(frame, "\033[1m", 4);
  append(frame, line, at);
  if (is_bold && frame->is_bold)
    append(frame, "\033[m", 3);
  append(frame, "\n", 1);
  frame->lines++;
}

void weir_cli_frame_clear(weir_cli_frame *frame) {
  free(frame->text);
  frame->text = NULL;
  frame->length = frame->room = 0;
  frame->lines = 0;
}

/* ---- The terminal ---- */

static struct termios before;
static volatile sig_atomic_t is_taken, wants_end;

static void write_all(const char *text, size_t length) {
  while (length) {
    ssize_t done = write(STDOUT_FILENO, text, length);
    if (done < 0 && errno != EINTR)
      return;
    text += done > 0 ? done : 0;
    length -= done > 0 ? (size_t)done : 0;
  }
}

/* Only calls that a signal handler may make. */
static void give_back(void) {
  if (!is_taken)
    return;
  is_taken = 0;
  write_all(LEAVE, sizeof LEAVE - 1);
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void take(void) {
  struct termios raw = before;
  raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  write_all(ENTER, sizeof ENTER - 1);
  is_taken = 1;
}

static void on_end(int number) {
  (void)number;
  wants_end = 1;
}

static void on_stop(int number) {
  int saved = errno;
  give_back();
  signal(number, SIG_DFL);
  raise(number);
  errno = saved;
}

static void on_size(int number) { (void)number; /* ends the wait for a key */ }

static void on_continue(int number);

static void watch(int number, void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler};
  sigemptyset(&action.sa_mask);
  if (handler == on_stop)
    action.sa_flags = SA_NODEFER; /* it raises the signal again */
  sigaction(number, &action, NULL);
}

static void on_continue(int number) {
  (void)number;
  int saved = errno;
  watch(SIGTSTP, on_stop);
  if (!is_taken)
    take();
  errno = saved;
}

bool weir_cli_screen_begin(void) {
  static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before))
    return false;
  for (size_t i = 0; i < WEIR_COUNT_OF(ending); i++)
    watch(ending[i], on_end);
  watch(SIGWINCH, on_size);
  watch(SIGTSTP, on_stop);
  watch(SIGCONT, on_continue);
  take();
  return true;
}

void weir_cli_screen_end(void) {
  signal(SIGCONT, SIG_DFL);
  give_back();
}

void weir_cli_screen_size(int *columns, int *rows) {
  struct winsize size;
  bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  *columns = is_known ? size.ws_col : 80;
  *rows = is_known ? size.ws_row : 24;
}

/* The beginning of a line of the frame. */
static const char *line_at(const weir_cli_frame *frame, int line) {
  const char *at = frame->text;
  for (; line > 0 && at && *at; line--)
    at = strchr(at, '\n') + 1;
  return at;
}

static void put_lines(weir_cli_frame *out, const weir_cli_frame *frame, int from, int count) {
  const char *at = line_at(frame, from);
  for (int i = 0; i < count; i++) {
    const char *end = strchr(at, '\n');
    append(out, at, (size_t)(end - at));
    append(out, "\033[K\n", 4); /* clears the rest of the line */
    at = end + 1;
  }
}

/* One write for the whole screen, so that it does not flicker; nothing is cleared before. */
void weir_cli_screen_show(const weir_cli_frame *frame, int fixed, int from) {
  weir_cli_frame out = {0};
  int columns, rows;
  weir_cli_screen_size(&columns, &rows);
  int last = frame->lines - 1, room = rows - 1 - fixed;
  int count = last - fixed - from;
  count = count < 0 || room < 0 ? 0 : count > room ? room : count;
  fixed = fixed < last ? fixed : last;
  fixed = fixed < rows - 1 ? fixed : rows - 1;
  append(&out, "\033[H", 3);
  put_lines(&out, frame, 0, fixed);
  put_lines(&out, frame, fixed + from, count);
  append(&out, "\033[J", 3);
  for (int i = fixed + count; i < rows - 1; i++)
    append(&out, "\n", 1);
  const char *end = line_at(frame, last);
  append(&out, end, strlen(end) - 1);
  append(&out, "\033[K", 3);
  write_all(out.text, out.length);
  weir_cli_frame_clear(&out);
}

/* The keys of a terminal that begin with an escape: arrows and page keys. */
static int read_escape(void) {
  char text[8];
  ssize_t length = read(STDIN_FILENO, text, sizeof text);
  if (length >= 2 && (text[0] == '[' || text[0] == 'O') && text[1] == 'A')
    return WEIR_CLI_KEY_UP;
  if (length >= 2 && (text[0] == '[' || text[0] == 'O') && text[1] == 'B')
    return WEIR_CLI_KEY_DOWN;
  if (length >= 3 && text[0] == '[' && text[2] == '~')
    return text[1] == '5' ? WEIR_CLI_KEY_PAGE_UP : text[1] == '6' ? WEIR_CLI_KEY_PAGE_DOWN : WEIR_CLI_KEY_NONE;
  return WEIR_CLI_KEY_NONE;
}

int weir_cli_screen_key(int milliseconds) {
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  char key;
  int ready = poll(&input, 1, milliseconds);
  if (wants_end || (ready < 0 && errno != EINTR))
    return WEIR_CLI_KEY_END;
  if (ready <= 0)
    return WEIR_CLI_KEY_NONE;
  ssize_t got = read(STDIN_FILENO, &key, 1);
  if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) /* it was closed */
    return WEIR_CLI_KEY_END;
  return got < 0 ? WEIR_CLI_KEY_NONE : key == '\033' ? read_escape() : (unsigned char)key;
}
