/*
 * weir explain: why a recorded job ran out of memory, and what would have helped.
 */
#include "explain.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "explain_message.h"
#include "json.h"
#include "moment.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/leaks.h"
#include "offline/render/explain_json.h"
#include "prediction.h"
#include "progress.h"
#include "record/recorder.h"
#include "report.h"

typedef struct report {
  const char *name; /* of the file */
  const weir__recording *recording;
  const weir__recording_device *device;
  const weir__explanation *x;
} report;

static const char *bytes(uint64_t n) { return weir_cli_bytes(n); }

/* ---- Text ---- */

/* "82.18 MiB, from forward (model.py:41), 1.20 s old (entry 17)". */
static void print_block(const report *f, const weir__explained_block *b) {
  char stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT], age[32];
  printf("%s", bytes(b->requested));
  if (b->stack)
    printf(", %s", weir__describe_stack(f->recording, b->stack, stack));
  if (b->event == SIZE_MAX) {
    printf(", allocated before the recording");
    return;
  }
  int64_t time = f->device->events[b->event].time_us;
  if (!b->stack && *weir__describe_phase(f->recording, f->x->device, time, phase))
    printf(", allocated %s", phase);
  if (time && f->x->time_us)
    printf(", %s old", weir__describe_span(weir__time_between(time, f->x->time_us), age));
  printf(" (entry %zu)", b->event);
}

static void print_head(const report *f) {
  const weir__explanation *x = f->x;
  char text[32], stream[48], stack[WEIR__DESCRIBE_TEXT], phase[WEIR__DESCRIBE_TEXT];
  static const char *const what[] = {[WEIR_OFFLINE_AT_OOM] = "out of memory",
                                     [WEIR_OFFLINE_AT_PEAK] = "at the peak of memory in use",
                                     [WEIR_OFFLINE_AT_END] = "at the end",
                                     [WEIR_OFFLINE_AT_EVENT] = "at an entry"};
  printf("%s%s: %s%s", weir_cli_bold(), weir_cli_input_name(f->name), what[x->moment], weir_cli_plain());
  if (x->event_count)
    printf(", entry %zu of %zu", x->event, x->event_count);
  if (x->time_us && x->first_us)
    printf(", %s into the recording", weir__describe_span(weir__time_between(x->first_us, x->time_us), text));
  printf("%s", f->recording->device_count > 1 ? ", device " : "");
  if (f->recording->device_count > 1)
    printf("%d", x->device);
  putchar('\n');
  if (!x->has_request)
    return;
  printf("  request     %s on %s%s", bytes(x->request), weir__describe_stream(f->recording, x->stream, stream),
         x->is_private ? ", in a private pool" : "");
  if (*weir__describe_phase(f->recording, x->device, x->time_us, phase))
    printf(", %s", phase);
  putchar('\n');
  if (x->stack)
    printf("  from        %s\n", weir__describe_stack(f->recording, x->stack, stack));
}

/* How much may be reserved, as far as the recording shows it. */
static void print_limit(const report *f) {
  const weir__explanation *x = f->x;
  if (x->limit == UINT64_MAX) {
    if (x->moment == WEIR_OFFLINE_AT_OOM)
      puts("  limit       not known");
    return;
  }
  if (!x->limit_is_device && x->limit_is_inferred && x->limit_max != UINT64_MAX && x->limit_max > x->limit) {
    printf("  limit       %s%s, inferred from requests that succeeded and failed\n",
           strcmp(bytes(x->limit), bytes(x->limit_max + 1)) ? "between " : "",
           weir_cli_range(bytes(x->limit), " and ", bytes(x->limit_max + 1)));
    return;
  }
  printf("  limit       %s", bytes(x->limit));
  if (x->limit_is_device && x->limit_is_inferred)
    printf(" or more: the device was full at that point");
  else if (x->limit_is_device && x->limit == x->memory)
    printf(": the device's memory");
  else if (x->limit_is_device)
    printf(": what was reserved plus what the device had free");
  else if (x->limit_is_inferred && x->limit_max == UINT64_MAX)
    printf(" or more: this much was allowed, and only a limit explains what the allocator released");
  else if (x->limit_is_inferred)
    printf(", inferred from the recording");
  else if (x->limit_is_recorded)
    printf(", as recorded");
  putchar('\n');
}

static void print_device(const report *f) {
  const weir__explanation *x = f->x;
  if (!x->has_device_free)
    return;
  printf("  device      had %s%s free", x->device_free < x->mapped ? "only " : "", bytes(x->device_free));
  if (x->device_free < x->mapped)
    putchar('\n');
  else if (x->limit_is_device)
    printf(", yet refused the request\n");
  else
    printf(": the limit is the program's own (%s)\n",
           f->recording->is_events_only ? "weir_allocator_set_limit, set_per_process_memory_fraction, or "
                                          "WEIR_MEMORY_LIMIT with the preload library"
                                        : "set_per_process_memory_fraction");
  if (x->memory > x->device_free && x->memory - x->device_free > x->reserved)
    printf("  outside     %s of the device's %s is held outside the allocator: by other processes, the context, or "
           "libraries such as NCCL\n",
           bytes(x->memory - x->device_free - x->reserved), bytes(x->memory));
}

/* How much more memory would have served the request: at that moment, and if it had been available from the start. */
static void print_missing(const report *f) {
  const weir__explanation *x = f->x;
  uint64_t taken = x->limit_is_device ? x->mapped : x->wanted;
  if (x->was_rescued)
    return;
  if (!x->has_missing)
    puts("  missing     not known, since the limit is not known");
  else if (x->missing_min == x->missing_max)
    printf("  missing     %s: the request needs %s of %s, and %s was left\n", bytes(x->missing_max),
           taken == x->wanted ? "a new segment" : "new pages", bytes(taken), bytes(taken - x->missing_max));
  else if (x->missing_min <= 1)
    printf("  missing     at most %s; --memory and --fraction make it exact\n", bytes(x->missing_max));
  else
    printf("  missing     %s if the program had set no limit of its own, else at most %s\n", bytes(x->missing_min),
           bytes(x->missing_max));
  if (!x->fit_request)
    return;
  printf("  sufficient  a %s %s from the start: replayed in steps of 2 MiB. ",
         x->limit_is_device ? "device with" : "limit of", bytes(x->fit_request));
  if (x->fit_recording == x->fit_request)
    puts("The recorded requests after the failure need no more");
  else if (x->fit_recording)
    printf("The recorded requests after the failure need %s\n", bytes(x->fit_recording));
  else
    puts("The recorded requests after the failure need more");
}

static void print_uses(const report *f) {
  const weir__explanation *x = f->x;
  printf("  %s%s reserved%s\n", weir_cli_bold(), bytes(x->reserved), weir_cli_plain());
  for (int i = 0; i < WEIR__USES; i++) {
    if (!x->blocks[i])
      continue;
    printf("    %11s  %s, %s\n", bytes(x->bytes[i]), weir__use_text((weir__byte_use)i, x->has_request),
           weir_cli_count(x->blocks[i], "block"));
  }
  if (x->has_request) {
    printf("    largest free block that it could get: %s", x->largest_hole ? bytes(x->largest_hole) : "none");
    if (x->largest_elsewhere)
      printf("; elsewhere: %s", bytes(x->largest_elsewhere));
    putchar('\n');
  }
}

static void print_holders(const report *f) {
  const weir__explanation *x = f->x;
  size_t shown = x->has_request && x->cause != WEIR_OFFLINE_CAUSE_EXHAUSTED ? 3 : WEIR__SUMMARY_HOLDERS;
  if (x->holder_count)
    printf("  %slargest users%s\n", weir_cli_bold(), weir_cli_plain());
  weir_cli_print_holders("    ", f->recording, x->holders, x->holder_count < shown ? x->holder_count : shown);
}

/* "5 blocks, 410.89 MiB in total", or "1 block of 82.18 MiB". */
static void print_amount(size_t n, const char *what, uint64_t total) {
  printf(n == 1 ? "%s of %s" : "%s, %s in total", weir_cli_count(n, what), bytes(total));
}

static void print_pins(const report *f) {
  const weir__explanation *x = f->x;
  if (!x->pin_count || x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    return;
  if (x->pins_serve)
    printf("  %sin the way%s: each of these segments could serve the request without the blocks in it\n",
           weir_cli_bold(), weir_cli_plain());
  else {
    printf("  %sin the way%s: ", weir_cli_bold(), weir_cli_plain());
    print_amount(x->pin_blocks, "block", x->pin_bytes);
    printf("; without %s ", x->pin_blocks == 1 ? "it" : "them");
    print_amount(x->pin_segments, "segment", x->pin_room);
    printf("%s could be released\n", x->pin_segments == 1 ? "" : ",");
  }
  size_t lines = x->pin_count > 2 ? 1 : 3; /* for each segment, so that the report fits on a screen */
  for (size_t i = 0; i < x->pin_count && i < 4; i++) {
    const weir__pin *p = &x->pins[i];
    printf("    %11s  %s free, held by ", bytes(p->bytes), bytes(p->free));
    print_amount(p->count, "block", p->pinned);
    putchar('\n');
    for (size_t k = 0; k < p->block_count && k < lines; k++) {
      printf("                  ");
      print_block(f, &p->blocks[k]);
      puts(k + 1 == lines && p->count > lines ? ", ..." : "");
    }
  }
  if (x->pin_count > 4)
    printf("                and more\n");
}

static void print_exhausted(const weir__explanation *x) {
  uint64_t active = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  uint64_t sum = active + x->rounded, most = sum - x->limit;
  bool is_certain = sum > x->limit_max;
  printf("%sot enough memory: %s in use plus %s requested is ", is_certain ? "N" : "Probably n", bytes(active),
         bytes(x->rounded));
  if (x->limit == x->limit_max)
    printf("%s above the limit.\n", bytes(most));
  else if (is_certain)
    printf("%s to %s above the limit.\n", bytes(sum - x->limit_max), bytes(most));
  else
    printf("up to %s above the limit, which is not known exactly.\n", bytes(most));
}

static void print_cause(const weir__explanation *x) {
  uint64_t free_bytes = x->bytes[WEIR__USE_FREE_WHOLE] + x->bytes[WEIR__USE_FREE_SPLIT];
  printf("  %swhy%s         ", weir_cli_bold(), weir_cli_plain());
  switch (x->cause) {
  case WEIR_OFFLINE_CAUSE_EXHAUSTED:
    print_exhausted(x);
    break;
  case WEIR_OFFLINE_CAUSE_FRAGMENTED:
    printf("Fragmentation: %s is free, but in blocks of at most %s, and live blocks keep their segments from being "
           "released.\n",
           bytes(free_bytes), bytes(x->largest_hole));
    break;
  case WEIR_OFFLINE_CAUSE_STREAMS:
    printf("Other streams: %s is free, but belongs to other streams, and a block is only reused on its stream.\n",
           bytes(x->bytes[WEIR__USE_FREE_STREAM]));
    break;
  case WEIR_OFFLINE_CAUSE_POOLS:
    printf("Pools: %s is free, but not in the pool of the request (%s), and a block never changes its pool.\n",
           bytes(x->bytes[WEIR__USE_FREE_POOL]), x->is_private ? "which is private" : "graphs have pools of their own");
    break;
  case WEIR_OFFLINE_CAUSE_CLASS:
    printf(
        "Size classes: %s is free in segments of the other size class, which live blocks keep from being released.\n",
        bytes(x->bytes[WEIR__USE_FREE_CLASS]));
    break;
  case WEIR_OFFLINE_CAUSE_WAITING:
    if (x->was_rescued)
      printf("Waiting: suitable blocks were freed, but still in use by another stream. PyTorch waits for it, but does "
             "not search again: repeating the request would have succeeded.\n");
    else
      printf("Waiting: %s was freed, but still in use by another stream%s.\n", bytes(x->bytes[WEIR__USE_WAITING]),
             x->is_capture ? ", and a capture does not wait" : "");
    break;
  case WEIR_OFFLINE_CAUSE_MIXED:
  default:
    if (x->is_from_file && !x->reserved)
      printf("Not known: the file does not contain what was reserved at that moment.\n");
    else
      printf(
          "Several causes: free memory is spread over small blocks, size classes, streams and pools (below), and none "
          "of them alone has enough.\n");
    break;
  }
}

static void print_growth(const report *f) {
  const weir__growth *g = &f->x->growth;
  char title[192];
  if (!g->is_found)
    return;
  printf("  %sgrowth%s      %s: %s in %s was allocated since %s %lld of %zu and not freed, %s a %s, most "
         "by %s%s.\n",
         weir_cli_bold(), weir_cli_plain(),
         g->is_cause ? "A leak is the cause, since without it the request would have been served"
                     : "There is a leak, which alone does not explain the failure",
         bytes(g->bytes), weir_cli_count(g->count, "block"), g->unit, (long long)g->first_step, g->steps,
         bytes((uint64_t)g->bytes_per_step), g->unit, weir__describe_blocks(f->recording, g->stack, g->size, title),
         g->stacks > 1 ? " and others" : "");
  printf("              ");
  weir_cli_print_command("leaks", "", f->name);
}

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

/* "    no          max_split_size_mb:64, max_split_size_mb:128"; returns whether there are any. */
static bool print_list(const weir__explanation *x, const char *answer, bool (*wants)(const weir__trial *)) {
  size_t shown = 0;
  for (size_t i = 0; i < x->trial_count; i++) {
    if (!wants(&x->trials[i]))
      continue;
    printf("%s%s", shown ? ", " : answer, x->trials[i].change);
    shown++;
  }
  return shown > 0;
}

/* The settings that were tried and do not help. */
static void print_failed_settings(const weir__explanation *x) {
  size_t count = 0;
  if (print_list(x, "    perhaps     ", is_of_limit))
    printf(": yes with the highest limit that the recording allows, %s\n", bytes(x->limit_max + 1));
  for (size_t i = 0; i < x->trial_count; i++)
    count += is_failed_setting(&x->trials[i]);
  if (count && x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    printf("    no          none of the %zu settings that were tried\n", count);
  else if (print_list(x, "    no          ", is_failed_setting))
    putchar('\n');
}

/* What an open answer depends on, and the end of the line. */
static void print_open(const report *f, const weir__trial *t) {
  if (t->orders_served) {
    printf(": in %u of %u orders of the addresses that the driver may give, with %s reserved at the peak\n",
           t->orders_served, t->orders, weir_cli_range(bytes(t->reserved), " to ", bytes(t->reserved_most)));
  } else if (t->depends)
    puts(": yes if other streams have done their work in time, which is not recorded");
  else
    printf(": yes with the highest limit that the recording allows, %s\n", bytes(f->x->limit_max + 1));
}

static void print_trial(const report *f, const weir__trial *t) {
  const weir__explanation *x = f->x;
  char age[32];
  const char *answer = t->works ? "yes    " : is_open(t) ? "perhaps" : "no     ";
  switch (t->remedy) {
  case WEIR__REMEDY_WAIT:
    if (t->works)
      printf("    yes         waiting for the other streams, and repeating the request\n");
    else if (x->bytes[WEIR__USE_WAITING] && !x->is_capture)
      printf("    no          waiting for other streams: the allocator waited for all of them\n");
    return;
  case WEIR__REMEDY_EMPTY:
    printf("    %s     empty_cache() ", answer);
    if (!t->is_early)
      printf("right before the request%s",
             t->works || is_open(t) || x->is_capture ? "" : ": the allocator had released all that it could");
    else {
      printf("after entry %zu, when the least memory was in use", t->event);
      if (x->time_us && f->device->events[t->event].time_us)
        printf(", %s before",
               weir__describe_span(weir__time_between(f->device->events[t->event].time_us, x->time_us), age));
    }
    break;
  case WEIR__REMEDY_SETTING:
    printf("    %s     %s%s", answer, t->change, t->is_weir_only ? ", with Weir's allocator" : "");
    if (!t->works)
      break;
    printf(": %s reserved at the peak", weir_cli_range(bytes(t->reserved), " to ", bytes(t->reserved_most)));
    if (x->limit != UINT64_MAX && x->limit >= t->reserved_most)
      printf(", %s below the limit", bytes(x->limit - t->reserved_most));
    break;
  }
  if (is_open(t))
    print_open(f, t);
  else
    putchar('\n');
}

/* The first that works, NULL if none does. They are ordered as one would try them. */
static const weir__trial *find_remedy(const weir__explanation *x, weir__remedy remedy) {
  for (size_t i = 0; i < x->trial_count; i++)
    if (x->trials[i].remedy == remedy && x->trials[i].works)
      return &x->trials[i];
  return NULL;
}

static void print_trials(const report *f) {
  const weir__explanation *x = f->x;
  size_t settings = 0;
  if (!x->trial_count)
    return;
  printf("  %swould it have helped?%s Each was replayed up to the request, within %s\n", weir_cli_bold(),
         weir_cli_plain(), x->limit_is_inferred ? "the lowest possible limit" : "the same limit");
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    if (is_failed_setting(t) || is_of_limit(t))
      continue;
    /* Pages that move are a remedy of another kind, which is always shown. */
    if (t->remedy == WEIR__REMEDY_SETTING && !t->is_weir_only && settings++ >= 4)
      continue;
    print_trial(f, &x->trials[i]);
  }
  if (settings > 4)
    printf("                and %s\n", weir_cli_count(settings - 4, "more setting"));
  print_failed_settings(x);
}

/* For a moment without a failure: whether other settings could save memory. */
static void print_short(const weir__explanation *x) {
  uint64_t used = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  if (!x->reserved || used > x->reserved)
    return;
  int percent = (int)(100 * (double)(x->reserved - used) / (double)x->reserved + 0.5);
  printf("  in short    %s of the reserved memory, %d %%, is not in use: %s\n", bytes(x->reserved - used), percent,
         percent < 10 ? "other settings can save little" : "other settings may need less");
}

/* For a moment without a failure: whether memory ran out at another. */
static void print_outcome(const report *f) {
  const weir__explanation *x = f->x;
  if (x->completeness == WEIR__HISTORY_NONE)
    printf("  history     %s\n", weir_cli_no_history);
  else if (x->oom_count && x->moment == WEIR_OFFLINE_AT_END && x->differences)
    printf("  failed      memory ran out %s, first at entry %zu: a request of %s. The state at that moment is not "
           "known, and so the cause is not known\n",
           weir_cli_count(x->oom_count, "time"), x->first_oom, bytes(f->device->events[x->first_oom].size));
  else if (x->oom_count)
    printf("  failed      memory ran out %s, first at entry %zu: --at oom explains it\n",
           weir_cli_count(x->oom_count, "time"), x->first_oom);
  else
    printf("  failed      nothing ran out of memory%s\n",
           x->completeness == WEIR__HISTORY_COMPLETE ? "" : " during the recording");
}

/* Further failures and devices in the file. */
static void print_others(const report *f) {
  const weir__explanation *x = f->x;
  const weir__recording *s = f->recording;
  if (x->moment == WEIR_OFFLINE_AT_OOM && x->oom_count > 1 && x->event < x->next_oom)
    printf("  note        memory ran out %zu times, and this is the first; --at %zu explains the next\n", x->oom_count,
           x->next_oom);
  for (int i = 0; (size_t)i < s->device_count; i++)
    if (i != x->device && s->devices[i].event_count) {
      printf("  note        the file has other devices as well: --device %d\n", i);
      break;
    }
}

/* What the file does not contain, where that affects the result. */
static void print_moving_note(const report *f) {
  if (f->x->differences && f->x->is_moving)
    printf("  note        %s\n", weir_cli_moving_note);
}

static void print_notes(const report *f) {
  const weir__explanation *x = f->x;
  if (x->has_checkpoint && (x->rebuilt_segments || x->rebuilt_blocks)) {
    printf("  note        the file has only the last entries: the state before them, %zu blocks (%s) in %zu segments, "
           "is from a checkpoint in it%s\n",
           x->rebuilt_blocks, weir_cli_bytes(x->rebuilt_bytes), x->rebuilt_segments,
           x->differences ? "" : ", and the replay from there reproduces the file");
  } else if (x->rebuilt_segments || x->rebuilt_blocks) {
    printf("  note        the recording began late: %zu blocks (%s) and %zu segments from before it were inferred "
           "backwards from the end, and the replay from there reproduces the file\n",
           x->rebuilt_blocks, weir_cli_bytes(x->rebuilt_bytes), x->rebuilt_segments);
  }
  if (x->differences)
    printf("  note        nothing is predicted: the replay differs from the file (%s)\n", x->difference);
  print_moving_note(f);
  if (x->is_from_file && x->moment == WEIR_OFFLINE_AT_OOM)
    printf(
        "  note        the state is that of the file's list of segments, which was written right after the failure\n");
  if (x->has_request && x->trial_count == 0 && !x->differences)
    printf("  note        nothing is predicted: the replay under the recorded settings serves the request\n");
  if (find_remedy(x, WEIR__REMEDY_SETTING) || find_remedy(x, WEIR__REMEDY_EMPTY))
    printf(
        "  note        a yes applies to this failure only: what the job would have requested had it not failed is not "
        "in the file\n");
  if (x->orders_served)
    printf(
        "  note        with other addresses from the driver, the recorded settings serve the request too, in %u of %u "
        "orders: it fails because of where its segments lie\n",
        x->orders_served, x->orders);
  if (x->trial_count && x->rebuilt_segments)
    printf("  note        under other settings, the state before the recording is allocated again, in order of "
           "address: %s\n",
           x->is_served_anew ? "that alone would have served the request, so a yes to a setting says little"
                             : "a yes is likely but not certain");
  if (x->is_capture)
    printf("  note        a graph was being captured: meanwhile no memory is released, and no stream is waited for\n");
  if (x->has_other_limit)
    printf("  note        --memory alone does not explain the failure, so the limit was inferred: the program had set "
           "one of its own (give it with --fraction), or device memory was held outside the allocator\n");
  if (x->has_request && x->device_free < x->mapped && !x->memory)
    printf("  note        device memory held by other processes, NCCL or the context is not in the file\n");
  if (!x->has_stacks && x->holder_count)
    printf("  note        no stacks were recorded: %s records them\n", weir_cli_stacks_option(f->recording));
}

static void print_next(const report *f) {
  const weir__explanation *x = f->x;
  const weir__trial *setting = find_remedy(x, WEIR__REMEDY_SETTING), *empty = find_remedy(x, WEIR__REMEDY_EMPTY);
  printf("  %snext%s        ", weir_cli_bold(), weir_cli_plain());
  char device[32] = "";
  if (x->device != weir__recording_first_device(f->recording))
    snprintf(device, sizeof device, " --device %d", x->device);
  if (setting) {
    char options[sizeof setting->conf + sizeof device + 16];
    snprintf(options, sizeof options, "--conf '%s'%s", setting->conf, device);
    printf("to see the effect%s, run:\n              ",
           setting->is_weir_only ? " (PyTorch needs Weir's allocator for this key: docs/python/torch.md)" : "");
    weir_cli_print_command("replay", options, f->name);
    printf("  %sto paste%s    ", weir_cli_bold(), weir_cli_plain());
    weir_cli_keep_line();
    printf("export %s='%s'\n", setting->is_weir_only ? "WEIR_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF", setting->conf);
  } else if (empty)
    printf("call torch.cuda.empty_cache() between the steps\n");
  else if (find_remedy(x, WEIR__REMEDY_WAIT))
    printf("catch the error, call torch.cuda.synchronize(), and repeat the request\n");
  else if (x->cause == WEIR_OFFLINE_CAUSE_EXHAUSTED)
    printf("no setting helps: free or shrink what is listed as in use, or request less\n");
  else if (x->trial_count)
    printf("nothing that was tried helps: free the blocks in the way earlier, or allocate them first\n");
  else if (x->completeness == WEIR__HISTORY_NONE)
    puts(weir_cli_record_advice);
  else if (x->differences || x->has_request) {
    char options[sizeof device + 16];
    snprintf(options, sizeof options, "--check%s", device);
    printf("to see where the replay differs from the file, run:\n              ");
    weir_cli_print_command("replay", options, f->name);
  } else {
    printf("to search for settings that need less, run:\n              ");
    weir_cli_print_command("tune", *device ? device + 1 : "", f->name);
  }
}

/* The ring was overwritten, and no checkpoint holds the state. */
static void print_unknown(const report *f) {
  if (!f->x->has_request)
    print_outcome(f);
  printf("  %sstate%s       not known: %s%s\n", weir_cli_bold(), weir_cli_plain(),
         f->device->lacks_start ? "" : "the replay differs from the file: ", f->x->difference);
  print_moving_note(f);
  print_others(f);
}

/* What guard mode found while the job ran: its own text, line by line. */
static void print_guard(const report *f) {
  const weir__recording *s = f->recording;
  const weir__strings *strings = &s->strings;
  for (size_t i = 0; i < s->annotation_count; i++) {
    const char *text = strcmp(strings->items[s->annotations[i].stage].text, WEIR__STAGE_GUARD) == 0
                           ? weir__recording_pair_of(s, &s->annotations[i], "text")
                           : NULL;
    const char *title = "  guard       ";
    for (const char *line = text, *next; line; line = next, title = "") {
      const char *end = strchr(line, '\n');
      printf("%s%s\n", title, weir_cli_escaped_part(line, end ? (size_t)(end - line) : strlen(line)));
      next = end ? end + 1 : NULL;
    }
  }
}

static void print_text(const report *f) {
  weir_cli_fold_begin();
  print_head(f);
  print_guard(f);
  if (f->x->is_unknown) {
    print_unknown(f);
    return;
  }
  print_limit(f);
  print_device(f);
  weir_cli_print_outside("  beside      ", f->device);
  if (f->x->has_request) {
    print_cause(f->x);
    print_missing(f);
    print_growth(f);
  } else {
    print_outcome(f);
    print_short(f->x);
  }
  print_uses(f);
  print_pins(f);
  print_holders(f);
  print_trials(f);
  print_others(f);
  print_notes(f);
  print_next(f);
}

char *weir_cli_explain_text(const char *name, const weir__recording *recording, const weir__explanation *explanation) {
  if (!weir_cli_capture_begin())
    return NULL;
  print_text(&(report){name, recording, &recording->devices[explanation->device], explanation});
  return weir_cli_capture_end();
}

/* ---- JSON ---- */

static void print_json(const report *f) {
  weir_cli_json_begin(0);
  weir__explain_json(&weir_cli_json_sink, f->name, f->recording, f->x);
  weir_cli_json_end();
}

/* ---- The command ---- */

static weir__explain_options options = {.device = -1};
static bool json, message, has_moment;

static int run(int count, char **arguments) {
  const char *name = count ? arguments[0] : "-";
  weir__recording *recording;
  weir__explanation x;
  if (!count && !message)
    return weir_cli_usage("FILE is missing");
  if (message && (has_moment || options.memory))
    return weir_cli_usage("--message reads a text, to which %s does not apply", has_moment ? "--at" : "--memory");
  if (message)
    return weir_cli_explain_message(name, options.device, json);
  weir_cli_progress *progress = weir_cli_progress_begin("reading and replaying");
  weir_status status = weir__recording_load(name, NULL, &recording);
  if (status) {
    weir_cli_progress_end(progress);
    char *error = strdup(weir_last_error());
    int code = status == WEIR_ERROR_BAD_DATA && weir_cli_has_message(name)
                   ? weir_cli_fail("%s: not a recording, but a text with an out-of-memory error: add --message (in "
                                   "Python, message=True)",
                                   weir_cli_input_name(name))
                   : weir_cli_fail("%s", error ? error : "out of host memory");
    free(error);
    return code;
  }
  if (options.device < 0)
    options.device = weir__recording_first_device(recording);
  options.progress = weir_cli_progress_step;
  options.progress_context = progress;
  status = weir__explain(recording, &options, &x);
  weir_cli_progress_end(progress);
  if (status)
    weir_cli_fail("%s: %s", weir_cli_input_name(name), weir_last_error());
  else
    WEIR_CLI_PRINT_REPORT(json, print_json, print_text,
                          &(report){name, recording, &recording->devices[options.device], &x});
  weir__recording_free(recording);
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

static int read_moment(const char *text) {
  has_moment = true;
  return weir_cli_read_moment(text, &options.moment, &options.event);
}

static const weir_cli_option option_table[] = {
    {"at", .value = "MOMENT", .choices = weir_cli_moments, .read = read_moment, .takes = WEIR_CLI_MOMENT_TAKES,
     .help = "the moment to explain: the number of an entry, or one of the following. Default: oom, or peak if no "
             "request failed"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"memory", .kind = WEIR_CLI_SIZE, .value = "SIZE", .target = &options.memory, .most = WEIR__REPLAY_MAX_MEMORY,
     .help = "the device's memory, such as 80GiB; a file does not record it"},
    {"fraction", .kind = WEIR_CLI_FRACTION, .value = "F", .target = &options.fraction, .needs = "memory",
     .help = "the fraction of it that the program allowed itself, 0 to 1"},
    {"message", .target = &message,
     .help = "FILE is the text of the error, or a log that has it, instead of a recording, or the standard input "
             "without FILE. Its figures are rounded, so the answer has ranges"},
    {"json", .target = &json, .help = "print JSON"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_explain = {
    .name = "explain",
    .summary = "explain why a recorded job ran out of memory, and what would have helped",
    .description =
        "Explain why a recorded job ran out of memory: the request, what every reserved byte was used for, which live "
        "blocks were in the way, and what would have served the request. The state is that of the real allocator, "
        "replayed; each suggestion was replayed as well, within the same limit.\n"
        "With --message, only the text of the error is needed: a log of PyTorch 1.0 or later, of several ranks, with "
        "tracebacks and colours.",
    .argument = "[FILE]",
    .options = option_table,
    .examples = "weir explain oom.pickle\n"
                "weir explain --at peak job.pickle\n"
                "weir explain --message train.log\n",
    .exit = {"explained", "the file cannot be read, or has no such moment or message"},
    .run = run};
