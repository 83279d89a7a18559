#include "digests.h"

#include "base/base.h"
#include "cli.h"
#include "offline/read/digest_files.h"

/* Reads one file. *has_stopped if `use` failed. */
static int read_file(const char *path, int (*use)(void *context, weir__digest *digest), void *context,
                     bool *has_stopped) {
  weir__digest_reader reader;
  if (weir__digest_reader_open(&reader, path))
    return weir_cli_fail("%s", weir_last_error());
  int code = WEIR_EXIT_OK;
  for (bool is_end = false; !code;) {
    weir__digest digest;
    if (weir__digest_reader_next(&reader, &digest, &is_end)) {
      code = weir_cli_fail("%s%s", weir_last_error(), reader.line > 1 ? "; the lines before it are used" : "");
      break;
    }
    if (is_end)
      break;
    code = use(context, &digest);
    *has_stopped = code != WEIR_EXIT_OK;
  }
  weir__digest_reader_close(&reader);
  return code;
}

int weir_cli_digests_read(int count, char **arguments, int (*use)(void *context, weir__digest *digest), void *context) {
  weir__digest_paths paths = {0};
  int code = WEIR_EXIT_OK;
  bool has_stopped = false;
  for (int i = 0; i < count; i++)
    if (weir__digest_paths_add(&paths, arguments[i]))
      code = weir_cli_fail("%s", weir_last_error());
  for (size_t i = 0; i < paths.count && !has_stopped; i++)
    if (read_file(paths.items[i], use, context, &has_stopped))
      code = WEIR_EXIT_FAILED;
  weir__digest_paths_clear(&paths);
  return code;
}
