/*
 * With collection by age it matters for how long a segment was free. Of segments that were free before a recording began nobody
 * knows; but those that go in it before anything is allocated from them were older than those that do not. How much older is
 * guessed, and a checked replay tells whether a guess will do.
 */
#ifndef WEIR_OFFLINE_AGES_H
#define WEIR_OFFLINE_AGES_H

#include "offline/state.h"

enum { WEIR__AGE_GUESSES = 7 }; /* with the first, all are as old as the recording */

/* Sets the ages of free blocks of the state at the beginning of a history. false: no host memory, or there is nothing to guess. */
bool weir__guess_ages(const weir__recording_entry *events, int guess, weir__state *start);

#endif
