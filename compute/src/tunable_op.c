/*
 * Tunable operations: their implementations, and the search for the fastest.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/memory.h"
#include "src/tunable.h"
#include "src/tuning_file.h"
#include "weir/compute/array.h"
#include "weir/copy.h"
#include "weir/event.h"
#include "weir/graph.h"

enum { MAX_OPERANDS = 16, MAX_COPIES = 1024, WARM_UPS = 2 };

/* ---- Operations ---- */

void weir_tunable_call_init(weir_tunable_call *call) {
  if (call)
    *call = (weir_tunable_call){.size = sizeof *call};
}

static weir_status add(const char *caller, weir_tunable_op *op, const char *solution, weir_tunable_fn fn,
                       void *context) {
  if (!weir__tuning_text_is_valid(solution) || strlen(solution) >= WEIR__TUNABLE_NAME)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the name of a solution has 1 to %d characters, and no commas or control characters", caller,
                      WEIR__TUNABLE_NAME - 1);
  for (size_t i = 0; i < op->count; i++)
    if (!strcmp(op->candidates[i].name, solution))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s has a solution \"%s\" already", caller, op->name,
                        solution);
  if (!WEIR__RESERVE(op->candidates, op->room, op->count + 1))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a solution", caller);
  weir__tunable_candidate *made = &op->candidates[op->count++];
  *made = (weir__tunable_candidate){.fn = fn, .context = context};
  snprintf(made->name, sizeof made->name, "%s", solution);
  return WEIR_OK;
}

weir_status weir_tunable_op_create(const char *name, weir_tunable_fn fn, void *context, weir_tunable_op **op) {
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(fn);
  WEIR__CHECK_ARGUMENT(op);
  if (!weir__tuning_text_is_valid(name) || !strcmp(name, "Validator"))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the name of an operation is not empty, not \"Validator\", and has no commas or control "
                      "characters",
                      __func__);
  weir_tunable_op *made = calloc(1, sizeof *made);
  weir_status status = WEIR_OK;
  if (!made || !(made->name = strdup(name)))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for an operation", __func__);
  if (!status)
    status = add(__func__, made, "Default", fn, context);
  if (status)
    weir_tunable_op_destroy(made);
  else
    *op = made;
  return status;
}

weir_status weir_tunable_op_add(weir_tunable_op *op, const char *solution, weir_tunable_fn fn, void *context) {
  WEIR__CHECK_ARGUMENT(op);
  WEIR__CHECK_ARGUMENT(solution);
  WEIR__CHECK_ARGUMENT(fn);
  return add(__func__, op, solution, fn, context);
}

void weir_tunable_op_destroy(weir_tunable_op *op) {
  if (!op)
    return;
  free(op->name);
  free(op->candidates);
  free(op);
}

/* ---- Copies of operands ---- */

typedef struct copy {
  weir_tunable_operand operands[MAX_OPERANDS];
  weir__device_memory memory[MAX_OPERANDS];
} copy;

static void free_copy(copy *c) {
  for (int i = 0; i < MAX_OPERANDS; i++)
    weir__compute_free(&c->memory[i]);
}

/* Copies the outputs, and with `has_inputs` the inputs too. */
static weir_status make_copy(const weir_tunable_call *call, bool has_inputs, copy *made) {
  *made = (copy){0};
  for (int i = 0; i < call->operand_count; i++) {
    made->operands[i] = call->operands[i];
    if (!call->operands[i].bytes || (!has_inputs && !call->operands[i].is_output))
      continue;
    weir_status status = weir__compute_alloc(call->operands[i].bytes, call->stream, &made->memory[i]);
    made->operands[i].data = made->memory[i].pointer;
    if (!status)
      status = weir_copy_async(made->memory[i].pointer, call->operands[i].data, call->operands[i].bytes, call->stream);
    if (status) {
      free_copy(made);
      return status;
    }
  }
  return WEIR_OK;
}

/* ---- Timing ---- */

typedef struct tuner {
  const weir_tunable_op *op;
  const weir_tunable_call *call;
  copy *copies; /* a run uses the next one */
  size_t copy_count, next;
  copy reference; /* with the result of "Default", for the numerical check */
  bool checks;
  double atol, rtol;
  weir_event *start, *end;
} tuner;

static weir_status run_once(tuner *t, const weir__tunable_candidate *candidate) {
  const copy *c = &t->copies[t->next++ % t->copy_count];
  return candidate->fn(c->operands, t->call->operand_count, t->call->arguments, t->call->stream, candidate->context);
}

static weir_status run_often(tuner *t, const weir__tunable_candidate *candidate, int times) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < times && !status; i++)
    status = run_once(t, candidate);
  return status;
}

/* The mean time of a run. */
static weir_status measure(tuner *t, const weir__tunable_candidate *candidate, int iterations, double *milliseconds) {
  double elapsed;
  weir_status status = run_often(t, candidate, WARM_UPS);
  if (!status)
    status = weir_event_record(t->start, t->call->stream);
  if (!status)
    status = run_often(t, candidate, iterations);
  if (!status)
    status = weir_event_record(t->end, t->call->stream);
  if (!status)
    status = weir_event_synchronize(t->end);
  if (!status)
    status = weir_event_elapsed(t->start, t->end, &elapsed);
  if (!status)
    *milliseconds = elapsed / iterations;
  return status;
}

/* How often something of a duration runs under two limits, of which 0 is none. */
static int limited(int max_duration, int max_iterations, double duration, int otherwise) {
  double by_time = max_duration > 0 && duration > 0 ? floor(max_duration / duration) : 1e9;
  if (max_duration <= 0 && max_iterations <= 0)
    return otherwise;
  double count = max_iterations > 0 && max_iterations < by_time ? max_iterations : by_time;
  return count > 1e9 ? 1000000000 : (int)count;
}

static int at_most(int count, int limit) { return limit > 0 && limit < count ? limit : count; }

/* ---- The numerical check ---- */

/* The elements of an output in double precision, on the host. */
static weir_status read_output(const weir_tunable_call *call, const weir_tunable_operand *output, weir_array *host) {
  weir_array wrapped = {0};
  int64_t count = (int64_t)(output->bytes / weir_dtype_size(output->dtype));
  weir_status status = weir_array_from_memory(output->data, weir_place_device(call->stream.device), output->dtype, 1,
                                              &count, NULL, NULL, NULL, &wrapped);
  if (!status)
    status =
        weir_array_to(&wrapped, weir_place_host(),
                      weir_dtype_is_complex(output->dtype) ? WEIR_COMPLEX128 : WEIR_FLOAT64, call->stream, 0, host);
  weir_array_release(&wrapped);
  return status;
}

static bool is_close(const tuner *t, const weir_array *reference, const weir_array *other) {
  const double *a = reference->data, *b = other->data;
  int64_t parts = weir_dtype_is_complex(reference->dtype) ? 2 : 1, count = weir_array_count(reference);
  for (int64_t i = 0; i < count; i++) {
    double difference, size;
    if (a[i * parts] == b[i * parts] && (parts == 1 || a[i * 2 + 1] == b[i * 2 + 1]))
      continue; /* infinities are equal to themselves */
    if (parts == 2) {
      difference = hypot(a[i * 2] - b[i * 2], a[i * 2 + 1] - b[i * 2 + 1]);
      size = hypot(b[i * 2], b[i * 2 + 1]);
    } else {
      difference = fabs(a[i] - b[i]);
      size = fabs(b[i]);
    }
    if (!isfinite(size) || !(difference <= t->atol + t->rtol * size)) /* not if one is NaN, too */
      return false;
  }
  return true;
}

static weir_status check_outputs(tuner *t, const weir__tunable_candidate *candidate, bool *is_right) {
  copy made;
  weir_status status = make_copy(t->call, false, &made);
  if (status)
    return status;
  status =
      candidate->fn(made.operands, t->call->operand_count, t->call->arguments, t->call->stream, candidate->context);
  *is_right = true;
  for (int i = 0; i < t->call->operand_count && !status && *is_right; i++) {
    weir_array expected = {0}, found = {0};
    if (!t->call->operands[i].is_output || !t->call->operands[i].bytes)
      continue;
    status = read_output(t->call, &t->reference.operands[i], &expected);
    if (!status)
      status = read_output(t->call, &made.operands[i], &found);
    if (!status)
      *is_right = is_close(t, &expected, &found);
    weir_array_release(&expected);
    weir_array_release(&found);
  }
  free_copy(&made);
  return status;
}

/* ---- The search ---- */

static weir_status prepare(tuner *t) {
  uint64_t rotating = 0, bytes = 0;
  int checks;
  weir_tunable_get_numerical_check(&checks, &t->atol, &t->rtol);
  weir_status status = weir_tunable_get_rotating_buffer_size(t->call->stream.device, &rotating);
  for (int i = 0; i < t->call->operand_count; i++)
    if (rotating || t->call->operands[i].is_output)
      bytes += t->call->operands[i].bytes;
  uint64_t count = bytes ? rotating / bytes + 1 : 1;
  count = count < MAX_COPIES ? count : MAX_COPIES;
  t->copies = calloc(count, sizeof *t->copies);
  if (!status && !t->copies)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for copies of operands", __func__);
  while (!status && t->copy_count < count) {
    status = make_copy(t->call, rotating > 0, &t->copies[t->copy_count]);
    if (status == WEIR_ERROR_OUT_OF_MEMORY && t->copy_count) { /* rotates over fewer copies */
      status = WEIR_OK;
      break;
    }
    t->copy_count += !status;
  }
  if (!status)
    status = weir_event_create(WEIR_EVENT_TIMING, &t->start);
  if (!status)
    status = weir_event_create(WEIR_EVENT_TIMING, &t->end);
  if (!status && checks) {
    status = make_copy(t->call, false, &t->reference);
    t->checks = !status;
    const weir__tunable_candidate *first = &t->op->candidates[0];
    if (!status)
      status =
          first->fn(t->reference.operands, t->call->operand_count, t->call->arguments, t->call->stream, first->context);
  }
  return status;
}

static void clean_up(tuner *t) {
  for (size_t i = 0; i < t->copy_count; i++)
    free_copy(&t->copies[i]);
  free(t->copies);
  free_copy(&t->reference);
  weir_event_destroy(t->start);
  weir_event_destroy(t->end);
}

/* Times one candidate, and sets *milliseconds unless it is left early since it is slower than `best`. */
static weir_status time_candidate(tuner *t, const weir__tunable_candidate *candidate, double best,
                                  double *milliseconds) {
  const weir_tunable_op *op = t->op;
  const char *params = t->call->params;
  int max_iterations = weir_tunable_get_max_iterations();
  double time = 0;
  bool is_right = true;
  weir_status status = run_once(t, candidate);
  if (!status && t->checks && candidate != op->candidates)
    status = check_outputs(t, candidate, &is_right);
  if (!status && !is_right) {
    weir__tunable_log(3, "numerics check failed for %s(%s) %s", op->name, params, candidate->name);
    return WEIR_OK;
  }
  if (!status)
    status = measure(t, candidate, at_most(3, max_iterations), &time);
  if (!status && time > 1.5 * best) {
    weir__tunable_log(3, "skip slow instance %s(%s) %s", op->name, params, candidate->name);
    return WEIR_OK;
  }
  if (!status)
    status = measure(t, candidate, at_most(10, max_iterations), &time);
  if (!status && time > 1.15 * best) {
    weir__tunable_log(3, "2nd skip slow instance %s(%s) %s", op->name, params, candidate->name);
    return WEIR_OK;
  }
  int warm_ups = limited(weir_tunable_get_max_warmup_duration(), weir_tunable_get_max_warmup_iterations(), time, 0);
  int iterations = limited(weir_tunable_get_max_duration(), max_iterations, time, 100);
  if (!status)
    status = run_often(t, candidate, warm_ups);
  if (!status)
    status = measure(t, candidate, iterations > 0 ? iterations : 1, &time);
  if (!status) {
    weir__tunable_log(3, "%s(%s) %s: %g ms in %d iterations", op->name, params, candidate->name, time, iterations);
    *milliseconds = time;
  }
  return status;
}

/* A candidate that fails is left out, but the default has to work. */
static weir_status find_fastest(const weir_tunable_op *op, const weir_tunable_call *call, size_t *fastest,
                                double *milliseconds) {
  tuner t = {.op = op, .call = call};
  double best = INFINITY;
  weir_status status = prepare(&t);
  weir__tunable_log(2, "finding fastest for %s(%s) out of %zu candidates", op->name, call->params, op->count);
  for (size_t i = 0; i < op->count && !status; i++) {
    double time = INFINITY;
    weir_status failure = time_candidate(&t, &op->candidates[i], best, &time);
    if (failure)
      weir__tunable_log(3, "unsupported %s(%s) %s: %s", op->name, call->params, op->candidates[i].name,
                        weir_last_error());
    if (i == 0)
      status = failure;
    if (time < best) {
      best = time;
      *fastest = i;
    }
  }
  if (!status) {
    weir__tunable_log(2, "found fastest for %s(%s) %s", op->name, call->params, op->candidates[*fastest].name);
    *milliseconds = best;
  }
  clean_up(&t);
  return status;
}

/* ---- Running ---- */

/* One search at a time on a device, so that they do not disturb each other. */
static pthread_mutex_t tuning_locks[WEIR_MAX_DEVICES];
static pthread_once_t tuning_locks_once = PTHREAD_ONCE_INIT;
static _Thread_local bool is_searching; /* an operation inside of another one is not tuned */

static void make_tuning_locks(void) {
  for (int i = 0; i < WEIR_MAX_DEVICES; i++)
    pthread_mutex_init(&tuning_locks[i], NULL);
}

static size_t candidate_named(const weir_tunable_op *op, const weir_tunable_call *call, const char *solution) {
  static atomic_bool has_warned;
  for (size_t i = 0; i < op->count; i++)
    if (!strcmp(op->candidates[i].name, solution))
      return i;
  if (!atomic_exchange(&has_warned, true))
    weir__log(WEIR_LOG_WARN, "%s(%s): the tuning results name a solution that does not exist: \"%s\"; Default is used",
              op->name, call->params, solution);
  return 0;
}

static size_t tune(const char *caller, const weir_tunable_op *op, const weir_tunable_call *call) {
  int device = call->stream.device;
  char solution[WEIR__TUNABLE_NAME];
  size_t fastest = 0;
  double milliseconds = 0;
  weir__on_device on;
  if (weir__compute_enter(caller, device, &on))
    return 0;
  pthread_once(&tuning_locks_once, make_tuning_locks);
  pthread_mutex_lock(&tuning_locks[device]);
  if (weir__tunable_find(device, op->name, call->params, solution)) /* another thread was faster */
    fastest = candidate_named(op, call, solution);
  else {
    is_searching = true;
    /* A capture of another stream does not forbid to allocate and to wait. */
    int mode = weir__compute_relax(on.driver);
    weir_status status = find_fastest(op, call, &fastest, &milliseconds);
    weir__compute_restore(on.driver, mode);
    is_searching = false;
    if (!status)
      weir__tunable_add(device, op->name, call->params, op->candidates[fastest].name, milliseconds);
    else {
      weir__log(WEIR_LOG_WARN, "%s(%s) could not be tuned, Default is used: %s", op->name, call->params,
                weir__last_reason());
      weir__tunable_give_up(device, op->name, call->params);
      fastest = 0;
    }
  }
  pthread_mutex_unlock(&tuning_locks[device]);
  weir__compute_leave(&on);
  return fastest;
}

static size_t choose(const char *caller, const weir_tunable_op *op, const weir_tunable_call *call) {
  char solution[WEIR__TUNABLE_NAME];
  int capturing = 1, device = call->stream.device;
  if (weir__tunable_find(device, op->name, call->params, solution))
    return candidate_named(op, call, solution);
  if (weir_tunable_is_tuning()) {
    if (is_searching || weir_stream_is_capturing(call->stream, &capturing) || capturing) {
      weir__tunable_log(2, "%s(%s) is not tuned during a capture", op->name, call->params);
      return 0;
    }
    return tune(caller, op, call);
  }
  if (weir_tunable_is_recording_untuned())
    weir__tunable_record_untuned(device, op->name, call->params);
  return 0;
}

weir_status weir__tunable_run(const char *caller, const weir_tunable_op *op, const weir_tunable_call *call) {
  const weir__tunable_candidate *candidate = &op->candidates[choose(caller, op, call)];
  weir_status status =
      candidate->fn(call->operands, call->operand_count, call->arguments, call->stream, candidate->context);
  /* Parameters do not say everything, so what was fastest in another call may not be possible in this one. */
  if (status == WEIR_ERROR_NOT_SUPPORTED && candidate != op->candidates) {
    candidate = op->candidates;
    status = candidate->fn(call->operands, call->operand_count, call->arguments, call->stream, candidate->context);
  }
  return status;
}

weir_status weir_tunable_op_run(const weir_tunable_op *op, const weir_tunable_call *given) {
  WEIR__CHECK_ARGUMENT(op);
  WEIR__CHECK_ARGUMENT(given);
  weir_tunable_call call = {0};
  int devices;
  weir_status status = weir__read_options(__func__, "call", &call, sizeof call, given);
  if (status)
    return status;
  if (call.operand_count < 0 || call.operand_count > MAX_OPERANDS || (call.operand_count && !call.operands))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: expected 0 to %d operands, got %d", __func__, MAX_OPERANDS,
                      call.operand_count);
  if (!call.params || !weir__tuning_text_is_valid(call.params))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: params is not empty, and has no commas or control characters",
                      __func__);
  for (int i = 0; i < call.operand_count; i++)
    if (call.operands[i].is_output && !weir_dtype_size(call.operands[i].dtype))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: output %d has an invalid type", __func__, i);
  status = weir_device_count(&devices);
  if (status)
    return weir__fail_as(__func__, status);
  if (call.stream.device < 0 || call.stream.device >= devices)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: there is no device %d, there are %d", __func__,
                      call.stream.device, devices);
  if (weir_tunable_is_enabled())
    return weir__tunable_run(__func__, op, &call);
  return op->candidates[0].fn(call.operands, call.operand_count, call.arguments, call.stream,
                              op->candidates[0].context);
}
