/* The walk that schedules gathers: what plan_schedule.c has for plan_ahead.c. */
#ifndef SHERDI_ENGINE_PLAN_SCHEDULE_H
#define SHERDI_ENGINE_PLAN_SCHEDULE_H

#include "engine/plan/plan.h"

/* A unit's state during the walk. */
typedef struct sherdi_schedule_unit {
    size_t open;     /* index of its current live range plus 1; 0: not gathered */
    size_t held;     /* acquires that reach it, not yet released */
    int    is_ahead; /* gathered before its use, and not used yet */
} sherdi_schedule_unit;

/* A walk over a sequence, as the engine will make it. */
typedef struct sherdi_schedule_walk {
    const sherdi_model   *model;
    sherdi_plan          *plan;
    sherdi_sequence      *sequence;
    sherdi_schedule_unit *units;
    size_t                live_elems;  /* gathered now */
    size_t                ahead_elems; /* of these, not used yet */
    size_t                ahead_bytes; /* the same in bytes */
} sherdi_schedule_walk;

/** Starts the gather of a unit at the acquire `position`. E_NOMEM. */
sherd_status sherdi_schedule_gather(sherdi_schedule_walk *walk, int unit, size_t position);

#endif
