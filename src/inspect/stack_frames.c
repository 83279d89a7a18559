/*
 * Stacks that a program captures on request, and their frames by name.
 */
#include <stdlib.h>

#include "base/base.h"
#include "inspect/symbols.h"
#include "record/stacks.h"
#include "record/texts.h"

weir_status weir_stack_capture(weir_history_stacks stacks, uint32_t *stack) {
  if (!stack)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stack is NULL", __func__);
  if ((unsigned)stacks > WEIR_STACKS_EITHER)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stacks %d: expected language, all or either", __func__,
                      (int)stacks);
  if (stacks != WEIR_STACKS_LANGUAGE)
    weir__stacks_start();
  *stack = weir__stack_gather(stacks);
  return WEIR_OK;
}

/* Visits a native frame and the functions inlined into it. Returns false to end the visit. */
static bool visit_native(weir__symbols *symbols, uintptr_t address, weir_frame_fn visit, void *context) {
  size_t first, count = weir__symbols_of(symbols, address, &first);
  for (size_t i = first; i < first + count; i++) {
    const weir__symbol *symbol = weir__symbols_at(symbols, i);
    if (visit(context, weir__symbols_text(symbols, symbol->function), weir__symbols_text(symbols, symbol->file),
              symbol->line, 1))
      return false;
  }
  return true;
}

weir_status weir__symbols_visit(const char *caller, weir__symbols *symbols, uint32_t stack, weir_frame_fn visit,
                                void *context) {
  size_t count = weir__stack_frames(stack, NULL, 0);
  if (!count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is no stack %u", caller, stack);
  weir__frame *frames = malloc(count * sizeof *frames);
  if (!frames)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  weir__stack_frames(stack, frames, count);
  bool goes_on = true;
  for (size_t i = 0; goes_on && i < count; i++)
    if (frames[i].address)
      goes_on = visit_native(symbols, frames[i].address, visit, context);
    else
      goes_on = !visit(context, weir__text_of_number(frames[i].function), weir__text_of_number(frames[i].file),
                       frames[i].line, 0);
  free(frames);
  return WEIR_OK;
}

weir_status weir_stack_visit(uint32_t stack, weir_frame_fn visit, void *context) {
  if (!visit)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: visit is NULL", __func__);
  if (!stack)
    return WEIR_OK;
  weir__symbols *symbols = weir__symbols_new(NULL);
  if (!symbols)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir_status status = weir__symbols_visit(__func__, symbols, stack, visit, context);
  weir__symbols_delete(symbols);
  return status;
}
