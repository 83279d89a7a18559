#include "record/live_page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/environment.h"
#include "base/memory_map.h"

#define SUFFIX ".page"

enum { START_SECONDS = 60 }; /* a page without accounts may be being made for so long */

/* ---- Where pages are ---- */

int weir__live_page_folders(char folders[WEIR__PAGE_FOLDERS][WEIR__PAGE_PATH]) {
  const char *chosen = weir__env_value(WEIR__ENV_STATS_PAGE), *runtime = weir__env_value(WEIR__ENV_RUNTIME_DIR);
  int count = 0;
  if (chosen && strcmp(chosen, "0") == 0)
    return 0;
  if (chosen && strcmp(chosen, "1") != 0) {
    if (*chosen != '/' || strlen(chosen) >= WEIR__PAGE_PATH)
      weir__env_ignore(WEIR__ENV_STATS_PAGE, "the folder must be an absolute path, so there is no page");
    else
      strcpy(folders[count++], chosen);
    return count;
  }
  if (runtime && *runtime == '/' && strlen(runtime) + sizeof "/weir" <= WEIR__PAGE_PATH &&
      weir__private_folder(runtime, false) == 0)
    snprintf(folders[count++], WEIR__PAGE_PATH, "%.*s/weir", WEIR__PAGE_PATH - 8, runtime);
  snprintf(folders[count++], WEIR__PAGE_PATH, "/dev/shm/weir-%u", weir__user_id());
  return count;
}

static bool is_page_name(const char *name) {
  size_t length = strlen(name), end = sizeof SUFFIX - 1;
  return length > end && strcmp(name + length - end, SUFFIX) == 0;
}

static size_t visit_folder(const char *folder, size_t most, weir__page_visit_fn visit, void *context) {
  char path[WEIR__PAGE_PATH + 256];
  size_t count = 0;
  DIR *listed = weir__private_folder(folder, false) == 0 ? opendir(folder) : NULL;
  for (struct dirent *entry; listed && count < most && (entry = readdir(listed));)
    if (is_page_name(entry->d_name) && snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < WEIR__PAGE_PATH) {
      visit(context, path);
      count++;
    }
  if (listed)
    closedir(listed);
  return count;
}

size_t weir__pages_visit(size_t most, weir__page_visit_fn visit, void *context) {
  char folders[WEIR__PAGE_FOLDERS][WEIR__PAGE_PATH];
  int count = weir__live_page_folders(folders);
  size_t visited = 0;
  for (int i = 0; i < count; i++)
    visited += visit_folder(folders[i], most - visited, visit, context);
  return visited;
}

/* ---- Writing ---- */

static void remove_if_ended(void *context, const char *path) {
  weir__page_view view;
  (void)context;
  weir__page_read(path, &view);
  if (view.life == WEIR__PAGE_ENDED)
    unlink(path);
  weir__page_view_clear(&view);
}

/* A name that no other process has, of whatever namespace. It is locked before the page says anything: until then,
 * readers take it for one that is being made. */
static int create_file(const char *folder, char path[WEIR__PAGE_PATH]) {
  uint64_t start = 0;
  int process = weir__process_id();
  weir__process_start_time(process, &start);
  int length = snprintf(path, WEIR__PAGE_PATH, "%s/%llu-%d-%llu" SUFFIX, folder,
                        (unsigned long long)weir__process_namespace(), process, (unsigned long long)start);
  if (length >= WEIR__PAGE_PATH) {
    errno = ENAMETOOLONG;
    return -1;
  }
  int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0 && errno == EEXIST) { /* of this process, which lost it: its id and start are in the name */
    unlink(path);
    descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  }
  if (descriptor >= 0)
    weir__file_lock(descriptor);
  return descriptor;
}

static weir__ring_file_area *add_area(weir__live_page *page, uint32_t kind, uint64_t bytes) {
  uint64_t at = atomic_load(&page->header->file_bytes);
  weir__ring_file_area *area = (weir__ring_file_area *)(void *)(page->map + at);
  area->kind = kind;
  area->bytes = bytes;
  return area;
}

/* Says what an area has only once that is complete. */
static void publish_area(weir__live_page *page, const weir__ring_file_area *area) {
  atomic_fetch_add(&page->header->file_bytes, area->bytes);
}

weir__live_page *weir__live_page_create(const char *folder, int devices, size_t rows, const char *host, int64_t rank,
                                        int *why) {
  enum { head = sizeof(weir__ring_file_area) };
  char path[WEIR__PAGE_PATH];
  weir__live_page *page = calloc(1, sizeof *page);
  *why = page ? weir__private_folder(folder, true) : ENOMEM;
  if (*why)
    goto free_page;
  visit_folder(folder, WEIR__PAGE_MAX_ROWS, remove_if_ended, NULL);
  page->room = sizeof(weir__page_copy) + (size_t)devices * sizeof(weir__page_device) + rows * sizeof(weir__page_row);
  uint64_t requests = weir__round_up(head + sizeof(weir__page_requests), 64);
  uint64_t accounts = weir__round_up(head + 2 * (sizeof(weir__page_slot) + page->room), 64);
  page->bytes = (size_t)(WEIR__RING_HEADER + requests + accounts);
  page->descriptor = create_file(folder, path);
  if (page->descriptor < 0) {
    *why = errno;
    goto free_page;
  }
  page->path = strdup(path);
  *why = page->path ? weir__map_allocate_file(page->descriptor, 0, page->bytes) : ENOMEM;
  if (*why)
    goto remove_file;
  page->map = weir__map_shared_file(page->descriptor, page->bytes);
  if (!page->map) {
    *why = errno;
    goto remove_file;
  }
  page->identity = weir__file_identity(page->descriptor);
  page->header = (weir__ring_file_header *)(void *)page->map;
  weir__ring_file_describe(page->header, page->bytes, devices, host, rank);
  weir__ring_file_area *area = add_area(page, WEIR__RING_REQUESTS, requests);
  page->requests = (weir__page_requests *)(void *)(area + 1);
  publish_area(page, area);
  area = add_area(page, WEIR__RING_ACCOUNTS, accounts);
  page->slots = (weir__page_slot *)(void *)(area + 1);
  for (uint64_t i = 0; i < 2; i++)
    page->slots[i].at = (uint64_t)((char *)(page->slots + 2) - page->map) + i * page->room;
  publish_area(page, area);
  return page;

remove_file:
  close(page->descriptor);
  unlink(path);
  free(page->path);
free_page:
  free(page);
  return NULL;
}

/* A program that closes all descriptors, as a daemon does, has closed ours too, and may have opened something else
 * under the number. */
static void keep_lock(weir__live_page *page) {
  weir__file_id id = weir__file_identity(page->descriptor);
  if (page->descriptor >= 0 && id.device == page->identity.device && id.file == page->identity.file)
    return;
  page->descriptor = open(page->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  id = weir__file_identity(page->descriptor);
  if (page->descriptor >= 0 && (id.device != page->identity.device || id.file != page->identity.file)) {
    close(page->descriptor);
    page->descriptor = -1;
  }
  if (page->descriptor >= 0)
    weir__file_lock(page->descriptor);
}

void weir__live_page_write(weir__live_page *page, weir__page_copy copy, const weir__page_device *devices,
                           const weir__page_row *rows) {
  weir__ring_file_header *h = page->header;
  weir__page_slot *slot = &page->slots[page->sequence % 2];
  char *at = page->map + slot->at;
  keep_lock(page);
  uint64_t devices_bytes = copy.device_count * sizeof *devices, room = page->room - sizeof copy - devices_bytes;
  if (copy.row_count > room / sizeof *rows)
    copy.row_count = (uint32_t)(room / sizeof *rows);
  atomic_store(&slot->sequence, 0);
  atomic_thread_fence(memory_order_seq_cst);
  memcpy(at, &copy, sizeof copy);
  if (devices_bytes)
    memcpy(at + sizeof copy, devices, devices_bytes);
  if (copy.row_count)
    memcpy(at + sizeof copy + devices_bytes, rows, copy.row_count * sizeof *rows);
  slot->bytes = sizeof copy + devices_bytes + copy.row_count * sizeof *rows;
  page->sequence++;
  slot->checksum = weir__ring_file_checksum(page->sequence, slot->at, at, slot->bytes);
  atomic_store_explicit(&slot->sequence, page->sequence, memory_order_release);
  unsigned older = !atomic_load_explicit(&h->newest, memory_order_relaxed);
  h->last[older] = weir__clock_now();
  atomic_store_explicit(&h->newest, older, memory_order_release);
}

static void forget(weir__live_page *page) {
  weir__file_id id = weir__file_identity(page->descriptor);
  weir__unmap(page->map, page->bytes);
  if (page->descriptor >= 0 && id.device == page->identity.device && id.file == page->identity.file)
    close(page->descriptor);
  free(page->path);
  free(page);
}

void weir__live_page_delete(weir__live_page *page) {
  unlink(page->path);
  forget(page);
}

void weir__live_page_abandon(weir__live_page *page) { forget(page); }

/* ---- Reading ---- */

static void fault(weir__page_view *view, const char *what) {
  view->life = WEIR__PAGE_INVALID;
  view->fault = what;
}

static void end_text(char *text, size_t size) { text[size - 1] = '\0'; }

/* Checks what a copy says, and ends its texts. Returns what is wrong, or NULL. */
static const char *check_copy(weir__page_view *view) {
  for (uint32_t i = 0; i < view->copy.device_count; i++) {
    weir__page_device *device = &view->devices[i];
    end_text(device->name, sizeof device->name);
    end_text(device->uuid, sizeof device->uuid);
    end_text(device->bus, sizeof device->bus);
    if (device->sample_count > WEIR__PAGE_SAMPLES)
      return "it has too many samples";
  }
  for (uint32_t i = 0; i < view->copy.row_count; i++) {
    weir__page_row *row = &view->rows[i];
    end_text(row->tag, sizeof row->tag);
    if (row->kind > WEIR__PAGE_OTHER_POOLS)
      return "a row is of an unknown kind";
    if (row->device >= view->copy.device_count)
      return "a row is of a device that it does not have";
    for (int c = 0; c < WEIR__PAGE_COUNT_COUNT; c++)
      if (!(row->known >> c & 1))
        row->count[c] = 0;
  }
  return NULL;
}

/* Copies one of the two copies, if it is whole. */
static bool take_copy(weir__page_view *view, const char *data, size_t size, const weir__page_slot *slot) {
  uint64_t sequence = atomic_load(&slot->sequence);
  weir__page_copy copy;
  if (!sequence || slot->at % 8 || slot->bytes % 8 || slot->at > size || slot->bytes > size - slot->at ||
      slot->bytes < sizeof copy ||
      weir__ring_file_checksum(sequence, slot->at, data + slot->at, slot->bytes) != slot->checksum)
    return false;
  memcpy(&copy, data + slot->at, sizeof copy);
  uint64_t devices = (uint64_t)copy.device_count * sizeof(weir__page_device);
  uint64_t rows = (uint64_t)copy.row_count * sizeof(weir__page_row);
  if (copy.device_count > WEIR__RING_DEVICES || copy.row_count > WEIR__PAGE_MAX_ROWS ||
      slot->bytes != sizeof copy + devices + rows)
    return false;
  view->data = malloc(devices + rows + 1);
  if (!view->data)
    return false;
  memcpy(view->data, data + slot->at + sizeof copy, devices + rows);
  view->copy = copy;
  view->devices = view->data;
  view->rows = (weir__page_row *)(void *)((char *)view->data + devices);
  return true;
}

static void parse_accounts(weir__page_view *view, const char *data, size_t size, uint64_t at, uint64_t bytes) {
  weir__page_slot slots[2];
  if (bytes < sizeof(weir__ring_file_area) + sizeof slots) {
    fault(view, "its accounts are cut off");
    return;
  }
  memcpy(slots, data + at + sizeof(weir__ring_file_area), sizeof slots);
  int newer = atomic_load(&slots[1].sequence) > atomic_load(&slots[0].sequence);
  bool is_new = !atomic_load(&slots[0].sequence) && !atomic_load(&slots[1].sequence);
  if (is_new)
    view->life = WEIR__PAGE_STARTING;
  else if (!take_copy(view, data, size, &slots[newer]) && !take_copy(view, data, size, &slots[!newer]))
    fault(view, "no copy of its accounts is whole");
  else {
    const char *wrong = check_copy(view);
    if (wrong)
      fault(view, wrong);
  }
}

void weir__page_parse(const void *bytes, size_t size, weir__page_view *view) {
  const char *data = bytes;
  static const char none[8];
  weir__ring_file_header h;
  *view = (weir__page_view){.life = WEIR__PAGE_ALIVE};
  if (size < WEIR__RING_HEADER) {
    view->life = WEIR__PAGE_STARTING;
    return;
  }
  memcpy(&h, data, sizeof h);
  if (memcmp(h.magic, none, sizeof none) == 0) {
    view->life = WEIR__PAGE_STARTING;
    return;
  }
  if (memcmp(h.magic, WEIR__RING_MAGIC, sizeof h.magic) != 0) {
    fault(view, "it does not begin as a page does");
    return;
  }
  if (h.version != WEIR__RING_VERSION || h.header_bytes != WEIR__RING_HEADER) {
    fault(view, "it is of another version of Weir");
    return;
  }
  view->pid = h.pid;
  view->rank = h.rank;
  view->process_start = h.process_start;
  view->is_elsewhere = h.pid_namespace && weir__process_namespace() && h.pid_namespace != weir__process_namespace();
  memcpy(view->host, h.host, sizeof view->host);
  end_text(view->host, sizeof view->host);
  if (h.pid <= 0 || h.pid > INT32_MAX) {
    fault(view, "it has no process id");
    return;
  }
  uint64_t end = atomic_load(&h.file_bytes);
  if (end > size) {
    fault(view, "it is cut off");
    return;
  }
  for (uint64_t at = WEIR__RING_HEADER; at + sizeof(weir__ring_file_area) <= end;) {
    weir__ring_file_area area;
    memcpy(&area, data + at, sizeof area);
    if (area.bytes < sizeof area || area.bytes % 64 || area.bytes > end - at) {
      fault(view, "an area is larger than the page");
      return;
    }
    if (area.kind == WEIR__RING_ACCOUNTS) {
      parse_accounts(view, data, size, at, area.bytes);
      return;
    }
    at += area.bytes;
  }
  view->life = WEIR__PAGE_STARTING;
}

/* Whether the process of an open page has ended: see above. A process of another namespace is known by the lock
 * alone. */
static bool has_ended(int descriptor, const weir__page_view *view) {
  uint64_t start;
  if (weir__file_is_locked(descriptor))
    return false;
  return view->is_elsewhere || !weir__process_start_time((int)view->pid, &start) || start != view->process_start ||
         weir__process_has_ended((int)view->pid);
}

static ssize_t read_file(int descriptor, char *data, size_t size) {
  size_t got = 0;
  while (got < size) {
    ssize_t more = pread(descriptor, data + got, size - got, (off_t)got);
    if (more < 0 && errno == EINTR)
      continue;
    if (more <= 0)
      break;
    got += (size_t)more;
  }
  return (ssize_t)got;
}

/* A writer that overtakes the reader twice in a moment spoils both copies, so it tries again. */
static void read_open(int descriptor, size_t size, weir__page_view *view) {
  enum { tries = 3 };
  char *data = malloc(size + 8);
  *view = (weir__page_view){.life = WEIR__PAGE_INVALID, .fault = "the host has no memory for it"};
  for (int i = 0; data && i < tries; i++) {
    weir__page_parse(data, (size_t)read_file(descriptor, data, size), view);
    if (view->life != WEIR__PAGE_INVALID)
      break;
    if (i + 1 < tries)
      weir__page_view_clear(view);
    weir__sleep_ns(1000000);
  }
  free(data);
}

void weir__page_read(const char *path, weir__page_view *view) {
  struct stat about;
  *view = (weir__page_view){.life = WEIR__PAGE_ENDED};
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0 && errno == ENOENT)
    return;
  if (descriptor < 0 || fstat(descriptor, &about) != 0) {
    fault(view, "it cannot be opened");
  } else if (!S_ISREG(about.st_mode) || about.st_uid != weir__user_id() || (about.st_mode & 022)) {
    fault(view, "it is not a file that only this user can write to");
  } else if (about.st_size > WEIR__PAGE_MAX_BYTES) {
    fault(view, "it is larger than a page can be");
  } else {
    read_open(descriptor, (size_t)about.st_size, view);
    if (view->life == WEIR__PAGE_STARTING && !view->pid)
      view->life = weir__file_is_locked(descriptor) || time(NULL) - about.st_mtime < START_SECONDS ? WEIR__PAGE_STARTING
                                                                                                   : WEIR__PAGE_ENDED;
    else if (view->life != WEIR__PAGE_INVALID && has_ended(descriptor, view))
      view->life = WEIR__PAGE_ENDED;
  }
  if (descriptor >= 0)
    close(descriptor);
  snprintf(view->path, sizeof view->path, "%s", path);
}

void weir__page_view_clear(weir__page_view *view) {
  free(view->data);
  view->data = NULL;
  view->devices = NULL;
  view->rows = NULL;
  view->copy = (weir__page_copy){0};
}

/* ---- Requests to another process ---- */

/* The area of requests is the first one. */
static bool has_requests(int descriptor, uint64_t need) {
  struct stat about;
  weir__ring_file_header h;
  weir__ring_file_area area;
  return fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == weir__user_id() &&
         (about.st_mode & 022) == 0 && (uint64_t)about.st_size >= need && about.st_size <= WEIR__PAGE_MAX_BYTES &&
         pread(descriptor, &h, sizeof h, 0) == (ssize_t)sizeof h &&
         memcmp(h.magic, WEIR__RING_MAGIC, sizeof h.magic) == 0 && h.version == WEIR__RING_VERSION &&
         pread(descriptor, &area, sizeof area, WEIR__RING_HEADER) == (ssize_t)sizeof area &&
         area.kind == WEIR__RING_REQUESTS && area.bytes >= sizeof area + sizeof(weir__page_requests);
}

bool weir__page_mailbox_open(const char *path, weir__page_mailbox *mailbox) {
  const size_t at = WEIR__RING_HEADER + sizeof(weir__ring_file_area);
  *mailbox = (weir__page_mailbox){.bytes = at + sizeof(weir__page_requests)};
  int descriptor = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0)
    return false;
  if (has_requests(descriptor, mailbox->bytes))
    mailbox->map = weir__map_shared_file(descriptor, mailbox->bytes);
  close(descriptor);
  if (mailbox->map)
    mailbox->requests = (weir__page_requests *)(void *)(mailbox->map + at);
  return mailbox->map != NULL;
}

void weir__page_mailbox_close(weir__page_mailbox *mailbox) {
  if (mailbox->map)
    weir__unmap(mailbox->map, mailbox->bytes);
  *mailbox = (weir__page_mailbox){0};
}
