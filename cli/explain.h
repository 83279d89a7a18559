/*
 * The report of `weir explain`, for other commands.
 */
#pragma once

#include "offline/analyse/explain.h"

/* What the command prints, not folded, to be freed. `name` is the file. NULL if out of host memory. */
char *weir_cli_explain_text(const char *name, const weir__recording *recording, const weir__explanation *explanation);
