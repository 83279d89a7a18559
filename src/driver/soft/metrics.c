/*
 * Metrics of the software device: whether it runs work at this moment, and its clock.
 */
#include "driver/metrics.h"

#include "base/thread.h"
#include "driver/soft/soft.h"

static bool moves_memory(const struct soft_stream *stream) {
  const struct soft_work *work = stream->running ? stream->running : stream->first;
  return work && (work->w.kind == MODEL_WORK_COPY || work->w.kind == MODEL_WORK_FILL);
}

weir_status weir__soft_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                               int *value) {
  struct soft *soft = (struct soft *)driver;
  if (metric == WEIR_METRIC_TEMPERATURE)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the software device has no temperature", caller);
  if (metric == WEIR_METRIC_POWER_DRAW)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the software device draws no power", caller);
  if (metric == WEIR_METRIC_CLOCK_RATE) {
    *value = soft->options.clock_khz / 1000;
    return WEIR_OK;
  }
  bool works = false, moves = false;
  weir__mutex_lock(&soft->lock);
  for (const struct soft_stream *stream = soft->devices[device].streams; stream; stream = stream->next) {
    works = works || stream->pending;
    moves = moves || moves_memory(stream);
  }
  weir__mutex_unlock(&soft->lock);
  *value = (metric == WEIR_METRIC_UTILIZATION ? works : moves) ? 100 : 0;
  return WEIR_OK;
}
