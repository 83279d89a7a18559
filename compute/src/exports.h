/*
 * Included ahead of every source file of libweir_compute by the build: what its public headers declare is visible
 * outside of the library, everything else is compiled as hidden.
 */
#pragma once

#include "weir/weir.h"

#pragma GCC visibility push(default)
#include "weir/compute/amp.h"
#include "weir/compute/array.h"
#include "weir/compute/blas.h"
#include "weir/compute/comm.h"
#include "weir/compute/compute.h"
#include "weir/compute/dtype.h"
#include "weir/compute/jiterator.h"
#include "weir/compute/kernel.h"
#include "weir/compute/nccl.h"
#include "weir/compute/nvtx.h"
#include "weir/compute/random.h"
#include "weir/compute/tunable.h"
#pragma GCC visibility pop
