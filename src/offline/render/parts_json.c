#include "offline/render/parts_json.h"

void weir__steps_json(weir__sink *sink, const char *key, const weir__steps *steps) {
  WEIR__JSON(sink, JSON_OBJECT(key), JSON_TEXT("source", weir__steps_source_name(steps->source)),
             JSON_TEXT("name", *steps->name ? steps->name : NULL), JSON_REAL("confidence", steps->confidence, 3),
             JSON_NATURAL("count", steps->count), JSON_NATURAL("warm_up", steps->warm_up), JSON_LIST("boundaries"));
  for (size_t i = 0; steps->count && i <= steps->count && steps->count <= WEIR__STEPS_LISTED; i++)
    WEIR__JSON(sink, JSON_NATURAL(NULL, steps->begin[i]));
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

void weir__outside_json(weir__sink *sink, const char *key, const weir__recording_device *device) {
  if (device->peak_outside)
    WEIR__JSON(sink, JSON_OBJECT(key), JSON_NATURAL("end", device->outside), JSON_NATURAL("peak", device->peak_outside),
               JSON_CLOSE);
}
