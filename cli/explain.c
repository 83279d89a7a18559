/*
 * weir explain: why a recorded job ran out of memory, and what would have helped.
 */
#include "offline/explain.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/describe.h"
#include "progress.h"
#include "shown.h"

static void print_help(void) {
  weir_cli_help_begin();
  fputs("Usage: weir explain [OPTION...] FILE\n"
        "\n"
        "Says why a recorded job ran out of memory: what was asked, where every reserved byte was, which live blocks "
        "were in\n"
        "the way, and what would have served the request. The state is that of the real allocator, replayed; what is "
        "said\n"
        "to help was replayed too, within the same limit. A FILE is what torch.cuda.memory._dump_snapshot() writes, "
        "plain\n"
        "or compressed with zstd or gzip, or a recording that WEIR_RECORD made; - is the standard input.\n"
        "\n"
        "Options:\n"
        "  --at MOMENT     oom: the first request that failed; peak: when most was in use; end: what the file lists; "
        "or the\n"
        "                  number of an event. Without it: oom, or peak where nothing failed\n"
        "  --device N      which device; the first on which memory ran out, or else that has a history\n"
        "  --memory SIZE   the device's memory, as 80GiB; a file does not record it\n"
        "  --fraction F    the part of it that the program allowed itself, 0 to 1\n"
        "  --json          the same as JSON\n"
        "  -h, --help      this text\n"
        "\n"
        "Exit codes: 0 explained; 1 the file cannot be read, or has no such moment; 2 invalid usage.\n",
        stdout);
}

typedef struct file {
  const char *name;
  const weir__recording *snapshot;
  const weir__recording_device *device;
  const weir__explanation *x;
} file;

static const char *bytes(uint64_t n, char text[32]) { return weir__format_bytes(n, text); }

/* From one time to another; a file may say anything. */
static int64_t span(int64_t from, int64_t to) { return (int64_t)((uint64_t)to - (uint64_t)from); }

static const char *plural(size_t n) { return n == 1 ? "" : "s"; }

/* ---- For people ---- */

/* "82.18 MiB, from forward (model.py:41), 1.20 s old (event 17)". */
static void print_block(const file *f, const weir__explained_block *b) {
  char text[32], stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT], age[32];
  printf("%s", bytes(b->requested, text));
  if (b->stack)
    printf(", %s", weir__describe_stack(f->snapshot, b->stack, stack));
  if (b->event == SIZE_MAX) {
    printf(", from before the recording");
    return;
  }
  int64_t time = f->device->events[b->event].time_us;
  if (!b->stack && *weir__describe_phase(f->snapshot, f->x->device, time, phase))
    printf(", made %s", phase);
  if (time && f->x->time_us)
    printf(", %s old", weir__describe_span(span(time, f->x->time_us), age));
  printf(" (event %zu)", b->event);
}

static void print_head(const file *f) {
  const weir__explanation *x = f->x;
  char text[32], stream[48], stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT];
  static const char *const what[] = {[WEIR__AT_OOM] = "out of memory",
                                     [WEIR__AT_PEAK] = "when most was in use",
                                     [WEIR__AT_END] = "at the end",
                                     [WEIR__AT_EVENT] = "a moment"};
  printf("%s%s: %s%s", weir_cli_bold(), weir_cli_shown(f->name), what[x->moment], weir_cli_plain());
  if (x->event_count)
    printf(", event %zu of %zu", x->event, x->event_count);
  if (x->time_us && x->first_us)
    printf(", %s into the recording", weir__describe_span(span(x->first_us, x->time_us), text));
  printf("%s", f->snapshot->device_count > 1 ? ", device " : "");
  if (f->snapshot->device_count > 1)
    printf("%d", x->device);
  putchar('\n');
  if (!x->has_request)
    return;
  printf("  asked for   %s on %s%s", bytes(x->request, text), weir__describe_stream(f->snapshot, x->stream, stream),
         x->is_private ? ", in a private pool" : "");
  if (*weir__describe_phase(f->snapshot, x->device, x->time_us, phase))
    printf(", %s", phase);
  putchar('\n');
  if (x->stack)
    printf("  by          %s\n", weir__describe_stack(f->snapshot, x->stack, stack));
}

/* What may be reserved, as far as that is known. */
static void print_limit(const file *f) {
  const weir__explanation *x = f->x;
  char text[2][32];
  if (x->limit == UINT64_MAX) {
    if (x->moment == WEIR__AT_OOM)
      puts("  limit       not known");
    return;
  }
  printf("  limit       %s", bytes(x->limit, text[0]));
  if (x->limit_is_device && x->limit_is_inferred)
    printf(" or more: the device was full with that");
  else if (x->limit_is_device && x->limit == x->memory)
    printf(": the device's memory");
  else if (x->limit_is_device)
    printf(": what was reserved, and what the device had left");
  else if (x->limit_is_inferred && x->limit_most == UINT64_MAX)
    printf(" or more: so much was allowed, and memory was given back for a request beyond it");
  else if (x->limit_is_inferred && x->limit_most > x->limit)
    printf(" or more, below %s: inferred from what was allowed and what was refused",
           bytes(x->limit_most + 1, text[1]));
  else if (x->limit_is_inferred)
    printf(", inferred from the recording");
  putchar('\n');
}

static void print_device(const file *f) {
  const weir__explanation *x = f->x;
  char text[2][32];
  if (!x->has_device_free)
    return;
  printf("  device      had %s%s free", x->device_free < x->mapped ? "only " : "", bytes(x->device_free, text[0]));
  if (x->device_free < x->mapped)
    putchar('\n');
  else if (x->limit_is_device)
    printf(", and refused the request all the same\n");
  else
    printf(": the limit is the program's own (set_per_process_memory_fraction)\n");
  if (x->memory > x->device_free && x->memory - x->device_free > x->reserved)
    printf(
        "  outside     %s of the device's %s belong to others: other processes, the context, libraries such as NCCL\n",
        bytes(x->memory - x->device_free - x->reserved, text[0]), bytes(x->memory, text[1]));
}

/* How much more would have served the request: as it was then, and if the job had had it from its beginning. */
static void print_missing(const file *f) {
  const weir__explanation *x = f->x;
  uint64_t taken = x->limit_is_device ? x->mapped : x->wanted;
  char text[3][32];
  if (x->was_rescued)
    return;
  if (!x->has_missing)
    puts("  missing     not known: the limit is not");
  else if (x->missing_least == x->missing_most)
    printf("  missing     %s: it takes %s of %s, and %s were left\n", bytes(x->missing_most, text[0]),
           taken == x->wanted ? "a new segment" : "new pages", bytes(taken, text[1]),
           bytes(taken - x->missing_most, text[2]));
  else if (x->missing_least <= 1)
    printf("  missing     at most %s; --memory and --fraction, if you know them, make it exact\n",
           bytes(x->missing_most, text[0]));
  else
    printf("  missing     %s if the program had set itself no limit; at most %s if it had\n",
           bytes(x->missing_least, text[0]), bytes(x->missing_most, text[1]));
  if (!x->fit_request)
    return;
  printf("  enough      a %s %s from the start: replayed, in steps of 2 MiB. ",
         x->limit_is_device ? "device with" : "limit of", bytes(x->fit_request, text[0]));
  if (x->fit_recording == x->fit_request)
    puts("The rest of the recording needs no more");
  else if (x->fit_recording)
    printf("The rest of the recording needs %s\n", bytes(x->fit_recording, text[1]));
  else
    puts("The rest of the recording needs more");
}

static void print_uses(const file *f) {
  const weir__explanation *x = f->x;
  static const struct {
    const char *with, *without; /* a request to look at it from */
  } names[WEIR__USES] = {[WEIR__USE_LIVE] = {"in use, as asked for", NULL},
                         [WEIR__USE_ROUNDING] = {"rounding, in the same blocks", NULL},
                         [WEIR__USE_WAITING] = {"freed, waiting for another stream", NULL},
                         [WEIR__USE_FREE_WHOLE] = {"free: whole segments", "free: whole segments, which can go back"},
                         [WEIR__USE_FREE_SPLIT] = {"free: pieces between live blocks", NULL},
                         [WEIR__USE_FREE_CLASS] = {"free: in segments for the other size class", NULL},
                         [WEIR__USE_FREE_STREAM] = {"free: of other streams", NULL},
                         [WEIR__USE_FREE_POOL] = {"free: in other pools", "free: in private pools, as graphs have"}};
  char text[32];
  printf("  %s%s reserved%s\n", weir_cli_bold(), bytes(x->reserved, text), weir_cli_plain());
  for (int i = 0; i < WEIR__USES; i++) {
    if (!x->blocks[i])
      continue;
    const char *name = !x->has_request && names[i].without ? names[i].without : names[i].with;
    printf("    %11s  %s, %zu block%s\n", bytes(x->bytes[i], text), name, x->blocks[i], plural(x->blocks[i]));
  }
  if (x->has_request) {
    printf("    largest hole that it could get: %s", x->largest_hole ? bytes(x->largest_hole, text) : "none");
    if (x->largest_elsewhere)
      printf("; elsewhere: %s", bytes(x->largest_elsewhere, text));
    putchar('\n');
  }
}

static void print_holders(const file *f) {
  const weir__explanation *x = f->x;
  char text[2][32], stack[WEIR__DESCRIBE_TEXT];
  size_t shown = x->has_request && x->cause != WEIR_OFFLINE_CAUSE_EXHAUSTED ? 3 : WEIR__SUMMARY_HOLDERS;
  if (x->holder_count)
    printf("  %sin use most%s\n", weir_cli_bold(), weir_cli_plain());
  for (size_t i = 0; i < x->holder_count && i < shown; i++) {
    const weir__holder *h = &x->holders[i];
    printf("    %11s  %zu block%s %s%s\n", bytes(h->bytes, text[0]), h->count, plural(h->count), h->size ? "of " : "",
           h->size ? bytes(h->size, text[1])
                   : (h->stack ? weir__describe_stack(f->snapshot, h->stack, stack) : "without a stack"));
  }
}

static void print_pins(const file *f) {
  const weir__explanation *x = f->x;
  char text[3][32];
  if (!x->pin_count || x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    return;
  if (x->pins_serve)
    printf("  %swhat is in the way%s: each of these segments could serve it, but for the blocks in it\n",
           weir_cli_bold(), weir_cli_plain());
  else
    printf("  %swhat is in the way%s: %zu segment%s of %s in all could go back, but for %zu block%s of %s\n",
           weir_cli_bold(), weir_cli_plain(), x->pin_segments, plural(x->pin_segments), bytes(x->pin_room, text[0]),
           x->pin_blocks, plural(x->pin_blocks), bytes(x->pin_bytes, text[1]));
  size_t lines = x->pin_count > 2 ? 1 : 3; /* for each: a screen is all there is */
  for (size_t i = 0; i < x->pin_count && i < 4; i++) {
    const weir__pin *p = &x->pins[i];
    printf("    %11s  %s free, held by %zu block%s of %s\n", bytes(p->bytes, text[0]), bytes(p->free, text[1]),
           p->count, plural(p->count), bytes(p->pinned, text[2]));
    for (size_t k = 0; k < p->block_count && k < lines; k++) {
      printf("                  ");
      print_block(f, &p->blocks[k]);
      puts(k + 1 == lines && p->count > lines ? ", ..." : "");
    }
  }
  if (x->pin_count > 4)
    printf("                and others\n");
}

static void print_exhausted(const weir__explanation *x) {
  char text[4][32];
  uint64_t active = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  uint64_t sum = active + x->rounded, most = sum - x->limit;
  bool is_certain = sum > x->limit_most;
  printf("%soo little memory: %s in use and %s more are ", is_certain ? "T" : "Probably t", bytes(active, text[0]),
         bytes(x->rounded, text[1]));
  if (x->limit == x->limit_most)
    printf("%s above the limit.\n", bytes(most, text[2]));
  else if (is_certain)
    printf("%s to %s above the limit.\n", bytes(sum - x->limit_most, text[2]), bytes(most, text[3]));
  else
    printf("up to %s above the limit,\n              which is not known exactly.\n", bytes(most, text[2]));
}

static void print_cause(const weir__explanation *x) {
  char text[2][32];
  uint64_t free_bytes = x->bytes[WEIR__USE_FREE_WHOLE] + x->bytes[WEIR__USE_FREE_SPLIT];
  printf("  %swhy%s         ", weir_cli_bold(), weir_cli_plain());
  switch (x->cause) {
  case WEIR_OFFLINE_CAUSE_EXHAUSTED:
    print_exhausted(x);
    break;
  case WEIR_OFFLINE_CAUSE_FRAGMENTED:
    printf("Fragmentation: %s are free, in pieces of at most %s, and live blocks keep their segments\n"
           "              from going back.\n",
           bytes(free_bytes, text[0]), bytes(x->largest_hole, text[1]));
    break;
  case WEIR_OFFLINE_CAUSE_STREAMS:
    printf("Other streams: %s are free, but were last used by other streams, and a block stays with its stream.\n",
           bytes(x->bytes[WEIR__USE_FREE_STREAM], text[0]));
    break;
  case WEIR_OFFLINE_CAUSE_POOLS:
    printf("Pools: %s are free in other pools than the request's (%s), and a block stays in its pool.\n",
           bytes(x->bytes[WEIR__USE_FREE_POOL], text[0]),
           x->is_private ? "it asks in a private one" : "graphs have pools of their own");
    break;
  case WEIR_OFFLINE_CAUSE_CLASS:
    printf("Size classes: %s are free in segments for the other class of sizes, which live blocks keep.\n",
           bytes(x->bytes[WEIR__USE_FREE_CLASS], text[0]));
    break;
  case WEIR_OFFLINE_CAUSE_WAITING:
    if (x->was_rescued)
      printf("Waiting: suitable blocks were freed, but another stream was not done with them. PyTorch waits, and then\n"
             "              does not look again: the same request once more would have been served.\n");
    else
      printf("Waiting: %s were freed, but another stream was not done with them%s.\n",
             bytes(x->bytes[WEIR__USE_WAITING], text[0]), x->is_capture ? ", and a capture does not wait" : "");
    break;
  case WEIR_OFFLINE_CAUSE_MIXED:
  default:
    if (x->is_from_file && !x->reserved)
      printf("Not known: what was reserved at that moment is not in the file.\n");
    else
      printf("Several things at once: what is free is spread over pieces, size classes, streams and pools (below),\n"
             "              and none of them alone has enough.\n");
    break;
  }
}

/* What was tried and does not help. */
static void print_failed_settings(const weir__explanation *x) {
  size_t column = 0, count = 0;
  for (size_t i = 0; i < x->trial_count; i++)
    count += x->trials[i].remedy == WEIR__REMEDY_SETTING && !x->trials[i].works;
  if (count && x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED) {
    printf("    no          any of the %zu settings that were tried\n", count);
    return;
  }
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    if (t->remedy != WEIR__REMEDY_SETTING || t->works)
      continue;
    size_t length = strlen(t->change);
    if (!column)
      column = (size_t)printf("    no          %s", t->change);
    else if (column + length > 98)
      column = (size_t)printf(",\n                %s", t->change) - 2;
    else
      column += (size_t)printf(", %s", t->change);
  }
  if (column)
    putchar('\n');
}

static void print_trial(const file *f, const weir__trial *t) {
  const weir__explanation *x = f->x;
  char text[3][32], age[32];
  const char *answer = t->works ? "yes" : "no ";
  switch (t->remedy) {
  case WEIR__REMEDY_WAIT:
    if (t->works)
      printf("    yes         waiting for the other streams, and asking again\n");
    else if (x->bytes[WEIR__USE_WAITING] && !x->is_capture)
      printf("    no          waiting for other streams: the allocator waited for all of them\n");
    break;
  case WEIR__REMEDY_EMPTY:
    if (!t->is_early) {
      printf("    %s         empty_cache() right before it%s\n", answer,
             t->works || x->is_capture ? "" : ": the allocator had given back all that it could");
      break;
    }
    printf("    %s         empty_cache() after event %zu, when least was in use", answer, t->event);
    if (x->time_us && f->device->events[t->event].time_us)
      printf(", %s before", weir__describe_span(span(f->device->events[t->event].time_us, x->time_us), age));
    putchar('\n');
    break;
  case WEIR__REMEDY_SETTING:
    printf("    yes         %s: %s reserved then", t->change, bytes(t->reserved, text[0]));
    if (x->limit != UINT64_MAX && x->limit >= t->reserved)
      printf(", %s below the limit", bytes(x->limit - t->reserved, text[1]));
    putchar('\n');
    break;
  }
}

/* The first that works; they are in the order in which one would try them. */
static const weir__trial *find_remedy(const weir__explanation *x, weir__remedy remedy) {
  for (size_t i = 0; i < x->trial_count; i++)
    if (x->trials[i].remedy == remedy && x->trials[i].works)
      return &x->trials[i];
  return NULL;
}

static void print_trials(const file *f) {
  const weir__explanation *x = f->x;
  size_t settings = 0;
  if (!x->trial_count)
    return;
  printf("  %swould it have been served?%s Each was replayed up to the request, within %s\n", weir_cli_bold(),
         weir_cli_plain(), x->limit_is_inferred ? "the lowest possible limit" : "the same limit");
  for (size_t i = 0; i < x->trial_count; i++) {
    if (x->trials[i].remedy == WEIR__REMEDY_SETTING && !x->trials[i].works)
      continue;
    if (x->trials[i].remedy == WEIR__REMEDY_SETTING && settings++ >= 4)
      continue;
    print_trial(f, &x->trials[i]);
  }
  if (settings > 4)
    printf("                and %zu more setting%s\n", settings - 4, plural(settings - 4));
  print_failed_settings(x);
}

/* Nothing failed: whether there is something to gain. */
static void print_short(const weir__explanation *x) {
  char text[32];
  uint64_t used = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  if (!x->reserved || used > x->reserved)
    return;
  int percent = (int)(100 * (double)(x->reserved - used) / (double)x->reserved + 0.5);
  printf("  in short    %s of what is reserved, %d %%, are not in use: %s\n", bytes(x->reserved - used, text), percent,
         percent < 10 ? "settings have little to gain" : "other settings may do with less");
}

/* Whether memory ran out, at a moment when it did not. */
static void print_outcome(const file *f) {
  const weir__explanation *x = f->x;
  char text[32];
  if (x->completeness == WEIR__HISTORY_NONE)
    puts("  history     none: whether memory ran out, and when most was in use, is not known");
  else if (x->oom_count && x->moment == WEIR__AT_END && x->differences)
    printf("  failed      memory ran out %zu time%s, first at event %zu: a request of %s. The state at that moment is "
           "not\n"
           "              known, so why is not either\n",
           x->oom_count, plural(x->oom_count), x->first_oom, bytes(f->device->events[x->first_oom].size, text));
  else if (x->oom_count)
    printf("  failed      memory ran out %zu time%s, first at event %zu: --at oom explains it\n", x->oom_count,
           plural(x->oom_count), x->first_oom);
  else
    printf("  failed      nothing ran out of memory%s\n",
           x->completeness == WEIR__HISTORY_COMPLETE ? "" : " in what was recorded");
}

/* What else is in the file. */
static void print_others(const file *f) {
  const weir__explanation *x = f->x;
  const weir__recording *s = f->snapshot;
  if (x->moment == WEIR__AT_OOM && x->oom_count > 1 && x->event < x->next_oom)
    printf("  note        memory ran out %zu times, and this is the first; --at %zu explains the next\n", x->oom_count,
           x->next_oom);
  for (int i = 0; (size_t)i < s->device_count; i++)
    if (i != x->device && s->devices[i].event_count) {
      printf("  note        there are other devices in the file: --device %d\n", i);
      break;
    }
}

/* What the file does not know, where it matters. */
static void print_limits_of_this(const file *f) {
  const weir__explanation *x = f->x;
  if (x->has_checkpoint && (x->rebuilt_segments || x->rebuilt_blocks)) {
    char text[32];
    printf("  note        the file has the last events: what was there before, %zu blocks (%s) in %zu segments, is "
           "from a\n"
           "              checkpoint in it%s\n",
           x->rebuilt_blocks, weir__format_bytes(x->rebuilt_bytes, text), x->rebuilt_segments,
           x->differences ? "" : ", and the replay from there has no difference to the file");
  } else if (x->rebuilt_segments || x->rebuilt_blocks) {
    char text[32];
    printf("  note        the recording began late: %zu blocks (%s) and %zu segments from before it were worked out\n"
           "              backwards from the end, and the replay from there reproduces the file\n",
           x->rebuilt_blocks, weir__format_bytes(x->rebuilt_bytes, text), x->rebuilt_segments);
  }
  if (x->differences)
    printf("  note        nothing is predicted: the replay differs from the file (%s)\n", x->difference);
  if (x->is_from_file && x->moment == WEIR__AT_OOM)
    printf("  note        the state is the file's list of segments, written right after the failure\n");
  if (x->has_request && x->trial_count == 0 && !x->differences)
    printf("  note        nothing is predicted: the replay under the recorded settings serves the request\n");
  if (find_remedy(x, WEIR__REMEDY_SETTING) || find_remedy(x, WEIR__REMEDY_EMPTY))
    printf(
        "  note        a yes is about this failure alone: what the job would have asked for next is not in the file\n");
  if (x->trial_count && x->rebuilt_segments)
    printf("  note        under other settings what was there before is allocated anew, by address: %s\n",
           x->is_served_anew
               ? "that alone would\n              have served the request, so a yes to a setting says little"
               : "take a yes as likely");
  if (x->is_capture)
    printf("  note        a graph was being captured: nothing goes back meanwhile, and no stream is waited for\n");
  if (x->has_other_limit)
    printf(
        "  note        --memory alone does not explain the failure, so the limit was inferred: the program had set one "
        "itself\n              (give it with --fraction), or others held memory of the device\n");
  if (x->has_request && x->device_free < x->mapped && !x->memory)
    printf("  note        what others held of the device (other processes, NCCL, the context) is not in the file\n");
  if (!x->has_stacks && x->holder_count)
    printf("  note        no stacks were recorded: %s keeps them\n",
           f->snapshot->is_events_only ? "WEIR_RECORD_STACKS=alloc" : "_record_memory_history(stacks=\"python\")");
}

static void print_next(const file *f) {
  const weir__explanation *x = f->x;
  const weir__trial *setting = find_remedy(x, WEIR__REMEDY_SETTING), *empty = find_remedy(x, WEIR__REMEDY_EMPTY);
  printf("  %snext%s        ", weir_cli_bold(), weir_cli_plain());
  char device[32] = "";
  if (x->device != weir__recording_first_device(f->snapshot))
    snprintf(device, sizeof device, " --device %d", x->device);
  if (setting) {
    char options[sizeof setting->conf + sizeof device + 16];
    snprintf(options, sizeof options, "--conf '%s'%s", setting->conf, device);
    weir_cli_keep_line();
    printf("export PYTORCH_CUDA_ALLOC_CONF='%s'\n              ", setting->conf);
    weir_cli_print_command("replay", options, f->name);
  } else if (empty)
    printf("call torch.cuda.empty_cache() between the steps\n");
  else if (find_remedy(x, WEIR__REMEDY_WAIT))
    printf("catch the error, call torch.cuda.synchronize(), and ask again\n");
  else if (x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    printf("no setting helps: free or shrink what is listed as in use, or ask for less\n");
  else if (x->trial_count)
    printf("nothing that was tried helps: free the blocks that are in the way earlier, or allocate them first\n");
  else if (x->completeness == WEIR__HISTORY_NONE)
    printf("record a history: torch.cuda.memory._record_memory_history(stacks=\"python\") before the work begins,\n"
           "              _dump_snapshot(\"job.pickle\") when it is over; a program on Weir: WEIR_RECORD=DIRECTORY\n");
  else if (x->differences || x->has_request) {
    char options[sizeof device + 16];
    snprintf(options, sizeof options, "--check%s", device);
    weir_cli_print_command("replay", options, f->name);
    puts("              which shows where the replay differs from the file");
  } else {
    weir_cli_print_command("tune", *device ? device + 1 : "", f->name);
    puts("              which looks for settings that need less");
  }
}

/* A recording that went round, without a checkpoint that counts. */
static void print_unknown(const file *f) {
  if (!f->x->has_request)
    print_outcome(f);
  printf("  %sstate%s       not known: %s%s\n", weir_cli_bold(), weir_cli_plain(),
         f->device->lacks_start ? "" : "the replay differs from the file: ", f->x->difference);
  print_others(f);
}

static void print_text(const file *f) {
  weir_cli_fold_begin();
  print_head(f);
  if (f->x->is_unknown) {
    print_unknown(f);
    return;
  }
  print_limit(f);
  print_device(f);
  if (f->x->has_request) {
    print_cause(f->x);
    print_missing(f);
  } else {
    print_outcome(f);
    print_short(f->x);
  }
  print_uses(f);
  print_pins(f);
  print_holders(f);
  print_trials(f);
  print_others(f);
  print_limits_of_this(f);
  print_next(f);
}

/* ---- For programs ---- */

static void json_stack(const weir__recording *s, uint32_t stack) {
  printf("[");
  for (size_t i = 0; stack < s->stack_count && i < s->stacks[stack].count; i++) {
    const weir__recording_frame *f = &s->frames[s->stack_frames[s->stacks[stack].first + i]];
    printf("%s{\"name\": ", i ? ", " : "");
    weir_cli_json_string(s->strings.items[f->name].text);
    printf(", \"filename\": ");
    weir_cli_json_string(s->strings.items[f->filename].text);
    printf(", \"line\": %" PRId64 "}", f->line);
  }
  printf("]");
}

static void json_event(size_t event) {
  if (event == SIZE_MAX)
    printf("null");
  else
    printf("%zu", event);
}

static void json_limit(const char *name, uint64_t limit) {
  if (limit == UINT64_MAX)
    printf("\"%s\": null, ", name);
  else
    printf("\"%s\": %" PRIu64 ", ", name, limit);
}

/* null: not known, or not found. */
static void json_missing(const weir__explanation *x) {
  if (x->has_missing)
    printf("\"missing\": {\"least\": %" PRIu64 ", \"most\": %" PRIu64 "}, ", x->missing_least, x->missing_most);
  else
    printf("\"missing\": null, ");
  json_limit("enough_for_request", x->fit_request ? x->fit_request : UINT64_MAX);
  json_limit("enough_for_recording", x->fit_recording ? x->fit_recording : UINT64_MAX);
}

static void json_pins(const file *f) {
  const weir__explanation *x = f->x;
  printf("\"pins\": {\"kind\": \"%s\", \"segments\": [", x->pins_serve ? "could serve" : "could go back");
  for (size_t i = 0; i < x->pin_count; i++) {
    const weir__pin *p = &x->pins[i];
    printf("%s{\"address\": %" PRIu64 ", \"size\": %" PRIu64 ", \"free\": %" PRIu64 ", \"pinned\": %" PRIu64
           ", \"count\": %zu, \"blocks\": [",
           i ? ", " : "", p->segment, p->bytes, p->free, p->pinned, p->count);
    for (size_t k = 0; k < p->block_count; k++) {
      const weir__explained_block *b = &p->blocks[k];
      printf("%s{\"address\": %" PRIu64 ", \"size\": %" PRIu64 ", \"requested\": %" PRIu64 ", \"event\": ",
             k ? ", " : "", b->address, b->size, b->requested);
      json_event(b->event);
      printf(", \"age_us\": ");
      int64_t time = b->event == SIZE_MAX ? 0 : f->device->events[b->event].time_us;
      if (time && x->time_us)
        printf("%" PRId64, span(time, x->time_us));
      else
        printf("null");
      printf(", \"stack\": ");
      json_stack(f->snapshot, b->stack);
      printf("}");
    }
    printf("]}");
  }
  printf("]}, ");
}

static void json_trials(const weir__explanation *x) {
  static const char *const remedies[] = {"wait", "empty_cache", "setting"};
  printf("\"trials\": [");
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    printf("%s{\"remedy\": \"%s\", \"works\": %s, \"reserved\": %" PRIu64 ", \"failed_before\": %zu", i ? ", " : "",
           remedies[t->remedy], t->works ? "true" : "false", t->reserved, t->failed_before);
    if (t->remedy == WEIR__REMEDY_SETTING) {
      printf(", \"change\": ");
      weir_cli_json_string(t->change);
      printf(", \"conf\": ");
      weir_cli_json_string(t->conf);
    } else if (t->remedy == WEIR__REMEDY_EMPTY)
      printf(", \"after_event\": %zu", t->event);
    printf("}");
  }
  printf("]");
}

static void print_json(const file *f) {
  static const char *const moments[] = {"auto", "oom", "peak", "end", "event"};
  static const char *const uses[] = {"live",       "rounding",   "waiting",     "free_whole",
                                     "free_split", "free_class", "free_stream", "free_pool"};
  static const char *const histories[] = {"none", "complete", "late", "wrapped"};
  const weir__explanation *x = f->x;
  printf("{\"file\": ");
  weir_cli_json_string(f->name);
  printf(", \"device\": %d, \"moment\": \"%s\", \"event\": %zu, \"events\": %zu, \"time_us\": %" PRId64
         ", \"history\": \"%s\", ",
         x->device, moments[x->moment], x->event, x->event_count, x->time_us, histories[x->completeness]);
  printf("\"differences\": %zu, \"from_file\": %s, \"request\": ", x->differences, x->is_from_file ? "true" : "false");
  if (x->has_request) {
    printf("{\"bytes\": %" PRIu64 ", \"rounded\": %" PRIu64 ", \"wanted\": %" PRIu64 ", \"stream\": %" PRId64
           ", \"private\": %s, \"device_free\": %" PRIu64 ", \"stack\": ",
           x->request, x->rounded, x->wanted, f->snapshot->streams[x->stream], x->is_private ? "true" : "false",
           x->device_free);
    json_stack(f->snapshot, x->stack);
    printf("}, ");
  } else
    printf("null, ");
  if (x->is_unknown) {
    printf("\"unknown\": ");
    weir_cli_json_string(x->difference);
    printf(", \"limit\": null, \"limit_most\": null, \"limit_is_inferred\": null, \"limit_is_device\": null, "
           "\"memory\": null, \"missing\": null, \"enough_for_request\": null, \"enough_for_recording\": null, "
           "\"reserved\": null, \"bytes\": null, "
           "\"largest_hole\": null, \"largest_elsewhere\": null, \"cause\": null, \"pins\": null, \"holders\": null, "
           "\"proven\": false, \"trials\": []}\n");
    return;
  }
  json_limit("limit", x->limit);
  json_limit("limit_most", x->limit_most);
  printf("\"limit_is_inferred\": %s, \"limit_is_device\": %s, ", x->limit_is_inferred ? "true" : "false",
         x->limit_is_device ? "true" : "false");
  json_limit("memory", x->memory ? x->memory : UINT64_MAX);
  json_missing(x);
  json_limit("reserved", x->reserved);
  printf("\"bytes\": {");
  for (int i = 0; i < WEIR__USES; i++)
    printf("%s\"%s\": %" PRIu64, i ? ", " : "", uses[i], x->bytes[i]);
  printf("}, \"largest_hole\": %" PRIu64 ", \"largest_elsewhere\": %" PRIu64 ", \"cause\": \"%s\", ", x->largest_hole,
         x->largest_elsewhere, weir_offline_cause_name(x->cause));
  json_pins(f);
  printf("\"holders\": [");
  for (size_t i = 0; i < x->holder_count; i++) {
    printf("%s{\"bytes\": %" PRIu64 ", \"count\": %zu, \"size\": %" PRIu64 ", \"stack\": ", i ? ", " : "",
           x->holders[i].bytes, x->holders[i].count, x->holders[i].size);
    json_stack(f->snapshot, x->holders[i].stack);
    printf("}");
  }
  printf("], \"proven\": %s, ", x->is_proven ? "true" : "false");
  json_trials(x);
  printf("}\n");
}

/* ---- The command ---- */

static int explain_file(char *name, weir__explain_options *options, bool json) {
  weir__recording *snapshot;
  weir__explanation x;
  weir_cli_progress *progress = weir_cli_progress_begin("reading and replaying");
  weir_status status = weir__recording_load(name, NULL, &snapshot);
  if (status) {
    weir_cli_progress_end(progress);
    fprintf(stderr, "weir explain: %s\n", weir_last_error());
    return WEIR_EXIT_FAILED;
  }
  if (options->device < 0)
    options->device = weir__recording_first_device(snapshot);
  options->progress = weir_cli_progress_step;
  options->progress_context = progress;
  status = weir__explain(snapshot, options, &x);
  weir_cli_progress_end(progress);
  if (status)
    fprintf(stderr, "weir explain: %s: %s\n", weir_cli_shown(name), weir_last_error());
  else {
    file f = {name, snapshot, &snapshot->devices[options->device], &x};
    if (json)
      print_json(&f);
    else
      print_text(&f);
  }
  weir__recording_free(snapshot);
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

/* false: it is no moment. */
static bool read_moment(const char *text, weir__explain_options *options) {
  char *end;
  if (strcmp(text, "oom") == 0)
    options->moment = WEIR__AT_OOM;
  else if (strcmp(text, "peak") == 0)
    options->moment = WEIR__AT_PEAK;
  else if (strcmp(text, "end") == 0)
    options->moment = WEIR__AT_END;
  else {
    errno = 0;
    options->moment = WEIR__AT_EVENT;
    options->event = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
  }
  return true;
}

int weir_cmd_explain(int argc, char **argv) {
  static const struct option long_options[] = {{"at", required_argument, NULL, 'a'},
                                               {"device", required_argument, NULL, 'd'},
                                               {"memory", required_argument, NULL, 'm'},
                                               {"fraction", required_argument, NULL, 'f'},
                                               {"json", no_argument, NULL, 'j'},
                                               {"help", no_argument, NULL, 'h'},
                                               {NULL, 0, NULL, 0}};
  weir__explain_options options = {.device = -1};
  bool json = false;
  char *end;
  unsigned long long memory;
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
    switch (option) {
    case 'a':
      if (!read_moment(optarg, &options))
        return weir_cli_usage("explain", "--at takes oom, peak, end or the number of an event, not '%s'", optarg);
      break;
    case 'd':
      errno = 0;
      options.device = (int)strtol(optarg, &end, 10);
      if (*end || end == optarg || errno || options.device < 0)
        return weir_cli_usage("explain", "--device takes a number, not '%s'", optarg);
      break;
    case 'm':
      if (!weir__parse_bytes(optarg, &memory) || !memory || memory > WEIR__REPLAY_MOST_MEMORY)
        return weir_cli_usage("explain", "--memory takes a size up to 64 TiB, as 80GiB, not '%s'", optarg);
      options.memory = memory;
      break;
    case 'f':
      options.fraction = strtod(optarg, &end);
      if (*end || end == optarg || !(options.fraction > 0 && options.fraction <= 1))
        return weir_cli_usage("explain", "--fraction takes a number above 0 and up to 1, not '%s'", optarg);
      break;
    case 'j':
      json = true;
      break;
    case 'h':
      print_help();
      return WEIR_EXIT_OK;
    case ':':
      return weir_cli_usage("explain", "%s needs a value", argv[optind - 1]);
    default:
      return weir_cli_usage("explain", "there is no option '%s'", argv[optind - 1]);
    }
  }
  if (optind == argc)
    return weir_cli_usage("explain", "no file is named");
  if (optind + 1 < argc)
    return weir_cli_usage("explain", "one file at a time, and '%s' is one more", argv[optind + 1]);
  if (options.fraction > 0 && !options.memory)
    return weir_cli_usage("explain", "--fraction needs --memory: it is a part of it");
  return explain_file(argv[optind], &options, json);
}
