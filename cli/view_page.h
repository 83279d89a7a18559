/*
 * The page of `weir view`: HTML with the data inside, or, for a server, with the address of the data. What the page is
 * made of is built from viewer/ and compiled into the program.
 */
#pragma once

#include <stdio.h>

#include "offline/render/view_data.h"

typedef struct weir_cli_page {
  const char *text; /* HTML */
  size_t size;
  char *owned; /* `text`, if it was read from a file */
} weir_cli_page;

/* The page that is part of the program, or that of a file if `path` is not NULL. WEIR_ERROR_NOT_SUPPORTED if the
 * program has none. */
weir_status weir_cli_page_open(const char *path, weir_cli_page *page);
void weir_cli_page_close(weir_cli_page *page);

/* Writes the page with the data. `recording` has the recording itself as its only chunk, which the page replays under
 * other settings, or no chunk. */
weir_status weir_cli_page_write(const weir_cli_page *page, const weir__view_data *data,
                                const weir__view_data *recording, FILE *file);

/* Writes the page without data: it fetches them from `address`, relative to its own. */
weir_status weir_cli_page_write_remote(const weir_cli_page *page, const char *address, const weir__view_data *recording,
                                       FILE *file);

/* Writes the page of many ranks: the report of weir__ranks_report, with a member "map" (cli/ranks_page.c), and the map,
 * a byte for each rank and column. */
weir_status weir_cli_page_write_ranks(const weir_cli_page *page, const char *json, size_t size,
                                      const unsigned char *map, size_t map_size, FILE *file);
