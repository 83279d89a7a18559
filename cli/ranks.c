/*
 * weir ranks: which of many ranks is different, and why.
 */
#include "offline/analyse/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "cli.h"
#include "digests.h"
#include "json.h"
#include "offline/analyse/ranks_recordings.h"
#include "offline/render/digest_merge.h"
#include "offline/render/ranks_report.h"
#include "ranks_page.h"
#include "report.h"

static struct {
  int distance; /* in percent */
  int ranks;    /* that the job has; 0 for what the digests say */
  int list;
  const char *recordings; /* a folder; NULL if there is none */
  const char *conf;       /* NULL if none are given */
  const char *page;       /* NULL for no page */
  bool json;
} options = {.distance = 5, .list = 10};

/* The digests; those that are equal are one. */
typedef struct digests {
  weir__digest *items;
  size_t count, room;
} digests;

static int add(void *context, weir__digest *digest) {
  digests *all = context;
  if (!WEIR__RESERVE(all->items, all->room, all->count + 1))
    return weir_cli_fail("out of host memory");
  all->items[all->count++] = *digest;
  return WEIR_EXIT_OK;
}

static int by_rank(const void *a, const void *b) {
  const weir__digest *x = a, *y = b;
  if (x->rank != y->rank)
    return (x->rank > y->rank) - (x->rank < y->rank);
  if (x->device != y->device)
    return (x->device > y->device) - (x->device < y->device);
  return (x->id > y->id) - (x->id < y->id);
}

static void remove_equal(digests *all) {
  size_t kept = 0;
  if (all->count)
    qsort(all->items, all->count, sizeof *all->items, by_rank);
  for (size_t i = 0; i < all->count; i++)
    if (kept && by_rank(&all->items[kept - 1], &all->items[i]) == 0)
      weir__digest_clear(&all->items[i]);
    else
      all->items[kept++] = all->items[i];
  all->count = kept;
}

static int look_into(weir__ranks *ranks) {
  weir__settings settings;
  size_t unread;
  char why[WEIR__RANKS_WHY];
  if (options.conf && weir__settings_parse(NULL, options.conf, &settings))
    return weir_cli_fail("--conf %s: %s", weir_cli_escaped(options.conf), weir_last_error());
  if (weir__ranks_look_into(ranks, options.recordings, options.conf ? &settings : NULL, (size_t)options.list, &unread,
                            why))
    return weir_cli_fail("%s", weir_last_error());
  if (unread)
    weir_cli_fail("%s cannot be read or replayed, the last one: %s", weir_cli_count(unread, "recording"), why);
  return WEIR_EXIT_OK;
}

static int compare(const digests *all) {
  const weir__ranks_options how = {.distance = options.distance / 100.0, .expected = (size_t)options.ranks};
  weir__ranks ranks;
  if (weir__ranks_compare(all->items, all->count, &how, &ranks))
    return weir_cli_fail("%s", weir_last_error());
  if (options.recordings && look_into(&ranks)) {
    weir__ranks_clear(&ranks);
    return WEIR_EXIT_FAILED;
  }
  weir__report report;
  weir__ranks_report(&report, &ranks, options.conf, (size_t)options.list);
  int code = options.page ? weir_cli_ranks_page(&ranks, &report, options.page) : WEIR_EXIT_OK;
  if (weir_cli_print_report(&report, NULL, options.json))
    code = WEIR_EXIT_FAILED;
  bool is_found = ranks.outlier_count || ranks.parting_count || ranks.failure_count || ranks.missing_count;
  weir__ranks_clear(&ranks);
  return code ? code : is_found ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
}

static int run(int count, char **arguments) {
  digests all = {0};
  int code = weir_cli_digests_read(count, arguments, add, &all);
  remove_equal(&all);
  if (!all.count)
    code = code ? code : weir_cli_fail("there is no digest in what was given");
  else {
    int found = compare(&all);
    code = code ? code : found;
  }
  for (size_t i = 0; i < all.count; i++)
    weir__digest_clear(&all.items[i]);
  free(all.items);
  return code;
}

static const weir_cli_option option_table[] = {
    {"distance", .kind = WEIR_CLI_NUMBER, .value = "PERCENT", .target = &options.distance, .least = 1, .most = 99,
     .help = "ranks that differ by up to so much in all features are one class. Default: 5"},
    {"ranks", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.ranks, .least = 1, .most = WEIR__RANKS_MAX,
     .help = "the ranks that the job has, to name the missing ones. Default: up to the highest one that is there"},
    {"recordings", .kind = WEIR_CLI_PATH, .value = "IN", .target = &options.recordings,
     .help =
         "a folder with recordings, under the names that they had: shows the request that differs where ranks do, and "
         "replays one rank of each class"},
    {"conf", .kind = WEIR_CLI_TEXT, .value = "CONF", .target = &options.conf, .needs = "recordings",
     .help = "replay with these settings too, such as expandable_segments:True"},
    {"page", .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.page,
     .help = "write a web page too: a map of ranks and steps, on which a click opens a rank"},
    {"list", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.list, .least = 1, .most = 100000,
     .help = "show up to N rows of each kind. Default: 10"},
    {"json", .target = &options.json, .help = "print JSON"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_ranks = {
    .name = "ranks",
    .summary = "compare many ranks: which is different, and why",
    .description =
        "Compare the digests of many ranks. Ranks that need the same, within a distance, are a class; classes that "
        "many "
        "ranks are in are the roles of the job, such as the stages of a pipeline. Other ranks are outliers: shown are "
        "the "
        "stacks that hold more or less than usual, and since which step. Within a class, ranks whose requests part "
        "from "
        "those of the others are named, with the steps in which that happens. Also shown: which rank ran out of memory "
        "first, ranks that are missing, and the memory that all need.\n"
        "DIGEST is a file of 'weir digest' or 'weir merge'; a folder stands for its files that end in .json or "
        ".json.zst; "
        "- is the standard input.",
    .argument = "DIGEST...",
    .options = option_table,
    .examples = "weir ranks job.json.zst\n"
                "weir ranks --ranks 1024 --json digests/\n",
    .exit = {"all ranks do what others do", "a file cannot be read to its end; the rest is compared", NULL,
             "a rank is different, missing or ran out of memory"},
    .run = run,
    .reads_arguments = true};
