#include "offline/render/explain_report.h"

#include <string.h>

#include "base/base.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/moment.h"
#include "record/entry.h"

typedef struct context {
  weir__report *r;
  const char *file;
  const weir__recording *recording;
  const weir__recording_device *device;
  const weir__explanation *x;
} context;

static void say(const context *c, const char *format) { weir__say(c->r, format); }

static void add_stack(const context *c, uint32_t stack) {
  const weir__recording *s = c->recording;
  WEIR__ROWS(c->r, JSON_LIST("stack"));
  for (size_t i = 0; stack < s->stack_count && i < s->stacks[stack].count; i++) {
    const weir__recording_frame *frame = &s->frames[s->stack_frames[s->stacks[stack].first + i]];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("name", s->strings.items[frame->name].text),
               JSON_TEXT("filename", s->strings.items[frame->filename].text), JSON_INTEGER("line", frame->line),
               JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- The failure ---- */

static void add_head(const context *c) {
  const weir__explanation *x = c->x;
  static const char *const what[] = {[WEIR_OFFLINE_AT_OOM] = "*{file}: out of memory*",
                                     [WEIR_OFFLINE_AT_PEAK] = "*{file}: at the peak of memory in use*",
                                     [WEIR_OFFLINE_AT_END] = "*{file}: at the end*",
                                     [WEIR_OFFLINE_AT_EVENT] = "*{file}: at an entry*"};
  bool has_time = x->time_us && x->first_us;
  WEIR__ROWS(c->r, ROW_FILE("file", c->file), JSON_INTEGER("device", x->device),
             JSON_TEXT("moment", weir__moment_name(x->moment)), JSON_NATURAL("event", x->event),
             JSON_NATURAL("events", x->event_count), JSON_INTEGER("time_us", x->time_us),
             ROW_US(has_time, "_into", weir__time_between(x->first_us, x->time_us)),
             JSON_TEXT("history", weir__completeness_name(x->completeness)),
             JSON_NATURAL("differences", x->differences), JSON_BOOL("from_file", x->is_from_file));
  say(c, what[x->moment]);
  say(c, x->event_count ? ", entry {event} of {events}" : "");
  say(c, has_time ? ", {_into} into the recording" : "");
  say(c, c->recording->device_count > 1 ? ", device {device}\n" : "\n");
}

/* What guard mode found while the job ran: its own text, line by line. */
static void add_finding(const context *c, const weir__recording_annotation *a) {
  static const char *const keys[] = {"block", "offset", "requested", "text"};
  const weir__recording *s = c->recording;
  const char *title = "  guard       {line}\n", *next;
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("kind", s->strings.items[a->name].text),
             JSON_INTEGER("device", a->device));
  for (size_t k = 0; k < WEIR_COUNT_OF(keys); k++)
    WEIR__ROWS(c->r, JSON_TEXT(keys[k], weir__recording_pair_of(s, a, keys[k])));
  for (const char *line = weir__recording_pair_of(s, a, "text"); line; line = next, title = "{line}\n") {
    const char *end = strchr(line, '\n');
    WEIR__ROWS(c->r, JSON_OBJECT("_"));
    weir__report_add_part(c->r, "line", line, end ? (size_t)(end - line) : strlen(line));
    say(c, title);
    WEIR__ROWS(c->r, JSON_CLOSE);
    next = end ? end + 1 : NULL;
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_guard(const context *c) {
  const weir__recording *s = c->recording;
  WEIR__ROWS(c->r, JSON_LIST("guard"));
  for (size_t i = 0; i < s->annotation_count; i++)
    if (strcmp(s->strings.items[s->annotations[i].stage].text, WEIR__STAGE_GUARD) == 0)
      add_finding(c, &s->annotations[i]);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_request(const context *c) {
  const weir__explanation *x = c->x;
  char stream[48], stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT];
  if (!x->has_request) {
    add_guard(c);
    WEIR__ROWS(c->r, JSON_NULL("request"));
    return;
  }
  say(c, "  request     {request.bytes} on {request._stream}");
  say(c, x->is_private ? ", in a private pool" : "");
  say(c, *weir__describe_phase(c->recording, x->device, x->time_us, phase) ? ", {request._phase}\n" : "\n");
  say(c, x->stack ? "  from        {request._from}\n" : "");
  add_guard(c);
  WEIR__ROWS(c->r, JSON_OBJECT("request"), ROW_BYTES("bytes", x->request), ROW_BYTES("rounded", x->rounded),
             JSON_NATURAL("wanted", x->wanted), JSON_INTEGER("stream", c->recording->streams[x->stream]),
             JSON_BOOL("private", x->is_private), ROW_BYTES("device_free", x->device_free),
             JSON_TEXT("_stream", weir__describe_stream(c->recording, x->stream, stream)), JSON_TEXT("_phase", phase),
             JSON_TEXT("_from", weir__describe_stack(c->recording, x->stack, stack)));
  add_stack(c, x->stack);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- How much memory there was ---- */

/* How much may be reserved, as far as the recording shows it. */
static const char *limit_sentence(const weir__explanation *x) {
  if (x->limit == UINT64_MAX)
    return x->moment == WEIR_OFFLINE_AT_OOM ? "  limit       not known\n" : "";
  if (x->limit_is_device && x->limit_is_inferred)
    return "  limit       {limit} or more: the device was full at that point\n";
  if (x->limit_is_device && x->limit == x->memory)
    return "  limit       {limit}: the device's memory\n";
  if (x->limit_is_device)
    return "  limit       {limit}: what was reserved plus what the device had free\n";
  if (x->limit_is_inferred && x->limit_max == UINT64_MAX)
    return "  limit       {limit} or more: this much was allowed, and only a limit explains what the allocator "
           "released\n";
  if (x->limit_is_inferred && x->limit_max > x->limit)
    return "  limit       {limit&_limit_above}, inferred from requests that succeeded and failed\n";
  if (x->limit_is_inferred)
    return "  limit       {limit}, inferred from the recording\n";
  return x->limit_is_recorded ? "  limit       {limit}, as recorded\n" : "  limit       {limit}\n";
}

static void say_device(const context *c) {
  const weir__explanation *x = c->x;
  if (!x->has_device_free)
    return;
  if (x->device_free < x->mapped)
    say(c, "  device      had only {request.device_free} free\n");
  else if (x->limit_is_device)
    say(c, "  device      had {request.device_free} free, yet refused the request\n");
  else if (c->recording->is_events_only)
    say(c, "  device      had {request.device_free} free: the limit is the program's own (weir_allocator_set_limit, "
           "set_per_process_memory_fraction, or WEIR_MEMORY_LIMIT with the preload library)\n");
  else
    say(c, "  device      had {request.device_free} free: the limit is the program's own "
           "(set_per_process_memory_fraction)\n");
  if (x->memory > x->device_free && x->memory - x->device_free > x->reserved)
    say(c, "  outside     {_outside} of the device's {memory} is held outside the allocator: by other processes, the "
           "context, or libraries such as NCCL\n");
}

static void add_limit(const context *c) {
  const weir__explanation *x = c->x;
  WEIR__ROWS(c->r, ROW_BYTES_IF(x->limit != UINT64_MAX, "limit", x->limit),
             ROW_BYTES_IF(x->limit_max != UINT64_MAX, "limit_max", x->limit_max),
             ROW_BYTES("_limit_above", x->limit_max + 1), JSON_BOOL("limit_is_inferred", x->limit_is_inferred),
             JSON_BOOL("limit_is_recorded", x->limit_is_recorded), JSON_BOOL("limit_is_device", x->limit_is_device),
             ROW_BYTES_IF(x->memory != 0, "memory", x->memory),
             ROW_BYTES("_outside", x->memory - x->device_free - x->reserved));
  weir__outside_rows(c->r, c->device);
  say(c, limit_sentence(x));
  say_device(c);
  weir__outside_say(c->r, "  beside      ", c->device);
}

/* How much more memory would have served the request: at that moment, and if it had been available from the start. */
static void say_missing(const context *c) {
  const weir__explanation *x = c->x;
  if (x->was_rescued)
    return;
  if (!x->has_missing)
    say(c, "  missing     not known, since the limit is not known\n");
  else if (x->missing_min == x->missing_max)
    say(c, x->limit_is_device && x->mapped != x->wanted
               ? "  missing     {missing.most}: the request needs new pages of {_taken}, and {_left} was left\n"
               : "  missing     {missing.most}: the request needs a new segment of {_taken}, and {_left} was left\n");
  else if (x->missing_min <= 1)
    say(c, "  missing     at most {missing.most}; --memory and --fraction make it exact\n");
  else
    say(c, "  missing     {missing.least} if the program had set no limit of its own, else at most {missing.most}\n");
  if (!x->fit_request)
    return;
  say(c, x->limit_is_device ? "  sufficient  a device with " : "  sufficient  a limit of ");
  say(c,
      "{enough_for_request} from the start: replayed in steps of 2 MiB. The recorded requests after the failure need ");
  say(c, x->fit_recording == x->fit_request ? "no more\n" : x->fit_recording ? "{enough_for_recording}\n" : "more\n");
}

/* null if not known or not found. */
static void add_missing(const context *c) {
  const weir__explanation *x = c->x;
  const uint64_t taken = x->limit_is_device ? x->mapped : x->wanted;
  if (x->has_missing)
    WEIR__ROWS(c->r, JSON_OBJECT("missing"), ROW_BYTES("least", x->missing_min), ROW_BYTES("most", x->missing_max),
               JSON_CLOSE);
  else
    WEIR__ROWS(c->r, JSON_NULL("missing"));
  WEIR__ROWS(c->r, ROW_BYTES_IF(x->fit_request != 0, "enough_for_request", x->fit_request),
             ROW_BYTES_IF(x->fit_recording != 0, "enough_for_recording", x->fit_recording), ROW_BYTES("_taken", taken),
             ROW_BYTES("_left", taken - x->missing_max));
}

/* ---- Why ---- */

static void say_exhausted(const context *c) {
  const weir__explanation *x = c->x;
  const uint64_t active = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING], sum = active + x->rounded;
  bool is_certain = sum > x->limit_max;
  WEIR__ROWS(c->r, ROW_BYTES("_active", active), ROW_BYTES("_above_least", sum - x->limit_max),
             ROW_BYTES("_above_most", sum - x->limit));
  say(c, is_certain ? "Not enough memory: " : "Probably not enough memory: ");
  say(c, "{_active} in use plus {request.rounded} requested is ");
  say(c, x->limit == x->limit_max ? "{_above_most} above the limit.\n"
         : is_certain             ? "{_above_least} to {_above_most} above the limit.\n"
                                  : "up to {_above_most} above the limit, which is not known exactly.\n");
}

static const char *waiting_sentence(const weir__explanation *x) {
  if (x->was_rescued)
    return "Waiting: suitable blocks were freed, but still in use by another stream. PyTorch waits for it, but does "
           "not "
           "search again: repeating the request would have succeeded.\n";
  return x->is_capture ? "Waiting: {bytes.waiting} was freed, but still in use by another stream, and a capture does "
                         "not wait.\n"
                       : "Waiting: {bytes.waiting} was freed, but still in use by another stream.\n";
}

static void say_cause(const context *c) {
  const weir__explanation *x = c->x;
  WEIR__ROWS(c->r, ROW_BYTES("_free", x->bytes[WEIR__USE_FREE_WHOLE] + x->bytes[WEIR__USE_FREE_SPLIT]));
  say(c, "  *why*         ");
  switch (x->cause) {
  case WEIR_OFFLINE_CAUSE_EXHAUSTED:
    say_exhausted(c);
    break;
  case WEIR_OFFLINE_CAUSE_FRAGMENTED:
    say(c, "Fragmentation: {_free} is free, but in blocks of at most {largest_hole}, and live blocks keep their "
           "segments from being released.\n");
    break;
  case WEIR_OFFLINE_CAUSE_STREAMS:
    say(c,
        "Other streams: {bytes.free_stream} is free, but belongs to other streams, and a block is only reused on its "
        "stream.\n");
    break;
  case WEIR_OFFLINE_CAUSE_POOLS:
    say(c, "Pools: {bytes.free_pool} is free, but not in the pool of the request ");
    say(c, x->is_private ? "(which is private)" : "(graphs have pools of their own)");
    say(c, ", and a block never changes its pool.\n");
    break;
  case WEIR_OFFLINE_CAUSE_CLASS:
    say(c, "Size classes: {bytes.free_class} is free in segments of the other size class, which live blocks keep from "
           "being released.\n");
    break;
  case WEIR_OFFLINE_CAUSE_WAITING:
    say(c, waiting_sentence(x));
    break;
  default:
    say(c,
        x->is_from_file && !x->reserved
            ? "Not known: the file does not contain what was reserved at that moment.\n"
            : "Several causes: free memory is spread over small blocks, size classes, streams and pools (below), and "
              "none of them alone has enough.\n");
    break;
  }
}

static void say_growth(const context *c) {
  const weir__growth *g = &c->x->growth;
  if (!g->is_found)
    return;
  say(c, g->is_cause ? "  *growth*      A leak is the cause, since without it the request would have been served: "
                     : "  *growth*      There is a leak, which alone does not explain the failure: ");
  say(c, "{growth.bytes} in {growth.blocks block} was allocated since {growth._unit} {growth.first_step} of "
         "{growth.steps} and not freed, {growth.bytes_per_step} a {growth._unit}, most by {growth.title}");
  say(c, g->stacks > 1 ? " and others.\n              " : ".\n              ");
  weir__say_command(c->r, "leaks", "", c->file);
}

static void add_growth(const context *c) {
  const weir__growth *g = &c->x->growth;
  char title[192];
  if (!g->is_found) {
    WEIR__ROWS(c->r, JSON_NULL("growth"));
    return;
  }
  WEIR__ROWS(c->r, JSON_OBJECT("growth"), JSON_BOOL("is_cause", g->is_cause), ROW_BYTES("bytes", g->bytes),
             JSON_NATURAL("blocks", g->count), ROW_REAL(true, "bytes_per_step", g->bytes_per_step, 1, WEIR__UNIT_BYTES),
             JSON_INTEGER("first_step", g->first_step), JSON_NATURAL("steps", g->steps),
             JSON_NATURAL("stacks", g->stacks),
             JSON_TEXT("title", weir__describe_blocks(c->recording, g->stack, g->size, title)),
             JSON_TEXT("_unit", g->unit), JSON_CLOSE);
}

/* ---- A moment without a failure ---- */

/* Whether memory ran out at another. */
static void say_outcome(const context *c) {
  const weir__explanation *x = c->x;
  WEIR__ROWS(c->r, JSON_NATURAL("_failures", x->oom_count), JSON_NATURAL("_first_failure", x->first_oom),
             ROW_BYTES_IF(x->oom_count > 0, "_failed_bytes", x->oom_count ? c->device->events[x->first_oom].size : 0));
  if (x->completeness == WEIR__HISTORY_NONE)
    say(c, "  history     " WEIR__NO_HISTORY);
  else if (x->oom_count && x->moment == WEIR_OFFLINE_AT_END && x->differences)
    say(c, "  failed      memory ran out {_failures time}, first at entry {_first_failure}: a request of "
           "{_failed_bytes}. The state at that moment is not known, and so the cause is not known\n");
  else if (x->oom_count)
    say(c, "  failed      memory ran out {_failures time}, first at entry {_first_failure}: --at oom explains it\n");
  else
    say(c, x->completeness == WEIR__HISTORY_COMPLETE
               ? "  failed      nothing ran out of memory\n"
               : "  failed      nothing ran out of memory during the recording\n");
}

/* Whether other settings could save memory. */
static void say_short(const context *c) {
  const weir__explanation *x = c->x;
  const uint64_t used = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  if (!x->reserved || used > x->reserved)
    return;
  const int percent = (int)(100 * (double)(x->reserved - used) / (double)x->reserved + 0.5);
  WEIR__ROWS(c->r, ROW_BYTES("_unused", x->reserved - used), JSON_INTEGER("_percent", percent));
  say(c, "  in short    {_unused} of the reserved memory, {_percent} %, is not in use: ");
  say(c, percent < 10 ? "other settings can save little\n" : "other settings may need less\n");
}

/* ---- What memory was used for ---- */

static void add_uses(const context *c) {
  const weir__explanation *x = c->x;
  WEIR__ROWS(c->r, ROW_BYTES_IF(x->reserved != UINT64_MAX, "reserved", x->reserved), JSON_OBJECT("bytes"));
  for (int i = 0; i < WEIR__USES; i++)
    WEIR__ROWS(c->r, ROW_BYTES(weir__use_name((weir__byte_use)i), x->bytes[i]));
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_OBJECT("labels"));
  for (int i = 0; i < WEIR__USES; i++)
    WEIR__ROWS(c->r, JSON_TEXT(weir__use_name((weir__byte_use)i), weir__use_text((weir__byte_use)i, x->has_request)));
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_OBJECT("_blocks"));
  for (int i = 0; i < WEIR__USES; i++)
    WEIR__ROWS(c->r, JSON_NATURAL(weir__use_name((weir__byte_use)i), x->blocks[i]));
  WEIR__ROWS(c->r, JSON_CLOSE, ROW_BYTES("largest_hole", x->largest_hole),
             ROW_BYTES("largest_elsewhere", x->largest_elsewhere), JSON_LIST("holes"));
  for (size_t i = 0; i < x->hole_count; i++)
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_NATURAL("address", x->holes[i].address),
               JSON_NATURAL("size", x->holes[i].size), JSON_TEXT("use", weir__use_name(x->holes[i].use)), JSON_CLOSE);
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_TEXT("cause", weir_offline_cause_name(x->cause)));
  say(c, "  *{reserved} reserved*\n");
  for (int i = 0; i < WEIR__USES; i++)
    if (x->blocks[i])
      weir__say_of(c->r, weir__use_name((weir__byte_use)i), "    {bytes.$:11}  {labels.$}, {_blocks.$ block}\n");
  if (!x->has_request)
    return;
  say(c, x->largest_hole ? "    largest free block that it could get: {largest_hole}"
                         : "    largest free block that it could get: none");
  say(c, x->largest_elsewhere ? "; elsewhere: {largest_elsewhere}\n" : "\n");
}

/* "82.18 MiB, from forward (model.py:41), 1.20 s old (entry 17)". */
static void add_pinning_block(const context *c, const weir__explained_block *b, const char *end) {
  char stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT];
  bool is_old = b->event == SIZE_MAX;
  const int64_t time = is_old ? 0 : c->device->events[b->event].time_us;
  weir__describe_phase(c->recording, c->x->device, time, phase);
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_NATURAL("address", b->address), JSON_NATURAL("size", b->size),
             ROW_BYTES("requested", b->requested), JSON_NATURAL_IF(!is_old, "event", b->event),
             ROW_US(time && c->x->time_us, "age_us", weir__time_between(time, c->x->time_us)),
             JSON_TEXT("_stack", weir__describe_stack(c->recording, b->stack, stack)), JSON_TEXT("_phase", phase));
  add_stack(c, b->stack);
  if (end) {
    say(c, b->stack ? "                  {requested}, {_stack}" : "                  {requested}");
    say(c, is_old ? ", allocated before the recording" : !b->stack && *phase ? ", allocated {_phase}" : "");
    say(c, time && c->x->time_us ? ", {age_us} old" : "");
    say(c, is_old ? "" : " (entry {event})");
    say(c, end);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_pin(const context *c, const weir__pin *p, size_t lines) {
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_NATURAL("address", p->segment), ROW_BYTES("size", p->bytes),
             ROW_BYTES("free", p->free), ROW_BYTES("pinned", p->pinned), JSON_NATURAL("count", p->count),
             JSON_LIST("blocks"));
  if (lines)
    say(c, p->count == 1 ? "    {size:11}  {free} free, held by {count block} of {pinned}\n"
                         : "    {size:11}  {free} free, held by {count block}, {pinned} in total\n");
  for (size_t k = 0; k < p->block_count; k++)
    add_pinning_block(c, &p->blocks[k], k >= lines ? NULL : k + 1 == lines && p->count > lines ? ", ...\n" : "\n");
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_CLOSE);
}

static void add_pins(const context *c) {
  const weir__explanation *x = c->x;
  bool is_said = x->pin_count && x->cause != WEIR_OFFLINE_CAUSE_EXHAUSTED;
  const size_t lines = x->pin_count > 2 ? 1 : 3; /* for each segment, so that the text fits on a screen */
  WEIR__ROWS(c->r, JSON_OBJECT("pins"), JSON_TEXT("kind", x->pins_serve ? "could serve" : "could go back"),
             JSON_NATURAL("_blocks", x->pin_blocks), ROW_BYTES("_bytes", x->pin_bytes),
             JSON_NATURAL("_segments", x->pin_segments), ROW_BYTES("_room", x->pin_room), JSON_LIST("segments"));
  if (is_said && x->pins_serve)
    say(c, "  *in the way*: each of these segments could serve the request without the blocks in it\n");
  else if (is_said) {
    say(c, x->pin_blocks == 1 ? "  *in the way*: {_blocks block} of {_bytes}; without it "
                              : "  *in the way*: {_blocks block}, {_bytes} in total; without them ");
    say(c, x->pin_segments == 1 ? "{_segments segment} of {_room} could be released\n"
                                : "{_segments segment}, {_room} in total, could be released\n");
  }
  for (size_t i = 0; i < x->pin_count; i++)
    add_pin(c, &x->pins[i], is_said && i < 4 ? lines : 0);
  if (is_said && x->pin_count > 4)
    say(c, "                and more\n");
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_CLOSE);
}

static void add_holders(const context *c) {
  const weir__explanation *x = c->x;
  const size_t said = x->has_request && x->cause != WEIR_OFFLINE_CAUSE_EXHAUSTED ? 3 : WEIR__SUMMARY_HOLDERS;
  char stack[WEIR__DESCRIBE_TEXT];
  say(c, x->holder_count ? "  *largest users*\n" : "");
  WEIR__ROWS(c->r, JSON_LIST("holders"));
  for (size_t i = 0; i < x->holder_count; i++) {
    const weir__holder *h = &x->holders[i];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), ROW_BYTES("bytes", h->bytes), JSON_NATURAL("count", h->count),
               ROW_BYTES("size", h->size), JSON_TEXT("_stack", weir__describe_stack(c->recording, h->stack, stack)));
    add_stack(c, h->stack);
    if (i < said)
      weir__holder_say(c->r, "    ", h, "_stack");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- Would it have helped? ---- */

/* Neither yes nor no: it depends on something that the recording does not have. */
static bool is_open(const weir__trial *t) {
  return !t->works && (t->depends || t->depends_on_limit || t->orders_served);
}

/* Only the limit decides, which is not known exactly. Such settings are listed together. */
static bool is_of_limit(const weir__trial *t) {
  return t->remedy == WEIR__REMEDY_SETTING && is_open(t) && !t->orders_served && !t->depends;
}

static bool is_failed_setting(const weir__trial *t) {
  return t->remedy == WEIR__REMEDY_SETTING && !t->works && !is_open(t);
}

/* The end of the line: what an open answer depends on. */
static void say_open(const context *c, const weir__trial *t) {
  if (!is_open(t))
    say(c, "\n");
  else if (t->orders_served)
    say(c, ": in {orders_served} of {orders} orders of the addresses that the driver may give, with "
           "{reserved~reserved_most} reserved at the peak\n");
  else if (t->depends)
    say(c, ": yes if other streams have done their work in time, which is not recorded\n");
  else
    say(c, ": yes with the highest limit that the recording allows, {_limit_above}\n");
}

static void say_trial(const context *c, const weir__trial *t) {
  const weir__explanation *x = c->x;
  if (t->remedy == WEIR__REMEDY_WAIT) {
    if (t->works)
      say(c, "    yes         waiting for the other streams, and repeating the request\n");
    else if (x->bytes[WEIR__USE_WAITING] && !x->is_capture)
      say(c, "    no          waiting for other streams: the allocator waited for all of them\n");
    return;
  }
  say(c, t->works ? "    yes         " : is_open(t) ? "    perhaps     " : "    no          ");
  if (t->remedy == WEIR__REMEDY_SETTING) {
    say(c, t->is_weir_only ? "{change}, with Weir's allocator" : "{change}");
    say(c, t->works ? ": {reserved~reserved_most} reserved at the peak" : "");
    say(c, t->works && x->limit != UINT64_MAX && x->limit >= t->reserved_most ? ", {_below} below the limit" : "");
  } else if (t->is_early) {
    say(c, "empty_cache() after entry {after_event}, when the least memory was in use");
    say(c, x->time_us && c->device->events[t->event].time_us ? ", {_before} before" : "");
  } else {
    say(c, "empty_cache() right before the request");
    say(c, t->works || is_open(t) || x->is_capture ? "" : ": the allocator had released all that it could");
  }
  say_open(c, t);
}

static void add_trial(const context *c, const weir__trial *t, bool is_said) {
  static const char *const remedies[] = {"wait", "empty_cache", "setting"};
  const int64_t then = t->is_early ? c->device->events[t->event].time_us : 0;
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("remedy", remedies[t->remedy]), JSON_BOOL("works", t->works),
             ROW_BYTES("reserved", t->reserved), ROW_BYTES("reserved_most", t->reserved_most),
             ROW_BYTES("_below", c->x->limit - t->reserved_most), JSON_NATURAL("failed_before", t->failed_before),
             JSON_NATURAL("orders", t->orders), JSON_NATURAL("orders_served", t->orders_served),
             JSON_BOOL("depends_on_limit", t->depends_on_limit));
  if (t->remedy == WEIR__REMEDY_SETTING)
    WEIR__ROWS(c->r, JSON_TEXT("change", t->change), JSON_TEXT("conf", t->conf),
               JSON_BOOL("weir_only", t->is_weir_only), JSON_BOOL("depends_on_streams", t->depends));
  else if (t->remedy == WEIR__REMEDY_EMPTY)
    WEIR__ROWS(c->r, JSON_NATURAL("after_event", t->event),
               ROW_US(then && c->x->time_us, "_before", weir__time_between(then, c->x->time_us)));
  if (is_said)
    say_trial(c, t);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* "    no          max_split_size_mb:64, max_split_size_mb:128"; returns how many there are. */
static size_t say_list(const context *c, const char *answer, bool (*wants)(const weir__trial *)) {
  size_t said = 0;
  for (size_t i = 0; i < c->x->trial_count; i++) {
    if (!wants(&c->x->trials[i]))
      continue;
    WEIR__ROWS(c->r, JSON_OBJECT("_"), JSON_TEXT("change", c->x->trials[i].change));
    say(c, said++ ? ", " : answer);
    say(c, "{change}");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  return said;
}

/* The settings that were tried and do not help. */
static void say_failed_settings(const context *c) {
  size_t count = 0;
  if (say_list(c, "    perhaps     ", is_of_limit))
    say(c, ": yes with the highest limit that the recording allows, {_limit_above}\n");
  for (size_t i = 0; i < c->x->trial_count; i++)
    count += is_failed_setting(&c->x->trials[i]);
  WEIR__ROWS(c->r, JSON_NATURAL("_failed_settings", count));
  if (count && c->x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    say(c, "    no          none of the {_failed_settings} settings that were tried\n");
  else if (say_list(c, "    no          ", is_failed_setting))
    say(c, "\n");
}

static void add_trials(const context *c) {
  const weir__explanation *x = c->x;
  size_t settings = 0;
  WEIR__ROWS(c->r, JSON_BOOL("proven", x->is_proven), JSON_NATURAL("orders", x->orders),
             JSON_NATURAL("orders_served", x->orders_served), ROW_BYTES("least_possible", x->least_possible),
             JSON_LIST("trials"));
  if (x->trial_count)
    say(c, x->limit_is_inferred
               ? "  *would it have helped?* Each was replayed up to the request, within the lowest possible limit\n"
               : "  *would it have helped?* Each was replayed up to the request, within the same limit\n");
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    bool is_said = !is_failed_setting(t) && !is_of_limit(t);
    /* Pages that move are a remedy of another kind, which is always shown. */
    if (is_said && t->remedy == WEIR__REMEDY_SETTING && !t->is_weir_only && settings++ >= 4)
      is_said = false;
    add_trial(c, t, is_said);
  }
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("_more_settings", settings - 4));
  if (settings > 4)
    say(c, "                and {_more_settings more setting}\n");
  if (x->trial_count)
    say(c, "    at best     {least_possible}: no allocator could go below the most bytes in use at one moment, in "
           "pages of 2 "
           "MiB\n");
  say_failed_settings(c);
}

/* ---- Notes ---- */

/* The first that works, NULL if none does. They are ordered as one would try them. */
static const weir__trial *find_remedy(const weir__explanation *x, weir__remedy remedy) {
  for (size_t i = 0; i < x->trial_count; i++)
    if (x->trials[i].remedy == remedy && x->trials[i].works)
      return &x->trials[i];
  return NULL;
}

/* Further failures and devices in the file. */
static void say_others(const context *c) {
  const weir__explanation *x = c->x;
  const weir__recording *s = c->recording;
  int other = 0;
  while ((size_t)other < s->device_count && (other == x->device || !s->devices[other].event_count))
    other++;
  WEIR__ROWS(c->r, JSON_NATURAL("_failures", x->oom_count), JSON_NATURAL("_next_failure", x->next_oom),
             JSON_INTEGER("_other", other));
  if (x->moment == WEIR_OFFLINE_AT_OOM && x->oom_count > 1 && x->event < x->next_oom)
    say(c, "  note        memory ran out {_failures} times, and this is the first; --at {_next_failure} explains the "
           "next\n");
  if ((size_t)other < s->device_count)
    say(c, "  note        the file has other devices as well: --device {_other}\n");
}

static void say_moving_note(const context *c) {
  if (c->x->differences && c->x->is_moving)
    say(c, "  note        " WEIR__MOVING_NOTE "\n");
}

/* What was there before the recording, and how it is known. */
static void say_start(const context *c) {
  const weir__explanation *x = c->x;
  WEIR__ROWS(c->r, JSON_NATURAL("_old_blocks", x->rebuilt_blocks), JSON_NATURAL("_old_segments", x->rebuilt_segments),
             ROW_BYTES("_old_bytes", x->rebuilt_bytes), JSON_TEXT("_difference", x->difference));
  if (!x->rebuilt_segments && !x->rebuilt_blocks)
    return;
  if (!x->has_checkpoint) {
    say(c, "  note        the recording began late: {_old_blocks} blocks ({_old_bytes}) and {_old_segments} segments "
           "from before it were inferred backwards from the end, and the replay from there reproduces the file\n");
    return;
  }
  say(c,
      "  note        the file has only the last entries: the state before them, {_old_blocks} blocks ({_old_bytes}) in "
      "{_old_segments} segments, is from a checkpoint in it");
  say(c, x->differences ? "\n" : ", and the replay from there reproduces the file\n");
}

/* What the file does not contain, where that affects the result. */
static void say_notes(const context *c) {
  const weir__explanation *x = c->x;
  say_start(c);
  if (x->differences)
    say(c, "  note        nothing is predicted: the replay differs from the file ({_difference})\n");
  say_moving_note(c);
  if (x->is_from_file && x->moment == WEIR_OFFLINE_AT_OOM)
    say(c,
        "  note        the state is that of the file's list of segments, which was written right after the failure\n");
  if (x->has_request && x->trial_count == 0 && !x->differences)
    say(c, "  note        nothing is predicted: the replay under the recorded settings serves the request\n");
  if (find_remedy(x, WEIR__REMEDY_SETTING) || find_remedy(x, WEIR__REMEDY_EMPTY))
    say(c,
        "  note        a yes applies to this failure only: what the job would have requested had it not failed is not "
        "in the file\n");
  if (x->orders_served)
    say(c, "  note        with other addresses from the driver, the recorded settings serve the request too, in "
           "{orders_served} of {orders} orders: it fails because of where its segments lie\n");
  if (x->trial_count && x->rebuilt_segments)
    say(c, x->is_served_anew
               ? "  note        under other settings, the state before the recording is allocated again, in order of "
                 "address: that alone would have served the request, so a yes to a setting says little\n"
               : "  note        under other settings, the state before the recording is allocated again, in order of "
                 "address: a yes is likely but not certain\n");
  if (x->is_capture)
    say(c, "  note        a graph was being captured: meanwhile no memory is released, and no stream is waited for\n");
  if (x->has_other_limit)
    say(c,
        "  note        --memory alone does not explain the failure, so the limit was inferred: the program had set one "
        "of its own (give it with --fraction), or device memory was held outside the allocator\n");
  if (x->has_request && x->device_free < x->mapped && !x->memory)
    say(c, "  note        device memory held by other processes, NCCL or the context is not in the file\n");
  if (!x->has_stacks && x->holder_count) {
    say(c, "  note        no stacks were recorded: ");
    say(c, weir__stacks_option(c->recording));
    say(c, " records them\n");
  }
}

static void say_next(const context *c) {
  const weir__explanation *x = c->x;
  const weir__trial *setting = find_remedy(x, WEIR__REMEDY_SETTING);
  char device[32] = "", options[sizeof setting->conf + sizeof device + 16];
  if (x->device != weir__recording_first_device(c->recording))
    snprintf(device, sizeof device, " --device %d", x->device);
  say(c, "  *next*        ");
  if (setting) {
    snprintf(options, sizeof options, "--conf '%s'%s", setting->conf, device);
    WEIR__ROWS(c->r, JSON_TEXT("_conf", setting->conf));
    say(c, setting->is_weir_only
               ? "to see the effect (PyTorch needs Weir's allocator for this key: docs/python/torch.md), run:\n"
               : "to see the effect, run:\n");
    say(c, "              ");
    weir__say_command(c->r, "replay", options, c->file);
    say(c, setting->is_weir_only ? "  *to paste*    " WEIR__KEEP_LINE "export WEIR_ALLOC_CONF='{_conf}'\n"
                                 : "  *to paste*    " WEIR__KEEP_LINE "export PYTORCH_CUDA_ALLOC_CONF='{_conf}'\n");
  } else if (find_remedy(x, WEIR__REMEDY_EMPTY))
    say(c, "call torch.cuda.empty_cache() between the steps\n");
  else if (find_remedy(x, WEIR__REMEDY_WAIT))
    say(c, "catch the error, call torch.cuda.synchronize(), and repeat the request\n");
  else if (x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    say(c, "no setting helps: free or shrink what is listed as in use, or request less\n");
  else if (x->trial_count)
    say(c, "nothing that was tried helps: free the blocks in the way earlier, or allocate them first\n");
  else if (x->completeness == WEIR__HISTORY_NONE)
    say(c, weir__record_advice);
  else if (x->differences || x->has_request) {
    snprintf(options, sizeof options, "--check%s", device);
    say(c, "to see where the replay differs from the file, run:\n              ");
    weir__say_command(c->r, "replay", options, c->file);
  } else {
    say(c, "to search for settings that need less, run:\n              ");
    weir__say_command(c->r, "tune", *device ? device + 1 : "", c->file);
  }
}

/* ---- The whole ---- */

/* The ring was overwritten, and no checkpoint holds the state. The keys are always the same, so that a program need not
 * test for each. */
static void add_unknown(const context *c) {
  WEIR__ROWS(c->r, JSON_TEXT("unknown", c->x->difference), JSON_NULL("limit"), JSON_NULL("limit_max"),
             JSON_NULL("limit_is_inferred"), JSON_NULL("limit_is_recorded"), JSON_NULL("limit_is_device"),
             JSON_NULL("memory"), JSON_NULL("missing"), JSON_NULL("enough_for_request"),
             JSON_NULL("enough_for_recording"), JSON_NULL("reserved"), JSON_NULL("bytes"), JSON_NULL("labels"),
             JSON_NULL("largest_hole"), JSON_NULL("largest_elsewhere"), JSON_NULL("holes"), JSON_NULL("cause"),
             JSON_NULL("pins"), JSON_NULL("holders"), JSON_BOOL("proven", false), JSON_NATURAL("orders", 0),
             JSON_NATURAL("orders_served", 0), JSON_NULL("least_possible"), JSON_LIST("trials"), JSON_CLOSE);
  if (!c->x->has_request)
    say_outcome(c);
  say(c, c->device->lacks_start ? "  *state*       not known: {unknown}\n"
                                : "  *state*       not known: the replay differs from the file: {unknown}\n");
  say_moving_note(c);
  say_others(c);
}

static void add_known(const context *c) {
  add_limit(c);
  add_missing(c);
  if (c->x->has_request) {
    say_cause(c);
    say_missing(c);
    say_growth(c);
  } else {
    say_outcome(c);
    say_short(c);
  }
  add_uses(c);
  add_pins(c);
  add_holders(c);
  add_trials(c);
  say_others(c);
  say_notes(c);
  say_next(c);
}

void weir__explain_report(weir__report *r, const char *file, const weir__recording *recording,
                          const weir__explanation *x) {
  const context of = {r, file, recording, &recording->devices[x->device], x}, *c = &of;
  weir__report_begin(r);
  add_head(c);
  add_request(c);
  (x->is_unknown ? add_unknown : add_known)(c);
  add_growth(c);
}
