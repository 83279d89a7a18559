/* Loads a kernel that every device of Weir has, and prints its name and the number of its parameters. */
#include <stdio.h>
#include <weir/compute/kernel.h>
#include <weir/runtime.h>

static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry weir_spin(.param .u64 cycles)\n{\n  ret;\n}\n";

int main(void) {
  weir_module *module;
  weir_kernel *kernel;
  weir_kernel_attributes attributes;
  weir_kernel_attributes_init(&attributes);
  if (weir_module_load(0, ptx, sizeof ptx, &module) || weir_module_kernel(module, "weir_spin", &kernel) ||
      weir_kernel_get_attributes(kernel, &attributes)) {
    printf("%s\n", weir_last_error());
    return 1;
  }
  printf("%s %d\n", weir_kernel_name(kernel), attributes.param_count);
  weir_module_destroy(module);
  return weir_shutdown() != WEIR_OK;
}
