/*
 * Work that can wait, of all objects of the process: pinned memory becomes free that streams have finished with (the
 * setting pinned_use_background_threads), and the process says once a second what memory it holds (WEIR_STATS_PAGE).
 * One thread of the library does it, or the program itself.
 */
#ifndef WEIR_MAINTAIN_H
#define WEIR_MAINTAIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 1, the default: the first work, which is that of the first allocator, starts a thread, which ends with the last
 * object that has some. 0: a program calls weir_maintain, say once in each step; a thread that has been started
 * stays. */
void weir_maintain_set_worker(int on);

/* Does what is due. Returns after how many nanoseconds there will be more; UINT64_MAX if nothing is waited for. A
 * program that has other work calls it whenever it likes. */
uint64_t weir_maintain(void);

#ifdef __cplusplus
}
#endif
#endif
