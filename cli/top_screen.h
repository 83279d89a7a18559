/*
 * A screen of the terminal that is drawn again and again, and keys without a return.
 */
#pragma once

#include <stdbool.h>

#include "base/base.h"

/* Lines of text, each cut to the width of the screen. */
typedef struct weir_cli_frame {
  char *text;
  size_t length, room;
  int width; /* columns of a line */
  int lines;
  bool is_bold; /* lines may be bold */
} weir_cli_frame;

/* Adds a line: what is too long for it is left out. It has no control characters. */
void weir_cli_frame_line(weir_cli_frame *frame, bool is_bold, const char *format, ...) WEIR_PRINTF(3, 4);
void weir_cli_frame_clear(weir_cli_frame *frame);

typedef enum weir_cli_key {
  WEIR_CLI_KEY_NONE, /* the time is over, or the size of the terminal has changed */
  WEIR_CLI_KEY_END,  /* the terminal is gone, or a signal wants the program to end */
  WEIR_CLI_KEY_UP = 256,
  WEIR_CLI_KEY_DOWN,
  WEIR_CLI_KEY_PAGE_UP,
  WEIR_CLI_KEY_PAGE_DOWN
} weir_cli_key;

/* Takes over the terminal; false if standard input or output is not a terminal. It is restored at the end, and when a
 * signal ends or stops the program. */
bool weir_cli_screen_begin(void);
void weir_cli_screen_end(void);

void weir_cli_screen_size(int *columns, int *rows);

/* Shows the first `fixed` lines, those from `fixed` + `from` on as far as there is room, and the last line. */
void weir_cli_screen_show(const weir_cli_frame *frame, int fixed, int from);

/* The next key, or a character, within a time. */
int weir_cli_screen_key(int milliseconds);
