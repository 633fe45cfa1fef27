/* The tables of an engine: storage and updater (offload.h), and times (times.h). Each has one whose
 * functions do nothing, and the one of this build, if the build has it. */
#include "engine/run/engine_impl.h"

#include "base/absent.h"

#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* A function whose result means that nothing is to be done. */
#define NOTHING(name, type, ...)                                                                   \
    static type name(__VA_ARGS__)                                                                  \
    {                                                                                              \
        return (type){0};                                                                          \
    }
#define NOTHING_VOID(name, ...)                                                                    \
    static void name(__VA_ARGS__)                                                                  \
    {                                                                                              \
    }

NOTHING(none_do, sherd_status, sherd_engine *engine)
NOTHING(none_is, int, const sherd_engine *engine)
NOTHING(none_bytes, size_t, const sherd_engine *engine)
NOTHING_VOID(none_end, sherd_engine *engine)
NOTHING_VOID(none_report, sherd_engine *engine, sherd_step_report *report)

/* ---------------------------------------------------------------- storage -- */

NOTHING(none_settle, sherd_status, sherd_engine *engine, sherdi_ring ring)
NOTHING(none_traffic, sherdi_file_traffic, sherd_engine *engine)
NOTHING(none_commit, sherd_status, sherd_engine *engine, uint64_t fingerprint)
NOTHING_VOID(none_drop, sherd_engine *engine, sherdi_ring ring)
NOTHING_VOID(none_note, sherd_engine *engine, int64_t step, const sherdi_scaler *scaler,
             int is_written)
NOTHING_VOID(none_verify, sherd_engine *engine, int is_on)

static int64_t none_stored_step(sherd_engine *engine)
{
    return -1;
}

const sherdi_storage_ops sherdi_storage_none = {
    .open        = none_do,
    .resume      = none_do,
    .stop        = none_end,
    .close       = none_end,
    .settle      = none_settle,
    .drop        = none_drop,
    .report      = none_report,
    .traffic     = none_traffic,
    .begin       = none_do,
    .note        = none_note,
    .commit      = none_commit,
    .agreed      = none_end,
    .restore     = none_do,
    .stored_step = none_stored_step,
    .verify      = none_verify,
    .blob_bytes  = none_bytes,
};

/* ---------------------------------------------------------------- updater -- */

static const sherdi_program *none_program(const sherd_engine *engine)
{
    return &engine->run.program;
}

static sherd_status none_read_ahead(sherd_engine *engine)
{
    return sherdi_program_read_ahead(&engine->run.program);
}

const sherdi_updater_ops sherdi_updater_none = {
    .open         = none_do,
    .close        = none_end,
    .is_here      = none_is,
    .beat         = none_end,
    .program      = none_program,
    .queue        = none_do,
    .join         = none_do,
    .check        = none_do,
    .report       = none_report,
    .forget       = none_end,
    .read_ahead   = none_read_ahead,
    .settle_ahead = none_end,
};

/* ------------------------------------------------------------------ times -- */

NOTHING(none_begin, sherdi_mark, sherd_engine *engine, sherdi_mark_kind kind,
        const sherdi_backend *lane, const char *what, uint64_t bytes)
NOTHING_VOID(none_mark_end, sherd_engine *engine, const sherdi_backend *lane,
             const sherdi_mark *mark)
NOTHING(none_op_begin, sherdi_op_marks, sherd_engine *engine, const sherdi_backend *lane,
        const sherdi_op *op, int is_wait)
NOTHING_VOID(none_op_end, sherd_engine *engine, const sherdi_op_marks *marks)
NOTHING_VOID(none_add, sherd_engine *engine, sherdi_mark_kind kind, const char *what,
             uint64_t bytes, int64_t start_ns, int64_t end_ns)

static sherd_status none_open(sherd_engine *engine)
{
    const char *path = getenv("SHERD_TRACE");

    return path != NULL && path[0] != '\0' ? sherdi_absent("trace", "SHERD_TRACE") : SHERD_OK;
}

static const sherdi_times_ops times_none = {
    .open     = none_open,
    .close    = none_end,
    .begin    = none_begin,
    .end      = none_mark_end,
    .op_begin = none_op_begin,
    .op_end   = none_op_end,
    .add      = none_add,
    .boundary = none_end,
    .wait     = none_do,
};

/* ----------------------------------------------------------------- choice -- */

/* The last row stands for a build without the module. */
static const struct {
    const sherdi_storage_ops *storage;
    const sherdi_updater_ops *updater;
} TABLE[] = {
#define SHERDI_OFFLOAD(program, storage, updater) {&(storage), &(updater)},
#include "engine/program/offload_list.h"
#undef SHERDI_OFFLOAD
    {&sherdi_storage_none, &sherdi_updater_none},
};

static const sherdi_times_ops *const TIMES[] = {
#define SHERDI_TIMES(table) &(table),
#include "engine/run/times_list.h"
#undef SHERDI_TIMES
    &times_none,
};

sherd_status sherdi_storage_open(sherd_engine *engine)
{
    size_t stored = 0;

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        stored += engine->plan->rings[ring].num_extents;
    }
    return stored > 0 ? TABLE[0].storage->open(engine) : SHERD_OK;
}

sherd_status sherdi_updater_open(sherd_engine *engine)
{
    return TABLE[0].updater->open(engine);
}

sherd_status sherdi_times_open(sherd_engine *engine)
{
    return TIMES[0]->open(engine);
}

void sherdi_tables_clear(sherd_engine *engine)
{
    engine->storage = (sherdi_storage){.ops = &sherdi_storage_none};
    engine->updater = (sherdi_updater){.ops = &sherdi_updater_none};
    engine->times   = (sherdi_times){.ops = &times_none};
}
