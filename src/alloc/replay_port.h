/*
 * The port of the allocator for replay. Offline tools feed a recording to a real allocator on the ledger driver; what
 * they need beyond the public calls is here, in plain types. Nothing else of the allocator's insides is theirs.
 *
 * All functions are about device 0 of an allocator that the caller has created and that only the calling thread uses.
 * They take the locks they need; the caller holds none. Pools and blocks are opaque. A function that returns a
 * weir_status has set weir_last_error() unless it returns WEIR_OK, and writes its outputs only then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "record/state.h"
#include "weir/alloc.h"
#include "weir/snapshot.h"

typedef struct weir__block weir__block;
typedef struct weir__private_pool weir__private_pool;

/* ---- Sizes ---- */

/* Those of blocks in general are in record/state.h. */
enum {
  WEIR__PORT_SMALL_MAX = 1024 * 1024,        /* the largest rounded request that the small pool serves */
  WEIR__PORT_SMALL_SEGMENT = 2 * 1024 * 1024 /* what the small pool grows by, and the size of its pages */
};

/* The size of the block that serves a request under some settings. A request that always fails is not rounded. */
uint64_t weir__port_round(const weir__settings *settings, uint64_t bytes);

/* What such a request takes from the driver if the cache has nothing for it. */
uint64_t weir__port_segment_bytes(const weir__settings *settings, uint64_t bytes);

/* ---- Settings ---- */

/* Creates the allocator: weir_allocator_create, but never with a recording of its own. */
weir_status weir__port_create(weir_driver *driver, const weir_allocator_options *options, weir_allocator **allocator);

/* Replaces the settings, as weir_allocator_configure does, and keeps the limit. WEIR_ERROR_NOT_SUPPORTED: they ask for
 * another back end than the cache. WEIR_ERROR_HOST_OUT_OF_MEMORY: the old ones stay. */
weir_status weir__port_set_settings(weir_allocator *allocator, const weir__settings *settings);

/* ---- Requests ---- */

/* Creates a private pool, which belongs to a tag unless its name is NULL, as it did in the recording; or adds a use. */
weir_status weir__port_create_pool(weir_allocator *allocator, weir_pool_id id, const char *tag);

/* A private pool, or NULL if there is none with this id. It is valid until the pool is released and has no memory. */
weir__private_pool *weir__port_find_pool(weir_allocator *allocator, weir_pool_id id);

/* A request of a private pool, or of the default one if `pool` is NULL, whatever scopes are open. It may use a pool
 * that was released, as a program does that is about to be done with it. A request for 0 bytes fails, as in the next
 * functions. */
weir_status weir__port_alloc(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes, weir_cu_stream stream,
                             uint64_t *address);

/* Whether the cache could serve a request. It changes nothing. */
bool weir__port_is_cached(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes, weir_cu_stream stream);

/* A request that the cache does not serve, even if it could: another thread put the block there too late for it. */
weir_status weir__port_alloc_uncached(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes,
                                      weir_cu_stream stream, uint64_t *address);

/* The first half of a request that the cache cannot serve: takes a block and does not hand it out yet, so that other
 * requests can be made in between. NULL if there is no memory. The second half must follow. */
weir__block *weir__port_take(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes,
                             weir_cu_stream stream);
weir_status weir__port_hand_out(weir_allocator *allocator, weir__block *block, uint64_t bytes, uint64_t *address);

/* weir_allocator_free and weir_allocator_record_stream, by address. */
weir_status weir__port_free(weir_allocator *allocator, uint64_t address);
weir_status weir__port_record_stream(weir_allocator *allocator, uint64_t address, weir_cu_stream stream);

/* Decides, where old mappings are in the way of a request that is to be placed at an address, whether their stream had
 * passed them: a recording shows where the request went. */
void weir__port_follow(weir_allocator *allocator, bool (*has_passed)(void *context, uint64_t address), void *context);

/* Requests from here on are made as during a graph capture: no memory is released for them, and no event is queried.
 * Events are queried once before, for a request on `stream` that follows. The end is marked by
 * weir__port_end_capture. */
void weir__port_begin_capture(weir_allocator *allocator, weir_cu_stream stream);
void weir__port_end_capture(weir_allocator *allocator);

/* ---- Releasing ---- */

/* Queries the events of freed blocks: those that are done become free. */
void weir__port_query_events(weir_allocator *allocator);

/* Releases what is free in the arena of the segment around an address, as emptying the cache does arena by arena. It
 * does nothing where there is no segment. */
void weir__port_release_arena(weir_allocator *allocator, uint64_t address);

/* ---- States ---- */

/* How many segments and blocks the device has at most. */
void weir__port_count_state(weir_allocator *allocator, size_t *segments, size_t *blocks);

/* Reads the state of the device into an empty state whose arrays have room for what weir__port_count_state said. Ages,
 * pools, and the sizes of reservations are left out; segments come in no order, each with its blocks side by side. */
void weir__port_read_state(weir_allocator *allocator, weir__state *state);

/* The memory that the device needs beside that of a state while the state is installed: the holes of an expandable
 * segment are mapped at first. The caller takes it away from the device afterwards. */
uint64_t weir__port_install_spare(const weir__state *state);

/* Installs a state in an allocator that has no memory and no limit: the same segments with the same blocks, whatever
 * the rules of the cache would have made of them. `settings` are those that the state came about under. *place is the
 * address that a segment has in the state while it is made, and 0 afterwards: the driver may follow it or not.
 * `blocks` gets the address of each active block in the state's order; those that wait for other streams are
 * allocated too, and the caller frees them. WEIR_ERROR_OUT_OF_MEMORY: a segment cannot be made; those before it are
 * there. */
weir_status weir__port_install_state(weir_allocator *allocator, const weir__settings *settings,
                                     const weir__state *state, uint64_t *place, uint64_t *blocks);
