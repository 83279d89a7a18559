#include "offline/render/redact_file.h"

#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "offline/analyse/behaviour.h"
#include "offline/render/output_file.h"
#include "offline/render/rewrite.h"

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

static weir_status check_names(const char *from, const char *to) {
  struct stat one, other;
  if (strcmp(from, "-") == 0 || strcmp(to, "-") == 0)
    return WEIR_OK;
  if (stat(from, &one) == 0 && stat(to, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the copy would overwrite the original", to);
  return WEIR_OK;
}

static weir_status write_copy(const char *from, const weir__redact_options *options, weir__output_file *target,
                              weir__behaviour *before, weir__redact_report *report) {
  weir__recording *recording;
  TRY(weir__recording_load(from, NULL, &recording));
  report->left_out = recording->ignored_count;
  weir_status status = weir__behaviour_of(recording, before);
  if (!status)
    status = weir__redact(recording, options, &report->hidden);
  if (!status)
    status = weir__output_file_open(target);
  if (!status)
    status = weir__rewrite(recording, -1, &weir__pickle_format, NULL, NULL, target->file);
  if (!status)
    status = weir__output_file_close(target);
  weir__recording_free(recording);
  return status;
}

static weir_status check_copy(const weir__output_file *target, const weir__behaviour *before) {
  weir__recording *copy;
  weir__behaviour after;
  TRY(weir__recording_load(weir__outfile_contents(&target->out), NULL, &copy));
  weir_status status = weir__behaviour_of(copy, &after);
  weir__recording_free(copy);
  if (status)
    return status;
  status = weir__behaviour_compare(before, &after);
  weir__behaviour_free(&after);
  return status;
}

weir_status weir__redact_file(const char *from, const char *to, const weir__redact_options *options,
                              weir__redact_report *report) {
  weir__output_file target;
  weir__behaviour before = {0};
  weir__redact_report r = {0};
  TRY(check_names(from, to));
  TRY(weir__output_file_begin(&target, to, WEIR__OUTFILE_REREAD));
  weir_status status = write_copy(from, options, &target, &before, &r);
  if (!status)
    status = check_copy(&target, &before);
  if (!status)
    status = weir__output_file_keep(&target);
  for (size_t i = 0; i < before.device_count; i++) {
    r.devices++;
    r.unchecked += before.devices[i].status != WEIR_OK;
    r.events += before.devices[i].report.events;
    r.allocations += before.devices[i].report.allocations;
    r.differences += before.devices[i].report.differences;
  }
  weir__behaviour_free(&before);
  weir__output_file_end(&target);
  if (!status)
    *report = r;
  return status;
}
