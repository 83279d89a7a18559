/*
 * The steps of a recorded job: what the recording marks, for the finder of pattern/steps.h.
 */
#pragma once

#include "offline/analyse/lives.h"
#include "offline/read/recording.h"
#include "pattern/steps.h"

/* `lives` are those of the device. */
weir_status weir__job_steps_find(const weir__recording *recording, int device, const weir__lives *lives,
                                 weir__steps *steps);

/* Divides the history into `count` windows instead. */
weir_status weir__job_steps_windows(const weir__lives *lives, size_t count, weir__steps *steps);
