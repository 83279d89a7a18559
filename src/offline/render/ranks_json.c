#include "offline/render/ranks_json.h"

#include "base/base.h"

static int64_t rank_of(const weir__ranks *r, size_t member) { return r->digests[member].rank; }

static void write_members(weir__sink *sink, const weir__ranks *r, const char *key, const size_t *members,
                          size_t count) {
  WEIR__JSON(sink, JSON_LIST(key));
  for (size_t i = 0; i < count; i++)
    WEIR__JSON(sink, JSON_INTEGER(NULL, rank_of(r, members[i])));
  WEIR__JSON(sink, JSON_CLOSE);
}

static void write_needs(weir__sink *sink, const weir__ranks *r, const weir__rank_class *class) {
  const weir__rank_needs *n = &class->needs;
  if (!class->has_needs) {
    WEIR__JSON(sink, JSON_NULL("replayed"));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT("replayed"), JSON_INTEGER("rank", rank_of(r, n->member)),
             JSON_NATURAL("peak_reserved", n->recorded), JSON_NATURAL("fits", n->recorded_fit),
             JSON_NATURAL_IF(n->predicted != 0, "predicted_peak_reserved", n->predicted),
             JSON_NATURAL_IF(n->predicted != 0, "predicted_fits", n->predicted_fit),
             JSON_NATURAL("failures", n->failures), JSON_CLOSE);
}

static void write_request(weir__sink *sink, const char *key, const weir__rank_request *q) {
  if (!q->is_there) {
    WEIR__JSON(sink, JSON_NULL(key));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT(key), JSON_TEXT("kind", q->is_free ? "free" : "alloc"), JSON_NATURAL("entry", q->entry),
             JSON_NATURAL("bytes", q->bytes), JSON_TEXT("stack", *q->stack ? q->stack : NULL), JSON_CLOSE);
}

static void write_class(weir__sink *sink, const weir__ranks *r, const weir__rank_class *class) {
  char text[WEIR__DIGEST_TEXT + 1];
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("role", *class->role ? class->role : NULL),
             JSON_TEXT("differs_in", class->differs ? weir__ranks_name(r, class->differs, text) : NULL),
             JSON_NATURAL("count", class->count), JSON_BOOL("usual", class->is_usual),
             JSON_NATURAL("peak_allocated_least", class->least), JSON_NATURAL("peak_allocated_most", class->most),
             JSON_NATURAL("peak_reserved_least", class->least_reserved),
             JSON_NATURAL("peak_reserved_most", class->most_reserved),
             JSON_BOOL("requests_differ_everywhere", class->is_uneven));
  write_members(sink, r, "ranks", class->members, class->count);
  write_needs(sink, r, class);
  WEIR__JSON(sink, JSON_CLOSE);
}

static void write_difference(weir__sink *sink, const weir__ranks *r, const weir__rank_difference *d) {
  char text[WEIR__DIGEST_TEXT + 1];
  bool is_known = d->first_step <= d->last_step;
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("feature", weir__feature_name(d->kind)),
             JSON_TEXT("stack", d->stack ? weir__ranks_name(r, d->stack, text) : NULL), JSON_NATURAL("value", d->value),
             JSON_NATURAL("usual", d->usual), JSON_NATURAL_IF(is_known, "since_step_least", d->first_step),
             JSON_NATURAL_IF(is_known, "since_step_most", d->last_step), JSON_BOOL("grows", d->grows), JSON_CLOSE);
}

static void write_outlier(weir__sink *sink, const weir__ranks *r, const weir__rank_outlier *o) {
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_INTEGER("rank", rank_of(r, o->member)), JSON_NATURAL("class", o->class),
             JSON_LIST("differences"));
  for (size_t i = 0; i < o->difference_count; i++)
    write_difference(sink, r, &o->differences[i]);
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

static void write_parting(weir__sink *sink, const weir__ranks *r, const weir__rank_parting *p) {
  static const weir__rank_request none;
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_INTEGER("rank", rank_of(r, p->member)),
             JSON_INTEGER("other", rank_of(r, p->other)), JSON_NATURAL("class", p->class),
             JSON_NATURAL("first_step", p->first_step), JSON_NATURAL("last_step", p->last_step),
             JSON_NATURAL("first_entry", p->first_entry), JSON_NATURAL("last_entry", p->last_entry),
             JSON_BOOL("requests_known", p->has_requests));
  write_request(sink, "request", p->has_requests ? &p->own : &none);
  write_request(sink, "other_request", p->has_requests ? &p->usual : &none);
  WEIR__JSON(sink, JSON_CLOSE);
}

static void write_failures(weir__sink *sink, const weir__ranks *r) {
  char text[WEIR__DIGEST_TEXT + 1];
  WEIR__JSON(sink, JSON_LIST("out_of_memory"));
  for (size_t i = 0; i < r->failure_count; i++) {
    const weir__digest *d = &r->digests[r->failures[i]];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_INTEGER("rank", d->rank),
               JSON_NATURAL_IF(d->failure.time_us != 0, "time_us", d->failure.time_us),
               JSON_NATURAL("step", d->failure.step), JSON_NATURAL("entry", d->failure.entry),
               JSON_NATURAL("bytes", d->failure.bytes), JSON_NATURAL("free", d->failure.free),
               JSON_TEXT("stack", d->failure.stack ? weir__ranks_name(r, d->failure.stack, text) : NULL), JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE);
  write_members(sink, r, "followers", r->followers, r->follower_count);
}

static void write_largest(weir__sink *sink, const weir__ranks *r) {
  const weir__digest *most = &r->digests[r->most_reserved], *least = &r->digests[r->most_allocated];
  WEIR__JSON(sink, JSON_OBJECT("memory"),
             JSON_NATURAL("as_recorded", most->memory.peak_reserved + most->memory.peak_outside),
             JSON_INTEGER("as_recorded_rank", most->rank),
             JSON_NATURAL("in_use", least->memory.peak_allocated + least->memory.peak_outside),
             JSON_INTEGER("in_use_rank", least->rank), JSON_CLOSE);
}

void weir__ranks_json(weir__sink *sink, const weir__ranks *r) {
  WEIR__JSON(sink, JSON_NATURAL("digests", r->count), JSON_LIST("missing"));
  for (size_t i = 0; i < r->missing_count; i++)
    WEIR__JSON(sink, JSON_INTEGER(NULL, r->missing[i]));
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("classes"));
  for (size_t i = 0; i < r->class_count; i++)
    write_class(sink, r, &r->classes[i]);
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("outliers"));
  for (size_t i = 0; i < r->outlier_count; i++)
    write_outlier(sink, r, &r->outliers[i]);
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("partings"));
  for (size_t i = 0; i < r->parting_count; i++)
    write_parting(sink, r, &r->partings[i]);
  WEIR__JSON(sink, JSON_CLOSE);
  write_failures(sink, r);
  write_largest(sink, r);
}
