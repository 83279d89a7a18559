/*
 * Environment variables. environment_table.h lists them all; no other file of libweir_compute calls getenv.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base.h"

typedef enum weir__variable {
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, ...) WEIR__ENV_##id,
#include "src/environment_table.h"
  WEIR__ENV_COUNT
} weir__variable;

/* The text, or NULL: if it is not set, is empty, or the program runs with privileges of another user. */
const char *weir__compute_env(weir__variable variable);

/* The name that the text is of, or the first name. */
const char *weir__compute_env_name(weir__variable variable);

/* Whether the variable is set to this text. */
bool weir__compute_env_is(weir__variable variable, const char *text);

/* The text as a number in the range of the table, of bytes if it is a size. False if it is not one; *value remains as
 * it is then, and if the variable is not set. */
bool weir__compute_env_number(weir__variable variable, double *value);
bool weir__compute_env_bytes(weir__variable variable, uint64_t *value);

/* "NAME=VALUE: expected ...", for an error, and a warning that says what is done instead. */
const char *weir__compute_env_expected(weir__variable variable, char text[WEIR__TEXT_SIZE]);
void weir__compute_env_ignore(weir__variable variable, const char *instead);
