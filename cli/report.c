#include "report.h"

#include <stdio.h>

#include "format.h"
#include "offline/analyse/describe.h"
#include "progress.h"

weir_status weir_cli_load(const char *file, weir__recording **recording) {
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, recording);
  weir_cli_progress_end(progress);
  return status;
}

const char weir_cli_no_history[] = "none: whether memory ran out, and its peak, are not known";

const char weir_cli_record_advice[] =
    "record a history: call torch.cuda.memory._record_memory_history(stacks=\"python\") before the work and "
    "_dump_snapshot(\"job.pickle\") after it; for a program on Weir, set WEIR_RECORD=FOLDER";

const char *weir_cli_stacks_option(const weir__recording *recording) {
  return recording->is_events_only ? "WEIR_RECORD_STACKS=alloc" : "_record_memory_history(stacks=\"python\")";
}

void weir_cli_print_holders(const char *indent, const weir__recording *recording, const weir__holder *holders,
                            size_t count) {
  char stack[WEIR__DESCRIBE_TEXT];
  for (size_t i = 0; i < count; i++) {
    const weir__holder *h = &holders[i];
    printf("%s%11s  %s ", indent, weir_cli_bytes(h->bytes), weir_cli_count(h->count, "block"));
    if (h->size)
      printf("of %s\n", weir_cli_bytes(h->size));
    else
      printf("%s\n", h->stack ? weir__describe_stack(recording, h->stack, stack) : "without a stack");
  }
}

void weir_cli_print_outside(const char *label, const weir__recording_device *device) {
  if (device->peak_outside)
    printf("%s%s at the end of the recording and %s at most are in no figure here: the program created them "
           "itself (cuMemCreate)\n",
           label, weir_cli_bytes(device->outside), weir_cli_bytes(device->peak_outside));
}
