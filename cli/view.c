/*
 * weir view: a recorded history, or two, as a web page.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/base.h"
#include "base/environment.h"
#include "cli.h"
#include "explain.h"
#include "offline/read/input.h"
#include "offline/render/output_file.h"
#include "offline/render/view_data.h"
#include "progress.h"
#include "report.h"
#include "view_page.h"
#include "view_serve.h"

static struct {
  int device; /* -1 for the default */
  const char *to;
  const char *page;
  int port; /* 0 for any */
  bool data, serve, no_open, no_recording;
} options = {.device = -1};

static const char *base_name(const char *path) {
  if (strcmp(path, "-") == 0)
    return "standard input";
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

/* ---- The data ---- */

typedef struct source {
  weir__recording *recording;
  weir__explanation explanation;
  char *explain_text;
} source;

/* Finds out why memory ran out, in words too unless remedies were left out: then the words would be wrong. */
static weir_status explain(const char *file, source *from, const weir__view_options *view, weir__view_source *to) {
  bool is_explained = false;
  weir_status status = weir__view_explain(from->recording, to->device, view, &from->explanation, &is_explained);
  to->no_explain = true;
  if (status || !is_explained)
    return status;
  to->explanation = &from->explanation;
  if (from->recording->devices[to->device].event_count <= WEIR__VIEW_MAX_TRIED)
    to->explain_text = from->explain_text = weir_cli_explain_text(file, from->recording, &from->explanation);
  return WEIR_OK;
}

static weir_status make_data(int count, char **files, weir__view_data *data) {
  source sources[WEIR__VIEW_MAX_SOURCES] = {0};
  weir__view_source views[WEIR__VIEW_MAX_SOURCES] = {0};
  weir_status status = WEIR_OK;
  for (int i = 0; i < count && !status; i++)
    status = weir_cli_load(files[i], &sources[i].recording);
  weir_cli_progress *progress = weir_cli_progress_begin("making the page");
  const weir__view_options view = {.step = weir_cli_progress_step, .step_context = progress};
  for (int i = 0; i < count && !status; i++) {
    const weir__recording *recording = sources[i].recording;
    int device = options.device < 0 ? weir__recording_first_device(recording) : options.device;
    views[i] = (weir__view_source){.recording = recording, .device = device, .name = base_name(files[i])};
    status = weir__recording_check_device(recording, weir_cli_input_name(files[i]), device);
    if (!status)
      status = explain(files[i], &sources[i], &view, &views[i]);
  }
  if (!status)
    status = weir__view_make(views, (size_t)count, &view, data);
  weir_cli_progress_end(progress);
  for (int i = 0; i < count; i++) {
    weir__recording_free(sources[i].recording);
    free(sources[i].explain_text);
  }
  return status;
}

/* ---- The recording itself, which the page replays under other settings ---- */

/* A larger one is left out: the page asks for it. */
enum { MAX_RECORDING = 128 << 20, MAX_PACKED = 8 << 20 };

static weir_status read_recording(const char *file, unsigned char **bytes, size_t *size) {
  weir__input *input;
  size_t room = 0, got = 1;
  weir_status status = weir__input_open(file, &input);
  if (status)
    return status;
  while (!status && got && *size <= MAX_RECORDING) {
    status = WEIR__RESERVE(*bytes, room, *size + (1 << 16))
                 ? weir__input_read(input, *bytes + *size, room - *size, &got)
                 : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory to read it", file);
    *size += status ? 0 : got;
  }
  weir__input_close(input);
  return status;
}

/* A pipe cannot be read twice. */
static bool is_regular(const char *file) {
  struct stat about;
  return stat(file, &about) == 0 && S_ISREG(about.st_mode);
}

/* Adds no chunk if the page cannot have it. */
static weir_status pack_recording(int count, char **files, weir__view_data *packed) {
  unsigned char *bytes = NULL;
  size_t size = 0;
  if (count != 1 || options.no_recording || !is_regular(files[0]))
    return WEIR_OK;
  weir_status status = read_recording(files[0], &bytes, &size);
  if (!status && size <= MAX_RECORDING)
    status = weir__view_pack(packed, "recording", false, bytes, size);
  if (!status && packed->count && packed->table[0].stored > MAX_PACKED)
    weir__view_clear(packed);
  free(bytes);
  return status;
}

/* ---- A file ---- */

typedef struct contents {
  const weir_cli_page *page;
  const weir__view_data *data, *recording;
} contents;

static weir_status write_contents(void *context, FILE *file) {
  const contents *c = context;
  return options.data ? weir__view_write(c->data, file) : weir_cli_page_write(c->page, c->data, c->recording, file);
}

/* The name of a file without its folder and the endings of recordings. */
static int stem_length(const char *name) {
  static const char *const endings[] = {".zst", ".gz", ".pickle", ".pkl", ".weir"};
  size_t length = strlen(name);
  for (size_t i = 0; i < WEIR_COUNT_OF(endings); i++) {
    size_t n = strlen(endings[i]);
    if (length > n && strncmp(name + length - n, endings[i], n) == 0)
      length -= n;
  }
  return (int)(length < 100 ? length : 100);
}

/* The default name, in the current folder. */
static void name_output(int count, char **files, char *name, size_t size) {
  const char *first = strcmp(files[0], "-") == 0 ? "recording" : base_name(files[0]);
  const char *second = count < 2 ? "" : strcmp(files[1], "-") == 0 ? "recording" : base_name(files[1]);
  snprintf(name, size, "%.*s%s%.*s%s", stem_length(first), first, count > 1 ? "-" : "", stem_length(second), second,
           options.data ? ".view" : ".html");
}

/* Nothing but a page of this command is replaced under a name that the user did not choose. */
static bool is_replaceable(const char *name, const weir_cli_page *page) {
  char begin[64];
  FILE *file = fopen(name, "rb");
  if (!file)
    return errno == ENOENT;
  size_t got = fread(begin, 1, sizeof begin, file);
  fclose(file);
  if (options.data)
    return got >= 8 && memcmp(begin, "WEIRVIEW", 8) == 0;
  return got == sizeof begin && page->size >= sizeof begin && memcmp(begin, page->text, sizeof begin) == 0;
}

/* ---- A browser ---- */

static int browser = -1; /* a pipe to the process that opens it, or -1 */

/* Whether an address is one of weir view --serve. What comes from a process that has read a file is not trusted. */
static bool is_own_address(const char *address) {
  static const char begin[] = "http://localhost:";
  if (strncmp(address, begin, strlen(begin)) != 0)
    return false;
  address += strlen(begin);
  size_t digits = strspn(address, "0123456789");
  size_t word = strspn(address + digits + (address[digits] == '/'), "0123456789abcdef");
  return digits && digits <= 5 && address[digits] == '/' && word && !strcmp(address + digits + 1 + word, "/");
}

/* Waits for a line: an address, or an empty one for the page at `path`. */
static void wait_and_open(int from, const char *path) {
  char line[128] = "";
  size_t got = 0;
  for (ssize_t n; got < sizeof line - 1 && (n = read(from, line + got, sizeof line - 1 - got)) > 0;)
    got += (size_t)n;
  line[got] = 0;
  char *end = strchr(line, '\n'), full[PATH_MAX];
  if (!end)
    _exit(1); /* there is no page */
  *end = 0;
  if (options.serve ? !is_own_address(line) : !realpath(path, full))
    _exit(1);
  execlp("xdg-open", "xdg-open", options.serve ? line : full, (char *)NULL);
  _exit(1);
}

/* Starts the process that opens a browser, where there is a desktop: this one gives up the right to. */
static void prepare(int count, char **files) {
  int ends[2];
  char name[256];
  if (options.no_open || options.data || !isatty(STDOUT_FILENO) || !weir__env_text(WEIR__ENV_DISPLAY) ||
      (options.to && strcmp(options.to, "-") == 0) || pipe2(ends, O_CLOEXEC) != 0)
    return;
  name_output(count, files, name, sizeof name);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
      dup2(null, STDIN_FILENO);
      dup2(null, STDOUT_FILENO);
      dup2(null, STDERR_FILENO);
    }
    close(ends[1]);
    setsid();
    wait_and_open(ends[0], options.to ? options.to : name);
  }
  close(ends[0]);
  if (child > 0)
    browser = ends[1];
  else
    close(ends[1]);
}

/* `address` is "" for the page that was written. */
static void open_browser(const char *address) {
  if (browser < 0)
    return;
  dprintf(browser, "%s\n", address);
  close(browser);
  browser = -1;
}

static int write_page(const weir_cli_page *page, const weir__view_data *data, const weir__view_data *recording,
                      int count, char **files) {
  char name[256];
  const char *to = options.to;
  if (!to) {
    name_output(count, files, name, sizeof name);
    to = name;
    if (!is_replaceable(name, page))
      return weir_cli_fail("%s: there is such a file, and it is no page of weir view; -o names another",
                           weir_cli_escaped(name));
  }
  if (weir__output_file_write(to, write_contents, &(contents){page, data, recording}))
    return weir_cli_fail("%s", weir_last_error());
  if (strcmp(to, "-") == 0)
    return WEIR_EXIT_OK;
  char *full = realpath(to, NULL);
  puts(weir_cli_escaped(full ? full : to));
  open_browser("");
  free(full);
  return WEIR_EXIT_OK;
}

/* ---- A server ---- */

static void print_address(const char *address) {
  printf("%s\n", address);
  if (isatty(STDOUT_FILENO))
    printf("Ctrl-C ends the server. Behind SSH, forward its port first: ssh -L PORT:localhost:PORT HOST\n");
  fflush(stdout);
  open_browser(address);
}

static weir_status serve(const weir_cli_page *page, const weir__view_data *data, const weir__view_data *recording) {
  char *bytes = NULL, *html = NULL;
  size_t size = 0, html_size = 0;
  FILE *file = open_memstream(&html, &html_size);
  weir_status status = file ? weir_cli_page_write_remote(page, "view.bin", recording, file)
                            : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the page");
  if (file && fclose(file) && !status)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the page");
  file = status ? NULL : open_memstream(&bytes, &size);
  if (!status)
    status = file ? weir__view_write(data, file) : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  if (file && fclose(file) && !status)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu bytes", weir__view_size(data));
  const weir_cli_served files[] = {
      {.name = "", .type = "text/html; charset=utf-8", .bytes = html, .size = html_size},
      {.name = "view.bin", .type = "application/octet-stream", .bytes = bytes, .size = size}};
  const weir_cli_serving serving = {.files = files, .count = WEIR_COUNT_OF(files), .port = options.port};
  status = status ? status : weir_cli_serve(&serving, print_address);
  free(html);
  free(bytes);
  return status;
}

/* ---- The command ---- */

static int run(int count, char **files) {
  weir_cli_page page = {0};
  weir__view_data data = {0}, recording = {0};
  if (count > WEIR__VIEW_MAX_SOURCES)
    return weir_cli_usage("takes one file, or two to compare (got '%s' as well)", files[WEIR__VIEW_MAX_SOURCES]);
  if (count == 2 && strcmp(files[0], "-") == 0 && strcmp(files[1], "-") == 0)
    return weir_cli_usage("only one of the two files can be the standard input");
  if (options.serve && (options.to || options.data))
    return weir_cli_usage("--serve writes no file: leave out %s", options.to ? "--output" : "--data");
  if (!options.data && weir_cli_page_open(options.page, &page)) /* before the long work */
    return weir_cli_fail("%s", weir_last_error());
  int code = WEIR_EXIT_OK;
  if (make_data(count, files, &data) || (!options.data && pack_recording(count, files, &recording)))
    code = weir_cli_fail("%s", weir_last_error());
  else if (!options.serve)
    code = write_page(&page, &data, &recording, count, files);
  else if (serve(&page, &data, &recording))
    code = weir_cli_fail("%s", weir_last_error());
  weir__view_clear(&data);
  weir__view_clear(&recording);
  weir_cli_page_close(&page);
  return code;
}

static int read_port(const char *text) {
  char *end;
  options.serve = true;
  if (!text)
    return WEIR_EXIT_OK;
  long port = strtol(text, &end, 10);
  options.port = (int)port;
  return *text >= '0' && *text <= '9' && !*end && port >= 1 && port <= 65535 ? WEIR_EXIT_OK : WEIR_EXIT_USAGE;
}

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.to,
     .help = "the file to write; an existing one is replaced only when the new one is complete. - is standard output. "
             "Default: the name of FILE with .html, in the current folder"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"serve", .value = "[PORT]", .is_optional = true, .read = read_port, .takes = "a port, 1 to 65535",
     .help =
         "write no file, and serve the page on the loopback interface until Ctrl-C: for a browser behind SSH, which "
         "then loads only what it shows. Default: the first free port from 8123 on"},
    {"no-open", .target = &options.no_open,
     .help = "do not open a browser. Without it one is opened if standard output is a terminal on a desktop"},
    {"no-recording", .target = &options.no_recording,
     .help = "leave the recording itself out of the page. With it, which is the default for one FILE of up to 128 MiB, "
             "the page replays it under other settings; without it the page asks for the file"},
    {"data", .target = &options.data,
     .help = "write the data of the page alone, in the format that docs/tools/view.md describes"},
    {"page", .kind = WEIR_CLI_PATH, .value = "HTML", .target = &options.page,
     .help = "put the data into this page instead of the built-in one, for work on the page"},
    {0}};

const weir_cli_command weir_cmd_view = {
    .name = "view",
    .summary = "show a recorded memory history, or compare two, in a web page",
    .description =
        "Show a recorded memory history in a web page: every block over time and address, memory over time by stack, "
        "size, stream and phase, the segments at any moment, and why memory ran out. With two files, the page compares "
        "them.\n"
        "The page is one file that needs no network and no server. Its size depends on what a screen can show, not on "
        "the length of the history. Its path is printed.",
    .argument = "FILE [FILE]",
    .prepare = prepare,
    .listens = &options.serve,
    .writes_here = true,
    .options = option_table,
    .exit = {"the page was written", "a file cannot be read, or the page cannot be written"},
    .run = run};
