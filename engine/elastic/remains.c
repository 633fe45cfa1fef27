/* See remains.h. */
#include "engine/elastic/remains.h"

#include <string.h>

sherd_status sherdi_remains_check_frozen(const sherdi_remains *remains, const sherdi_model *model)
{
    const sherdi_plan *plan = remains->plan;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        if (segment->optimizer == NULL && !segment->is_resident && !segment->is_bound) {
            return sherdi_fail(SHERD_E_STATE,
                               "the frozen parameters of unit %s were in slices, of which rank %d "
                               "had one: the state on NVMe does not have them",
                               model->units[segment->unit].name, plan->rank);
        }
    }
    return SHERD_OK;
}

static sherd_status plan_make(sherd_engine *engine, int rank, int world_size,
                              const sherdi_batch_settings *batch, const sherdi_machine *machine,
                              sherdi_remains *remains)
{
    sherdi_settings settings = engine->settings;

    settings.batch = *batch;
    SHERDI_TRY(sherdi_plan_create(&engine->model, &settings, rank, world_size, machine,
                                  &engine->mem, &remains->plan));
    return remains->plan->has_generations
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "the state of rank %d was in its memory, all or a part of it, and is "
                             "gone",
                             rank);
}

static sherd_status files_open(sherd_engine *engine, sherdi_ioq *queue, uint64_t run,
                               sherdi_remains *remains)
{
    remains->note = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, SHERDI_STATE_NOTE_BYTES);
    if (remains->note == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(sherdi_store_open_other(engine, queue, remains->plan, run, &remains->state));
    remains->tiers[SHERDI_RING_STATE] = sherdi_state_extents(remains->state);
    return SHERD_OK;
}

sherd_status sherdi_remains_open(sherd_engine *engine, sherdi_ioq *queue, uint64_t run, int rank,
                                 int world_size, const sherdi_batch_settings *batch,
                                 const sherdi_machine *machine, sherdi_remains *out)
{
    sherd_status status;

    *out   = (sherdi_remains){0};
    status = plan_make(engine, rank, world_size, batch, machine, out);
    if (status == SHERD_OK) {
        status = files_open(engine, queue, run, out);
    }
    if (status != SHERD_OK) {
        sherdi_remains_close(out, 1);
    }
    return status;
}

void sherdi_remains_close(sherdi_remains *remains, int is_kept)
{
    if (remains->state != NULL) {
        (void)sherdi_state_abandon(remains->state);
        sherdi_state_close(remains->state, is_kept);
    }
    sherdi_free(remains->note);
    sherdi_plan_destroy(remains->plan);
    *remains = (sherdi_remains){0};
}

sherd_status sherdi_remains_aim(sherdi_remains *remains, uint64_t generation,
                                sherdi_state_record *out)
{
    SHERDI_TRY(sherdi_state_aim(remains->state, generation));
    remains->note_bytes =
        sherdi_state_get_note(remains->state, remains->note, SHERDI_STATE_NOTE_BYTES);
    memcpy(out, remains->note, sizeof(*out));
    return SHERD_OK;
}

static sherd_status blobs_read(sherdi_blobs *blobs, const unsigned char *bytes, size_t len_bytes)
{
    return blobs == NULL || len_bytes == 0 ? SHERD_OK : sherdi_blobs_read(blobs, bytes, len_bytes);
}

sherd_status sherdi_remains_blobs(const sherdi_remains *remains, sherdi_blobs *of_run,
                                  sherdi_blobs *of_rank)
{
    sherdi_note_blobs found;

    SHERDI_TRY(sherdi_note_find_blobs(remains->note, remains->note_bytes, &found));
    SHERDI_TRY(blobs_read(of_run, found.run, found.run_bytes));
    return blobs_read(of_rank, found.own, found.own_bytes);
}
