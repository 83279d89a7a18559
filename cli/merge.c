/*
 * weir merge: the union of digests.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "digests.h"
#include "offline/render/digest_merge.h"
#include "offline/render/output_file.h"
#include "redaction.h"

static struct {
  const char *output;
  bool redact;
  const char *salt;
} options;

static weir_cli_salt salt;

static int add(void *context, weir__digest *digest) {
  if (options.redact)
    weir__digest_redact(digest, salt.bytes, salt.size);
  weir_status status = weir__digest_union_add(context, digest);
  weir__digest_clear(digest);
  return status ? weir_cli_fail("%s", weir_last_error()) : WEIR_EXIT_OK;
}

static weir_status write_all(void *context, FILE *file) {
  const weir__digest_union *all = context;
  for (size_t i = 0; i < all->count; i++)
    if (fwrite(all->items[i].text, 1, all->items[i].size, file) != all->items[i].size || putc('\n', file) == EOF)
      return weir__fail(WEIR_ERROR_SYSTEM, "cannot write the output: %s", strerror(errno));
  return WEIR_OK;
}

static int run(int count, char **arguments) {
  weir__digest_union all = {0};
  if (!weir_cli_salt_make(options.salt, &salt))
    return weir_cli_fail("cannot get random numbers: %s; use --salt", strerror(errno));
  int code = weir_cli_digests_read(count, arguments, add, &all);
  weir__digest_union_finish(&all);
  if (weir__output_file_write(options.output, write_all, &all))
    code = weir_cli_fail("%s", weir_last_error());
  weir__digest_union_clear(&all);
  return code;
}

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.output,
     .help = "the union; compressed if its name ends in .zst. Default: standard output"},
    {"redact", .target = &options.redact, .help = "write no texts, and other hashes in their place"},
    {"salt", .kind = WEIR_CLI_TEXT, .value = "TEXT", .target = &options.salt, .needs = "redact",
     .help = "hash with this text, so that digests of several commands can be compared; keep it secret. Default: "
             "random"},
    {0}};

const weir_cli_command weir_cmd_merge = {
    .name = "merge",
    .summary = "unite digests of many ranks",
    .description = "Write all digests of the given files once, by rank. DIGEST is a file of 'weir digest' or 'weir "
                   "merge', plain or "
                   "compressed; a folder stands for its files that end in .json or .json.zst; - is the standard input. "
                   "The union is "
                   "the same to the byte in whatever order digests are united, so any tree of merges will do.\n"
                   "A file that is damaged, or of another version of the format, is reported; what comes before the "
                   "damage, and all "
                   "other files, are united.",
    .argument = "DIGEST...",
    .options = option_table,
    .examples = "weir merge -o job.json.zst ranks/\n",
    .exit = {"done", "a file cannot be read to its end, or the output cannot be written; the rest is united"},
    .run = run,
    .reads_arguments = true};
