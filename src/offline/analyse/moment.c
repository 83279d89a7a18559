#include "offline/analyse/moment.h"

#include <stdio.h>

#include "base/base.h"

static bool has_failed(const weir__summary *summary) { return summary->actions[WEIR_TRACE_OOM] > 0; }

weir_status weir__moment_find(const weir__recording *recording, int device, const weir__summary *summary,
                              weir_offline_moment moment, size_t event, size_t *entry) {
  size_t count = recording->devices[device].event_count;
  if (moment == WEIR_OFFLINE_AT_AUTO)
    moment = has_failed(summary) ? WEIR_OFFLINE_AT_OOM : WEIR_OFFLINE_AT_PEAK;
  if (!count && moment != WEIR_OFFLINE_AT_END && moment != WEIR_OFFLINE_AT_PEAK)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "device %d has no history: only its end is known", device);
  switch (moment) {
  case WEIR_OFFLINE_AT_OOM:
    if (!has_failed(summary))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "no request of device %d ran out of memory", device);
    *entry = summary->first_oom;
    break;
  case WEIR_OFFLINE_AT_PEAK:
    *entry = summary->live.event;
    break;
  case WEIR_OFFLINE_AT_EVENT:
    if (event >= count)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "there is no entry %zu: device %d has %zu, counted from 0", event,
                        device, count);
    *entry = event;
    break;
  default:
    *entry = count ? count - 1 : 0;
    break;
  }
  return WEIR_OK;
}

const char *weir__moment_name(weir_offline_moment moment) {
  static const char *const names[] = {
#define X(name, text) text,
      WEIR_OFFLINE_MOMENT_MAP(X)
#undef X
  };
  return names[moment];
}

const char *weir__moment_describe(const weir__summary *summary, weir_offline_moment moment, size_t entry,
                                  char text[64]) {
  if (moment == WEIR_OFFLINE_AT_AUTO)
    moment = has_failed(summary) ? WEIR_OFFLINE_AT_OOM : WEIR_OFFLINE_AT_PEAK;
  if (moment == WEIR_OFFLINE_AT_EVENT)
    snprintf(text, 64, "entry %zu", entry);
  else
    snprintf(text, 64, "%s",
             moment == WEIR_OFFLINE_AT_OOM    ? "the first request that failed"
             : moment == WEIR_OFFLINE_AT_PEAK ? "the peak"
                                              : "the end");
  return text;
}
