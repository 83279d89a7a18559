#include "driver/soft/trap.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include "base/base.h"
#include "base/thread.h"

typedef struct trap {
  sigjmp_buf back;
  uint64_t address;
  bool is_write;
} trap;

static trap reporting;            /* stands for no call: the observer is being told of a fault */
static _Thread_local trap *armed; /* the innermost call of the thread */
static struct sigaction before;

/* Known on the architectures that say so; elsewhere a fault counts as a write. */
static bool is_write(const void *context) {
#if defined __x86_64__
  enum { WRITE = 2 };
  return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & WRITE;
#else
  (void)context;
  return true;
#endif
}

/* Ends the process as it would have ended without this handler: the access is made again. */
static void pass_on(int number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    before.sa_handler(number);
  else
    sigaction(number, &before, NULL);
}

static void on_fault(int number, siginfo_t *info, void *context) {
  trap *to = armed;
  if (to && to != &reporting) {
    to->address = (uint64_t)info->si_addr;
    to->is_write = is_write(context);
    armed = NULL;
    siglongjmp(to->back, 1);
  }
  weir__access_observer_fn observer = atomic_load(&weir__access_observer);
  if (observer && !to) {
    armed = &reporting;
    observer(&(weir__access){
        .address = (uint64_t)info->si_addr, .is_write = is_write(context), .device = -1, .name = "host"});
    armed = NULL;
  }
  pass_on(number, info, context);
}

/* Each time, because the program may have installed another handler since. */
void weir__trap_install(void) {
  static weir__mutex lock = WEIR__MUTEX_INIT;
  struct sigaction now, action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  weir__mutex_lock(&lock);
  if (!sigaction(SIGSEGV, NULL, &now) && !(now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)) {
    before = now;
    sigaction(SIGSEGV, &action, NULL);
  }
  weir__mutex_unlock(&lock);
}

bool weir__trap_run(void (*run)(void *context), void *context, weir__access *access) {
  weir__trap_install();
  trap here;
  trap *outer = armed;
  if (sigsetjmp(here.back, 1)) {
    armed = outer;
    access->address = here.address;
    access->is_write = here.is_write;
    return false;
  }
  armed = &here;
  run(context);
  armed = outer;
  return true;
}
