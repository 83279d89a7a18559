/*
 * Included ahead of every source file of the library by the build: what a public header declares is visible outside of
 * libweir.so, everything else is compiled as hidden.
 */
#ifndef WEIR_BASE_EXPORTS_H
#define WEIR_BASE_EXPORTS_H

#pragma GCC visibility push(default)
#include "weir/weir.h"
#pragma GCC visibility pop

#endif
