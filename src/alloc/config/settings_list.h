/*
 * The settings of an allocator.
 *
 *   OPTION(id, key, kind, field, the rest of its struct weir__option)
 */
OPTION(BACKEND, "backend", CHOICE, backend, .choices = backends,
       .help = "The source of device memory: the caching allocator, or the driver's stream-ordered allocator.")
OPTION(MAX_SPLIT_SIZE, "max_split_size_mb", MIB, max_split_size, .preset.number = UNLIMITED, .most.number = MAX_MIB,
       .not_below_segment = true, .unset = "unlimited",
       .help = "Blocks of at least this size are never split, and do not serve smaller requests. On a cache miss, "
               "unused ones are released first.")
OPTION(MAX_NON_SPLIT_ROUNDING, "max_non_split_rounding_mb", MIB, max_non_split_rounding, .preset.number = 20,
       .most.number = MAX_MIB, .not_below_segment = true, .unset = "the same as large_segment_size_mb",
       .help = "A request of at least max_split_size_mb takes a cached block only if the block is larger by less "
               "than this.")
OPTION(LARGE_SEGMENT_SIZE, "large_segment_size_mb", MIB, large_segment_size, .preset.number = 20, .least.number = 11,
       .most.number = MAX_MIB,
       .help = "The size of the segments for requests between 1 and 10 MiB, and the step by which expandable "
               "segments of large blocks grow. Must be even with expandable_segments:True.")
OPTION(GARBAGE_COLLECTION_THRESHOLD, "garbage_collection_threshold", FRACTION, garbage_collection_threshold,
       .most.fraction = 1, .open = true, .unset = "off",
       .help = "Above this fraction of the allowed memory, large segments that were unused for long are released "
               "before a new one is allocated. Needs a memory fraction below 1.")
OPTION(ROUNDUP_POWER2_DIVISIONS, "roundup_power2_divisions", ROUNDUP, roundup_divisions,
       .help = "Sizes are rounded up to one of this many equal steps between a power of two and the next: with 4, "
               "1200 KiB becomes 1280 KiB. A list has a number for the sizes from each power of two, in MiB, to the "
               "next; the first holds for all smaller sizes too, that of > for all larger ones.")
OPTION(EXPANDABLE_SEGMENTS, "expandable_segments", FLAG, expandable_segments,
       .help = "Segments reserve address space and grow by mapping memory at their end, instead of having a fixed "
               "size.")
OPTION(EXPANDABLE_SEGMENTS_RESERVE, "expandable_segments_reserve", RESERVE, expandable_segments_reserve,
       .unset = "9/8 of the device's memory",
       .help = "The address space that an expandable segment reserves, at most 9/8 of the device's memory. It "
               "limits the size of an allocation.")
OPTION(EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS, "expandable_segments_reserve_by_class", CLASSES,
       expandable_segments_reserve_by_class,
       .help = "The same for the streams of a class. All other streams use "
               "expandable_segments_reserve.")
OPTION(MOVING_PAGES, "moving_pages", FLAG, moving_pages,
       .help = "Expandable segments whose free pages move: before new memory is made, whole free pages are mapped "
               "where they are needed. Implies expandable_segments:True.")
OPTION(MOVING_PAGES_MAX_ALIASES, "moving_pages_max_aliases", NUMBER, moving_pages_max_aliases, .preset.number = 8192,
       .most.number = 1 << 20,
       .help = "A page that has moved stays mapped where it was, so that it can return without a call of the "
               "driver. Beyond this number, the least recently used of these mappings are unmapped.")
OPTION(MOVING_PAGES_COMPLETED_ONLY, "moving_pages_completed_only", FLAG, moving_pages_completed_only,
       .help = "Pages move only when their stream has nothing left to do. Needed for kernels that overlap in one "
               "stream (programmatic dependent launch) or run on (persistent kernels).")
OPTION(MOVING_PAGES_ACROSS_STREAMS, "moving_pages_across_streams", FLAG, moving_pages_across_streams,
       .help = "Pages of a stream that is busy move too: the stream that gets them waits for that point of the "
               "other, on the device.")
OPTION(MOVING_PAGES_MIN_CAPABILITY, "moving_pages_min_capability", NUMBER, moving_pages_min_capability,
       .preset.number = 70, .most.number = 1000,
       .help = "Ten times the lowest compute capability on which pages move: 90 for 9.0. On older devices, "
               "moving_pages:True means expandable_segments:True.")
OPTION(MOVING_PAGES_SLACK, "moving_pages_slack", FRACTION, moving_pages_slack, .preset.fraction = 0.01,
       .most.fraction = 1,
       .help = "How far reserved memory may exceed the peak of live bytes before pages move instead of new ones "
               "being made, as a fraction of that peak. It is six times as much while pages have moved more often than "
               "allocations earn, and 0 within the last eighth of a limit.")
OPTION(RELEASE_LOCK_ON_MALLOC, "release_lock_on_cudamalloc", FLAG, release_lock_on_malloc,
       .alias = "release_lock_on_hipmalloc",
       .help = "Other threads can allocate and free while the driver allocates a segment.")
OPTION(GRAPH_CAPTURE_RECORD_STREAM_REUSE, "graph_capture_record_stream_reuse", FLAG, graph_capture_record_stream_reuse,
       .help = "During a capture, memory that other streams used is reused once the graph orders their work before "
               "the next use.")
OPTION(MEMORY_FRACTION, "per_process_memory_fraction", FRACTION, memory_fraction, .preset.fraction = 1,
       .most.fraction = 1,
       .help = "The fraction of each device's memory that an allocator may reserve, applied when the allocator is "
               "created.")
OPTION(THROW_ON_OOM, "throw_on_cudamalloc_oom", FLAG, throw_on_oom,
       .help = "A segment that would exceed the memory fraction is rejected at once, without a driver call and "
               "without releasing cached memory first.")
OPTION(GUARD, "guard", CHOICE, guard, .choices = guards,
       .help = "Search for misuse of memory: with light, each block is followed by at least 512 bytes that nothing "
               "may write to; with full, each is at the end of pages of its own. Fixed at creation; WEIR_GUARD sets "
               "it.")
OPTION(PINNED_USE_HOST_REGISTER, "pinned_use_cuda_host_register", FLAG, pinned_use_host_register,
       .alias = "pinned_use_hip_host_register",
       .help = "Pinned memory is ordinary memory that is touched and then registered, instead of memory that the "
               "driver allocates.")
OPTION(PINNED_NUM_REGISTER_THREADS, "pinned_num_register_threads", POWER, pinned_num_register_threads,
       .preset.number = 1, .least.number = 1, .most.number = 128,
       .help = "The number of threads that touch memory before it is registered.")
OPTION(PINNED_REGISTER_MIN_SIZE, "pinned_register_min_mb", MIB, pinned_register_min_size, .preset.number = 1024,
       .most.number = MAX_MIB,
       .help = "Pinned memory of this size and more is touched by several threads and then registered, so that "
               "driver calls of other threads do not wait while the system provides the memory.")
OPTION(PINNED_REGISTER_PIECE_SIZE, "pinned_register_piece_mb", MIB, pinned_register_piece_size, .least.number = 2,
       .most.number = MAX_MIB, .unset = "off",
       .help = "Such memory is registered in pieces of this size, and driver calls of other threads wait for one "
               "piece at most. Copies and fills of Weir may cross pieces, those of other libraries may not.")
OPTION(PINNED_USE_BACKGROUND_THREADS, "pinned_use_background_threads", FLAG, pinned_use_background_threads,
       .help = "A background thread polls for pinned memory that streams no longer use.")
OPTION(PINNED_RESERVE_SEGMENT_SIZE, "pinned_reserve_segment_size_mb", MIB, pinned_reserve_segment_size,
       .least.number = 1, .most.number = MAX_MIB, .unset = "off",
       .help = "A segment of pinned memory that is allocated on first use, never released, and used up first.")
OPTION(PINNED_MAX_ROUND_THRESHOLD, "pinned_max_round_threshold_mb", MIB, pinned_max_round_threshold,
       .preset.number = UNLIMITED, .most.number = MAX_MIB, .unset = "unlimited",
       .help = "Pinned sizes above this are not rounded up to a power of two.")
OPTION(PINNED_MAX_CACHED_SIZE, "pinned_max_cached_size_mb", MIB, pinned_max_cached_size, .preset.number = UNLIMITED,
       .most.number = MAX_MIB, .unset = "unlimited",
       .help = "Pinned memory above this size is released when it is freed, and is never rounded up.")
OPTION(PINNED_FREE_CATCH_ALL, "pinned_free_catch_all", FLAG, pinned_free_catch_all,
       .help = "Errors while pinned memory is freed are ignored, for example after the device has failed.")

#undef OPTION
