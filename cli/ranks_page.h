/*
 * The page of `weir ranks --page`.
 */
#pragma once

#include "offline/analyse/ranks.h"
#include "offline/render/report.h"

/* Returns an exit code. The page has the report, too. */
int weir_cli_ranks_page(const weir__ranks *ranks, const weir__report *report, const char *path);
