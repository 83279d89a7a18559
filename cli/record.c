/*
 * weir record: switches the history of a running process on, and writes it to a file.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/outfile.h"
#include "base/system.h"
#include "cli.h"
#include "live.h"
#include "weir/history.h"

enum { DEFAULT_SECONDS = 10, ANSWER_MS = 5000, POLL_MS = 100 };

static int seconds = DEFAULT_SECONDS, stacks = WEIR_CONTEXT_ALLOC;
static bool until_oom;
static uint64_t size = 64 << 20;
static const char *output;

static volatile sig_atomic_t wants_end;

static void on_signal(int number) {
  (void)number;
  wants_end = 1;
}

static void sleep_ms(int ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- Asking ---- */

/* The process of an earlier request may have ended before it put the state back. Only a request that is being written
 * is waited for, and not for long. */
static bool claim(weir__page_requests *requests) {
  for (int waited = 0; waited < 2000; waited += POLL_MS) {
    uint32_t state = atomic_load(&requests->record.state);
    if (state == WEIR__PAGE_RECORD_RUNS || state == WEIR__PAGE_RECORD_ASKED)
      return false;
    if (state != WEIR__PAGE_RECORD_BEING_ASKED &&
        atomic_compare_exchange_strong(&requests->record.state, &state, WEIR__PAGE_RECORD_BEING_ASKED))
      return true;
    sleep_ms(POLL_MS);
  }
  return true;
}

/* The state once it is another one than `from`, or after a time; 0 for no limit. The process may end meanwhile. */
static uint32_t wait_while(const weir__page_requests *requests, uint32_t from, int64_t pid, int most_ms, bool ends) {
  for (int waited = 0; !most_ms || waited < most_ms; waited += POLL_MS) {
    bool has_ended = weir__process_has_ended((int)pid); /* before the state is read: it says how it ended */
    uint32_t state = atomic_load(&requests->record.state);
    if (state != from || has_ended || (ends && wants_end))
      return state;
    sleep_ms(POLL_MS);
  }
  return from;
}

/* ---- The file ---- */

/* The process keeps the file that it has written, and writes to it again if the program records its history later. So
 * the result is a copy in its place. Returns 0 or an errno value. */
static int copy_over(const char *path) {
  char buffer[64 * 1024];
  weir__outfile out;
  int in = open(path, O_RDONLY | O_CLOEXEC), error = 0;
  if (in < 0)
    return errno;
  error = weir__outfile_open(&out, path, WEIR__OUTFILE_WRITE);
  if (!error) {
    ssize_t got = 0;
    while (!error && (got = read(in, buffer, sizeof buffer)) > 0)
      for (ssize_t sent = 0, n; sent < got && !error; sent += n)
        if ((n = write(out.fd, buffer + sent, (size_t)(got - sent))) < 0) {
          error = errno;
          n = 0;
        }
    if (!error)
      error = got < 0 ? errno : weir__outfile_keep(&out);
    weir__outfile_end(&out);
  }
  close(in);
  return error;
}

static int report(uint32_t state, const char *path, bool has_ended) {
  struct stat about;
  if (!has_ended) {
    int error = copy_over(path);
    if (error)
      return weir_cli_fail("%s: cannot copy it: %s", weir_cli_escaped(path), strerror(error));
  }
  if (stat(path, &about))
    return weir_cli_fail("%s: %s", weir_cli_escaped(path), strerror(errno));
  printf("%s: %s%s\n", weir_cli_escaped(path), weir_cli_bytes((uint64_t)about.st_size),
         state == WEIR__PAGE_RECORD_SHORTAGE ? ", up to a request that failed for lack of memory"
         : has_ended                         ? ", up to the end of the process"
                                             : "");
  fputs("next: ", stdout);
  weir_cli_print_command("explain", "", path);
  return state == WEIR__PAGE_RECORD_SHORTAGE ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
}

/* ---- The command ---- */

static int ask(const weir_cli_process *process, weir__page_requests *requests, const char *path) {
  int64_t pid = process->view.pid;
  if (!claim(requests))
    return weir_cli_fail("process %lld is being recorded already", (long long)pid);
  requests->record.seconds = until_oom ? 0 : (uint32_t)seconds;
  requests->record.context = (uint32_t)stacks;
  requests->record.bytes = size;
  snprintf(requests->record.path, sizeof requests->record.path, "%s", path);
  atomic_store(&requests->record.stop, 0);
  atomic_store(&requests->record.state, WEIR__PAGE_RECORD_ASKED);
  uint32_t state = wait_while(requests, WEIR__PAGE_RECORD_ASKED, pid, ANSWER_MS, false),
           asked = WEIR__PAGE_RECORD_ASKED;
  if (state == WEIR__PAGE_RECORD_ASKED &&
      atomic_compare_exchange_strong(&requests->record.state, &asked, WEIR__PAGE_RECORD_IDLE))
    return weir_cli_fail(
        "process %lld does not answer: it is stopped, has ended, or does the work of its worker itself",
        (long long)pid);
  if (atomic_load(&requests->record.state) == WEIR__PAGE_RECORD_REFUSED) {
    char why[sizeof requests->record.refusal];
    memcpy(why, requests->record.refusal, sizeof why);
    why[sizeof why - 1] = '\0';
    atomic_store(&requests->record.state, WEIR__PAGE_RECORD_IDLE);
    return weir_cli_fail("process %lld cannot be recorded to %s: %s", (long long)pid, weir_cli_escaped(path),
                         weir_cli_escaped(why));
  }
  if (until_oom)
    fprintf(stderr, "recording process %lld until it runs out of memory; Ctrl-C ends it\n", (long long)pid);
  else
    fprintf(stderr, "recording process %lld for %d s; Ctrl-C ends it\n", (long long)pid, seconds);
  state = wait_while(requests, WEIR__PAGE_RECORD_RUNS, pid, 0, true);
  if (state == WEIR__PAGE_RECORD_RUNS && !weir__process_has_ended((int)pid)) {
    atomic_store(&requests->record.stop, 1);
    state = wait_while(requests, WEIR__PAGE_RECORD_RUNS, pid, ANSWER_MS, false);
  }
  bool has_ended = weir__process_has_ended((int)pid);
  if (state == WEIR__PAGE_RECORD_RUNS && !has_ended)
    return weir_cli_fail("process %lld does not answer; %s is complete up to now", (long long)pid,
                         weir_cli_escaped(path));
  atomic_store(&requests->record.state, WEIR__PAGE_RECORD_IDLE);
  return report(state, path, has_ended);
}

/* An absolute path, since the process writes the file. */
static bool make_path(int64_t pid, char *path, size_t room) {
  char folder[WEIR__PAGE_RECORD_PATH], name[64];
  snprintf(name, sizeof name, "weir-%lld.ring", (long long)pid);
  const char *given = output ? output : name;
  if (*given == '/')
    return snprintf(path, room, "%s", given) < (int)room;
  return getcwd(folder, sizeof folder) && snprintf(path, room, "%s/%s", folder, given) < (int)room;
}

static int fail_without_page(int64_t pid) {
  if (kill((pid_t)pid, 0) && errno == ESRCH)
    return weir_cli_fail("there is no process %lld", (long long)pid);
  return weir_cli_fail("process %lld has no Weir, is another user's, or has WEIR_STATS_PAGE=0, and a history cannot be "
                       "switched on from outside then: start it with WEIR_RECORD=FOLDER, or under PyTorch's own "
                       "allocator call torch.cuda.memory._record_memory_history()",
                       (long long)pid);
}

static int run(int count, char **arguments) {
  char *end, path[WEIR__PAGE_RECORD_PATH];
  weir_cli_live live;
  weir__page_mailbox mailbox;
  (void)count;
  errno = 0;
  int64_t pid = strtoll(arguments[0], &end, 10);
  if (*end || errno || pid <= 0 || pid > INT32_MAX)
    return weir_cli_usage("expected the id of a process, got '%s'", weir_cli_escaped(arguments[0]));
  if (!make_path(pid, path, sizeof path))
    return weir_cli_fail("the path of the output is longer than %d bytes", WEIR__PAGE_RECORD_PATH - 1);
  weir_cli_live_read(&live, pid);
  int code;
  if (!live.process_count)
    code = fail_without_page(pid);
  else if (live.processes[0].view.is_elsewhere)
    code =
        weir_cli_fail("process %lld is of another namespace, as of a container: run weir record there", (long long)pid);
  else if (!weir__page_mailbox_open(live.processes[0].view.path, &mailbox))
    code = weir_cli_fail("the page of process %lld cannot be written to", (long long)pid);
  else {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    code = ask(&live.processes[0], mailbox.requests, path);
    weir__page_mailbox_close(&mailbox);
  }
  weir_cli_live_clear(&live);
  return code;
}

static const weir_cli_choice stack_choices[] = {{"none", "no stacks"},
                                                {"state", "blocks have the stack of their allocation"},
                                                {"alloc", "entries too; a free has that of its allocation"},
                                                {"all", "frees have stacks of their own"},
                                                {0}};

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT.ring", .target = &output,
     .help = "a new file (default: weir-PID.ring)"},
    {"seconds", 's', .kind = WEIR_CLI_NUMBER, .value = "SECONDS", .target = &seconds, .least = 1, .most = 1000000,
     .help = "for how long (default: 10)"},
    {"until-oom", .target = &until_oom, .help = "until a request fails for lack of memory"},
    {"size", .kind = WEIR_CLI_SIZE, .value = "SIZE", .target = &size, .most = (int64_t)1 << 40,
     .help = "to which the file may grow; then the oldest entries are overwritten (default: 64MiB)"},
    {"stacks", .kind = WEIR_CLI_CHOICE, .value = "KIND", .target = &stacks, .choices = stack_choices,
     .help = "what has stacks (default: alloc)"},
    {0}};

const weir_cli_command weir_cmd_record = {
    .name = "record",
    .summary = "record the history of a running process",
    .description =
        "Switch the history on in a running process that has Weir, and write it to a file that every command reads. It "
        "begins with all segments and blocks that there are, so a replay is exact. Of several allocators the one that "
        "holds most is recorded, and each of them once. For a program that is not running yet, WEIR_RECORD=FOLDER "
        "records from the beginning.",
    .argument = "PID",
    .options = option_table,
    .examples = "weir record 4711\nweir record 4711 --until-oom --size 1GiB -o train.ring\n",
    .exit = {"recorded", "it cannot be recorded", NULL, "recorded, and the process ran out of memory"},
    .run = run};
