/* Makes plans without an engine. */
#ifndef TESTS_ENGINE_PLANNER_H
#define TESTS_ENGINE_PLANNER_H

#include "tests/engine/rig.h"

#include "engine/plan/plan.h"

/* The model and settings of a plan. */
typedef struct planner {
    sherdi_mem      mem;
    sherdi_model    model;
    sherdi_settings settings;
    unsigned        wide; /* bit p: parameter p is declared as fp32 */
} planner;

/* A machine about which nothing is known. */
extern const sherdi_machine PLANNER_UNKNOWN;

void planner_open(planner *b);
/** Sets the settings as an engine of these options would have them. */
void planner_settings(planner *b, const rig_options *options, int world_size);
/** Closes the planner, whose plans must have been destroyed before. */
void planner_close(planner *b);
int  planner_unit(planner *b, const char *name);
/** Adds a unit with the fields of params; the name is set here. */
int planner_unit_as(planner *b, const char *name, sherd_unit_params *params);
int planner_param(planner *b, int unit, size_t elems, size_t atom_elems, int is_frozen);
/** Makes a plan, which the caller destroys. */
sherdi_plan *planner_plan(planner *b, int rank, int world_size);
/** Declares parameters whose sizes fall below, on and above every border of `slice_elems`, among
 * them frozen ones and empty ones; one parameter is tied, and one unit reads a parameter of a later
 * one. */
void planner_declare_odd(planner *b, size_t slice_elems);

#endif
