/*
 * The history that a recorded job would have had under other settings, as a recording: whatever reads recordings can
 * show it, compare it or write it to a file.
 *
 * Its entries are those that the allocator makes in the replay, in order, with the addresses of the replay. Stacks,
 * times, phases and threads are those of the recorded entry that was under way. Entries that do not concern the
 * allocator are taken over. What was there before the recording is its start, and what is there at the end is its list
 * of segments.
 *
 * Under the recorded settings, a recording that is reproduced exactly has the history that was recorded.
 */
#pragma once

#include "offline/read/recording.h"
#include "offline/replay/replay.h"

typedef struct weir__whatif_history weir__whatif_history;

/* Runs the history once. `settings` NULL stands for the recorded ones: if they reproduce the recording, this is the
 * checked replay, with the recorded addresses, and `capacity` is not used. Otherwise settings and capacity are as in
 * weir__replayer_run. The replayer and its recording must outlive the history. */
weir_status weir__whatif_history_make(const weir__replayer *replayer, const weir__settings *settings,
                                      const weir__capacity *capacity, weir__replay_report *report,
                                      weir__whatif_history **history);
void weir__whatif_history_free(weir__whatif_history *history); /* NULL is allowed */

/* The recording. It shares texts, stacks, streams and pools with the one that was replayed, and has the history of the
 * replayed device only. */
const weir__recording *weir__whatif_history_recording(const weir__whatif_history *history);

/* For each entry, the event of the recording that was under way. */
const uint32_t *weir__whatif_history_origins(const weir__whatif_history *history);
