/*
 * The ledger inside: what its books hold. See docs/ledger.md for what it promises.
 *
 * One thread uses a ledger at a time, so nothing here is guarded, and nothing is static and mutable.
 */
#ifndef WEIR_LEDGER_H
#define WEIR_LEDGER_H

#include "base/base.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "driver/ledger/handles.h"
#include "weir/driver.h"

enum {
  LEDGER_GRANULARITY = 2 << 20,
  LEDGER_MAX_DEVICES = 64, /* sets of devices are the bits of a word */
  LEDGER_ORDERS = 26,      /* sizes of address slots: LEDGER_GRANULARITY << order, up to 64 TiB */
  LEDGER_PAGES_IN_TABLE = 512,
  LEDGER_MAX_THREADS = 1024, /* of a block */
  LEDGER_LEAST_PRIORITY = 0,
  LEDGER_GREATEST_PRIORITY = -5
};

/* Where the ledger puts what it places itself, a region for each size of slots: above what Linux gives a process unless
 * it asks for more, so that a touch is a crash and memory that a program registers does not lie there; below 2^53, so
 * that a viewer in a browser can still count. */
#define LEDGER_REGION ((uint64_t)1 << 48)
#define LEDGER_SPACE_BEGIN ((uint64_t)1 << 48)
#define LEDGER_SPACE_END (LEDGER_SPACE_BEGIN + LEDGER_ORDERS * LEDGER_REGION)
_Static_assert(LEDGER_SPACE_END <= (uint64_t)1 << 53, "see above");

/* The highest byte of handles. */
enum {
  LEDGER_KIND_CONTEXT = 1,
  LEDGER_KIND_STREAM,
  LEDGER_KIND_EVENT,
  LEDGER_KIND_MEMORY,
  LEDGER_KIND_POOL,
  LEDGER_KIND_GRAPH,
  LEDGER_KIND_NODE,
  LEDGER_KIND_EXEC,
  LEDGER_KIND_MODULE,
  LEDGER_KIND_FUNCTION,
  LEDGER_KIND_SLOT /* never leaves the ledger */
};

typedef struct ledger ledger;
typedef struct ledger_device ledger_device;
typedef struct ledger_stream ledger_stream;
typedef struct ledger_capture ledger_capture;
typedef struct ledger_graph ledger_graph;
typedef struct ledger_pool ledger_pool;

/* Nodes of a graph, by handle: what comes next depends on them. */
typedef struct ledger_nodes {
  weir_cu_graph_node *items;
  size_t count, room;
} ledger_nodes;

typedef enum ledger_node_kind {
  LEDGER_NODE_COPY,
  LEDGER_NODE_FILL,
  LEDGER_NODE_KERNEL,
  LEDGER_NODE_HOST
} ledger_node_kind;

typedef struct ledger_node {
  weir__handle head;
  ledger_node_kind kind;
  bool followed;       /* another node depends on it */
  weir_cu_host_fn fn;  /* of a host node */
  void *data;          /* the argument of fn */
  ledger_nodes behind; /* what it depends on */
} ledger_node;

struct ledger_graph {
  weir__handle head;
  ledger_device *device;
  ledger_nodes nodes; /* in the order of capture, so every node stands behind those it depends on */
  bool open;          /* still being captured */
};

typedef struct ledger_host_call {
  weir_cu_host_fn fn;
  void *data;
} ledger_host_call;

typedef struct ledger_exec {
  weir__handle head;
  ledger_device *device;
  size_t nodes;            /* pieces of work in a launch */
  ledger_host_call *calls; /* made by a launch, in order */
  size_t call_count;
} ledger_exec;

/* One capture that was begun and has not ended. */
struct ledger_capture {
  unsigned long long id;
  int mode;
  bool invalid;
  ledger_graph *graph;
  ledger_stream *origin;
  ledger_stream *members; /* the origin and all that joined */
  ledger_capture *next;
};

struct ledger_stream {
  weir__handle head; /* unused in a device's default streams */
  ledger_device *device;
  unsigned flags;
  int priority;
  bool legacy;
  ledger_capture *capture; /* NULL when the stream takes part in none; the next two are of the capture */
  ledger_stream *member_next;
  ledger_nodes at; /* what the stream's next node depends on */
};

typedef struct ledger_event {
  weir__handle head;
  ledger_device *device;
  unsigned flags;
  bool recorded;
  weir_cu_stream foreign;     /* where it was recorded, when that was not made here and may be busy */
  uint64_t tick;              /* the ledger's clock at the record */
  unsigned long long capture; /* id of the capture in which it was recorded last; 0: outside of any */
  ledger_nodes at;            /* where the capturing stream was */
} ledger_event;

/* What MemCreate makes. It lives until it is released and no longer mapped. */
typedef struct ledger_memory {
  weir__handle head;
  ledger_device *device;
  uint64_t bytes;
  unsigned long mappings;
  bool released;
} ledger_memory;

typedef enum ledger_range_kind {
  LEDGER_RANGE_PLAIN,       /* of MemAlloc */
  LEDGER_RANGE_POOLED,      /* of MemAllocAsync */
  LEDGER_RANGE_HOST,        /* of MemHostAlloc */
  LEDGER_RANGE_REGISTERED,  /* of MemHostRegister */
  LEDGER_RANGE_RESERVATION, /* of MemAddressReserve */
  LEDGER_RANGE_BLOCKED      /* a slot that nobody can have, since a range was placed over it */
} ledger_range_kind;

typedef struct ledger_mapping ledger_mapping;

/* A piece of a reservation's page table: the mapping of each page, or NULL. */
typedef struct ledger_page_table {
  ledger_mapping *pages[LEDGER_PAGES_IN_TABLE];
} ledger_page_table;

/* A range of addresses in use. */
typedef struct ledger_range {
  weir__handle head; /* of the slot; unused in a range that was placed */
  uint64_t base, bytes;
  uint64_t id;           /* never the same twice */
  ledger_device *device; /* NULL for a reservation */
  ledger_range_kind kind;
  int order; /* of the slot; -1 when the range was placed by somebody else */
  union {
    ledger_pool *pool;            /* POOLED */
    struct {                      /* RESERVATION */
      ledger_page_table **tables; /* NULL until something is mapped */
      unsigned long mappings;
    };
  };
} ledger_range;

struct ledger_mapping {
  uint64_t base, bytes;
  ledger_memory *memory;
  uint64_t id;
  uint64_t readers, writers; /* devices that may, by bit */
};

/* A pool hands out what it holds, and takes more from the device when that is not enough. Where in the pool a piece
 * lies is of no concern: a pool without fragmentation. */
struct ledger_pool {
  weir__handle head;
  ledger_device *device;
  uint64_t max_bytes;               /* may hold so much; 0: no limit of its own */
  uint64_t used, used_high;         /* handed out */
  uint64_t reserved, reserved_high; /* held from the device */
  uint64_t threshold;               /* may keep so much when work is waited for */
  int reuse[3];                     /* the REUSE attributes, remembered only */
  bool destroyed;                   /* lives on until all that it handed out is back */
};

typedef struct ledger_function {
  weir__handle head;
  struct ledger_module *module;
  struct ledger_function *next; /* in the module */
  char *name;
} ledger_function;

typedef struct ledger_module {
  weir__handle head;
  ledger_device *device;
  ledger_function *functions;
} ledger_module;

struct ledger_device {
  int ordinal;
  unsigned retains; /* of the primary context, which exists while this is not 0 */
  uint64_t used;    /* physical bytes in use, of the ledger's bytes */
  uint64_t peers;   /* devices whose memory the context may touch, by bit */
  ledger_stream legacy, per_thread;
  ledger_pool *default_pool, *pool;
};

struct ledger {
  weir_driver table; /* first: a weir_driver * of a ledger is a ledger * */
  bool ready;        /* Init was called */
  weir_ledger_options options;
  ledger_device *devices;
  ledger_device *current; /* whose context is current; NULL: none */
  uint64_t clock;         /* pieces of work done, and so microseconds of the ledger's time */
  uint64_t last_id;       /* of ranges and mappings */

  weir__handles slots[LEDGER_ORDERS]; /* ranges that the ledger placed, by size of their slot */
  weir__rangemap placed;              /* ranges that somebody else placed */
  weir__slab placed_slab, mapping_slab, table_slab;

  weir__handles streams, events, memories, pools, graphs, nodes, execs, modules, functions;

  int capture_mode; /* of the thread */
  ledger_capture *captures;
  unsigned long long last_capture;
};

static inline ledger *weir__ledger_of(weir_driver *self) { return (ledger *)self; }

static inline uint64_t weir__ledger_bit(const ledger_device *device) { return (uint64_t)1 << device->ordinal; }

/* The device whose context is current. */
static inline weir_cu_result weir__ledger_context(const ledger *l, ledger_device **device) {
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (l->current == NULL)
    return WEIR_CU_INVALID_CONTEXT;
  if (l->current->retains == 0)
    return WEIR_CU_CONTEXT_IS_DESTROYED;
  *device = l->current;
  return WEIR_CU_SUCCESS;
}

/* ---- device.c ---- */

void weir__ledger_add_devices(weir_driver *table);

/* The device of a number, or NULL. */
ledger_device *weir__ledger_device(const ledger *l, int number);

weir_cu_context weir__ledger_context_handle(const ledger_device *device);

/* The device of a context that exists, or NULL. */
ledger_device *weir__ledger_device_of(const ledger *l, weir_cu_context context);

/* ---- memory.c ---- */

void weir__ledger_add_memory(weir_driver *table);

/* Physical memory of a device: all of it or nothing. */
static inline bool weir__ledger_take_bytes(const ledger *l, ledger_device *device, uint64_t bytes) {
  if (bytes > l->options.bytes - device->used)
    return false;
  device->used += bytes;
  return true;
}

/* Whether a device may read (or write) all of [address, address + bytes). `host`: plain host memory counts too. */
bool weir__ledger_reachable(const ledger *l, const ledger_device *device, uint64_t address, uint64_t bytes, bool write,
                            bool host);

void weir__ledger_drop_context_memory(ledger *l, ledger_device *device);

/* ---- range.c ---- */

/* A new range at `address`; where the ledger likes it, aligned as asked (a power of two), when that is 0. INVALID_VALUE
 * when it overlaps a range in use, OUT_OF_MEMORY when there is no address or the host has no memory. */
weir_cu_result weir__ledger_add_range(ledger *l, ledger_range_kind kind, uint64_t address, uint64_t bytes,
                                      uint64_t alignment, ledger_device *device, ledger_range **range);
void weir__ledger_drop_range(ledger *l, ledger_range *range);

/* The range that holds `address`, or NULL. */
ledger_range *weir__ledger_find_range(const ledger *l, uint64_t address);

/* A range that has an address in common with [address, address + bytes), or NULL. */
ledger_range *weir__ledger_overlap(const ledger *l, uint64_t address, uint64_t bytes);

/* Calls `visit` for every range in use. It may drop the range. */
void weir__ledger_each_range(ledger *l, void (*visit)(ledger *l, ledger_range *range, void *data), void *data);

/* The range that begins at `address`, or NULL. */
static inline ledger_range *weir__ledger_range_at(const ledger *l, uint64_t address) {
  ledger_range *range = weir__ledger_find_range(l, address);
  return range != NULL && range->base == address ? range : NULL;
}

/* ---- virtual.c ---- */

void weir__ledger_add_virtual(weir_driver *table);

/* What is mapped at an address inside of a reservation, or NULL. */
static inline ledger_mapping *weir__ledger_mapping(const ledger_range *reservation, uint64_t address) {
  uint64_t page = (address - reservation->base) / LEDGER_GRANULARITY;
  if (reservation->tables == NULL)
    return NULL;
  const ledger_page_table *table = reservation->tables[page / LEDGER_PAGES_IN_TABLE];
  return table != NULL ? table->pages[page % LEDGER_PAGES_IN_TABLE] : NULL;
}

/* Frees the page table of a reservation. */
void weir__ledger_drop_tables(ledger *l, ledger_range *reservation);

/* ---- pool.c ---- */

void weir__ledger_add_pools(weir_driver *table);
ledger_pool *weir__ledger_make_pool(ledger *l, ledger_device *device, uint64_t max_bytes);
void weir__ledger_free_pooled(ledger *l, ledger_range *range);
void weir__ledger_drop_context_pools(ledger *l, ledger_device *device);

/* Work was waited for: pools give back what they hold above their threshold. */
void weir__ledger_settle_pools(ledger *l);

/* ---- stream.c ---- */

void weir__ledger_add_streams(weir_driver *table);

/* NULL and the two constants are the current context's default streams. */
weir_cu_result weir__ledger_stream(ledger *l, weir_cu_stream handle, ledger_stream **stream);

void weir__ledger_drop_context_streams(ledger *l, ledger_device *device);

/* ---- kernel.c ---- */

void weir__ledger_add_kernels(weir_driver *table);
void weir__ledger_drop_context_modules(ledger *l, ledger_device *device);

/* ---- capture.c ---- */

void weir__ledger_add_captures(weir_driver *table);

/* For a call that is marked [unsafe in capture]. */
weir_cu_result weir__ledger_unsafe_in_capture(ledger *l);
static inline weir_cu_result weir__ledger_unsafe(ledger *l) {
  return l->captures == NULL ? WEIR_CU_SUCCESS : weir__ledger_unsafe_in_capture(l);
}

/* For a call that puts something into a stream: refuses what would touch a capture from outside, or an invalid one. */
weir_cu_result weir__ledger_may_enqueue_slow(ledger *l, ledger_stream *stream);
static inline weir_cu_result weir__ledger_may_enqueue(ledger *l, ledger_stream *stream) {
  return l->captures == NULL ? WEIR_CU_SUCCESS : weir__ledger_may_enqueue_slow(l, stream);
}

/* For a call that cannot be captured: the same, and a capturing stream refuses. */
weir_cu_result weir__ledger_may_not_capture(ledger *l, ledger_stream *stream);

/* For a call that waits for everything of a device: refuses while one of its streams captures. */
weir_cu_result weir__ledger_no_capture_on(ledger *l, const ledger_device *device);

/* A piece of work: a node when the stream captures, else done at once. */
weir_cu_result weir__ledger_enqueue(ledger *l, ledger_stream *stream, ledger_node_kind kind, weir_cu_host_fn fn,
                                    void *data);

void weir__ledger_invalidate(ledger_capture *capture);

/* The capture of an id if it has not ended. */
ledger_capture *weir__ledger_capture(const ledger *l, unsigned long long id);

/* Makes the stream wait for where `at` was taken; a stream that does not capture joins. */
weir_cu_result weir__ledger_join(ledger_capture *capture, ledger_stream *stream, const ledger_nodes *at);

/* Forgets a capture, and its graph with it. */
void weir__ledger_abandon(ledger *l, ledger_capture *capture);

/* ---- graph.c ---- */

void weir__ledger_add_graphs(weir_driver *table);
bool weir__ledger_nodes_add(ledger_nodes *nodes, weir_cu_graph_node node);
bool weir__ledger_nodes_copy(ledger_nodes *to, const ledger_nodes *from);
void weir__ledger_nodes_free(ledger_nodes *nodes);
ledger_node *weir__ledger_node(const ledger *l, weir_cu_graph_node handle);
void weir__ledger_drop_graph(ledger *l, ledger_graph *graph);
void weir__ledger_drop_context_graphs(ledger *l, ledger_device *device);

#endif
