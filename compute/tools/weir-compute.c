/*
 * weir-compute: the libraries of NVIDIA that libweir_compute loads, and where they were found; with --nccl, the memory
 * of an NCCL communicator on each device; with --environment, the environment variables.
 */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <weir/compute/kernel.h>
#include <weir/compute/nccl.h>
#include <weir/weir.h>

static void print_libraries(void) {
  static const char *const names[] = {"nvrtc", "cublas", "nccl"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[1024];
    const char *how;
    if (weir_library_find(names[i], path, sizeof path, NULL, &how))
      printf("%-8s not found\n", names[i]);
    else
      printf("%-8s %s (%s)\n", names[i], path, how);
  }
}

/* Creates a communicator of one rank for the purpose: those of other processes cannot be seen. */
static weir_status print_communicator(int device) {
  weir_nccl_comm *comm;
  weir_nccl_memory memory;
  int version;
  weir_nccl_memory_init(&memory);
  weir_status status = weir_nccl_version(&version);
  if (!status)
    status = weir_nccl_init_all(1, &device, NULL, &comm);
  if (status)
    return status;
  status = weir_nccl_get_memory(comm, &memory);
  weir_nccl_destroy(comm);
  if (!status)
    printf(
        "device %d: a communicator of one rank of NCCL %d.%d.%d takes %.2f MiB of the device%s, %.2f MiB of the host\n",
        device, version / 10000, version / 100 % 100, version % 100, (double)memory.device_bytes / (1 << 20),
        memory.is_exact ? "" : " (estimated)", (double)memory.host_bytes / (1 << 20));
  return status;
}

static weir_status print_communicators(void) {
  int count;
  weir_status status = weir_device_count(&count);
  for (int i = 0; i < count && !status; i++)
    status = print_communicator(i);
  return status;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define WEIR__GROUP(heading) {.group = heading},
#define WEIR__VARIABLE(id, names, from, to, values, preset, help) {NULL, NAMES names, values, preset, help},
static const struct {
  const char *group, *const *names, *values, *preset, *help;
} table[] = {
#include "src/environment_table.h"
};

/* In the form of `weir help environment`. */
static void print_environment(void) {
  puts("These environment variables are read by libweir_compute. In set-user-ID programs they are ignored.");
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (table[i].group)
      printf("\n%s:", table[i].group);
    for (size_t n = 0; table[i].names && table[i].names[n]; n++)
      printf("%s%s", n ? ", " : "  ", table[i].names[n]);
    if (table[i].names)
      printf("\n      %s\n      Values: %s.", table[i].help, table[i].values);
    printf(table[i].preset ? " Default: %s.\n" : "\n", table[i].preset);
  }
}

int main(int argc, char **argv) {
  bool prints_environment = argc == 2 && !strcmp(argv[1], "--environment");
  if (argc > 2 || (argc == 2 && !prints_environment && strcmp(argv[1], "--nccl") != 0)) {
    fprintf(stderr,
            "usage: weir-compute [--nccl | --environment]\n"
            "Show which libraries of NVIDIA libweir_compute finds. With --nccl, also create an NCCL communicator on "
            "each device, and show its memory. With --environment, show the environment variables instead.\n");
    return 2;
  }
  if (prints_environment) {
    print_environment();
    return 0;
  }
  print_libraries();
  weir_status status = argc == 2 ? print_communicators() : WEIR_OK;
  if (status)
    fprintf(stderr, "weir-compute: %s: %s\n", weir_status_name(status), weir_last_error());
  weir_shutdown();
  return status ? 1 : 0;
}
