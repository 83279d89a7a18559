#include "moment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const weir_cli_choice weir_cli_moments[] = {{"oom", "the first request that failed"},
                                            {"peak", "when most memory was in use"},
                                            {"end", "after the last entry"},
                                            {0}};

int weir_cli_read_moment(const char *text, weir_offline_moment *moment, size_t *event) {
  static const weir_offline_moment named[] = {WEIR_OFFLINE_AT_OOM, WEIR_OFFLINE_AT_PEAK, WEIR_OFFLINE_AT_END};
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (strcmp(text, weir_cli_moments[i].name) == 0) {
      *moment = named[i];
      return WEIR_EXIT_OK;
    }
  char *end;
  errno = 0;
  *moment = WEIR_OFFLINE_AT_EVENT;
  *event = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && !*end && !errno ? WEIR_EXIT_OK : WEIR_EXIT_USAGE;
}
