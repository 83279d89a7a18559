/*
 * A libFuzzer target, see scripts/fuzz: what can be read as a recording goes through the tools that write something
 * from it: leaks, diff, export, plot, redact, rewrite, what-if and view data. The last byte selects the tool.
 *
 * An input is a pickle; or, if its first byte is odd, a history in eight bytes for each entry (fuzz_history.h).
 */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz_history.h"
#include "fuzz_report.h"
#include "offline/analyse/predict.h"
#include "offline/render/diff_report.h"
#include "offline/render/export.h"
#include "offline/render/leaks_report.h"
#include "offline/render/plot.h"
#include "offline/render/redact_file.h"
#include "offline/render/rewrite.h"
#include "offline/render/view_data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FILE *out; /* discards what is written */

static void find_leaks(const weir__recording *r, int device) {
  weir__leaks leaks;
  if (weir__leaks_find(r, device, &(weir__leaks_options){.memory = 1ull << 32}, &leaks))
    return;
  weir__report report;
  weir__leaks_report(&report, r, "fuzz", &leaks, 10);
  weir__leaks_clear(&leaks);
  fuzz_report(&report);
}

static void compare(const weir__recording *r, int device) {
  const weir__diff_options options = {.device = {device, 0}, .file = {"a", "b"}, .fail_above = -1};
  weir__diff diff;
  if (weir__diff_make(r, r, &options, &diff))
    return;
  weir__report report;
  weir__diff_report(&report, &diff, 10, 0);
  weir__diff_clear(&diff);
  fuzz_report(&report);
}

static void export(const weir__recording *r, int device, unsigned way) {
  for (int table = 0; table <= WEIR__EXPORT_WORK; table++)
    weir__export_csv(r, way & 1 ? -1 : device, (weir__export_table)table, NULL, NULL, out);
  weir__export_perfetto(r, device, NULL, NULL, out);
  weir__export_collapsed(r, device, (weir_offline_moment)(way % 5), way, out);
  weir__export_speedscope(r, device, (weir_offline_moment)(way % 5), way, out);
}

static void plot(const weir__recording *r, int device, unsigned way) {
  const weir__plot_options options = {
      .kind = (weir_offline_plot)(way % 4), .by = (weir_offline_group)(way / 4 % 6), .device = device, .name = "fuzz"};
  weir__plot_write(r, &options, out);
}

static void predict(const weir__recording *r, int device) {
  weir__replayer *replayer;
  weir__costs costs;
  weir__settings settings;
  weir__whatif_history *history = NULL;
  weir__whatif_row row;
  const char *const conf = "expandable_segments:True";
  weir__costs_default(&costs);
  if (weir__settings_parse(NULL, conf, &settings) || weir__replayer_open(r, device, 1ull << 32, 0, &replayer))
    return;
  const weir__whatif whatif = {.history = replayer,
                               .file = "fuzz",
                               .device = device,
                               .confs = &conf,
                               .settings = &settings,
                               .conf_count = 1,
                               .memory = 1ull << 32,
                               .costs = &costs};
  weir__whatif_predict(&whatif, WEIR__WHATIF_OWN_ROWS, &row, &history);
  if (history)
    weir__rewrite(weir__whatif_history_recording(history), device, &weir__pickle_format, NULL, NULL, out);
  weir__whatif_history_free(history);
  weir__replayer_close(replayer);
}

static void view(const weir__recording *r, int device, unsigned way) {
  const weir__view_source sources[2] = {{.recording = r, .device = device, .name = "a"},
                                        {.recording = r, .device = device, .name = "b"}};
  weir__view_data made = {0};
  const weir__view_options options = {.is_raw = way & 1, .most_blocks = way & 2 ? 16 : 0};
  if (weir__view_make(sources, way & 4 ? 2 : 1, &options, &made) == WEIR_OK && weir__view_write(&made, out) != WEIR_OK)
    abort();
  weir__view_clear(&made);
}

static void use(weir__recording *r, uint8_t way) {
  int device = (int)(way / 8u % r->device_count);
  unsigned more = way / 8u;
  weir__redaction hidden;
  switch (way % 8) {
  case 0:
    find_leaks(r, device);
    break;
  case 1:
    compare(r, device);
    break;
  case 2:
    weir__recording_clean_texts(r);
    export(r, device, more);
    break;
  case 3:
    plot(r, device, more);
    break;
  case 4:
    if (weir__redact(r, &(weir__redact_options){.salt = "salt", .keep_functions = more & 1}, &hidden) == WEIR_OK)
      weir__rewrite(r, -1, &weir__pickle_format, NULL, NULL, out);
    break;
  case 5:
    weir__rewrite(r, more & 1 ? device : -1, &weir__json_format, NULL, NULL, out);
    break;
  case 6:
    predict(r, device);
    break;
  default:
    view(r, device, more);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!out && !(out = fopen("/dev/null", "we")))
    abort();
  weir__recording *recording = read_fuzzed(data, size);
  if (recording && recording->device_count)
    use(recording, data[size - 1]);
  weir__recording_free(recording);
  return 0;
}
