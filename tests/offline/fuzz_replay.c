/*
 * A libFuzzer target, see scripts/fuzz: what can be read as a snapshot is replayed, unchecked under the recorded
 * settings and under others, and checked; or it is summed up and explained. Whatever a file claims, that ends, and says
 * so or goes on.
 *
 * An input is a pickle; or, if its first byte is odd, a history in eight bytes for each entry (fuzz_history.h).
 */
#include <stdlib.h>

#include "fuzz_history.h"
#include "fuzz_report.h"
#include "offline/analyse/explain.h"
#include "offline/analyse/summary.h"
#include "offline/render/explain_report.h"
#include "offline/render/summary_report.h"
#include "offline/replay/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- Replaying ---- */

static void summarize(const weir__recording *recording) {
  weir__report report;
  weir__summary *devices = calloc(recording->device_count, sizeof *devices);
  weir__summary_classes *classes = calloc(recording->device_count, sizeof *classes);
  for (size_t i = 0; i < recording->device_count; i++)
    if (!devices || !classes || weir__summarize(recording, (int)i, &devices[i]) != WEIR_OK)
      abort();
  weir__summary_report(&report, "fuzz", recording, devices, classes, NULL);
  fuzz_report(&report);
  free(devices);
  free(classes);
}

static void explain(const weir__recording *recording, int device, uint8_t way) {
  weir__report report;
  weir__explanation x;
  const weir__explain_options options = {.device = device,
                                         .moment = (weir_offline_moment)(way % 5),
                                         .event = way,
                                         .memory = way & 1 ? 1ull << 30 : 0,
                                         .no_trials = way % 8 != 0};
  summarize(recording);
  if (weir__explain(recording, &options, &x) != WEIR_OK)
    return;
  if (x.event > recording->devices[device].event_count)
    abort();
  weir__explain_report(&report, "fuzz", recording, &x);
  fuzz_report(&report);
}

/* One way for each input, by its last byte: making an allocator costs more than most histories. */
static void replay(const weir__recording *recording, uint8_t way) {
  const uint64_t gib = 1ull << 30;
  const weir__replay_options ways[] = {{.memory = 4 * gib},
                                       {.memory = gib, .conf = "expandable_segments:True"},
                                       {.memory = 4 * gib, .fraction = 0.25, .check = true},
                                       {.check = true},
                                       {.conf = "large_segment_size_mb:64,expandable_segments:True"}};
  weir__replay_report report;
  const int count = sizeof ways / sizeof *ways;
  weir__replay_options options = ways[way % count];
  options.device = recording->device_count ? way / count % (int)recording->device_count : 0;
  if (way >= 128 && recording->device_count) {
    explain(recording, options.device, (uint8_t)(way - 128));
    return;
  }
  if (weir__replay(recording, &options, &report) != WEIR_OK)
    return;
  int64_t requested = report.stats.requested_bytes[WEIR_STAT_ALL].current;
  int64_t active = report.stats.active_bytes[WEIR_STAT_ALL].current;
  if (report.events == 0 || requested < 0 || requested > active ||
      active > report.stats.reserved_bytes[WEIR_STAT_ALL].current)
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  weir__recording *recording = read_fuzzed(data, size);
  if (recording) {
    replay(recording, size ? data[size - 1] : 0);
    weir__recording_free(recording);
  }
  return 0;
}
