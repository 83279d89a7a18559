/*
 * Mapped memory: address space that gets memory later, large arrays, and files. No other folder includes sys/mman.h.
 * Calls that return an address return NULL on failure, with the reason in errno.
 *
 * A system without mmap (WASI) takes the memory from malloc: reserved space costs memory at once, and a file can be
 * read but not shared.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reserves `bytes` of address space at a multiple of `alignment`, a power of two, and no memory. */
void *weir__map_reserve(size_t bytes, size_t alignment);

/* Reserves `bytes` at this address, a multiple of the page size; false if anything is mapped there. Not on WASI. */
bool weir__map_reserve_at(void *at, size_t bytes);

/* Gives reserved pages memory, all zero. */
bool weir__map_commit(void *at, size_t bytes);

/* Takes the memory of whole pages away; they read as zero afterwards. false if the memory stays as it is. */
bool weir__map_discard(void *at, size_t bytes);

/* The system's unit of mapping. */
size_t weir__map_page_size(void);

/* Memory for a large array, on large pages where the system has them. Growing may move it and keeps the contents; on
 * failure the old memory stays. */
void *weir__map_memory(size_t bytes);
void *weir__map_grow(void *memory, size_t old_bytes, size_t bytes);

/* Memory at a multiple of `alignment`, a power of two, on large pages where the system has them. */
void *weir__map_aligned_memory(size_t bytes, size_t alignment);

/* Backs whole pages with memory now and keeps their contents; false if the system cannot, or is out of memory. */
bool weir__map_populate(void *at, size_t bytes);

/* A file's first bytes, to be read. */
const void *weir__map_file(int descriptor, size_t bytes);

/* Gives a part of a file disk space, and the file at least this size, so that no later write to its mapping can fail.
 * Returns 0 or an errno value. */
int weir__map_allocate_file(int descriptor, uint64_t from, uint64_t bytes);

/* A file's first bytes, to be read and written; other processes see the changes. What lies beyond the file's end can be
 * used once the file has it. */
void *weir__map_shared_file(int descriptor, size_t bytes);

/* Maps a part of a file over reserved pages, without access; sets the access of pages; and makes them reserved again.
 * Not on WASI. */
bool weir__map_shared_file_at(void *at, size_t bytes, int descriptor, uint64_t offset);
bool weir__map_protect(void *at, size_t bytes, bool reads, bool writes);
bool weir__map_release(void *at, size_t bytes);

/* Opens a new file of this size that lives in memory, and as long as it is open or mapped. Returns its descriptor, or
 * -1. Not on WASI. */
int weir__map_memory_file(const char *name, uint64_t bytes);

/* Puts private memory, all zero, in the place of a mapping. */
bool weir__map_replace(void *at, size_t bytes);

void weir__unmap(const void *at, size_t bytes);
