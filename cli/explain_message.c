/*
 * weir explain --message: why memory ran out, as far as the text of the error shows it.
 */
#include "explain_message.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "offline/analyse/message.h"
#include "offline/read/recording.h"
#include "offline/render/message_report.h"
#include "report.h"

static weir_status load(const char *name, weir__messages *messages) {
  weir__input *input;
  if (strcmp(name, "-") == 0 && isatty(STDIN_FILENO))
    fputs("weir explain: paste the text of the error, then press Ctrl-D\n", stderr);
  weir_status status = weir__input_open(name, &input);
  if (status)
    return status;
  status = weir__messages_read(input, messages);
  weir__input_close(input);
  if (!status)
    weir__messages_derive(messages);
  return status;
}

static void keep_device(weir__messages *messages, int device) {
  size_t kept = 0;
  for (size_t i = 0; i < messages->count; i++)
    if (messages->items[i].device == device)
      messages->items[kept++] = messages->items[i];
  messages->count = kept;
}

/* Whether it can be read a second time: a pipe cannot, and opening one would wait for a writer. */
static bool is_file(const char *name) {
  struct stat about;
  return stat(name, &about) == 0 && S_ISREG(about.st_mode);
}

static bool is_recording(const char *name) {
  weir__recording *recording;
  if (!is_file(name) || weir__recording_load(name, NULL, &recording))
    return false;
  weir__recording_free(recording);
  return true;
}

int weir_cli_explain_message(const char *name, int device, bool json) {
  weir__messages messages;
  if (load(name, &messages))
    return weir_cli_fail("%s", weir_last_error());
  if (device >= 0)
    keep_device(&messages, device);
  int code = WEIR_EXIT_OK;
  if (!messages.count && device >= 0)
    code = weir_cli_fail("%s: no message says that GPU %d ran out of memory", weir_cli_input_name(name), device);
  else if (!messages.count)
    code =
        is_recording(name)
            ? weir_cli_fail("%s: this is a recording: leave out --message", weir_cli_input_name(name))
            : weir_cli_fail("%s: found no out-of-memory error; expected a text such as 'CUDA out of memory. Tried to "
                            "allocate 20.00 MiB. GPU 0 has ...'",
                            weir_cli_input_name(name));
  else {
    weir__report report;
    weir__messages_report(&report, name, &messages);
    code = weir_cli_print_report(&report, name, json);
  }
  weir__messages_free(&messages);
  return code;
}

bool weir_cli_has_message(const char *name) {
  weir__messages messages;
  if (!is_file(name) || load(name, &messages))
    return false;
  bool found = messages.count > 0;
  weir__messages_free(&messages);
  return found;
}
