/*
 * The program weir: one file per command, one list in main.c.
 */
#pragma once

#include "format.h" /* all commands print */
#include "options.h"

/* Exit codes. */
enum {
  WEIR_EXIT_OK = 0,
  WEIR_EXIT_FAILED = 1, /* the command could not do its work; stderr says why */
  WEIR_EXIT_USAGE = 2,  /* invalid usage; nothing was done */
  WEIR_EXIT_SHORT = 3   /* done, and the answer is that memory runs out */
};

/* The program itself, and its commands. */
extern const weir_cli_command weir_cmd;
extern const weir_cli_command weir_cmd_demo;
extern const weir_cli_command weir_cmd_diff;
extern const weir_cli_command weir_cmd_digest;
extern const weir_cli_command weir_cmd_explain;
extern const weir_cli_command weir_cmd_export;
extern const weir_cli_command weir_cmd_help;
extern const weir_cli_command weir_cmd_info;
extern const weir_cli_command weir_cmd_leaks;
extern const weir_cli_command weir_cmd_lint;
extern const weir_cli_command weir_cmd_merge;
extern const weir_cli_command weir_cmd_metrics;
extern const weir_cli_command weir_cmd_plot;
extern const weir_cli_command weir_cmd_ranks;
extern const weir_cli_command weir_cmd_record;
extern const weir_cli_command weir_cmd_redact;
extern const weir_cli_command weir_cmd_replay;
extern const weir_cli_command weir_cmd_summary;
extern const weir_cli_command weir_cmd_top;
extern const weir_cli_command weir_cmd_tune;
extern const weir_cli_command weir_cmd_view;
extern const weir_cli_command weir_cmd_whatif;
