/*
 * Environment variables. environment_table.h lists them all; no other file of src/ and cli/ calls getenv.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

typedef enum weir__variable {
#define WEIR__GROUP(heading)
#define WEIR__VARIABLE(id, ...) WEIR__ENV_##id,
#include "base/environment_table.h"
  WEIR__ENV_COUNT
} weir__variable;

/* The text, which may be empty. NULL if it is not set, and for some variables in programs that run with privileges of
 * another user. */
const char *weir__env_text(weir__variable variable);

/* The same, and NULL if it is empty. */
const char *weir__env_value(weir__variable variable);

/* The text of one of the names of a variable, of which *name is the nth; NULL if it is not set. *name is NULL after the
 * last one. */
const char *weir__env_named(weir__variable variable, size_t n, const char **name);

/* These three read a variable of the kind. *value remains as it is if the variable is not set or empty. False if the
 * value is invalid: then call weir__env_refuse or weir__env_ignore. */
bool weir__env_choice(weir__variable variable, int *value); /* the index in the list of the table */
bool weir__env_number(weir__variable variable, double *value);
bool weir__env_integer(weir__variable variable, int64_t *value);
bool weir__env_bytes(weir__variable variable, unsigned long long *value);

/* Fails with WEIR_ERROR_INVALID_ARGUMENT: "NAME=VALUE: expected ...". */
weir_status weir__env_refuse(weir__variable variable);

/* Logs a warning, "invalid NAME=VALUE: expected ...; " and what is done instead. */
void weir__env_ignore(weir__variable variable, const char *instead);
