/*
 * Parses settings that must be valid.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/config/settings.h"
#include "base/base.h"
#include "support/check.h"

#define MAX_MIB 8796093022207ull

static inline weir__settings parsed(const char *text) {
  weir__settings settings;
  if (weir__settings_parse(NULL, text, &settings) != WEIR_OK)
    fail_msg("%s: %s", text, weir_last_error());
  return settings;
}

static inline weir__settings parsed_over(const weir__settings *base, const char *text) {
  weir__settings settings;
  if (weir__settings_parse(base, text, &settings) != WEIR_OK)
    fail_msg("%s: %s", text, weir_last_error());
  return settings;
}
