#include "record/this_thread.h"

#include "record/entry.h"
#include "record/texts.h"
#include "weir/history.h"

_Thread_local weir__this_thread_state weir__this_thread __attribute__((tls_model("initial-exec")));

/* Numbers of threads are not reused, because entries of ended threads have them. */
void weir__this_thread_number(void) {
  static atomic_uint threads;
  unsigned number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
  if (number >= WEIR__ENTRY_MAX_THREADS) {
    number = WEIR__ENTRY_MAX_THREADS;
    atomic_store_explicit(&threads, WEIR__ENTRY_MAX_THREADS, memory_order_relaxed);
  }
  weir__this_thread.thread = (uint16_t)number;
}

/* The thread caches the last context: neither phases nor metadata change often. */
uint32_t weir__context_here(uint32_t phase, uint32_t metadata) {
  weir__this_thread_state *here = &weir__this_thread;
  if (here->own_metadata)
    metadata = here->own_metadata;
  if (!here->context || here->metadata != metadata || here->context_phase != phase) {
    here->context = weir__context_number((weir__entry_context){phase, weir__compile_here(), metadata});
    here->metadata = metadata;
    here->context_phase = phase;
  }
  return here->context;
}

_Atomic uint32_t weir__shared_phase;

void weir_history_share_phase(uint32_t phase) {
  atomic_store_explicit(&weir__shared_phase, phase, memory_order_relaxed);
}

uint32_t weir_history_enter_phase(const char *name) {
  uint32_t before = weir__this_thread.phase, number = weir__text_number(name);
  weir_history_leave_phase(number ? number | WEIR__PHASE_FRESH : 0);
  return before;
}

void weir_history_leave_phase(uint32_t before) {
  weir__this_thread.phase = before;
  weir__this_thread.context = 0;
}

uint32_t weir_history_enter_compile(const char *name) {
  uint32_t before = weir__compile_here();
  weir_history_leave_compile(weir__text_number(name));
  return before;
}

void weir_history_leave_compile(uint32_t before) {
  uint32_t flag = weir__this_thread.own_metadata ? WEIR__COMPILE_HAS_METADATA : 0;
  weir__this_thread.compile = before | flag;
  weir__this_thread.context = 0;
}

uint32_t weir_history_exchange_metadata(uint32_t text) {
  uint32_t before = weir__this_thread.own_metadata;
  weir__this_thread.own_metadata = text;
  weir_history_leave_compile(weir__compile_here());
  return before;
}
