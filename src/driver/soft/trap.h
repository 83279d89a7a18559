/*
 * Runs work whose accesses may fault (driver/access.h).
 */
#pragma once

#include "driver/access.h"

/* Makes faults of all threads reported from now on, unless the program installs another handler. */
void weir__trap_install(void);

/* Runs a function; false if it made an access that faulted, which is written to *access. Only the thread's innermost
 * call is returned to, and nothing that the function began is undone. Faults of threads outside of such a call are
 * reported as the host's, and then end the process as before. */
bool weir__trap_run(void (*run)(void *context), void *context, weir__access *access);
