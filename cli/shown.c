#include "shown.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { COPIES = 8, LONGEST_ESCAPE = 6 };

const char *weir_cli_shown_part(const char *text, size_t length) {
  static char *copies[COPIES];
  static unsigned next;
  char **copy = &copies[next++ % COPIES];
  size_t size = LONGEST_ESCAPE * length + 1;
  char *room = realloc(*copy, size);
  if (!room)
    return "(no host memory to show it)";
  *copy = room;
  weir__escape_text(text, length, room, size);
  return room;
}

const char *weir_cli_shown(const char *text) { return weir_cli_shown_part(text, strlen(text)); }
