/* A simulated engine on which described models are declared. */
#ifndef TESTS_PLANNING_RIG_H
#define TESTS_PLANNING_RIG_H

#include "planning/model.h"
#include "tests/lib/check.h"

/** Of rank 1 of 3, at stage 3; without units. */
sherd_engine *rig_engine_open(sherd_world **world_out);
void          rig_engine_close(sherd_engine *engine, sherd_world *world);

/** The model's own sums are right and an engine on which it is declared has as many elements. */
void rig_check_declared(const planning_model *model);

#endif
