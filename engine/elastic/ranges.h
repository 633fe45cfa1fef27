/* The ranges of a move: which elements of each parameter, and of its state, go from which rank of a
 * layout to which rank of another. Pure: every rank makes the same list of the two plans, and
 * test_move_ranges.c proves it. holding.h says where a range lies in memory. */
#ifndef SHERDI_ENGINE_ELASTIC_RANGES_H
#define SHERDI_ENGINE_ELASTIC_RANGES_H

#include "engine/plan/plan.h"

typedef enum sherdi_move_what {
    SHERDI_MOVE_PARAM = 0, /* the parameter, in its own type */
    SHERDI_MOVE_STATE,     /* all parts of the state that are not the parameter itself */
    SHERDI_MOVE_WHATS,
} sherdi_move_what;

/* Ranks are numbers among all: with replicas, rank r of a plan is that of its replica, r modulo
 * plan->world_size.
 *
 * Elements [first, first + count) of a parameter, in whole chunks: behind the parameter's last
 * element is padding. `from` is a rank of the old layout, `to` one of the new layout. */
typedef struct sherdi_move_range {
    size_t           param;
    sherdi_move_what what;
    size_t           first, count;
    int              from, to;
} sherdi_move_range;

/* Two layouts of one model. Of a plan only what is the same on all its ranks is read. */
typedef struct sherdi_move_plans {
    const sherdi_plan  *old_plan, *new_plan;
    const sherdi_model *model;
    const int          *stayed; /* by rank of the new layout: its rank in the old one; -1: none */
    /* by rank of the old layout: below 0 if it is lost, or is there and has made other updates;
     * NULL: none is lost. Then of parameters that the ranks publish after an update
     * (sherdi_segment_is_published) each has its own slice alone */
    const int *lost;
} sherdi_move_plans;

/** Receives a range. A return other than SHERD_OK ends the list. */
typedef sherd_status (*sherdi_move_fn)(void *ctx, const sherdi_move_range *range);

/** Returns whether the layouts differ in borders alone, so that bytes can be copied. E_NOTSUP. */
sherd_status sherdi_move_check(const sherdi_move_plans *plans);
/** Gives the elements [*begin, *end) of a parameter that a rank of a layout holds, in whole
 *  chunks. */
void sherdi_move_held(const sherdi_plan *plan, const sherdi_model *model, size_t param,
                      sherdi_move_what what, int is_stale, int rank, size_t *begin, size_t *end);
/** Lists all ranges of a segment: what each rank of the new layout holds, once. What a rank has
 *  held before comes from itself if it is valid, other values from the nearest replica that has not lost the rank
 *  that held them: the rank's own, else the next ones; a newcomer's is its number modulo theirs. If
 *  all have, from the rank that was lost, for which another one acts. */
sherd_status sherdi_move_list(const sherdi_move_plans *plans, int segment, sherdi_move_fn fn,
                              void *ctx);

#endif
