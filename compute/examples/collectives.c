/*
 * Collectives in one process: a batch is split over all devices, each computes the sum of its part, and the averages
 * are combined by an all-reduce. Without a GPU it runs on four software devices.
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir/compute/array.h>
#include <weir/compute/comm.h>
#include <weir/compute/nccl.h>
#include <weir/weir.h>

enum { MAX = 16 };

static void check(weir_status status) {
  if (status == WEIR_OK)
    return;
  fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
  exit(1);
}

int main(void) {
  int count, used, version, devices[MAX];
  setenv("WEIR_SOFT_DEVICES", "4", 0);
  check(weir_device_count(&count));
  count = count > MAX ? MAX : count;
  for (int i = 0; i < count; i++)
    devices[i] = i;

  /* One rank for each device, all in this thread. */
  weir_nccl_comm *comms[MAX];
  check(weir_nccl_version(&version));
  check(weir_nccl_init_all(count, devices, NULL, comms));

  /* 0 to 1599 on the host, in equal parts on the devices. */
  weir_array batch = {0}, parts[MAX] = {{0}}, sums[MAX] = {{0}}, whole = {0};
  weir_stream stream;
  int64_t elements = 1600;
  check(weir_stream_get_current(0, &stream));
  check(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, &elements, stream, &batch));
  check(weir_array_arange(&batch, weir_scalar_int(0), weir_scalar_int(1), stream));
  check(weir_comm_scatter(&batch, devices, count, NULL, 0, NULL, parts, &used));
  for (int i = 0; i < used; i++) {
    check(weir_stream_get_current(i, &stream));
    check(weir_array_reduce(WEIR_REDUCE_MEAN, &parts[i], NULL, 0, 0, stream, &sums[i]));
  }

  /* A thread that drives several ranks puts their calls in a group. */
  check(weir_nccl_group_start());
  for (int i = 0; i < used; i++) {
    check(weir_stream_get_current(i, &stream));
    check(weir_nccl_all_reduce(sums[i].data, sums[i].data, 1, WEIR_FLOAT32, WEIR_NCCL_AVG, comms[i], stream));
  }
  check(weir_nccl_group_end());
  for (int i = 0; i < used; i++) {
    weir_scalar mean;
    check(weir_stream_get_current(i, &stream));
    check(weir_nccl_synchronize(comms[i], stream)); /* also says whether a rank failed */
    check(weir_array_item(&sums[i], stream, &mean));
    if (mean.real != 799.5) {
      fprintf(stderr, "device %d: the mean is %g, not 799.5\n", i, mean.real);
      return 1;
    }
  }
  check(weir_comm_gather(parts, used, 0, weir_place_host(), &whole));
  printf("%d devices, NCCL %d: the mean of %lld numbers is 799.5 on each\n", used, version,
         (long long)weir_array_count(&whole));

  for (int i = 0; i < count; i++)
    weir_nccl_destroy(comms[i]);
  for (int i = 0; i < used; i++) {
    weir_array_release(&parts[i]);
    weir_array_release(&sums[i]);
  }
  weir_array_release(&batch);
  weir_array_release(&whole);
  check(weir_shutdown());
  return 0;
}
