/*
 * A libFuzzer target, see scripts/fuzz: handles and messages from other processes.
 *
 * The first byte selects what the rest is: a handle for weir_ipc_open, or what is XORed with a handle or a message of
 * this process. Process ids are fixed up to be that of this process: the fuzzer shall not open files of others.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/ipc/ipc.h"
#include "base/thread.h"
#include "weir/alloc.h"
#include "weir/soft.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY = 1 << 20, PROCESS_AT = 2 };

static weir_allocator *allocator;
static void *memory;

static void begin(void) {
  weir_soft_options options;
  weir_allocator_options with;
  weir_driver *driver;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  options.bytes = 1ull << 30;
  weir_allocator_options_init(&with);
  with.conf = "expandable_segments:True";
  if (weir_driver_open_soft(&options, &driver) || driver->Init(driver, 0) ||
      weir_allocator_create(driver, &with, &allocator) || weir_allocator_alloc(allocator, 0, MEMORY, NULL, &memory))
    abort();
}

static void set_process(uint8_t *bytes, size_t length) {
  int32_t process = weir__process_id();
  if (length != sizeof(weir_cu_ipc_mem_handle) && length >= PROCESS_AT + sizeof process)
    memcpy(bytes + PROCESS_AT, &process, sizeof process);
}

static void open_handle(uint8_t *bytes, size_t length) {
  void *base;
  if (length == sizeof(weir_cu_ipc_mem_handle) || (length > 1 && bytes[1] == 'c'))
    return; /* of the driver, which has the number of a process at another place */
  set_process(bytes, length);
  if (weir_ipc_open(allocator, 0, bytes, length, &base) == WEIR_OK && weir_ipc_close(allocator, base))
    abort();
}

static void receive(weir_ipc_handle *handle, const weir__ipc_message *sent) {
  weir__ipc_message *message = (weir__ipc_message *)(void *)handle->bytes;
  void *pointer;
  uint64_t bytes;
  size_t freed;
  message->reference.sender = sent->reference.sender;
  message->reference.file = sent->reference.file;
  if (weir_ipc_receive(allocator, 0, handle->bytes, handle->length, NULL, &pointer, &bytes) == WEIR_OK) {
    uint64_t offset = (uint64_t)pointer - (uint64_t)memory;
    if (offset > MEMORY || bytes > MEMORY - offset) /* it would be memory of another allocation */
      abort();
    weir_ipc_release(allocator, pointer, NULL);
  }
  weir_ipc_cancel(allocator, sent, handle->length);
  weir_ipc_collect(allocator, &freed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static weir_ipc_handle handle, sent;
  if (!allocator)
    begin();
  if (!size)
    return 0;
  weir_ipc_handle_init(&handle);
  size_t rest = size - 1;
  if (data[0] % 4 == 0) {
    uint8_t *bytes = malloc(rest + 1);
    if (!bytes)
      return 0;
    memcpy(bytes, data + 1, rest);
    open_handle(bytes, rest);
    free(bytes);
    return 0;
  }
  bool is_message = data[0] % 4 > 1;
  if (is_message ? weir_ipc_send(allocator, memory, NULL, NULL, &handle) : weir_ipc_share(allocator, memory, &handle))
    abort();
  sent = handle;
  for (size_t i = 0; i < rest && i < handle.length; i++)
    handle.bytes[i] ^= data[1 + i];
  if (is_message)
    receive(&handle, (const weir__ipc_message *)(const void *)sent.bytes);
  else
    open_handle(handle.bytes, handle.length);
  return 0;
}
