#include "driver/client.h"

#include <stdio.h>

#include "base/thread.h"

enum { MAX_LISTED = 4 };

static weir__mutex list_lock = WEIR__MUTEX_INIT;
static weir__client *clients; /* newest first; guarded by list_lock */

static void before_fork(void) { weir__mutex_lock(&list_lock); }
static void after_fork_in_parent(void) { weir__mutex_unlock(&list_lock); }
static void after_fork_in_child(void) {
  for (weir__client *client = clients; client; client = client->next)
    client->invalidate(client);
  clients = NULL; /* their destructors do nothing in the child, and do not remove them */
  weir__mutex_unlock(&list_lock);
}
WEIR__AT_LOAD(WEIR__LOAD_LISTS) void watch_forks(void) {
  weir__at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void weir__client_add(weir__client *client) {
  weir__mutex_lock(&list_lock);
  client->link = &clients;
  if ((client->next = clients))
    clients->link = &client->next;
  clients = client;
  weir__mutex_unlock(&list_lock);
}

void weir__client_remove(weir__client *client) {
  weir__mutex_lock(&list_lock);
  if ((*client->link = client->next))
    client->next->link = client->link;
  weir__mutex_unlock(&list_lock);
}

bool weir__clients_own(const void *but, uint64_t address) {
  weir__mutex_lock(&list_lock);
  const weir__client *client = clients;
  while (client && (client->object == but || !client->owns(client, address)))
    client = client->next;
  weir__mutex_unlock(&list_lock);
  return client != NULL;
}

typedef struct list {
  char *text;
  size_t size, length, count;
} list;

static void add_to(list *list, const weir__client *client) {
  char what[128];
  if (list->count++ >= MAX_LISTED || list->length >= list->size)
    return;
  client->describe(client, what, sizeof what);
  list->length += (size_t)snprintf(list->text + list->length, list->size - list->length, "%s%p (%s)",
                                   list->length ? ", " : "", client->object, what);
}

/* The client that ends with the runtime takes its own locks when it is asked, and a fork takes list_lock while others
 * hold those: so it is asked without list_lock. It stays, because only the caller can end it. */
size_t weir__clients_in_use(const weir_driver *driver, bool closes_driver, char *text, size_t size) {
  list list = {.text = text, .size = size};
  const weir__client *ending = NULL;
  weir__mutex_lock(&list_lock);
  for (const weir__client *client = clients; client; client = client->next)
    if (client->driver == driver && client->is_idle)
      ending = client;
    else if (client->driver == driver && closes_driver)
      add_to(&list, client);
  weir__mutex_unlock(&list_lock);
  if (ending && !ending->is_idle(ending))
    add_to(&list, ending);
  if (list.count > MAX_LISTED && list.length < size)
    snprintf(text + list.length, size - list.length, " and %zu more", list.count - MAX_LISTED);
  return list.count;
}

void weir__clients_end(const weir_driver *driver) {
  for (;;) {
    weir__mutex_lock(&list_lock);
    weir__client *client = clients;
    while (client && (client->driver != driver || !client->end))
      client = client->next;
    weir__mutex_unlock(&list_lock);
    if (!client)
      return;
    client->end(client); /* removes it from the list */
  }
}

weir_status weir__bad_fork(const char *caller) {
  return weir__fail(
      WEIR_ERROR_BAD_FORK,
      "%s: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
      "the 'spawn' start method",
      caller);
}
