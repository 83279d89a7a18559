/* Elementwise operations on float64. */
#include "map.h"

MAP(weir_map_double, double)
