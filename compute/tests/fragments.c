/*
 * The same for libweir_compute: arrays, kernels, random numbers, collectives, mixed precision, ranges.
 */
#include <weir/compute/amp.h>
#include <weir/compute/array.h>
#include <weir/compute/kernel.h>
#include <weir/compute/nccl.h>
#include <weir/compute/nvtx.h>
#include <weir/compute/random.h>
#include <weir/compute/tunable.h>

#include "fragments.h"

enum { COUNT = 1024 };

static weir_stream new_stream(void) {
  weir_stream stream;
  MUST(weir_device_set_current(0) == WEIR_OK && weir_stream_create(0, 0, &stream) == WEIR_OK);
  return stream;
}

static void ones(weir_stream stream, weir_array *array) {
  int64_t shape[] = {COUNT};
  MUST(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, shape, stream, array) == WEIR_OK);
  MUST(weir_array_fill(array, weir_scalar_int(1), stream) == WEIR_OK);
}

static void amp(void) {
  int found, count = 1;
  weir_stream stream = new_stream();
  weir_array loss_gradient = {0}, scaled = {0}, gradients[1] = {{0}};
  ones(stream, &loss_gradient);
  ones(stream, &gradients[0]);
#include "amp_1.inc"
  MUST(!found);
  weir_grad_scaler_destroy(scaler);
  weir_array_release(&loss_gradient);
  weir_array_release(&scaled);
  weir_array_release(&gradients[0]);
}

static void arrays(void) {
  weir_stream stream = new_stream();
#include "arrays_1.inc"
}

static void collectives(void) {
  int ranks = 1, rank = 0;
  size_t count = COUNT;
  weir_nccl_comm *comm;
  weir_stream stream = new_stream();
  void *gradient;
  MUST(weir_malloc(4 * COUNT, stream, &gradient) == WEIR_OK);
#include "collectives_1.inc"
  MUST(weir_free(gradient) == WEIR_OK);
}

static void kernels(void) {
  static const char source[] = "extern \"C\" __global__ void saxpy(float a, const float *x, float *y, int n) {\n"
                               "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                               "  if (i < n)\n"
                               "    y[i] += a * x[i];\n"
                               "}\n";
  float a = 2;
  void *x, *y;
  int n = COUNT;
  weir_stream stream = new_stream();
  MUST(weir_malloc(4 * COUNT, stream, &x) == WEIR_OK && weir_malloc(4 * COUNT, stream, &y) == WEIR_OK);
#include "kernels_1.inc"
  MUST(weir_stream_synchronize(stream) == WEIR_OK);
  weir_module_destroy(module);
  MUST(weir_free(x) == WEIR_OK && weir_free(y) == WEIR_OK);
}

static void nvtx(void) {
#include "nvtx_1_1.inc"
#include "nvtx_1_2.inc"
}

static void random_numbers(void) {
  size_t count = COUNT;
  void *pointer;
  weir_stream stream = new_stream();
  MUST(weir_malloc(4 * COUNT, stream, &pointer) == WEIR_OK);
#include "random_1.inc"
  MUST(weir_free(pointer) == WEIR_OK);
}

static weir_status fill(const weir_tunable_operand *operands, int count, const void *arguments, weir_stream stream,
                        void *context) {
  return weir_fill32_async(operands[0].data, *(const uint32_t *)arguments, operands[0].bytes / 4, stream);
}

static void tunable(void) {
  static uint64_t parts[] = {64, 1, 8};
  uint32_t value = 7;
  weir_tunable_op *op;
  weir_tunable_call call;
  weir_stream stream = new_stream();
  void *memory;
  MUST(weir_malloc(4 * COUNT, stream, &memory) == WEIR_OK);
  weir_tunable_operand operand = {memory, 4 * COUNT, 1, WEIR_INT32};
  weir_tunable_call_init(&call);
  call.operands = &operand;
  call.operand_count = 1;
  call.arguments = &value;
  call.stream = stream;
  weir_tunable_set_write_results(0);
#include "tunable_1.inc"
  weir_tunable_set_enabled(0);
  weir_tunable_op_destroy(op);
  MUST(weir_stream_synchronize(stream) == WEIR_OK && weir_free(memory) == WEIR_OK);
}

int main(void) {
  static const fragment fragments[] = {
      FRAGMENT(amp),  FRAGMENT(arrays),         FRAGMENT(collectives), FRAGMENT(kernels),
      FRAGMENT(nvtx), FRAGMENT(random_numbers), FRAGMENT(tunable),
  };
  return run_fragments(fragments, sizeof fragments / sizeof *fragments);
}
