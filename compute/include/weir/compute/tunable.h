/*
 * Tunable operations: several implementations of one operation, of which the fastest for given parameters is found by
 * timing, remembered, and kept in a file. The counterpart of PyTorch's TunableOp (torch.cuda.tunable). Part of
 * libweir_compute.
 *
 *     weir_tunable_op *op;
 *     weir_tunable_op_create("Scale", plain, NULL, &op);             the default implementation
 *     weir_tunable_op_add(op, "Scale_Vectors", vectors, NULL);
 *     weir_tunable_set_enabled(1);
 *     weir_tunable_operand operands[] = {{x, bytes, 0, WEIR_FLOAT32}, {y, bytes, 1, WEIR_FLOAT32}};
 *     weir_tunable_call call = {.size = sizeof call, .params = "n_1024", .operands = operands, .operand_count = 2,
 *                               .stream = stream};
 *     weir_tunable_op_run(op, &call);                                times both, then runs the faster one
 *     weir_tunable_op_run(op, &call);                                runs it at once
 *
 * weir_array_matmul is such an operation. Results belong to a device, and device -1 is the current one. All calls are
 * thread-safe. The settings are those of the process; the environment, which is read once, takes precedence as in
 * PyTorch (compute/docs/tunable.md).
 */
#ifndef WEIR_TUNABLE_H
#define WEIR_TUNABLE_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/dtype.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Operations ---- */

/* Memory that an operation reads or writes, on the device of the stream. */
typedef struct weir_tunable_operand {
  void *data;
  uint64_t bytes;
  int is_output;    /* the operation writes it; it may read it too */
  weir_dtype dtype; /* of an output: the numerical check compares elements of this type */
} weir_tunable_operand;

/* An implementation: enqueues the operation on the stream. While the operation is timed, the operands are copies, so
 * their addresses are taken from here and not from the arguments. Any failure means that it cannot do this call. It
 * must not synchronize, and must be usable from several threads. */
typedef weir_status (*weir_tunable_fn)(const weir_tunable_operand *operands, int operand_count, const void *arguments,
                                       weir_stream stream, void *context);

typedef struct weir_tunable_call {
  size_t size;        /* sizeof(weir_tunable_call) */
  const char *params; /* identifies what the speed depends on, such as the shapes; without commas */
  const weir_tunable_operand *operands;
  int operand_count;
  const void *arguments; /* handed to the implementation */
  weir_stream stream;
} weir_tunable_call;
/* Sets `size` and makes the rest zero. */
void weir_tunable_call_init(weir_tunable_call *call);

typedef struct weir_tunable_op weir_tunable_op;

/* `fn` is the implementation "Default": the reference of the numerical check, and the one that is used if nothing is
 * known. The name, without commas, is the first field in files. */
weir_status weir_tunable_op_create(const char *name, weir_tunable_fn fn, void *context, weir_tunable_op **op);

/* Adds an implementation under a name of its own, before the first run. */
weir_status weir_tunable_op_add(weir_tunable_op *op, const char *solution, weir_tunable_fn fn, void *context);

/* NULL is allowed. Results stay. */
void weir_tunable_op_destroy(weir_tunable_op *op);

/* Runs the operation: "Default" unless tunable operations are enabled; otherwise the implementation that is known to be
 * the fastest for these parameters on the stream's device. If none is known and tuning is on, all are timed on copies
 * of the operands, which synchronizes the stream and allocates memory. Nothing is timed while the stream is being
 * captured: then "Default" runs, and the parameters stay untuned. A failure while implementations are timed is a
 * warning (weir/log.h), and "Default" runs. */
weir_status weir_tunable_op_run(const weir_tunable_op *op, const weir_tunable_call *call);

/* ---- Settings of the process, with PyTorch's defaults ---- */

/* Whether operations run their fastest implementation. Off. */
void weir_tunable_set_enabled(int on);
int weir_tunable_is_enabled(void);

/* Whether operations with unknown parameters are timed. On. */
void weir_tunable_set_tuning(int on);
int weir_tunable_is_tuning(void);

/* Writes parameters that are not known, while tuning is off, to the file WEIR_TUNABLEOP_UNTUNED_FILENAME, or
 * tunableop_untuned.csv, with the device's number inserted. Off. While it is on, no file of results is read or
 * written. */
void weir_tunable_set_record_untuned(int on);
int weir_tunable_is_recording_untuned(void);

/* How long, and how often, an implementation is timed: the lower of both. Negative values are 0, which means no limit;
 * without both it is 100 times. 30 ms and 100 times. */
void weir_tunable_set_max_duration(int milliseconds);
int weir_tunable_get_max_duration(void);
void weir_tunable_set_max_iterations(int iterations);
int weir_tunable_get_max_iterations(void);

/* How long, and how often, it runs before, besides the two runs that always precede a measurement. 0, which is
 * neither. */
void weir_tunable_set_max_warmup_duration(int milliseconds);
int weir_tunable_get_max_warmup_duration(void);
void weir_tunable_set_max_warmup_iterations(int iterations);
int weir_tunable_get_max_warmup_iterations(void);

/* The operands are copied until the copies fill this many MiB, and each run uses the next copy, so that it does not
 * find its operands in the L2 cache. 0: all runs use the same memory. Negative, the default: the size of the device's
 * L2 cache. */
void weir_tunable_set_rotating_buffer_size(int mebibytes);
weir_status weir_tunable_get_rotating_buffer_size(int device, uint64_t *bytes);

/* Compares the outputs of each implementation with those of "Default": |a - b| <= atol + rtol * |b| for all elements,
 * in double precision. Off. Tolerances that are not positive are WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_tunable_set_numerical_check(int on, double atol, double rtol);
void weir_tunable_get_numerical_check(int *on, double *atol, double *rtol);

/* ---- Results ---- */

typedef struct weir_tunable_result {
  const char *op, *params, *solution;
  double milliseconds; /* of a run; 0 if not known */
} weir_tunable_result;

/* All results of a device, in the order in which they were found. Free the list with weir_tunable_free. */
weir_status weir_tunable_list_results(int device, weir_tunable_result **results, size_t *count);

/* A name and a value that a file of results must match. */
typedef struct weir_tunable_validator {
  const char *key, *value;
} weir_tunable_validator;

/* Under which circumstances results are valid: WEIR_VERSION, DRIVER_VERSION, DEVICE, CUBLAS_VERSION on a GPU, and those
 * that the program has set. */
weir_status weir_tunable_list_validators(int device, weir_tunable_validator **validators, size_t *count);

/* Adds or replaces a validator of the program, for all devices; NULL removes it. */
weir_status weir_tunable_set_validator(const char *key, const char *value);

/* Frees a list of weir_tunable_list_results or weir_tunable_list_validators. NULL is allowed. */
void weir_tunable_free(void *list);

/* Forgets the results of a device, and whether its file was read. */
weir_status weir_tunable_forget(int device);

/* ---- Files ----
 *
 * When a device is first used, its file is read if it exists; a file that cannot be read or is stale is a warning. New
 * results are added to it. Several processes can share a file. */

/* With `insert_ordinal`, the device's number replaces the first "%d" in the name, or is inserted before its last dot.
 * The default is WEIR_TUNABLEOP_FILENAME, or tunableop_results.csv, with the number. */
weir_status weir_tunable_set_filename(const char *name, int insert_ordinal);

/* The name for a device. */
weir_status weir_tunable_get_filename(int device, char *text, size_t size, size_t *length);

/* Adds the results of a file to those of a device, which take precedence; a NULL name is the device's file.
 * WEIR_ERROR_BAD_STATE, with a text that names the difference, if the validators differ; then nothing is added. Lines
 * that cannot be read are skipped with a warning. */
weir_status weir_tunable_read_file(int device, const char *name);

/* Writes the results of a device. A NULL name is the device's file, where results of other processes are kept; a file
 * of another name is replaced. */
weir_status weir_tunable_write_file(int device, const char *name);

/* Whether new results are written to the device's file: at once, so that a crash loses none. What could not be written
 * then is written with the next result or at weir_shutdown. Turning it on writes the results that it missed. On. */
void weir_tunable_set_write_results(int on);

#ifdef __cplusplus
}
#endif
#endif
