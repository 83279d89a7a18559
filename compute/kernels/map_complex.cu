/* Elementwise operations on complex numbers. */
#include "map.h"

MAP(weir_map_complex, cdouble)
