/*
 * Which devices there are: CUDA_VISIBLE_DEVICES, and counting without starting anything that a fork would break.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "driver/cuda.h"
#include "driver/nvml.h"
#include "runtime/runtime.h"

enum { NAMES_NONE = -1, MIG = -1 };

/* The number that an entry begins with, as "2" in "2nd", if it is one of a device. */
static int ordinal_of_number(const char *entry, size_t length, int count) {
  const char *end = entry + length;
  while (entry < end && isspace((unsigned char)*entry))
    entry++;
  bool negative = entry < end && *entry == '-';
  if (entry < end && (*entry == '-' || *entry == '+'))
    entry++;
  if (entry == end || !isdigit((unsigned char)*entry))
    return NAMES_NONE;
  long long number = 0;
  for (; entry < end && isdigit((unsigned char)*entry); entry++) {
    number = number * 10 + (*entry - '0');
    if (number >= count)
      return NAMES_NONE;
  }
  return negative && number > 0 ? NAMES_NONE : (int)number;
}

/* The one device whose uuid begins so. Unlike numbers, names may not have spaces around them. "GPU-" alone names none, even
 * where there is one device: so has NVIDIA's driver it. */
static int ordinal_of_uuid(const char *entry, size_t length, const char *const *uuids, int count) {
  int found = NAMES_NONE;
  if (length < 5 || memcmp(entry, "GPU-", 4) != 0)
    return NAMES_NONE;
  for (int i = 0; i < count; i++) {
    if (!uuids[i] || strncmp(uuids[i], entry, length) != 0)
      continue;
    if (found != NAMES_NONE)
      return NAMES_NONE;
    found = i;
  }
  return found;
}

/* How many devices the text leaves, their ordinals in ordinals[]; MIG when the driver has to be asked. */
static int parse(const char *text, const char *const *uuids, int count, int *ordinals) {
  int visible = 0;
  if (!text) {
    for (; visible < count && visible < WEIR_MAX_DEVICES; visible++)
      ordinals[visible] = visible;
    return visible;
  }
  if (strncmp(text, "MIG-", 4) == 0)
    return MIG;

  /* The first entry decides for all whether names or numbers are meant. */
  bool names = strncmp(text, "GPU-", 4) == 0;
  for (;;) {
    size_t length = strcspn(text, ",");
    int ordinal = names ? ordinal_of_uuid(text, length, uuids, count) : ordinal_of_number(text, length, count);
    if (ordinal == NAMES_NONE)
      return visible;
    for (int i = 0; i < visible; i++)
      if (ordinals[i] == ordinal)
        return 0;
    if (visible < WEIR_MAX_DEVICES)
      ordinals[visible++] = ordinal;
    if (!text[length])
      return visible;
    text += length + 1;
  }
}

weir_status weir_visible_devices(const char *text, const char *const *uuids, int count, int *ordinals, int *visible) {
  if (count < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %d", __func__, count);
  if (count > 0)
    WEIR__RETURN_IF_NULL(uuids);
  WEIR__RETURN_IF_NULL(ordinals);
  WEIR__RETURN_IF_NULL(visible);
  int found[WEIR_MAX_DEVICES];
  int number = parse(text, uuids, count, found);
  if (number == MIG)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: \"%s\" names MIG devices, which only the driver knows", __func__,
                      text);
  memcpy(ordinals, found, (size_t)number * sizeof *found);
  *visible = number;
  return WEIR_OK;
}

weir_status weir__list_devices(const char *who, weir_driver *driver, int *ordinals, int *count) {
  weir_cu_result result = driver->Init(driver, 0);
  /* NVIDIA's driver answers INVALID_DEVICE when CUDA_VISIBLE_DEVICES names a device twice, which leaves none. */
  if (result == WEIR_CU_NO_DEVICE || result == WEIR_CU_INVALID_DEVICE) {
    *count = 0;
    return WEIR_OK;
  }
  weir_status status = weir__driver_status(driver, result, who, "cuInit(driver, 0)");
  if (status != WEIR_OK)
    return status;
  weir__note_driver_init(driver);
  int number;
  status = WEIR__CALL_FOR(who, driver, DeviceGetCount(driver, &number));
  if (status != WEIR_OK)
    return status;
  if (number > WEIR_MAX_DEVICES)
    number = WEIR_MAX_DEVICES;

  /* NVIDIA's driver reads the variable by itself, when it starts. */
  if (strcmp(driver->name, "cuda") == 0) {
    *count = parse(NULL, NULL, number, ordinals);
    return WEIR_OK;
  }
  char texts[WEIR_MAX_DEVICES][WEIR__UUID_SIZE];
  const char *uuids[WEIR_MAX_DEVICES];
  for (int i = 0; i < number; i++) {
    weir_cu_device device;
    weir_cu_uuid uuid;
    status = WEIR__CALL_FOR(who, driver, DeviceGet(driver, &device, i));
    if (status == WEIR_OK)
      status = WEIR__CALL_FOR(who, driver, DeviceGetUuid(driver, &uuid, device));
    if (status != WEIR_OK)
      return status;
    weir__format_uuid(&uuid, texts[i]);
    uuids[i] = texts[i];
  }
  number = parse(getenv("CUDA_VISIBLE_DEVICES"), uuids, number, ordinals);
  *count = number == MIG ? 0 : number; /* no other driver has such devices */
  return WEIR_OK;
}

/* Of NVIDIA's devices. The management library answers without starting the driver; where it cannot, the driver is
 * started, and a child of fork can use it no more. A driver that fails to start has no device. */
static int count_cuda(weir_driver *cuda) {
  weir__nvml nvml;
  if (weir__nvml_open(&nvml)) {
    char texts[WEIR_MAX_DEVICES][WEIR__NVML_UUID_SIZE];
    const char *uuids[WEIR_MAX_DEVICES];
    int ordinals[WEIR_MAX_DEVICES];
    int count;
    bool told = weir__nvml_uuids(&nvml, texts, WEIR_MAX_DEVICES, &count);
    weir__nvml_close(&nvml);
    if (told) {
      for (int i = 0; i < count; i++)
        uuids[i] = texts[i];
      count = parse(getenv("CUDA_VISIBLE_DEVICES"), uuids, count, ordinals);
      if (count != MIG)
        return count;
    }
  }

  if (cuda->Init(cuda, 0) != WEIR_CU_SUCCESS)
    return 0;
  weir__note_driver_init(cuda);
  int count;
  if (cuda->DeviceGetCount(cuda, &count) != WEIR_CU_SUCCESS)
    return 0;
  return count < WEIR_MAX_DEVICES ? count : WEIR_MAX_DEVICES;
}

static bool is_automatic(const char *choice) { return !choice || !*choice || strcmp(choice, "auto") == 0; }

weir_status weir__count_devices(const char *who, weir_driver *chosen, int *count) {
  int ordinals[WEIR_MAX_DEVICES];
  if (chosen)
    return weir__list_devices(who, chosen, ordinals, count);

  /* The same choice as weir_driver_open's, which cannot be asked: to choose it starts NVIDIA's driver. */
  const char *choice = getenv("WEIR_DRIVER");
  bool automatic = is_automatic(choice);
  if (automatic || strcmp(choice, "cuda") == 0) {
    char reason[WEIR__CUDA_REASON];
    weir_driver *cuda;
    int number = 0;
    if (weir__cuda_open(reason, &cuda) == WEIR_OK) {
      number = count_cuda(cuda);
      weir_driver_close(cuda);
    } else if (automatic) {
      static atomic_flag was_said = ATOMIC_FLAG_INIT; /* counting may be frequent */
      if (!atomic_flag_test_and_set(&was_said))
        weir__cuda_log_fallback(who, reason);
    }
    if (number > 0 || !automatic) {
      *count = number;
      return WEIR_OK;
    }
    choice = "soft";
  }

  weir_driver *driver;
  weir_status status = weir_driver_open(choice, &driver);
  if (status != WEIR_OK)
    return status;
  status = weir__list_devices(who, driver, ordinals, count);
  weir_driver_close(driver);
  return status;
}

weir_status weir__has_foreign_context(const char *who, weir_driver *chosen, int device, bool *has) {
  int ordinals[WEIR_MAX_DEVICES];
  int count;
  weir_status status =
      chosen ? weir__list_devices(who, chosen, ordinals, &count) : weir__count_devices(who, NULL, &count);
  if (status != WEIR_OK)
    return status;
  if (device >= count)
    return weir__no_such_device(who, device, count);

  *has = false;
  weir_driver *driver = chosen;
  int ordinal = device;
  if (chosen) {
    ordinal = ordinals[device];
  } else {
    const char *choice = getenv("WEIR_DRIVER");
    char reason[WEIR__CUDA_REASON];
    if (!is_automatic(choice) && strcmp(choice, "cuda") != 0)
      return WEIR_OK; /* a driver that nobody has opened yet */
    if (weir__cuda_open(reason, &driver) != WEIR_OK)
      return WEIR_OK;
  }
  /* A driver that was not started answers NOT_INITIALIZED: then there is no context either. */
  weir_cu_device handle;
  unsigned flags;
  int active;
  if (driver->DeviceGet(driver, &handle, ordinal) == WEIR_CU_SUCCESS &&
      driver->DevicePrimaryCtxGetState(driver, handle, &flags, &active) == WEIR_CU_SUCCESS)
    *has = active;
  if (!chosen)
    weir_driver_close(driver);
  return WEIR_OK;
}
