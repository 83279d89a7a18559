#include <stdio.h>
#include <weir/offline.h>

/* Prints the status of loading an invalid recording, and the beginning of the error text. */
int main(void) {
  weir_offline_recording *recording;
  weir_status status = weir_offline_recording_load_memory("garbage", 7, NULL, &recording);
  printf("%d %.13s\n", (int)status, weir_offline_last_error());
  return 0;
}
