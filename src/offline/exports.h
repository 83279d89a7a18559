/*
 * Included ahead of every source file of libweir_offline by the build, as base/exports.h is for libweir: what its
 * public header declares is visible outside of the library.
 */
#ifndef WEIR_OFFLINE_EXPORTS_H
#define WEIR_OFFLINE_EXPORTS_H

#pragma GCC visibility push(default)
#include "weir/offline.h"
#pragma GCC visibility pop

#endif
