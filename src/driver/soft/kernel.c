/*
 * Kernels, which are C functions: those of the program, and those of the core.
 */
#include <stdlib.h>
#include <string.h>

#include "base/defined.h"
#include "base/thread.h"
#include "driver/kernels.h"
#include "driver/soft/soft.h"

/* The limit of a GPU. */
enum { max_param_bytes = 32764 };

static weir_status check_params(const char *caller, int count, const size_t *bytes) {
  if (count < 0 || count > MODEL_MAX_PARAMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: param_count is %d; allowed are 0 to %d", caller, count,
                      MODEL_MAX_PARAMS);
  size_t left = max_param_bytes;
  for (int i = 0; i < count; left -= bytes[i++])
    if (bytes[i] > left)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the parameters are larger than %d bytes", caller,
                        max_param_bytes);
  return WEIR_OK;
}

weir_status weir_soft_register_kernel(weir_driver *driver, const char *name, weir_soft_kernel_fn function,
                                      int param_count, const size_t *param_bytes) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  WEIR__CHECK_ARGUMENT(name);
  if (strcmp(name, "weir_spin")) /* the spin kernel is built in */
    WEIR__CHECK_ARGUMENT(function);
  if (param_count > 0)
    WEIR__CHECK_ARGUMENT(param_bytes);
  if (!*name)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: name is empty", __func__);
  weir_status status = check_params(__func__, param_count, param_bytes);
  if (status)
    return status;
  /* One block holds the kernel, the sizes and the name. */
  size_t bytes = (size_t)param_count * sizeof *param_bytes, length = strlen(name) + 1;
  model_kernel *kernel = malloc(sizeof *kernel + bytes + length);
  if (!kernel)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the kernel", __func__);
  size_t *sizes = (size_t *)(kernel + 1);
  if (bytes)
    memcpy(sizes, param_bytes, bytes);
  *kernel = (model_kernel){.name = memcpy((char *)sizes + bytes, name, length),
                           .function = function,
                           .param_count = param_count,
                           .param_bytes = sizes};

  weir__mutex_lock(&soft->lock);
  bool known = weir__model_kernel(&soft->m, name);
  if (!known) {
    kernel->next = soft->m.kernels;
    soft->m.kernels = kernel;
  }
  weir__mutex_unlock(&soft->lock);
  if (!known)
    return WEIR_OK; /* cppcheck-suppress memleak ; the list owns it */
  free(kernel);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: a kernel named %s exists already", __func__, name);
}

/* ---- The kernels of the core ---- */

static void read_guard_params(void *const *params, weir__guard_params *to) {
  uint64_t *values = (uint64_t *)to;
  for (int i = 0; i < WEIR__GUARD_PARAMS; i++)
    memcpy(&values[i], params[i], sizeof *values);
}

weir_cu_result weir__soft_guard(const weir_soft_launch *launch) {
  weir__guard_params p;
  uint64_t first = UINT64_MAX, last = 0, count = 0;
  read_guard_params(launch->params, &p);
  unsigned char *bytes = (unsigned char *)p.base;
  if (p.start && p.middle == p.end) /* a new block, up to what is filled */
    weir__mark_undefined(p.base, p.start);
  uint64_t *words = (uint64_t *)p.base;
  for (uint64_t i = p.start; i < p.end;) {
    bool is_fill = i < p.middle;
    if (i >= p.dense && i < p.sparse && i % 4096 >= 64) {
      i = (i + 4096) / 4096 * 4096 < p.sparse ? (i + 4096) / 4096 * 4096 : p.sparse;
      continue;
    }
    bool is_word = i % 8 == 0 && i + 8 <= (is_fill ? p.middle : p.end);
    unsigned char want = (unsigned char)(p.pattern >> (i % 8 * 8));
    if (is_word && (is_fill || words[i / 8] == p.pattern)) {
      if (is_fill)
        words[i / 8] = p.pattern;
      i += 8;
      continue;
    }
    if (!is_fill && bytes[i] != want) {
      first = count++ ? first : i;
      last = i;
    }
    bytes[i++] = want;
  }
  weir__guard_slot *slot = (weir__guard_slot *)p.slot;
  if (!count && !slot->open)
    return WEIR_CU_SUCCESS;
  slot->first = first;
  slot->last = last;
  slot->count = count;
  atomic_store(&slot->number, p.number);
  atomic_store((atomic_uint *)p.flag, 1);
  return WEIR_CU_SUCCESS;
}

void weir__soft_guard_look(const struct soft *soft, const struct soft_stream *stream, const struct soft_work *work) {
  weir__guard_params p;
  void *params[WEIR__GUARD_PARAMS];
  for (int i = 0; i < WEIR__GUARD_PARAMS; i++)
    params[i] = work->w.as.kernel.params + (size_t)i * 16; /* as run_kernel of engine.c passes them */
  read_guard_params(params, &p);
  const struct soft_stream *user = p.start ? NULL : weir__soft_user_of(soft, stream, work->seq, p.base, p.end);
  if (user)
    ((weir__guard_slot *)p.slot)->open =
        user->s.is_legacy ? 1 : (uint64_t)weir__handle_of(&soft->m.streams, user); /* CU_STREAM_LEGACY is 1 */
}

static weir_cu_result copy_pieces(const weir_soft_launch *launch) {
  uint64_t pieces, count;
  memcpy(&pieces, launch->params[0], sizeof pieces);
  memcpy(&count, launch->params[1], sizeof count);
  for (const weir__copy_piece *p = (const weir__copy_piece *)pieces; count; p++, count--)
    memcpy((void *)p->to, (const void *)p->from, (size_t)p->bytes);
  return WEIR_CU_SUCCESS;
}

weir_status weir__soft_add_kernels(struct soft *soft) {
  static const size_t sizes[WEIR__GUARD_PARAMS] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
  _Static_assert(sizeof(weir__guard_params) == sizeof sizes, "parameters of 64 bits");
  weir_status status = weir_soft_register_kernel(&soft->m.table, "weir_copy_pieces", copy_pieces, 2, sizes);
  return status ? status
                : weir_soft_register_kernel(&soft->m.table, "weir_guard", weir__soft_guard, WEIR__GUARD_PARAMS, sizes);
}
