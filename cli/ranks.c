#include "ranks.h"

#ifdef WEIR_HAVE_MPI

#include <mpi.h>
#include <stdlib.h>

#include "base/base.h"

static weir_status share(void *context, void *bytes, size_t size) {
  enum { PIECE = 1 << 30 };
  (void)context;
  for (char *at = bytes; size > 0;) {
    int piece = size < PIECE ? (int)size : PIECE;
    if (MPI_Allreduce(MPI_IN_PLACE, at, piece, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD) != MPI_SUCCESS)
      return weir__fail(WEIR_ERROR_SYSTEM, "MPI_Allreduce failed");
    at += piece;
    size -= (size_t)piece;
  }
  return WEIR_OK;
}

void weir_cli_ranks_begin(weir__parallel *parallel) {
  /* A process that mpirun did not start does without MPI, whose start takes longer than most searches. */
  static const char *const started[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS"};
  for (size_t i = 0; i < WEIR_COUNT_OF(started); i++) {
    if (!getenv(started[i]))
      continue;
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &parallel->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &parallel->ranks);
    parallel->share = share;
    return;
  }
}

void weir_cli_ranks_end(const weir__parallel *parallel, bool failed_alone) {
  if (!parallel->share)
    return;
  if (failed_alone)
    MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
}

#else

void weir_cli_ranks_begin(weir__parallel *parallel) { (void)parallel; }

void weir_cli_ranks_end(const weir__parallel *parallel, bool failed_alone) {
  (void)parallel;
  (void)failed_alone;
}

#endif

bool weir_cli_ranks_any(const weir__parallel *parallel, bool here) {
  unsigned char any = here;
  if (parallel->ranks > 1 && parallel->share(parallel->share_context, &any, 1))
    return true;
  return any;
}
