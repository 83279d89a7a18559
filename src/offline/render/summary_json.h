/*
 * Summaries as JSON: the object of `weir summary --json`.
 */
#ifndef WEIR_OFFLINE_RENDER_SUMMARY_JSON_H
#define WEIR_OFFLINE_RENDER_SUMMARY_JSON_H

#include "inspect/json.h"
#include "offline/analyse/classes.h"
#include "offline/analyse/summary.h"

/* What blocks were for at the peak of live memory. */
typedef struct weir__summary_classes {
  bool has_classes;                /* classes could be told apart */
  uint64_t classes[WEIR__CLASSES]; /* bytes at the peak of live memory */
  size_t steps;
} weir__summary_classes;

weir_status weir__summarize_classes(const weir__recording *recording, int device, const weir__summary *summary,
                                    weir__summary_classes *classes);

/* The same, from the lives and classes of the device. */
void weir__summary_classes_of(const weir__summary *summary, const weir__lives *lives, const weir__classes *classes,
                              weir__summary_classes *result);

/* Pinned host memory at the end. */
typedef struct weir__summary_host {
  uint64_t reserved, active; /* bytes */
} weir__summary_host;

weir__summary_host weir__summarize_host(const weir__recording_device *host);

/* Writes the members of an object that is open. `name` is that of the file; there is a summary of each device. */
void weir__summary_json(weir__sink *sink, const char *name, const weir__recording *recording,
                        const weir__summary *devices, const weir__summary_classes *classes);

#endif
