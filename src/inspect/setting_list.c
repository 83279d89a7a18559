#include "inspect/setting_list.h"

#include <string.h>

#include "alloc/config/settings.h"

enum { PLAIN_SETTINGS = WEIR__SETTING_LIST - WEIR__ROUNDUP_INTERVALS };

static int64_t or_unlimited(uint64_t bytes) { return bytes == UINT64_MAX ? -1 : (int64_t)bytes; }

void weir__setting_list_make(const weir__settings *s, const char *conf, weir__snapshot_setting to[WEIR__SETTING_LIST]) {
  static const char *const mib[WEIR__ROUNDUP_INTERVALS] = {
      "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"};
  const weir__snapshot_setting plain[PLAIN_SETTINGS] = {
      {.key = "PYTORCH_CUDA_ALLOC_CONF", .kind = WEIR__SETTING_TEXT, .text = conf},
      {.key = "max_split_size", .kind = WEIR__SETTING_INT, .integer = or_unlimited(s->max_split_size)},
      {.key = "garbage_collection_threshold", .kind = WEIR__SETTING_FLOAT, .real = s->garbage_collection_threshold},
      {.key = "expandable_segments", .integer = s->expandable_segments},
      {.key = "pinned_num_register_threads",
       .kind = WEIR__SETTING_INT,
       .integer = (int64_t)s->pinned_num_register_threads},
      {.key = "release_lock_on_cudamalloc", .integer = s->release_lock_on_malloc},
      {.key = "pinned_use_cuda_host_register", .integer = s->pinned_use_host_register},
      {.key = "graph_capture_record_stream_reuse", .integer = s->graph_capture_record_stream_reuse},
      {.key = "max_round_threshold", .kind = WEIR__SETTING_INT, .integer = or_unlimited(s->pinned_max_round_threshold)},
      {.key = "max_cached_size", .kind = WEIR__SETTING_INT, .integer = or_unlimited(s->pinned_max_cached_size)}};
  memcpy(to, plain, sizeof plain);
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++)
    to[PLAIN_SETTINGS + i] =
        (weir__snapshot_setting){.key = "roundup_power2_divisions",
                                 .sub = mib[i],
                                 .kind = WEIR__SETTING_INT,
                                 .integer = s->roundup_divisions[i] ? 1 << (s->roundup_divisions[i] - 1) : 0};
}

weir_status weir__setting_list_parse(const char *conf, weir__snapshot_setting list[WEIR__SETTING_LIST]) {
  weir__settings settings;
  weir_status status = weir__settings_parse(NULL, conf, &settings);
  if (!status)
    weir__setting_list_make(&settings, conf, list);
  return status;
}
