/*
 * weir digest: a small summary of each recording, to be merged with those of other ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/system.h"
#include "cli.h"
#include "offline/analyse/digest_make.h"
#include "offline/render/digest_json.h"
#include "offline/render/output_file.h"
#include "redaction.h"

static struct {
  const char *output;
  int rank; /* -1 for what the recording says */
  const char *role;
  bool redact;
  const char *salt;
  bool schema;
} options = {.rank = -1};

static weir__output_file output;
static weir__digest_line line;
static weir_cli_salt salt;
static int spool = -1; /* for recordings that are no plain files */

/* While files can still be created: a copy of what is read from a pipe has no name. */
static void prepare(int count, char **files) {
  (void)count;
  (void)files;
  FILE *file = tmpfile();
  spool = file ? weir__descriptor_copy(fileno(file)) : -1;
  if (file)
    fclose(file);
}

static int write_digest(const char *file, weir__digest *digest) {
  if (options.redact)
    weir__digest_redact(digest, salt.bytes, salt.size);
  if (weir__digest_write_fitting(digest, &line))
    return weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  if (fwrite(line.text, 1, line.size, output.file) != line.size || putc('\n', output.file) == EOF)
    return weir_cli_fail("cannot write the output: %s", strerror(errno));
  return WEIR_EXIT_OK;
}

static int make(const char *file) {
  const weir__digest_options how = {.rank = options.rank, .role = options.role, .spool = spool};
  weir__digests digests;
  int code = WEIR_EXIT_OK;
  if (weir__digest_make(file, &how, &digests))
    return weir_cli_fail("%s", weir_last_error());
  for (size_t i = 0; i < digests.count && code == WEIR_EXIT_OK; i++)
    code = write_digest(file, &digests.items[i]);
  weir__digests_clear(&digests);
  return code;
}

static int run(int count, char **files) {
  if (options.schema && count)
    return weir_cli_usage("--schema takes no files (got '%s')", files[0]);
  if (options.schema) {
    weir__digest_schema(stdout);
    return WEIR_EXIT_OK;
  }
  if (!count)
    return weir_cli_usage("FILE is missing");
  if (!weir_cli_salt_make(options.salt, &salt))
    return weir_cli_fail("cannot get random numbers: %s; use --salt", strerror(errno));
  if (weir__output_file_begin(&output, options.output, WEIR__OUTFILE_WRITE))
    return weir_cli_fail("%s", weir_last_error());
  int code = WEIR_EXIT_FAILED;
  if (weir__output_file_open(&output))
    weir_cli_fail("%s", weir_last_error());
  else {
    code = weir_cli_for_each(count, files, make);
    if (weir__output_file_close(&output) || weir__output_file_keep(&output))
      code = weir_cli_fail("%s", weir_last_error());
  }
  weir__output_file_end(&output);
  weir__digest_line_clear(&line);
  if (spool >= 0)
    close(spool);
  return code;
}

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.output,
     .help = "the digests; compressed if its name ends in .zst. Default: standard output"},
    {"rank", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.rank, .most = 1 << 30,
     .help = "the rank of the process in its job. Default: what the recording says, or the number behind 'rank' in "
             "the name of the file"},
    {"role", .kind = WEIR_CLI_TEXT, .value = "TEXT", .target = &options.role,
     .help = "the part of the job that the process is, such as 'pipeline stage 2'; 'weir ranks' compares ranks of one "
             "role. Default: none"},
    {"redact", .target = &options.redact, .help = "write no texts, and other hashes in their place"},
    {"salt", .kind = WEIR_CLI_TEXT, .value = "TEXT", .target = &options.salt, .needs = "redact",
     .help = "hash with this text, so that digests of several commands can be compared; keep it secret. Default: "
             "random"},
    {"schema", .target = &options.schema, .help = "print the JSON Schema of a digest, and read nothing"},
    {0}};

const weir_cli_command weir_cmd_digest = {
    .name = "digest",
    .group = "Many ranks",
    .summary = "summarize recordings in a line of JSON each, for 'weir ranks'",
    .description =
        "Summarize each recording in one line of JSON, of at most 100 KB, however long the recording is: peaks by "
        "step, "
        "phase, pool, stream and stack; sizes; free memory and its largest piece over time; failures; settings; and "
        "hashes of all requests at the ends of steps. 'weir merge' unites digests, and 'weir ranks' compares them. A "
        "recording of several devices has a line for each.\n"
        "A recording of WEIR_RECORD is read as a stream, also from standard input (-). A pickle is read as a whole.",
    .argument = "[FILE...]",
    .options = option_table,
    .examples = "weir digest -o rank7.json job.7.ring\n"
                "zstdcat job.ring.zst | weir digest --rank 7 - >rank7.json\n",
    .exit = {"done", "a file cannot be read or written; the digests of the others are written"},
    .run = run,
    .prepare = prepare};
