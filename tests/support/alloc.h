/*
 * An allocator on a separate software device for each test.
 *
 *     TEST(it) {
 *       alloc_open(NULL, 64 * MIB);
 *       void *p = get(512, NULL);
 *       assert_layout(p, "512* 2096640");
 *       put(p);
 *       alloc_close();
 *     }
 *     FIXTURE(.teardown = alloc_teardown)
 *
 * get, put and similar functions walk the whole allocator after each call. The assertions must run on the thread of
 * the test.
 */
#pragma once

#include "alloc/cache/heap.h"
#include "support/runtime.h"
#include "support/soft.h"
#include "weir/alloc.h"
#include "weir/pool.h"

#define KIB (1024ull)
#define MIB (1024ull * KIB)
#define GIB (1024ull * MIB)

extern weir_allocator *allocator; /* valid between open and close */
extern weir_driver *faults;       /* the driver table of the allocator: `d` wrapped in a fault table */

/* One device in stepped time. The defaults apply if conf is NULL. */
void alloc_open(const char *conf, unsigned long long bytes);
void alloc_open_on(weir_soft_clock clock, int devices, unsigned long long bytes, const char *conf);

/* Opens only the devices, for tests that create allocators themselves. alloc_close closes them. */
void alloc_open_devices(weir_soft_clock clock, int devices, unsigned long long bytes);
weir_allocator *alloc_create(const char *conf);

/* One device of 1 GiB in stepped time. */
void alloc_open_with(const weir_allocator_options *options);

/* Destroys the allocator, and fails if it leaves anything on the device. */
void alloc_close(void);

/* Cleans up after a failed test. */
int alloc_teardown(void **state);

/* Also starts a runtime on the device, whose graphs use the allocator. */
void alloc_open_runtime(const char *conf);
void alloc_close_runtime(void);
int alloc_teardown_runtime(void **state);

/* ---- The calls, checked ---- */

void *get(size_t bytes, weir_cu_stream stream);
void *get_on(int device, size_t bytes, weir_cu_stream stream);
void put(void *pointer);
void also_used_by(void *pointer, weir_cu_stream stream);
void configure(const char *conf);
void empty_cache(void);

/* Returns the status of an allocation that may fail. The pointer is NULL on failure. */
weir_status try_get(size_t bytes, weir_cu_stream stream, void **pointer);

/* Walks the allocator and compares its segments with the memory that the device has handed out. */
void assert_valid(void);

/* ---- Looking ---- */

weir_allocator_stats stats_of(int device);

/* Current values of device 0, summed over both pools. */
int64_t reserved(void);
int64_t allocated(void);
int64_t active(void);
int64_t segments(void);

/* The blocks of the segment of a pointer, in order, as in "1M* 512~ 19968K": * is allocated, ~ is freed but still in
 * use by another stream, - is not mapped. The pointer need not be live. The text is valid until the next call. */
const char *layout(const void *pointer);

/* The segment of a live pointer. Queued frees of its arena are processed. */
weir__segment *segment_at(const void *pointer);
#define assert_layout(pointer, text) assert_string_equal(layout(pointer), text)

/* The private pool of a live pointer; {0, 0} if it is in a default pool. */
weir_pool_id pool_of(const void *pointer);

/* The name of the back end. */
void assert_backend(const char *name);

/* The number of driver calls of one kind, or of all kinds with WEIR_CALL_COUNT. */
unsigned long calls(weir_driver_call call);

/* ---- Memory for tests with faults: an allocation that fails returns NULL, and freeing NULL does nothing ---- */

enum { MAX_LIVE_BLOCKS = 64 };
extern void *live_blocks[MAX_LIVE_BLOCKS];
extern int live_block_count;

void *get_live(int device, size_t bytes, weir_cu_stream stream);
void put_live(void *pointer);  /* stays live if the call fails */
void keep_live(void *pointer); /* adds a block that was allocated otherwise */
void forget_live(void *pointer);
void put_all_live(void);

/* Runs open, act and close once, and then once for every driver call of act and every kind of failure, with that call
 * failing. `close` checks that the allocator has recovered. */
typedef struct fault_sweep {
  void (*open)(const void *argument);
  void (*act)(void);
  void (*close)(void);
  const void *argument;
} fault_sweep;
void sweep_driver_calls(const fault_sweep *sweep);

/* ---- Callbacks that do nothing ---- */

void ignore_trace(void *context, const weir_trace_entry *entry);

/* ---- Streams ---- */

/* A non-blocking stream; alloc_close destroys it. */
weir_cu_stream work_stream(void);

/* Enqueues work that stays pending until the stream is stepped. */
void work(weir_cu_stream stream);
