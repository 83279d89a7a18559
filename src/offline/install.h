/*
 * Puts a state into an allocator: the same segments with the same blocks, whatever the settings would have made of them.
 */
#ifndef WEIR_OFFLINE_INSTALL_H
#define WEIR_OFFLINE_INSTALL_H

#include "offline/state.h"

/* What the ledger needs beside the state itself while it is put in: holes of an expandable segment are mapped first. */
uint64_t weir__install_spare(const weir__state *state);

/* The heap has nothing yet, and no limit. `settings` are those under which the state came about. `place` is set to the address
 * that each segment has in the state while it is made, and to 0 afterwards: a ledger may follow it or not. `blocks` gets where
 * each block in use lies, in the state's order; those that wait for another stream are allocated too, and are the caller's to
 * free. */
weir_status weir__install(weir__heap *heap, const weir__settings *settings, const weir__state *state, uint64_t *place,
                          void **blocks);

#endif
