/*
 * weir plot: a still picture of a recorded history.
 */
#include "offline/render/plot.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"
#include "moment.h"
#include "offline/render/output_file.h"
#include "progress.h"
#include "report.h"

static weir__plot_options options = {.device = -1};
static int kind, by;
static int axis;
static const char *output;

static weir_status draw(void *recording, FILE *file) { return weir__plot_write(recording, &options, file); }

static int run(int count, char **arguments) {
  const char *file = arguments[0];
  weir__recording *recording;
  (void)count;
  if (options.moment != WEIR_OFFLINE_AT_AUTO && kind != WEIR_OFFLINE_PLOT_SEGMENTS)
    return weir_cli_usage("--at is for --kind segments");
  if (!output && isatty(STDOUT_FILENO))
    return weir_cli_usage("a picture is not readable on a terminal: name its file with -o (- is standard output)");
  if (weir_cli_load(file, &recording))
    return weir_cli_fail("%s", weir_last_error());
  options.kind = (weir_offline_plot)kind;
  options.by = (weir_offline_group)by;
  options.axis = (weir__plot_axis)axis;
  options.name = strcmp(file, "-") == 0 ? NULL : file;
  if (options.device < 0)
    options.device = weir__recording_first_device(recording);
  if (weir__recording_check_device(recording, weir_cli_input_name(file), options.device)) {
    weir__recording_free(recording);
    return weir_cli_fail("%s", weir_last_error());
  }
  weir_cli_progress *progress = weir_cli_progress_begin("drawing");
  weir_status status = weir__output_file_write(output, draw, recording);
  weir_cli_progress_end(progress);
  weir__recording_free(recording);
  return status ? weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error()) : WEIR_EXIT_OK;
}

static int read_moment(const char *text) { return weir_cli_read_moment(text, &options.moment, &options.event); }

#define X(name, text, help) {text, help},
static const weir_cli_choice kinds[] = {WEIR__PLOT_KIND_MAP(X){0}};
#undef X

static const weir_cli_choice groups[] = {
    [WEIR_OFFLINE_BY_AUTO] = {"auto",
                              "by stack if stacks were recorded, else by class if classes are known, else by size"},
    [WEIR_OFFLINE_BY_STACK] = {"stack", "by the code that allocated"},
    [WEIR_OFFLINE_BY_CLASS] = {"class", "weights, gradients, optimizer state, activations, temporary memory"},
    [WEIR_OFFLINE_BY_SIZE] = {"size", "by requested size"},
    [WEIR_OFFLINE_BY_STREAM] = {"stream", "by stream"},
    [WEIR_OFFLINE_BY_POOL] = {"pool", "by pool"},
    {0}};

static const weir_cli_choice axes[] = {
    [WEIR__PLOT_AXIS_AUTO] = {"auto", "time where it was recorded; entries for --kind trace"},
    [WEIR__PLOT_AXIS_TIME] = {"time", "time since the first entry"},
    [WEIR__PLOT_AXIS_ENTRIES] = {"entries", "history entries, evenly spaced"},
    {0}};

static const weir_cli_option option_table[] = {
    {"kind", 'k', .kind = WEIR_CLI_CHOICE, .value = "KIND", .target = &kind, .choices = kinds,
     .help = "what to draw. Default: memory"},
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT.svg", .target = &output,
     .help = "the file to write; an existing one is replaced only when the new one is complete. Default: -, standard "
             "output, unless that is a terminal"},
    {"by", .kind = WEIR_CLI_CHOICE, .value = "WHAT", .target = &by, .choices = groups,
     .help = "how blocks are grouped and coloured. Default: auto"},
    {"at", .value = "MOMENT", .choices = weir_cli_moments, .read = read_moment, .takes = WEIR_CLI_MOMENT_TAKES,
     .help = "the moment of --kind segments: the number of an entry, or one of the following. Default: oom, or peak if "
             "no request failed"},
    {"axis", .kind = WEIR_CLI_CHOICE, .value = "AXIS", .target = &axis, .choices = axes,
     .help = "what the horizontal axis shows. Default: auto"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"title", .kind = WEIR_CLI_TEXT, .value = "TEXT", .target = &options.title, .help = "the title of the picture"},
    {"width", .kind = WEIR_CLI_NUMBER, .value = "PIXELS", .target = &options.width, .least = WEIR__PLOT_MIN_WIDTH,
     .most = WEIR__PLOT_MAX_SIDE, .help = "its width. Default: 1200"},
    {"height", .kind = WEIR_CLI_NUMBER, .value = "PIXELS", .target = &options.height, .least = WEIR__PLOT_MIN_HEIGHT,
     .most = WEIR__PLOT_MAX_SIDE, .help = "its height. Default: 640"},
    {"dark", .target = &options.is_dark, .help = "light on dark, for slides and dark pages"},
    {0}};

const weir_cli_command weir_cmd_plot = {
    .name = "plot",
    .summary = "draw a recorded memory history as a picture (SVG)",
    .description = "Draw memory over time, the map of segments, blocks over time and addresses, or fragmentation as an "
                   "SVG picture for a report or a web page. The size of the picture depends on its pixels, not on the "
                   "length of the history.",
    .argument = "FILE",
    .options = option_table,
    .exit = {"drawn", "the file cannot be read, does not have what is to be drawn, or the picture cannot be written"},
    .run = run};
