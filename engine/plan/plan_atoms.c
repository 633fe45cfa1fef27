/* Parameters with atoms (atom_elems), which no border of a slice may cut: a segment that has one
 * gets the smallest slice with which all its atoms are whole, and gaps between its parameters. */
#include "engine/modules.h"

#include "base/checked.h"

/* Padding that keeps atoms whole may take at most 1/DIVISOR of a segment. */
#define ATOM_PADDING_DIVISOR 4

/* Returns 1 if no slice border cuts an atom of a parameter that begins at `start`. */
static int atoms_are_whole(const sherdi_model_param *param, size_t start, size_t slice_elems)
{
    size_t border = start - start % slice_elems + slice_elems; /* the first one after `start` */

    for (; border < start + param->elems; border += slice_elems) {
        if ((border - start) % param->atom_elems != 0) {
            return 0;
        }
    }
    return 1;
}

/* Lays out the unit's parameters that are in `segment`, for slices of this length. Returns the end;
 * SIZE_MAX: an atom would be divided. */
static size_t params_lay_out(sherdi_plan *plan, const sherdi_model *model,
                             const sherdi_model_unit *unit, int segment, size_t slice_elems)
{
    size_t at = 0;

    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_model_param *param  = &model->params[unit->params[i]];
        sherdi_plan_param        *layout = &plan->layout.params[unit->params[i]];
        size_t                    tries  = slice_elems / SHERD_CHUNK_ELEMS + 1;

        if (layout->segment != segment) {
            continue;
        }
        while (param->atom_elems > 1 && !atoms_are_whole(param, at, slice_elems)) {
            if (tries-- == 0) {
                return SIZE_MAX;
            }
            at += SHERD_CHUNK_ELEMS;
        }
        layout->offset_elems = at;
        at += sherdi_round_up(param->elems, SHERD_CHUNK_ELEMS);
    }
    return at;
}

/* Finds the smallest slice with which the slices hold all of the segment and cut no atom; the core
 * has found the smallest that holds all. */
static sherd_status segment_size(sherdi_plan *plan, const sherdi_model *model,
                                 const sherdi_model_unit *unit, int index)
{
    sherdi_segment *segment = &plan->layout.segments[index];
    size_t          least   = segment->slice_elems;
    size_t          most    = least + least / (ATOM_PADDING_DIVISOR - 1);

    for (size_t slice = least; slice <= most;
         slice += SHERD_CHUNK_ELEMS * (size_t)plan->num_replicas) {
        size_t padded = slice * (size_t)plan->world_size;

        if (slice == 0 || params_lay_out(plan, model, unit, index, slice) <= padded) {
            segment->slice_elems  = slice;
            segment->padded_elems = padded;
            return SHERD_OK;
        }
    }
    return sherdi_fail(
        SHERD_E_INVAL,
        "unit %s: keeping atom_elems whole on %d ranks would pad the segment by more "
        "than a quarter; choose smaller atoms or another world size",
        unit->name, plan->world_size);
}

static sherd_status atoms_keep(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < model->num_params; p++) {
        if (model->params[p].atom_elems > 1) {
            SHERDI_TRY(segment_size(plan, model, &model->units[model->params[p].unit],
                                    plan->layout.params[p].segment));
        }
    }
    plan->layout.keeps_atoms = 1;
    return SHERD_OK;
}

const sherdi_module sherdi_module_atoms = {.segments_made = atoms_keep};
