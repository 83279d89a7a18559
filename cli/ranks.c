/*
 * weir ranks: which of many ranks is different, and why.
 */
#include "offline/analyse/ranks.h"

#include <inttypes.h>
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
#include "offline/render/ranks_json.h"
#include "ranks_page.h"

static struct {
  int distance; /* in percent */
  int ranks;    /* that the job has; 0 for what the digests say */
  int list;
  const char *recordings; /* a folder; NULL if there is none */
  const char *conf;       /* NULL if none are given */
  const char *page;       /* NULL for no page */
  bool json;
} options = {.distance = 5, .list = 10};

enum { LIST_TEXT = 240 };

/* ---- Text ---- */

static const char *members(const weir__ranks *r, const size_t *list, size_t count, char text[LIST_TEXT]) {
  char numbers[LIST_TEXT - 8];
  snprintf(text, LIST_TEXT, "rank%s %s", count == 1 ? "" : "s",
           weir__ranks_list(r, list, count, numbers, sizeof numbers));
  return text;
}

static const char *range(uint64_t least, uint64_t most) {
  char low[32], high[32];
  return weir_cli_range(weir__format_bytes(least, low), " to ", weir__format_bytes(most, high));
}

static const char *name(const weir__ranks *r, uint64_t hash, char text[WEIR__DIGEST_TEXT + 1]) {
  return weir_cli_escaped(weir__ranks_name(r, hash, text));
}

static void print_missing(const weir__ranks *r) {
  printf("  missing     %s:", weir_cli_count(r->missing_count, "rank"));
  for (size_t i = 0; i < r->missing_count && i < 2 * (size_t)options.list; i++) {
    int64_t first = r->missing[i], last = first;
    for (; i + 1 < r->missing_count && r->missing[i + 1] == last + 1; i++)
      last++;
    printf(last > first ? " %" PRId64 "-%" PRId64 : " %" PRId64, first, last);
  }
  putchar('\n');
}

static void print_classes(const weir__ranks *r) {
  char text[LIST_TEXT], stack[WEIR__DIGEST_TEXT + 1];
  for (size_t k = 0; k < r->usual_count; k++) {
    const weir__rank_class *c = &r->classes[k];
    printf("  %s%-11s%s %s%s%s\n", k ? "" : weir_cli_bold(), k ? "" : "classes", k ? "" : weir_cli_plain(),
           weir_cli_escaped(c->role), *c->role ? ": " : "", members(r, c->members, c->count, text));
    printf("              %s allocated", range(c->least, c->most));
    printf(", %s reserved at the peak", range(c->least_reserved, c->most_reserved));
    if (c->differs)
      printf("; differs in %s", name(r, c->differs, stack));
    putchar('\n');
    if (c->is_uneven)
      puts("              their requests differ everywhere, so that none can be said to part from the others");
  }
  if (!r->usual_count)
    puts("  classes     none: no rank is like enough others to say what is usual");
}

static void print_difference(const weir__ranks *r, const weir__rank_difference *d) {
  char stack[WEIR__DIGEST_TEXT + 1];
  static const char *const what[] = {"allocated", "reserved"};
  if (d->kind == WEIR__FEATURE_REQUESTS) {
    printf("                %.1f requests a step, usual are %.1f\n", (double)d->value / 1000, (double)d->usual / 1000);
    return;
  }
  printf("                %s", weir_cli_bytes(d->value));
  printf(d->stack ? " by %s" : " %s", d->stack ? name(r, d->stack, stack) : what[d->kind]);
  printf(", usual are %s", weir_cli_bytes(d->usual));
  if (d->first_step == d->last_step)
    printf(", %s step %" PRIu64, d->grows ? "growing since" : "since", d->first_step);
  else if (d->first_step < d->last_step)
    printf(", %s step %" PRIu64 " to %" PRIu64, d->grows ? "growing since" : "since", d->first_step, d->last_step);
  putchar('\n');
}

static void print_outliers(const weir__ranks *r) {
  if (!r->usual_count)
    return;
  if (!r->outlier_count) {
    puts("  outliers    none");
    return;
  }
  printf("  %soutliers%s    %s\n", weir_cli_bold(), weir_cli_plain(), weir_cli_count(r->outlier_count, "rank"));
  for (size_t i = 0; i < r->outlier_count && i < (size_t)options.list; i++) {
    const weir__rank_outlier *o = &r->outliers[i];
    const char *role = r->classes[o->class].role;
    printf("    rank %" PRId64 "%s%s%s\n", r->digests[o->member].rank, *role ? " (" : "", weir_cli_escaped(role),
           *role ? ")" : "");
    for (size_t k = 0; k < o->difference_count; k++)
      print_difference(r, &o->differences[k]);
  }
  if (r->outlier_count > (size_t)options.list)
    printf("    and %zu more; --list N shows more\n", r->outlier_count - (size_t)options.list);
}

static void print_request(const char *begin, const weir__rank_request *q, const char *after) {
  if (!q->is_there)
    printf("%s nothing more in that pool on that stream%s", begin, after);
  else
    printf("%s %s of %s at entry %" PRIu64 "%s%s%s", begin, q->is_free ? "a free" : "a request",
           weir_cli_bytes(q->bytes), q->entry, *q->stack ? " by " : "", weir_cli_escaped(q->stack), after);
}

static void print_needs(const weir__ranks *r) {
  uint64_t most = 0, most_predicted = 0;
  bool any = false, all_fit = true;
  for (size_t k = 0; k < r->usual_count; k++) {
    const weir__rank_class *c = &r->classes[k];
    if (!c->has_needs)
      continue;
    if (!any)
      printf("  %sreplayed%s    one rank of each class\n", weir_cli_bold(), weir_cli_plain());
    any = true;
    printf("    rank %" PRId64 "%s%s%s: reserves %s", r->digests[c->needs.member].rank, *c->role ? " (" : "",
           weir_cli_escaped(c->role), *c->role ? ")" : "", weir_cli_bytes(c->needs.recorded));
    printf(", fits into %s", weir_cli_bytes(c->needs.recorded_fit));
    if (options.conf)
      printf("; with %s reserves %s", weir_cli_escaped(options.conf), weir_cli_bytes(c->needs.predicted));
    if (options.conf)
      printf(", fits into %s", weir_cli_bytes(c->needs.predicted_fit));
    putchar('\n');
    all_fit &= c->needs.recorded_fit != 0;
    most = c->needs.recorded_fit > most ? c->needs.recorded_fit : most;
    most_predicted = c->needs.predicted_fit > most_predicted ? c->needs.predicted_fit : most_predicted;
  }
  if (any && all_fit && most) {
    printf("              the smallest card on which these ranks fit has %s", weir_cli_bytes(most));
    if (options.conf && most_predicted)
      printf(", and with the other settings %s", weir_cli_bytes(most_predicted));
    puts("; what the process has outside the allocator comes on top");
  }
}

static void print_partings(const weir__ranks *r) {
  if (!r->usual_count)
    return;
  if (!r->parting_count) {
    puts("  requests    are the same in each class");
    return;
  }
  printf("  %srequests%s    of %s differ from those of the others in %s class:\n", weir_cli_bold(), weir_cli_plain(),
         weir_cli_count(r->parting_count, "rank"), r->parting_count == 1 ? "its" : "their");
  for (size_t i = 0; i < r->parting_count && i < (size_t)options.list; i++) {
    const weir__rank_parting *p = &r->partings[i];
    printf("    rank %" PRId64 " from rank %" PRId64 " in step %" PRIu64, r->digests[p->member].rank,
           r->digests[p->other].rank, p->first_step);
    if (p->last_step > p->first_step)
      printf(" to %" PRIu64, p->last_step);
    printf(", entry %" PRIu64 " to %" PRIu64 "\n", p->first_entry, p->last_entry);
    if (p->has_requests) {
      print_request("                it has", &p->own, "");
      print_request(", the other has", &p->usual, "\n");
    }
  }
  if (r->parting_count > (size_t)options.list)
    printf("    and %zu more; --list N shows more\n", r->parting_count - (size_t)options.list);
}

static void print_failures(const weir__ranks *r) {
  char text[LIST_TEXT], stack[WEIR__DIGEST_TEXT + 1];
  if (!r->failure_count)
    return;
  const weir__digest *first = &r->digests[r->failures[0]];
  printf("  %sran out%s     rank %" PRId64 " first, at step %" PRIu64 ": a request of %s", weir_cli_bold(),
         weir_cli_plain(), first->rank, first->failure.step, weir_cli_bytes(first->failure.bytes));
  if (first->failure.stack)
    printf(" by %s", name(r, first->failure.stack, stack));
  putchar('\n');
  if (r->failure_count > 1)
    printf("              then %s\n", members(r, r->failures + 1, r->failure_count - 1, text));
  if (r->follower_count) {
    const weir__digest *last = &r->digests[r->followers[r->follower_count - 1]];
    printf("              %s went on for up to %.3f s\n", members(r, r->followers, r->follower_count, text),
           (double)(last->history.last_us - first->failure.time_us) / 1e6);
  }
}

static void print_text(const weir__ranks *r) {
  const weir__digest *most = &r->digests[r->most_reserved], *least = &r->digests[r->most_allocated];
  weir_cli_fold_begin();
  printf("%s\n", weir_cli_count(r->count, "digest"));
  if (r->missing_count)
    print_missing(r);
  print_classes(r);
  print_outliers(r);
  print_partings(r);
  print_failures(r);
  print_needs(r);
  printf("  memory      all ranks fit into %s as recorded (rank %" PRId64 " needs most)",
         weir_cli_bytes(most->memory.peak_reserved + most->memory.peak_outside), most->rank);
  printf("; no setting can make them fit into less than %s (rank %" PRId64 ")\n",
         weir_cli_bytes(least->memory.peak_allocated + least->memory.peak_outside), least->rank);
}

/* ---- The command ---- */

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

static void print_json(const weir__ranks *r) {
  weir_cli_json_begin(2);
  weir__ranks_json(&weir_cli_json_sink, r);
  weir_cli_json_end();
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
  WEIR_CLI_PRINT_REPORT(options.json, print_json, print_text, &ranks);
  if (options.page && weir_cli_ranks_page(&ranks, options.page)) {
    weir__ranks_clear(&ranks);
    return WEIR_EXIT_FAILED;
  }
  bool is_found = ranks.outlier_count || ranks.parting_count || ranks.failure_count || ranks.missing_count;
  weir__ranks_clear(&ranks);
  return is_found ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
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
