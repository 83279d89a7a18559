/*
 * An NVTX tool that writes each call into the file WEIR_FAKE_NVTX_LOG. WEIR_FAKE_NVTX selects what it does: "refuse"
 * fails to start, and "core" does not know the memory extension.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/nvtx.h"

int InitializeInjectionNvtx2(weir__nvtx_get_table get_table);
int InitializeInjectionNvtxExtension(weir__nvtx_extension *extension);

static FILE *out;
static int depth;
static uint64_t ranges = 100;

static int is_mode(const char *mode) {
  const char *text = getenv("WEIR_FAKE_NVTX");
  return text && strcmp(text, mode) == 0;
}

static void mark(const char *message) { fprintf(out, "mark %s\n", message); }

static uint64_t start(const char *message) {
  fprintf(out, "start %s %llu\n", message, (unsigned long long)ranges + 1);
  return ++ranges;
}

static void end(uint64_t range) { fprintf(out, "end %llu\n", (unsigned long long)range); }

static int push(const char *message) {
  fprintf(out, "push %s\n", message);
  return depth++;
}

static int pop(void) {
  fprintf(out, "pop\n");
  return --depth;
}

static void *create_domain(const char *name) {
  fprintf(out, "domain %s\n", name);
  return &ranges;
}

static void initialize(const void *reserved) { fprintf(out, "initialize %d\n", reserved == NULL); }

/* Looks a module up as a tool does, and checks its table. */
static weir__nvtx_function **module_of(const weir__nvtx_callbacks *callbacks, int module, unsigned expected) {
  weir__nvtx_function **slots;
  unsigned count;
  if (!callbacks->get_module(module, &slots, &count) || count != expected || slots[0])
    return NULL;
  for (unsigned i = 1; i < count; i++)
    if (!slots[i])
      return NULL;
  return slots[count] ? NULL : slots;
}

int InitializeInjectionNvtx2(weir__nvtx_get_table get_table) {
  const weir__nvtx_callbacks *callbacks = get_table(WEIR__NVTX_TABLE_CALLBACKS);
  const weir__nvtx_version *version = get_table(WEIR__NVTX_TABLE_VERSION);
  if (is_mode("refuse"))
    return 0;
  out = fopen(getenv("WEIR_FAKE_NVTX_LOG"), "w");
  if (!out || !callbacks || !version || get_table(0) || get_table(2) || version->version != 3)
    return 0;
  setvbuf(out, NULL, _IOLBF, 0);
  version->set_tool_version(3);
  weir__nvtx_function **core = module_of(callbacks, WEIR__NVTX_CORE, 16);
  weir__nvtx_function **core2 = module_of(callbacks, WEIR__NVTX_CORE2, 16);
  if (!core || !core2 || !module_of(callbacks, WEIR__NVTX_CUDA, 9) || !module_of(callbacks, WEIR__NVTX_OPENCL, 15) ||
      !module_of(callbacks, WEIR__NVTX_CUDART, 7) || !module_of(callbacks, WEIR__NVTX_SYNC, 7) ||
      callbacks->get_module(0, NULL, NULL) || callbacks->get_module(7, NULL, NULL))
    return 0;
  *core[WEIR__NVTX_MARK] = (weir__nvtx_function)mark;
  *core[WEIR__NVTX_RANGE_START] = (weir__nvtx_function)start;
  *core[WEIR__NVTX_RANGE_END] = (weir__nvtx_function)end;
  *core[WEIR__NVTX_RANGE_PUSH] = (weir__nvtx_function)push;
  *core[WEIR__NVTX_RANGE_POP] = (weir__nvtx_function)pop;
  *core2[WEIR__NVTX_DOMAIN_CREATE] = (weir__nvtx_function)create_domain;
  *core2[WEIR__NVTX_INITIALIZE] = (weir__nvtx_function)initialize;
  return 1;
}

/* ---- Memory: addresses are written as offsets from the last heap ---- */

static const char *base;

static int is_range(size_t size, const weir__nvtx_range *range) { return size == sizeof *range && range; }

static void *register_heap(void *domain, const weir__nvtx_heap *heap) {
  int is_good = domain == &ranges && heap->compatibility == 0x0102 && heap->size == sizeof *heap && heap->usage == 1 &&
                heap->type == 1 && is_range(heap->range_size, heap->range) && !heap->message_type && !heap->category;
  base = heap->range->pointer;
  fprintf(out, "heap %zu%s\n", heap->range->bytes, is_good ? "" : " bad");
  return (void *)heap->range->pointer;
}

static void unregister_heap(void *domain, void *heap) {
  fprintf(out, "no heap%s\n", domain == &ranges && heap == base ? "" : " bad");
}

static void register_regions(void *domain, const weir__nvtx_regions *regions) {
  int is_good = domain == &ranges && regions->compatibility == 0x0102 && regions->size == sizeof *regions &&
                regions->type == 1 && regions->heap == base && regions->count == 1 &&
                is_range(regions->range_size, regions->ranges) && !regions->handles;
  fprintf(out, "region %td %zu%s\n", (const char *)regions->ranges->pointer - base, regions->ranges->bytes,
          is_good ? "" : " bad");
}

static void unregister_regions(void *domain, const weir__nvtx_region_refs *refs) {
  int is_good = domain == &ranges && refs->compatibility == 0x0102 && refs->size == sizeof *refs &&
                refs->ref_type == 1 && refs->count == 1 && refs->ref_size == sizeof(void *);
  fprintf(out, "unregister %td%s\n", (const char *)refs->refs[0] - base, is_good ? "" : " bad");
}

int InitializeInjectionNvtxExtension(weir__nvtx_extension *extension) {
  if (is_mode("core") || extension->version != 3 || extension->size != sizeof *extension || extension->module != 1 ||
      extension->compatibility != 0x0102 || extension->segment_count != 1 || extension->segments[0].id != 1 ||
      extension->segments[0].count != WEIR__NVTX_MEMORY_SLOTS)
    return 0;
  intptr_t *slots = extension->segments[0].slots;
  slots[WEIR__NVTX_HEAP_REGISTER] = (intptr_t)register_heap;
  slots[WEIR__NVTX_HEAP_UNREGISTER] = (intptr_t)unregister_heap;
  slots[WEIR__NVTX_REGIONS_REGISTER] = (intptr_t)register_regions;
  slots[WEIR__NVTX_REGIONS_UNREGISTER] = (intptr_t)unregister_regions;
  return 1;
}
