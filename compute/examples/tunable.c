/*
 * A tunable operation with three implementations, and a matrix product: the fastest is found by timing, and kept in a
 * file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <weir/compute/array.h>
#include <weir/compute/blas.h>
#include <weir/compute/tunable.h>
#include <weir/weir.h>

enum { WORDS = 1 << 16 };

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(1);
}

/* Fills memory by a number of calls, which `context` points to. */
static weir_status fill(const weir_tunable_operand *operands, int count, const void *arguments, weir_stream stream,
                        void *context) {
  (void)count;
  uint64_t parts = *(const uint64_t *)context, words = operands[0].bytes / 4 / parts;
  weir_status status = WEIR_OK;
  for (uint64_t i = 0; i < parts && !status; i++)
    status = weir_fill32_async((uint32_t *)operands[0].data + i * words, *(const uint32_t *)arguments, words, stream);
  return status;
}

int main(void) {
  static uint64_t parts[] = {64, 1, 8};
  uint32_t value = 7;
  weir_stream stream;
  void *memory;
  char name[] = "/tmp/weir-tunable-XXXXXX";
  int file = mkstemp(name);
  if (file < 0)
    return 1;
  close(file);
  unlink(name);
  check(weir_stream_create(0, 0, &stream));
  check(weir_malloc(WORDS * 4, stream, &memory));

  weir_tunable_op *op;
  check(weir_tunable_op_create("Fill", fill, &parts[0], &op));
  check(weir_tunable_op_add(op, "Fill_1", fill, &parts[1]));
  check(weir_tunable_op_add(op, "Fill_8", fill, &parts[2]));
  check(weir_tunable_set_filename(name, 0));
  weir_tunable_set_enabled(1);

  weir_tunable_operand operand = {memory, WORDS * 4, 1, WEIR_INT32};
  weir_tunable_call call;
  weir_tunable_call_init(&call);
  call.params = "words_65536";
  call.operands = &operand;
  call.operand_count = 1;
  call.arguments = &value;
  call.stream = stream;
  check(weir_tunable_op_run(op, &call)); /* times all three */
  check(weir_tunable_op_run(op, &call));

  /* On a GPU, without cuBLAS, there are no matrix products. */
  weir_array a = {0}, product = {0};
  int64_t shape[] = {64, 64};
  check(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, shape, stream, &a));
  check(weir_array_fill(&a, weir_scalar_int(1), stream));
  weir_status status = weir_array_matmul(&a, &a, stream, &product);
  if (status != WEIR_ERROR_NOT_SUPPORTED)
    check(status);

  weir_tunable_result *results;
  size_t count;
  check(weir_tunable_list_results(0, &results, &count));
  for (size_t i = 0; i < count; i++)
    printf("%s(%s): %s, %.4f ms\n", results[i].op, results[i].params, results[i].solution, results[i].milliseconds);
  weir_tunable_free(results);

  weir_array_release(&a);
  weir_array_release(&product);
  check(weir_blas_clear_workspaces());
  weir_tunable_op_destroy(op);
  check(weir_free(memory));
  check(weir_shutdown());
  unlink(name);
  return 0;
}
