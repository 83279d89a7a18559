/*
 * Included ahead of every source file of the library by the build: what a public header declares is visible outside of
 * libweir.so, everything else is compiled as hidden.
 */
#pragma once

#pragma GCC visibility push(default)
#include "weir/weir.h"
#pragma GCC visibility pop
