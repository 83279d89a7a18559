/*
 * Publishing what the allocators of this process hold, in its live page (record/live_page.h).
 *
 * One task of the worker (base/maintain.h) writes the page once a second. It takes no arena's lock, and calls the
 * driver for stream-ordered memory alone, so a job in its steady state, which never misses, is seen as it is and pays
 * nothing. What a heap's lock guards is read if the lock is free, and is older otherwise; the page says how old.
 */
#pragma once

#include "alloc/allocator.h"

/* Adds a new allocator to the page, which begins with the first one. A page that cannot be made is logged once, and the
 * program runs on without it. */
void weir__publish_begin(weir_allocator *allocator);

/* Writes the page now. For tests, and for a program that is about to say something. */
void weir__publish_now(void);

/* Where the page of this process is; NULL if there is none. Valid until the last allocator is destroyed. */
const char *weir__publish_path(void);
