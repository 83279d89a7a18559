/*
 * NVIDIA's libraries that are loaded at run time: where they are looked for, and which were found.
 */
#pragma once

#include <stddef.h>

/* The library of a name ("nvrtc", "cublas", "nccl"), loaded the first time. NULL if it was not found, and `reason` says
 * where it was looked for. It stays loaded. */
void *weir__library_load(const char *name, char *reason, size_t size);

/* Forgets what was found, so that tests can look again. */
void weir__libraries_forget(void);
