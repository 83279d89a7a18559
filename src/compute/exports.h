/*
 * Included ahead of every source file of libweir_compute by the build: what its public headers declare is visible
 * outside of the library, everything else is compiled as hidden.
 */
#ifndef WEIR_COMPUTE_EXPORTS_H
#define WEIR_COMPUTE_EXPORTS_H

#include "weir/weir.h"

#pragma GCC visibility push(default)
#include "weir/amp.h"
#include "weir/array.h"
#include "weir/blas.h"
#include "weir/comm.h"
#include "weir/compute.h"
#include "weir/dtype.h"
#include "weir/jiterator.h"
#include "weir/kernel.h"
#include "weir/nccl.h"
#include "weir/nvtx.h"
#include "weir/random.h"
#include "weir/tunable.h"
#pragma GCC visibility pop

#endif
