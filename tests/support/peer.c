#include "support/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

int peer_socket;
static pid_t peer;

void peer_start(int socket_type, const char *role, const char *argument) {
  int ends[2];
  char end_text[16];
  assert_int_equal(socketpair(AF_UNIX, socket_type, 0, ends), 0);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  struct timeval patience = {60, 0}; /* either process may have failed */
  for (int i = 0; i < 2; i++)
    setsockopt(ends[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  snprintf(end_text, sizeof end_text, "%d", ends[1]);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* Yama lets only ancestors access a process by default */
  fflush(NULL);
  peer = fork();
  assert_true(peer >= 0);
  if (peer == 0) {
    execl("/proc/self/exe", "peer", "child", role, argument, end_text, (char *)NULL);
    _exit(127);
  }
  close(ends[1]);
  peer_socket = ends[0];
}

void peer_end(void) {
  int outcome = child_outcome(peer);
  peer = 0;
  close(peer_socket);
  assert_int_equal(outcome, 0);
}

void peer_kill(void) {
  if (!peer)
    return;
  kill(peer, SIGKILL);
  waitpid(peer, NULL, 0);
  peer = 0;
}

bool peer_is_child(int argc, char **argv) {
  if (argc != 5 || strcmp(argv[1], "child") != 0)
    return false;
  peer_socket = atoi(argv[4]);
  return true;
}
