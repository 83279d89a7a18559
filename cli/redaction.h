/*
 * The salt of --redact and --salt.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/system.h"

typedef struct weir_cli_salt {
  const void *bytes;
  size_t size;
  unsigned char random[32];
} weir_cli_salt;

/* The text, or random bytes if it is NULL. false if there are none; errno says why. The salt must not move. */
static inline bool weir_cli_salt_make(const char *text, weir_cli_salt *salt) {
  salt->bytes = text ? (const void *)text : salt->random;
  salt->size = text ? strlen(text) : sizeof salt->random;
  return text || weir__random_bytes(salt->random, sizeof salt->random);
}
