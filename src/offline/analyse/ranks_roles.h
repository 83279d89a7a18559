/*
 * What the classes of ranks are in the job, and where the requests of their members part.
 */
#pragma once

#include "offline/analyse/ranks_features.h"

/* Names the roles of the usual classes, by the numbers of their ranks and by what differs: consecutive ranks are a
 * stage of a pipeline, ranks at equal distances a shard, of experts if that is what differs. */
weir_status weir__ranks_find_roles(weir__ranks *ranks, const weir__rank_features *features);

/* Finds the members of usual classes whose requests are not those of most members of their class. */
weir_status weir__ranks_find_partings(weir__ranks *ranks);
