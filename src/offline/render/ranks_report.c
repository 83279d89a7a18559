#include "offline/render/ranks_report.h"

#include "base/base.h"

enum { LIST_TEXT = 232 };

typedef struct context {
  weir__report *r;
  const weir__ranks *ranks;
  const char *conf; /* NULL if none are given */
  size_t list;
  size_t classes; /* the row */
} context;

static int64_t rank_of(const context *c, size_t member) { return c->ranks->digests[member].rank; }

static void add_members(const context *c, const char *key, const size_t *members, size_t count) {
  WEIR__ROWS(c->r, JSON_LIST(key));
  for (size_t i = 0; i < count; i++)
    WEIR__ROWS(c->r, JSON_INTEGER(NULL, rank_of(c, members[i])));
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* "ranks 0-5,7", and what follows. */
static void say_members(const context *c, const char *key, const size_t *members, size_t count, const char *after) {
  char text[LIST_TEXT];
  WEIR__ROWS(c->r, JSON_TEXT(key, weir__ranks_list(c->ranks, members, count, text, sizeof text)));
  weir__say_of(c->r, key, count == 1 ? "rank {$}" : "ranks {$}");
  weir__say(c->r, after);
}

/* How a role is said of a rank: nothing if it has none. */
static void say_role(const context *c, const weir__rank_class *class) {
  weir__say(c->r, *class->role ? " ({role})" : "");
}

static void add_missing(const context *c) {
  const weir__ranks *of = c->ranks;
  WEIR__ROWS(c->r, JSON_LIST("missing"));
  for (size_t i = 0; i < of->missing_count; i++)
    WEIR__ROWS(c->r, JSON_INTEGER(NULL, of->missing[i]));
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("_missing", of->missing_count));
  if (!of->missing_count)
    return;
  weir__say(c->r, "  missing     {_missing rank}:");
  for (size_t i = 0; i < of->missing_count && i < 2 * c->list; i++) {
    int64_t first = of->missing[i], last = first;
    for (; i + 1 < of->missing_count && of->missing[i + 1] == last + 1; i++)
      last++;
    WEIR__ROWS(c->r, JSON_OBJECT("_"), JSON_INTEGER("first", first), JSON_INTEGER("last", last));
    weir__say(c->r, last > first ? " {first}-{last}" : " {first}");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  weir__say(c->r, "\n");
}

/* ---- Classes ---- */

static void add_needs(const context *c, const weir__rank_class *class) {
  const weir__rank_needs *n = &class->needs;
  if (!class->has_needs) {
    WEIR__ROWS(c->r, JSON_NULL("replayed"));
    return;
  }
  WEIR__ROWS(c->r, JSON_OBJECT("replayed"), JSON_INTEGER("rank", rank_of(c, n->member)),
             ROW_BYTES("peak_reserved", n->recorded), ROW_BYTES("fits", n->recorded_fit),
             ROW_BYTES_IF(c->conf != NULL, "predicted_peak_reserved", n->predicted),
             ROW_BYTES_IF(c->conf != NULL, "predicted_fits", n->predicted_fit), JSON_NATURAL("failures", n->failures),
             JSON_CLOSE);
}

static void say_class(const context *c, const weir__rank_class *class, bool is_first) {
  weir__say(c->r, is_first ? "  *classes    * " : "              ");
  weir__say(c->r, *class->role ? "{role}: " : "");
  say_members(c, "_members", class->members, class->count, "\n");
  weir__say(c->r, "              {peak_allocated_least~peak_allocated_most} allocated, "
                  "{peak_reserved_least~peak_reserved_most} reserved at the peak");
  weir__say(c->r, class->differs ? "; differs in {differs_in}\n" : "\n");
  if (class->is_uneven)
    weir__say(c->r,
              "              their requests differ everywhere, so that none can be said to part from the others\n");
}

static void add_class(const context *c, size_t i) {
  char text[WEIR__DIGEST_TEXT + 1];
  const weir__rank_class *class = &c->ranks->classes[i];
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("role", *class->role ? class->role : NULL),
             JSON_TEXT("differs_in", class->differs ? weir__ranks_name(c->ranks, class->differs, text) : NULL),
             JSON_NATURAL("count", class->count), JSON_BOOL("usual", class->is_usual),
             ROW_BYTES("peak_allocated_least", class->least), ROW_BYTES("peak_allocated_most", class->most),
             ROW_BYTES("peak_reserved_least", class->least_reserved),
             ROW_BYTES("peak_reserved_most", class->most_reserved),
             JSON_BOOL("requests_differ_everywhere", class->is_uneven));
  add_members(c, "ranks", class->members, class->count);
  add_needs(c, class);
  if (i < c->ranks->usual_count)
    say_class(c, class, !i);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_classes(context *c) {
  WEIR__ROWS(c->r, JSON_LIST("classes"));
  c->classes = c->r->open;
  for (size_t i = 0; i < c->ranks->class_count; i++)
    add_class(c, i);
  WEIR__ROWS(c->r, JSON_CLOSE);
  if (!c->ranks->usual_count)
    weir__say(c->r, "  classes     none: no rank is like enough others to say what is usual\n");
}

/* What the classes need by replay, and the card on which all of them fit. */
static void say_needs(const context *c) {
  uint64_t most = 0, most_predicted = 0;
  bool any = false, all_fit = true;
  size_t row = weir__report_first(c->classes);
  for (size_t k = 0; k < c->ranks->usual_count; k++, row = weir__report_next(c->r, row)) {
    const weir__rank_class *class = &c->ranks->classes[k];
    const weir__rank_needs *n = &class->needs;
    if (!class->has_needs)
      continue;
    weir__say(c->r, any ? "" : "  *replayed*    one rank of each class\n");
    any = true;
    c->r->scope = row;
    weir__say(c->r, "    rank {replayed.rank}");
    say_role(c, class);
    weir__say(c->r, ": reserves {replayed.peak_reserved}, fits into {replayed.fits}");
    if (c->conf)
      weir__say(c->r,
                "; with {_conf} reserves {replayed.predicted_peak_reserved}, fits into {replayed.predicted_fits}");
    weir__say(c->r, "\n");
    c->r->scope = 0;
    all_fit &= n->recorded_fit != 0;
    most = n->recorded_fit > most ? n->recorded_fit : most;
    most_predicted = n->predicted_fit > most_predicted ? n->predicted_fit : most_predicted;
  }
  if (!any || !all_fit || !most)
    return;
  WEIR__ROWS(c->r, ROW_BYTES("_card", most), ROW_BYTES("_other_card", most_predicted));
  weir__say(c->r, "              the smallest card on which these ranks fit has {_card}");
  weir__say(c->r, c->conf && most_predicted ? ", and with the other settings {_other_card}" : "");
  weir__say(c->r, "; what the process has outside the allocator comes on top\n");
}

/* ---- Ranks that are different ---- */

static void say_difference(const context *c, const weir__rank_difference *d) {
  if (d->kind == WEIR__FEATURE_REQUESTS) {
    weir__say(c->r, "                {value} requests a step, usual are {usual}\n");
    return;
  }
  weir__say(c->r, d->stack                             ? "                {value} by {stack}, usual are {usual}"
                  : d->kind == WEIR__FEATURE_ALLOCATED ? "                {value} allocated, usual are {usual}"
                                                       : "                {value} reserved, usual are {usual}");
  if (d->first_step <= d->last_step)
    weir__say(c->r, d->grows ? ", growing since step {since_step_least}" : ", since step {since_step_least}");
  weir__say(c->r, d->first_step < d->last_step ? " to {since_step_most}\n" : "\n");
}

static void add_difference(const context *c, const weir__rank_difference *d, bool is_said) {
  char text[WEIR__DIGEST_TEXT + 1];
  bool is_known = d->first_step <= d->last_step;
  const weir__unit unit = d->kind == WEIR__FEATURE_REQUESTS ? WEIR__UNIT_THOUSANDTHS : WEIR__UNIT_BYTES;
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("feature", weir__feature_name(d->kind)),
             JSON_TEXT("stack", d->stack ? weir__ranks_name(c->ranks, d->stack, text) : NULL),
             ROW_NATURAL(true, "value", d->value, unit), ROW_NATURAL(true, "usual", d->usual, unit),
             JSON_NATURAL_IF(is_known, "since_step_least", d->first_step),
             JSON_NATURAL_IF(is_known, "since_step_most", d->last_step), JSON_BOOL("grows", d->grows));
  if (is_said)
    say_difference(c, d);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_outlier(const context *c, const weir__rank_outlier *o, bool is_said) {
  const weir__rank_class *class = &c->ranks->classes[o->class];
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_INTEGER("rank", rank_of(c, o->member)), JSON_NATURAL("class", o->class),
             JSON_TEXT("_role", class->role), JSON_LIST("differences"));
  if (is_said)
    weir__say(c->r, *class->role ? "    rank {rank} ({_role})\n" : "    rank {rank}\n");
  for (size_t i = 0; i < o->difference_count; i++)
    add_difference(c, &o->differences[i], is_said);
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_CLOSE);
}

static void add_outliers(const context *c) {
  const size_t count = c->ranks->outlier_count;
  const bool has_usual = c->ranks->usual_count > 0;
  WEIR__ROWS(c->r, JSON_NATURAL("_outliers", count), JSON_NATURAL("_more_outliers", count - c->list),
             JSON_LIST("outliers"));
  if (has_usual)
    weir__say(c->r, count ? "  *outliers*    {_outliers rank}\n" : "  outliers    none\n");
  for (size_t i = 0; i < count; i++)
    add_outlier(c, &c->ranks->outliers[i], has_usual && i < c->list);
  if (has_usual && count > c->list)
    weir__say(c->r, "    and {_more_outliers} more; --list N shows more\n");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- Requests that part ---- */

static void add_request(const context *c, const char *key, const weir__rank_request *q) {
  if (!q->is_there) {
    WEIR__ROWS(c->r, JSON_NULL(key));
    return;
  }
  WEIR__ROWS(c->r, JSON_OBJECT(key), JSON_TEXT("kind", q->is_free ? "free" : "alloc"), JSON_NATURAL("entry", q->entry),
             ROW_BYTES("bytes", q->bytes), JSON_TEXT("stack", *q->stack ? q->stack : NULL), JSON_CLOSE);
}

static void say_request(const context *c, const char *key, const weir__rank_request *q) {
  weir__say_of(c->r, key,
               !q->is_there ? " nothing more in that pool on that stream"
               : q->is_free ? " a free of {$.bytes} at entry {$.entry}"
                            : " a request of {$.bytes} at entry {$.entry}");
  weir__say_of(c->r, key, q->is_there && *q->stack ? " by {$.stack}" : "");
}

static void add_parting(const context *c, const weir__rank_parting *p, bool is_said) {
  static const weir__rank_request none;
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_INTEGER("rank", rank_of(c, p->member)),
             JSON_INTEGER("other", rank_of(c, p->other)), JSON_NATURAL("class", p->class),
             JSON_NATURAL("first_step", p->first_step), JSON_NATURAL("last_step", p->last_step),
             JSON_NATURAL("first_entry", p->first_entry), JSON_NATURAL("last_entry", p->last_entry),
             JSON_BOOL("requests_known", p->has_requests));
  add_request(c, "request", p->has_requests ? &p->own : &none);
  add_request(c, "other_request", p->has_requests ? &p->usual : &none);
  if (is_said) {
    weir__say(c->r, "    rank {rank} from rank {other} in step {first_step}");
    weir__say(c->r, p->last_step > p->first_step ? " to {last_step}" : "");
    weir__say(c->r, ", entry {first_entry} to {last_entry}\n");
  }
  if (is_said && p->has_requests) {
    weir__say(c->r, "                it has");
    say_request(c, "request", &p->own);
    weir__say(c->r, ", the other has");
    say_request(c, "other_request", &p->usual);
    weir__say(c->r, "\n");
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_partings(const context *c) {
  const size_t count = c->ranks->parting_count;
  const bool has_usual = c->ranks->usual_count > 0;
  WEIR__ROWS(c->r, JSON_NATURAL("_partings", count), JSON_NATURAL("_more_partings", count - c->list),
             JSON_LIST("partings"));
  if (has_usual)
    weir__say(c->r, !count ? "  requests    are the same in each class\n"
                    : count == 1
                        ? "  *requests*    of {_partings rank} differ from those of the others in its class:\n"
                        : "  *requests*    of {_partings rank} differ from those of the others in their class:\n");
  for (size_t i = 0; i < count; i++)
    add_parting(c, &c->ranks->partings[i], has_usual && i < c->list);
  if (has_usual && count > c->list)
    weir__say(c->r, "    and {_more_partings} more; --list N shows more\n");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- Memory ---- */

static void add_failures(const context *c) {
  const weir__ranks *of = c->ranks;
  char text[WEIR__DIGEST_TEXT + 1];
  WEIR__ROWS(c->r, JSON_LIST("out_of_memory"));
  for (size_t i = 0; i < of->failure_count; i++) {
    const weir__digest *d = &of->digests[of->failures[i]];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_INTEGER("rank", d->rank),
               JSON_NATURAL_IF(d->failure.time_us != 0, "time_us", d->failure.time_us),
               JSON_NATURAL("step", d->failure.step), JSON_NATURAL("entry", d->failure.entry),
               ROW_BYTES("bytes", d->failure.bytes), JSON_NATURAL("free", d->failure.free),
               JSON_TEXT("stack", d->failure.stack ? weir__ranks_name(of, d->failure.stack, text) : NULL));
    if (!i) {
      weir__say(c->r, "  *ran out*     rank {rank} first, at step {step}: a request of {bytes}");
      weir__say(c->r, d->failure.stack ? " by {stack}\n" : "\n");
    }
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
  add_members(c, "followers", of->followers, of->follower_count);
  if (of->failure_count > 1) {
    weir__say(c->r, "              then ");
    say_members(c, "_then", of->failures + 1, of->failure_count - 1, "\n");
  }
  if (of->failure_count && of->follower_count) {
    const weir__digest *first = &of->digests[of->failures[0]];
    const weir__digest *last = &of->digests[of->followers[of->follower_count - 1]];
    WEIR__ROWS(c->r, JSON_REAL("_went_on", (double)(last->history.last_us - first->failure.time_us) / 1e6, 3));
    weir__say(c->r, "              ");
    say_members(c, "_followers", of->followers, of->follower_count, " went on for up to {_went_on:.3} s\n");
  }
}

static void add_memory(const context *c) {
  const weir__ranks *of = c->ranks;
  const weir__digest *most = &of->digests[of->most_reserved], *least = &of->digests[of->most_allocated];
  WEIR__ROWS(c->r, JSON_OBJECT("memory"),
             ROW_BYTES("as_recorded", most->memory.peak_reserved + most->memory.peak_outside),
             JSON_INTEGER("as_recorded_rank", most->rank),
             ROW_BYTES("in_use", least->memory.peak_allocated + least->memory.peak_outside),
             JSON_INTEGER("in_use_rank", least->rank));
  weir__say(c->r, "  memory      all ranks fit into {as_recorded} as recorded (rank {as_recorded_rank} needs most); no "
                  "setting can make them fit into less than {in_use} (rank {in_use_rank})\n");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

void weir__ranks_report(weir__report *r, const weir__ranks *ranks, const char *conf, size_t list) {
  context of = {.r = r, .ranks = ranks, .conf = conf, .list = list}, *c = &of;
  weir__report_begin(r);
  r->line_depth = 2;
  WEIR__ROWS(r, JSON_NATURAL("digests", ranks->count), JSON_TEXT("_conf", conf));
  weir__say(r, "{digests digest}\n");
  add_missing(c);
  add_classes(c);
  add_outliers(c);
  add_partings(c);
  add_failures(c);
  say_needs(c);
  add_memory(c);
}
