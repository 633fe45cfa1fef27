/* Plans without an engine. */
#ifndef TESTS_ENGINE_PLANNER_H
#define TESTS_ENGINE_PLANNER_H

#include "tests/engine/rig.h"

#include "engine/plan/plan.h"

/* A model without an engine. */
typedef struct planner {
    sherdi_mem      mem;
    sherdi_model    model;
    sherdi_settings settings;
    unsigned        wide; /* bit p: parameter p is declared as fp32 */
} planner;

/* A machine of which nothing is known. */
extern const sherdi_machine PLANNER_UNKNOWN;

void planner_open(planner *b);
/** Settings as an engine of these options would have them. */
void planner_settings(planner *b, const rig_options *options, int world_size);
/** Plans are destroyed before. */
void planner_close(planner *b);
int  planner_unit(planner *b, const char *name);
/** With what the other fields of params say; the name is set here. */
int planner_unit_as(planner *b, const char *name, sherd_unit_params *params);
int planner_param(planner *b, int unit, size_t elems, size_t atom_elems, int is_frozen);
/** The caller's, to be destroyed. */
sherdi_plan *planner_plan(planner *b, int rank, int world_size);
/** Sizes that miss and meet every border of `slice_elems`; a tied table, frozen ones, repeats. */
void planner_declare_odd(planner *b, size_t slice_elems);

#endif
