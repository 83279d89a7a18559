/*
 * A kernel from source: y = a * x + y, compiled for the device at run time. On a GPU this needs NVRTC, on the software
 * device a C++ compiler.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/kernel.h>
#include <weir/weir.h>

enum { COUNT = 1000 };

static const char source[] = "extern \"C\" __global__ void saxpy(float a, const float *x, float *y, int n) {\n"
                             "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                             "  if (i < n)\n"
                             "    y[i] = a * x[i] + y[i];\n"
                             "}\n";

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(status == WEIR_ERROR_NOT_SUPPORTED ? 77 : 1); /* no compiler */
}

int main(void) {
  float x[COUNT], y[COUNT], a = 3;
  int n = COUNT;
  for (int i = 0; i < COUNT; i++) {
    x[i] = (float)i;
    y[i] = 1;
  }

  weir_module *module;
  weir_kernel *saxpy;
  check(weir_module_compile(0, source, NULL, &module));
  check(weir_module_kernel(module, "saxpy", &saxpy));

  weir_stream stream;
  void *device_x, *device_y;
  check(weir_stream_create(0, 0, &stream));
  check(weir_malloc(sizeof x, stream, &device_x));
  check(weir_malloc(sizeof y, stream, &device_y));
  check(weir_copy_async(device_x, x, sizeof x, stream));
  check(weir_copy_async(device_y, y, sizeof y, stream));

  /* Number and sizes of the parameters are checked. */
  weir_param params[] = {WEIR_PARAM(a), WEIR_PARAM(device_x), WEIR_PARAM(device_y), WEIR_PARAM(n)};
  weir_launch_dims dims = {.grid = {(COUNT + 255) / 256}, .block = {256}};
  check(weir_kernel_launch(saxpy, dims, stream, params, 4));
  check(weir_copy_async(y, device_y, sizeof y, stream));
  check(weir_stream_synchronize(stream));

  for (int i = 0; i < COUNT; i++)
    if (y[i] != a * x[i] + 1) {
      fprintf(stderr, "y[%d] is %g\n", i, y[i]);
      return 1;
    }
  printf("y[%d] = %g%s\n", COUNT - 1, y[COUNT - 1], weir_module_is_cached(module) ? ", with code from the cache" : "");

  check(weir_free(device_x));
  check(weir_free(device_y));
  weir_module_destroy(module);
  check(weir_shutdown());
  return 0;
}
