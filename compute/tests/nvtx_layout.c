/*
 * Compiled if NVTX's headers are found: compute/nvtx.h has their numbers and layouts.
 */
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include "src/nvtx.h"

#define SAME_SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #theirs)
#define SAME_PLACE(theirs, member, ours, own)                                                                          \
  _Static_assert(offsetof(theirs, member) == offsetof(ours, own), #theirs "." #member)
#define SAME(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #theirs)

SAME(NVTX_VERSION, WEIR__NVTX_VERSION);
SAME(NVTX_ETID_CALLBACKS, WEIR__NVTX_TABLE_CALLBACKS);
SAME(NVTX_ETID_VERSIONINFO, WEIR__NVTX_TABLE_VERSION);
SAME(NVTX_CB_MODULE_CORE, WEIR__NVTX_CORE);
SAME(NVTX_CB_MODULE_CORE2, WEIR__NVTX_CORE2);
SAME(NVTX_CB_MODULE_SIZE, WEIR__NVTX_MODULES);
SAME(NVTX_CBID_CORE_MarkA, WEIR__NVTX_MARK);
SAME(NVTX_CBID_CORE_RangeStartA, WEIR__NVTX_RANGE_START);
SAME(NVTX_CBID_CORE_RangeEnd, WEIR__NVTX_RANGE_END);
SAME(NVTX_CBID_CORE_RangePushA, WEIR__NVTX_RANGE_PUSH);
SAME(NVTX_CBID_CORE_RangePop, WEIR__NVTX_RANGE_POP);
SAME(NVTX_CBID_CORE2_DomainCreateA, WEIR__NVTX_DOMAIN_CREATE);
SAME(NVTX_CBID_CORE2_Initialize, WEIR__NVTX_INITIALIZE);
SAME_SIZE(NvtxExportTableCallbacks, weir__nvtx_callbacks);
SAME_SIZE(NvtxExportTableVersionInfo, weir__nvtx_version);
SAME_PLACE(NvtxExportTableVersionInfo, SetInjectionNvtxVersion, weir__nvtx_version, set_tool_version);

SAME_SIZE(nvtxExtModuleInfo_t, weir__nvtx_extension);
SAME_PLACE(nvtxExtModuleInfo_t, compatId, weir__nvtx_extension, compatibility);
SAME_PLACE(nvtxExtModuleInfo_t, segments, weir__nvtx_extension, segments);
SAME_SIZE(nvtxExtModuleSegment_t, weir__nvtx_segment);
SAME_PLACE(nvtxExtModuleSegment_t, functionSlots, weir__nvtx_segment, slots);

SAME(NVTX_EXT_MODULEID_MEM, WEIR__NVTX_MEMORY);
SAME(NVTX_EXT_COMPATID_MEM, WEIR__NVTX_MEMORY_COMPATIBILITY);
SAME(NVTX3EXT_CBID_nvtxMemHeapRegister, WEIR__NVTX_HEAP_REGISTER);
SAME(NVTX3EXT_CBID_nvtxMemHeapUnregister, WEIR__NVTX_HEAP_UNREGISTER);
SAME(NVTX3EXT_CBID_nvtxMemRegionsRegister, WEIR__NVTX_REGIONS_REGISTER);
SAME(NVTX3EXT_CBID_nvtxMemRegionsUnregister, WEIR__NVTX_REGIONS_UNREGISTER);
SAME(NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR, WEIR__NVTX_SUB_ALLOCATOR);
SAME(NVTX_MEM_TYPE_VIRTUAL_ADDRESS, WEIR__NVTX_VIRTUAL_ADDRESS);
SAME(NVTX_MEM_REGION_REF_TYPE_POINTER, WEIR__NVTX_BY_POINTER);
SAME_SIZE(nvtxMemVirtualRangeDesc_t, weir__nvtx_range);
SAME_PLACE(nvtxMemVirtualRangeDesc_t, ptr, weir__nvtx_range, pointer);
SAME_SIZE(nvtxMemHeapDesc_t, weir__nvtx_heap);
SAME_PLACE(nvtxMemHeapDesc_t, usage, weir__nvtx_heap, usage);
SAME_PLACE(nvtxMemHeapDesc_t, typeSpecificDesc, weir__nvtx_heap, range);
SAME_PLACE(nvtxMemHeapDesc_t, messageType, weir__nvtx_heap, message_type);
SAME_SIZE(nvtxMemRegionsRegisterBatch_t, weir__nvtx_regions);
SAME_PLACE(nvtxMemRegionsRegisterBatch_t, heap, weir__nvtx_regions, heap);
SAME_PLACE(nvtxMemRegionsRegisterBatch_t, regionDescElements, weir__nvtx_regions, ranges);
SAME_SIZE(nvtxMemRegionsUnregisterBatch_t, weir__nvtx_region_refs);
SAME_PLACE(nvtxMemRegionsUnregisterBatch_t, refElements, weir__nvtx_region_refs, refs);
