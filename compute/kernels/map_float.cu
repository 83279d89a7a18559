/* Elementwise operations on floats of 16 and 32 bits. */
#include "map.h"

MAP(weir_map_float, float)
