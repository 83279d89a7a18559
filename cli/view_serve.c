#include "view_serve.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"

enum {
  FIRST_PORT = 8123,
  PORTS = 16, /* that are tried */
  MAX_CONNECTIONS = 32,
  REQUEST_SIZE = 8192,
  HEADER_SIZE = 1024,
  WORD_BYTES = 8,
  PATIENCE_MS = 30000 /* for a request, and for progress with a response */
};

typedef struct connection {
  int fd; /* -1 if unused */
  uint64_t deadline_ns;
  char request[REQUEST_SIZE + 1];
  size_t got;
  char header[HEADER_SIZE]; /* of the response; it begins when header_size is not 0 */
  size_t header_size, header_sent;
  const char *body;
  char *made; /* the same, if it was made for the request */
  size_t body_size, body_sent;
} connection;

typedef struct server {
  const weir_cli_served *files;
  size_t count;
  const char *socket;            /* the path of the unix socket that is served; NULL for the loopback interface */
  char word[2 * WORD_BYTES + 1]; /* "" if paths have none */
  int listener;
  connection connections[MAX_CONNECTIONS];
} server;

static volatile sig_atomic_t is_over;

static void on_signal(int number) {
  (void)number;
  is_over = 1;
}

/* ---- Requests ---- */

/* A header's value, or NULL; its length is up to the end of the line. `name` is in lower case. */
static const char *find_header(const char *request, const char *name, size_t *length) {
  size_t name_length = strlen(name);
  for (const char *line = strstr(request, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n")) {
    const char *at = line + 2;
    size_t i = 0;
    while (i < name_length && tolower((unsigned char)at[i]) == name[i])
      i++;
    if (i < name_length || at[i] != ':')
      continue;
    at += i + 1;
    at += strspn(at, " \t");
    *length = strcspn(at, "\r\n");
    return at;
  }
  return NULL;
}

/* Whether a request is for this machine by a name that means the loopback interface. With a tunnel the port may be any
 * other. */
static bool is_local_host(const char *request) {
  static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
  size_t length;
  const char *host = find_header(request, "host", &length);
  for (size_t i = 0; host && i < WEIR_COUNT_OF(names); i++) {
    size_t n = strlen(names[i]);
    if (length >= n && strncasecmp(host, names[i], n) == 0 &&
        (length == n || (host[n] == ':' && strspn(host + n + 1, "0123456789") == length - n - 1)))
      return true;
  }
  return false;
}

/* The range of bytes that is asked for: everything if the request has no range or one in another form. false if it is
 * outside of the file. */
static bool find_range(const char *request, size_t size, size_t *first, size_t *end, bool *is_part) {
  size_t length;
  const char *at = find_header(request, "range", &length);
  *first = 0;
  *end = size;
  *is_part = false;
  if (!at || strncmp(at, "bytes=", 6) != 0 || memchr(at, ',', length))
    return true;
  char *rest;
  at += 6;
  if (*at == '-') {
    uint64_t last = isdigit((unsigned char)at[1]) ? strtoull(at + 1, &rest, 10) : 0;
    *first = last < size ? size - last : 0;
    *is_part = true;
    return last > 0 && size > 0;
  }
  if (!isdigit((unsigned char)*at))
    return true;
  uint64_t from = strtoull(at, &rest, 10);
  if (*rest != '-')
    return true;
  if (isdigit((unsigned char)rest[1])) {
    uint64_t to = strtoull(rest + 1, &rest, 10);
    if (to < from)
      return true;
    *end = to < size ? (size_t)to + 1 : size;
  }
  *first = (size_t)from;
  *is_part = true;
  return from < size;
}

/* ---- Responses ---- */

static void respond(connection *c, const char *status, const char *type, const char *more, const char *body,
                    size_t body_size, bool is_head) {
  int size = snprintf(c->header, sizeof c->header,
                      "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%sCache-Control: no-store\r\n"
                      "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
                      "Referrer-Policy: no-referrer\r\nConnection: close\r\n\r\n",
                      status, type, body_size, more);
  c->header_size = (size_t)size;
  c->body = body;
  c->body_size = is_head ? 0 : body_size;
}

static void refuse(connection *c, const char *status, const char *more, const char *text, bool is_head) {
  respond(c, status, "text/plain; charset=utf-8", more, text, strlen(text), is_head);
}

static const weir_cli_served *find_file(const server *s, const char *path, size_t length) {
  size_t word = strlen(s->word), begin = word ? word + 2 : 1; /* of the name: "/WORD/NAME", or "/NAME" */
  if (length < begin || path[0] != '/' || memcmp(path + 1, s->word, word) != 0 || path[begin - 1] != '/')
    return NULL;
  for (size_t i = 0; i < s->count; i++)
    if (strlen(s->files[i].name) == length - begin && memcmp(path + begin, s->files[i].name, length - begin) == 0)
      return &s->files[i];
  return NULL;
}

static void make_answer(connection *c, const weir_cli_served *file, bool is_head) {
  size_t length = 0, size = 0;
  const char *accept = find_header(c->request, "accept", &length), *type = NULL;
  c->made = file->make(accept, length, &size, &type);
  if (c->made)
    respond(c, "200 OK", type, "", c->made, size, is_head);
  else
    refuse(c, "503 Service Unavailable", "", "The host has no memory for it.\n", is_head);
}

static void answer(const server *s, connection *c) {
  char range[64] = "", more[160];
  bool is_head = strncmp(c->request, "HEAD ", 5) == 0, is_part;
  if (!is_head && strncmp(c->request, "GET ", 4) != 0) {
    refuse(c, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", "Only GET and HEAD are answered.\n", false);
    return;
  }
  if (!s->socket && !is_local_host(c->request)) {
    refuse(c, "403 Forbidden", "", "This server answers for localhost only.\n", is_head);
    return;
  }
  const char *path = c->request + (is_head ? 5 : 4);
  const weir_cli_served *file = find_file(s, path, strcspn(path, " ?\r\n"));
  if (!file) {
    refuse(c, "404 Not Found", "", "There is nothing here. The address that weir printed at its start has it.\n",
           is_head);
    return;
  }
  if (file->make) {
    make_answer(c, file, is_head);
    return;
  }
  size_t first, end;
  if (!find_range(c->request, file->size, &first, &end, &is_part)) {
    snprintf(more, sizeof more, "Content-Range: bytes */%zu\r\n", file->size);
    refuse(c, "416 Range Not Satisfiable", more, "The file is shorter.\n", is_head);
    return;
  }
  if (is_part)
    snprintf(range, sizeof range, "Content-Range: bytes %zu-%zu/%zu\r\n", first, end - 1, file->size);
  snprintf(more, sizeof more, "Accept-Ranges: bytes\r\n%s", range);
  respond(c, is_part ? "206 Partial Content" : "200 OK", file->type, more, (const char *)file->bytes + first,
          end - first, is_head);
}

/* ---- Connections ---- */

static void set_deadline(connection *c) { c->deadline_ns = weir__monotonic_ns() + PATIENCE_MS * 1000000ull; }

static void close_connection(connection *c) {
  close(c->fd);
  free(c->made);
  c->made = NULL;
  c->fd = -1;
}

/* false if there is no file descriptor or memory for a connection, which then stays in the queue. */
static bool accept_one(server *s) {
  int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
    connection *c = &s->connections[i];
    if (c->fd >= 0)
      continue;
    c->fd = fd;
    c->got = c->header_size = c->header_sent = c->body_size = c->body_sent = 0;
    set_deadline(c);
    return true;
  }
  close(fd);
  return true;
}

/* Answers a request once it is complete, or is known to be bad. */
static void consider(const server *s, connection *c) {
  if (memchr(c->request, 0, c->got))
    refuse(c, "400 Bad Request", "", "The request is not text.\n", false);
  else if (strstr(c->request, "\r\n\r\n"))
    answer(s, c);
  else if (c->got == REQUEST_SIZE)
    refuse(c, "431 Request Header Fields Too Large", "", "The request is too long.\n", false);
}

static void receive(const server *s, connection *c) {
  ssize_t got = recv(c->fd, c->request + c->got, REQUEST_SIZE - c->got, 0);
  if (got <= 0) {
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
      close_connection(c);
    return;
  }
  c->got += (size_t)got;
  c->request[c->got] = 0;
  consider(s, c);
  set_deadline(c);
}

/* Sends what is left of a part. false if the connection cannot take more now, or is lost. */
static bool send_part(connection *c, const char *bytes, size_t size, size_t *sent) {
  while (*sent < size) {
    ssize_t n = send(c->fd, bytes + *sent, size - *sent, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR)
        close_connection(c);
      return false;
    }
    *sent += (size_t)n;
    set_deadline(c);
  }
  return true;
}

static void send_more(connection *c) {
  if (!send_part(c, c->header, c->header_size, &c->header_sent) || !send_part(c, c->body, c->body_size, &c->body_sent))
    return;
  shutdown(c->fd, SHUT_WR);
  close_connection(c);
}

static weir_status run(server *s, const sigset_t *mask) {
  struct pollfd fds[MAX_CONNECTIONS + 1];
  while (!is_over) {
    size_t open = 0;
    for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
      const connection *c = &s->connections[i];
      fds[i] = (struct pollfd){c->fd, c->header_size ? POLLOUT : POLLIN, 0};
      open += c->fd >= 0;
    }
    fds[MAX_CONNECTIONS] = (struct pollfd){open < MAX_CONNECTIONS ? s->listener : -1, POLLIN, 0};
    if (ppoll(fds, MAX_CONNECTIONS + 1, &(struct timespec){.tv_sec = open ? 1 : 3600}, mask) < 0) {
      if (errno == EINTR)
        continue;
      return weir__fail(WEIR_ERROR_SYSTEM, "cannot wait for connections: %s (it takes %d file descriptors, ulimit -n)",
                        strerror(errno), MAX_CONNECTIONS + 1);
    }
    uint64_t now = weir__monotonic_ns();
    for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
      connection *c = &s->connections[i];
      if (c->fd >= 0 && fds[i].revents && !c->header_size)
        receive(s, c);
      if (c->fd >= 0 && fds[i].revents && c->header_size)
        send_more(c);
      if (c->fd >= 0 && now > c->deadline_ns)
        close_connection(c);
    }
    /* The listener stays ready then: ppoll() above would return at once, without a signal being delivered. */
    if (fds[MAX_CONNECTIONS].revents && !accept_one(s))
      ppoll(NULL, 0, &(struct timespec){.tv_nsec = 100000000}, mask);
  }
  return WEIR_OK;
}

/* ---- Listening ---- */

static int listen_on(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0)
    return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, MAX_CONNECTIONS)) {
    int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

/* A socket that only this user can connect to. One that a server has left behind is replaced, another file is not. */
static int listen_on_path(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct stat about;
  if (strlen(path) >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return -1;
  int failure = EADDRINUSE;
  bool is_socket = lstat(path, &about) == 0 && S_ISSOCK(about.st_mode);
  bool is_served = is_socket && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
  if (is_socket && !is_served && errno == ECONNREFUSED)
    unlink(path);
  if (!is_served) {
    mode_t before = umask(0177);
    failure = bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, MAX_CONNECTIONS) ? errno : 0;
    umask(before);
  }
  if (!failure)
    return fd;
  close(fd);
  errno = failure;
  return -1;
}

static weir_status begin(server *s, int *port, bool is_open) {
  unsigned char random[WORD_BYTES];
  int first = *port ? *port : FIRST_PORT, last = *port ? *port : FIRST_PORT + PORTS - 1;
  s->listener = s->socket ? listen_on_path(s->socket) : -1;
  if (s->socket && s->listener < 0)
    return weir__fail(WEIR_ERROR_SYSTEM, "cannot listen on %s: %s", s->socket, strerror(errno));
  for (int p = first; p <= last && s->listener < 0; p++) {
    s->listener = listen_on(p);
    *port = p;
  }
  if (s->listener < 0)
    return weir__fail(WEIR_ERROR_SYSTEM, "cannot listen on port %d of the loopback interface: %s", *port,
                      strerror(errno));
  if (getrandom(random, sizeof random, 0) != sizeof random) {
    close(s->listener);
    return weir__fail(WEIR_ERROR_SYSTEM, "no random numbers: %s", strerror(errno));
  }
  for (size_t i = 0; i < WORD_BYTES && !is_open; i++)
    snprintf(s->word + 2 * i, 3, "%02x", random[i]);
  for (size_t i = 0; i < MAX_CONNECTIONS; i++)
    s->connections[i].fd = -1;
  return WEIR_OK;
}

weir_status weir_cli_serve(const weir_cli_serving *serving, void (*ready)(const char *address)) {
  server *s = calloc(1, sizeof *s);
  if (!s)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a server");
  s->files = serving->files;
  s->count = serving->count;
  s->socket = serving->socket;
  int port = serving->port;
  weir_status status = begin(s, &port, serving->is_open);
  if (status) {
    free(s);
    return status;
  }
  sigset_t blocked, before;
  struct sigaction action = {.sa_handler = on_signal}, old_int, old_term;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before); /* they arrive only while it waits */
  sigaction(SIGINT, &action, &old_int);
  sigaction(SIGTERM, &action, &old_term);
  char address[64];
  snprintf(address, sizeof address, "http://localhost:%d/%s%s", port, s->word, *s->word ? "/" : "");
  ready(s->socket ? s->socket : address);
  status = run(s, &before);
  for (size_t i = 0; i < MAX_CONNECTIONS; i++)
    if (s->connections[i].fd >= 0)
      close_connection(&s->connections[i]);
  close(s->listener);
  if (s->socket)
    unlink(s->socket);
  sigaction(SIGINT, &old_int, NULL);
  sigaction(SIGTERM, &old_term, NULL);
  sigprocmask(SIG_SETMASK, &before, NULL);
  free(s);
  return status;
}
