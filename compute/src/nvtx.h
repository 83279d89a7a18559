/*
 * The binary interface between a program and an NVTX tool.
 *
 * NVTX has no library of its own. A tool sets NVTX_INJECTION64_PATH to a shared object. Its function
 * InitializeInjectionNvtx2 gets a function that returns tables of the program, and stores the tool's functions in the
 * slots that those tables point to. Extensions work alike: InitializeInjectionNvtxExtension gets the slots directly.
 * Names, numbers and layouts are those of the headers nvtx3/nvToolsExt.h and nvtx3/nvToolsExtMem.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEIR__NVTX_VERSION = 3 };

/* Modules of functions, and the number of slots of each, the unused slot 0 included. */
enum {
  WEIR__NVTX_CORE = 1,
  WEIR__NVTX_CUDA = 2,
  WEIR__NVTX_OPENCL = 3,
  WEIR__NVTX_CUDART = 4,
  WEIR__NVTX_CORE2 = 5,
  WEIR__NVTX_SYNC = 6,
  WEIR__NVTX_MODULES
};

/* Slots of CORE and CORE2 that Weir calls. */
enum {
  WEIR__NVTX_MARK = 2,           /* void (const char *) */
  WEIR__NVTX_RANGE_START = 5,    /* uint64_t (const char *) */
  WEIR__NVTX_RANGE_END = 7,      /* void (uint64_t) */
  WEIR__NVTX_RANGE_PUSH = 9,     /* int (const char *) */
  WEIR__NVTX_RANGE_POP = 11,     /* int (void) */
  WEIR__NVTX_DOMAIN_CREATE = 12, /* CORE2: void *(const char *) */
  WEIR__NVTX_INITIALIZE = 15     /* CORE2: void (const void *) */
};

typedef void (*weir__nvtx_function)(void);

/* Numbers of export tables. */
enum { WEIR__NVTX_TABLE_CALLBACKS = 1, WEIR__NVTX_TABLE_VERSION = 3 };

typedef struct weir__nvtx_callbacks {
  size_t size;
  int (*get_module)(int module, weir__nvtx_function ***slots, unsigned *count);
} weir__nvtx_callbacks;

typedef struct weir__nvtx_version {
  size_t size;
  uint32_t version, reserved;
  void (*set_tool_version)(uint32_t version);
} weir__nvtx_version;

typedef const void *(*weir__nvtx_get_table)(uint32_t table);
typedef int (*weir__nvtx_initialize)(weir__nvtx_get_table get_table);

/* ---- Extensions ---- */

typedef struct weir__nvtx_segment {
  size_t id, count;
  intptr_t *slots; /* 0 or 1 if the tool has no such function */
} weir__nvtx_segment;

typedef struct weir__nvtx_extension {
  uint16_t version, size, module, compatibility;
  size_t segment_count;
  weir__nvtx_segment *segments;
  intptr_t (*get_export)(uint32_t id);
  const void *info;
} weir__nvtx_extension;

typedef int (*weir__nvtx_initialize_extension)(weir__nvtx_extension *extension);

/* ---- The memory extension ---- */

enum { WEIR__NVTX_MEMORY = 1, WEIR__NVTX_MEMORY_COMPATIBILITY = 0x0102, WEIR__NVTX_MEMORY_SLOTS = 63 };

enum {
  WEIR__NVTX_HEAP_REGISTER = 0,     /* void *(void *domain, const weir__nvtx_heap *) */
  WEIR__NVTX_HEAP_UNREGISTER = 1,   /* void (void *domain, void *heap), with its regions */
  WEIR__NVTX_REGIONS_REGISTER = 3,  /* void (void *domain, const weir__nvtx_regions *) */
  WEIR__NVTX_REGIONS_UNREGISTER = 5 /* void (void *domain, const weir__nvtx_region_refs *) */
};

enum { WEIR__NVTX_SUB_ALLOCATOR = 1, WEIR__NVTX_VIRTUAL_ADDRESS = 1, WEIR__NVTX_BY_POINTER = 1 };

typedef struct weir__nvtx_range {
  size_t bytes;
  const void *pointer;
} weir__nvtx_range;

typedef struct weir__nvtx_heap {
  uint16_t compatibility, size;
  uint32_t reserved;
  uint32_t usage, type;
  size_t range_size;
  const weir__nvtx_range *range;
  uint32_t category, message_type;
  const void *message;
} weir__nvtx_heap;

typedef struct weir__nvtx_regions {
  uint16_t compatibility, size;
  uint32_t type;
  void *heap;
  size_t count, range_size;
  const weir__nvtx_range *ranges;
  void **handles;
} weir__nvtx_regions;

typedef struct weir__nvtx_region_refs {
  uint16_t compatibility, size;
  uint32_t ref_type;
  size_t count, ref_size;
  const void *const *refs;
} weir__nvtx_region_refs;

/* ---- The tool ---- */

/* Looks for a tool, once. Its function for a slot of a module, NULL if it has none or there is no tool. */
weir__nvtx_function weir__nvtx_find(int module, unsigned slot);

/* Lets the tool fill the slots of an extension. false if it does not know it. */
bool weir__nvtx_extend(weir__nvtx_extension *extension);
