/*
 * overrun CASE: writes a byte of device memory with a kernel, for a tool that checks accesses
 * (compute/tests/memcheck.sh). Two blocks of 1000 bytes lie in one segment, 1024 bytes apart. The case is where the
 * byte is:
 *
 *   inside    the last byte of the first block
 *   between   behind the first block, before the second
 *   beyond    behind the second block, in the free rest of the segment
 *   freed     in the second block, after it was freed
 *   late      in the second block, which is freed while the write waits in the stream
 *   reused    in a third block, at the address of the second
 *   again     inside, in a segment that was returned to the driver and allocated again
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir/compute/kernel.h>
#include <weir/compute/nvtx.h>
#include <weir/soft.h>
#include <weir/weir.h>

enum { BYTES = 1000, APART = 1024 };

static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry weir_test_write(.param .u64 at)\n"
                          "{\n"
                          "  .reg .u64 %rd<3>;\n"
                          "  .reg .u16 %rs<2>;\n"
                          "  ld.param.u64 %rd1, [at];\n"
                          "  cvta.to.global.u64 %rd2, %rd1;\n"
                          "  mov.u16 %rs1, 7;\n"
                          "  st.global.u8 [%rd2], %rs1;\n"
                          "  ret;\n"
                          "}\n";

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "overrun: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static weir_cu_result write_on_host(const weir_soft_launch *launch) {
  **(char **)launch->params[0] = 7;
  return WEIR_CU_SUCCESS;
}

static weir_allocator *allocator;
static weir_stream stream;

static char *allocate(void) {
  weir_cu_stream raw;
  void *memory;
  check(weir_stream_raw(stream, &raw));
  check(weir_allocator_alloc(allocator, 0, BYTES, raw, &memory));
  return memory;
}

int main(int argc, char **argv) {
  const char *what = argc == 2 ? argv[1] : "";
  const size_t pointer_bytes = sizeof(void *);
  weir_driver *driver;
  weir_module *module;
  weir_kernel *kernel;
  int listens;
  check(weir_get_driver(&driver));
  if (driver->capabilities & WEIR_DRIVER_HOST_KERNELS)
    check(weir_soft_register_kernel(driver, "weir_test_write", write_on_host, 1, &pointer_bytes));
  check(weir_default_allocator(&allocator));
  check(weir_stream_create(0, 0, &stream));
  check(weir_nvtx_report_memory(allocator, &listens));
  if (!listens)
    fputs("overrun: no tool wants to know about memory\n", stderr);
  check(weir_module_load(0, ptx, sizeof ptx, &module));
  check(weir_module_kernel(module, "weir_test_write", &kernel));
  char *first = allocate(), *second = allocate(), *to = NULL;
  if (second != first + APART) {
    fprintf(stderr, "overrun: the blocks are at %p and %p\n", (void *)first, (void *)second);
    return 1;
  }
  if (!strcmp(what, "inside"))
    to = first + BYTES - 1;
  else if (!strcmp(what, "between"))
    to = first + BYTES;
  else if (!strcmp(what, "beyond"))
    to = second + APART;
  else if (!strcmp(what, "freed") || !strcmp(what, "late") || !strcmp(what, "reused"))
    to = second;
  else if (!strcmp(what, "again")) {
    check(weir_allocator_free(allocator, first));
    check(weir_allocator_free(allocator, second));
    check(weir_allocator_empty_cache(allocator));
    first = allocate();
    second = allocate();
    to = second + BYTES - 1;
  } else {
    fputs("usage: overrun inside|between|beyond|freed|late|reused|again\n", stderr);
    return 2;
  }
  if (!strcmp(what, "late"))
    check(weir_stream_spin(stream, 500000000)); /* about a quarter of a second */
  if (!strcmp(what, "freed") || !strcmp(what, "reused"))
    check(weir_allocator_free(allocator, second));
  if (!strcmp(what, "reused") && allocate() != second) {
    fputs("overrun: the block was not reused\n", stderr);
    return 1;
  }
  weir_param params[] = {WEIR_PARAM(to)};
  check(weir_kernel_launch(kernel, (weir_launch_dims){.grid = {1}, .block = {1}}, stream, params, 1));
  if (!strcmp(what, "late"))
    check(weir_allocator_free(allocator, second));
  check(weir_stream_synchronize(stream));
  return 0;
}
