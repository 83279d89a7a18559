/*
 * Parts that several reports have in common.
 */
#pragma once

#include "offline/analyse/summary.h"
#include "offline/render/report.h"
#include "pattern/steps.h"

/* The steps of a job: the object "steps", {"source", "name", "confidence", "count", "warm_up", "boundaries"}; and "60,
 * from phase 'forward'". */
void weir__steps_rows(weir__report *report, const weir__steps *steps);
void weir__steps_say(weir__report *report, const weir__steps *steps);

/* Memory that the program created itself, if there is any: the object "outside", {"end", "peak"}, and a line. */
void weir__outside_rows(weir__report *report, const weir__recording_device *device);
void weir__outside_say(weir__report *report, const char *label, const weir__recording_device *device);

/* How a holder of memory reads: the row that is open has "bytes", "count", "size" and, at `stack`, its description. */
void weir__holder_say(weir__report *report, const char *indent, const weir__holder *holder, const char *stack);

/* After "history": the file has none. */
#define WEIR__NO_HISTORY "none: whether memory ran out, and its peak, are not known\n"

/* Why a recording with moving_pages may not be reproduced. */
#define WEIR__MOVING_NOTE                                                                                              \
  "pages moved in this job, which depends on how far its streams were: that is not recorded, so a difference does "    \
  "not mean that the file or the replay is wrong"

/* How to record a history, with a newline. */
extern const char weir__record_advice[];

/* What records stacks as well, where the recording was made. */
const char *weir__stacks_option(const weir__recording *recording);
