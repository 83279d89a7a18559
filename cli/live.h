/*
 * What the live pages of all processes say, and the ledger of each card: which figures are known of its memory, each by
 * a method of its own. Shared by top, metrics, info and record.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record/live_page.h"

/* Whether something goes on growing: by the levels of the last minutes. */
typedef struct weir_cli_trend {
  bool is_known; /* there are enough windows */
  bool grows;
  double bytes_per_second;
  double grows_for_s;     /* since when */
  uint64_t room;          /* bytes until a request fails, as far as is known */
  const char *limited_by; /* what ends it: "the limit", or "the card" */
  double fails_in_s;
} weir_cli_trend;

typedef struct weir_cli_process {
  weir__page_view view;
  char command[48]; /* "python3 train.py"; "" if it is not known */
  int64_t age_ms;   /* of the page */
} weir_cli_process;

typedef enum weir_cli_precision {
  WEIR_CLI_EXACT,
  WEIR_CLI_REST,   /* what is left of a figure: it is not measured */
  WEIR_CLI_UNKNOWN /* it cannot be measured here */
} weir_cli_precision;

/* A row of a ledger. */
typedef struct weir_cli_ledger_row {
  char what[96];
  const char *method;
  int64_t pid; /* 0 if it is not of one process */
  weir_cli_precision precision;
  uint64_t bytes;
  bool is_part; /* of the row before it that is no part: it is not added again */
} weir_cli_ledger_row;

enum { WEIR_CLI_CARD_ROWS = 512 };

typedef struct weir_cli_card {
  char name[64], uuid[48], bus[16];
  int64_t pid; /* of a software device, which belongs to one process; else 0 */
  uint64_t total, used, free;
  bool knows_used;
  weir_cli_ledger_row *rows;
  size_t row_count;
} weir_cli_card;

typedef struct weir_cli_live {
  weir_cli_process *processes; /* by what they hold, the largest first */
  size_t process_count, process_room;
  weir_cli_process *invalid; /* pages that cannot be read; of these, the paths and faults are known */
  size_t invalid_count, invalid_room;
  size_t left_out; /* pages beyond those that are read */
  weir_cli_card *cards;
  size_t card_count, card_room;
  int64_t unix_ns; /* when they were read */
} weir_cli_live;

/* Reads all pages, or that of one process. Returns false without host memory. */
bool weir_cli_live_read(weir_cli_live *live, int64_t pid);
void weir_cli_live_clear(weir_cli_live *live);

/* Adds the ledgers of the cards that the processes use. */
void weir_cli_live_add_cards(weir_cli_live *live);

/* Writes a card and its ledger as an object of JSON. */
void weir_cli_card_json(const weir_cli_card *card);

/* Finds the card that a process uses as one of its devices; NULL if it is not known. */
const weir_cli_card *weir_cli_card_of(const weir_cli_live *live, const weir_cli_process *process, uint32_t device);

weir_cli_trend weir_cli_trend_of(const weir_cli_live *live, const weir_cli_process *process, uint32_t device);

/* The name of a count, "allocated"; and whether a row knows it. */
const char *weir_cli_count_name(weir__page_count count);
static inline bool weir_cli_knows(const weir__page_row *row, weir__page_count count) { return row->known >> count & 1; }

/* Whether a page is older than a worker lets it become: the program has switched that off, or is stopped. */
static inline bool weir_cli_is_stale(const weir_cli_process *process) {
  return process->age_ms > 3 * (int64_t)process->view.copy.period_ms + 500;
}

/* "pool 0,7", with its tag in front if it has one: "weights (pool 0,7)". */
const char *weir_cli_row_name(const weir__page_row *row, char text[128]);
