/* Reports of an engine: bytes planned, held and moved, and the wear of a drive. */
#include "engine/report.h"

#include "collectives/transport.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "sherd_tools.h"

void sherd_memory_report_init(sherd_memory_report *report)
{
    sherdi_api_init(report, &(sherd_memory_report){.struct_size = sizeof(*report)});
}

void sherd_traffic_report_init(sherd_traffic_report *report)
{
    sherdi_api_init(report, &(sherd_traffic_report){.struct_size = sizeof(*report)});
}

/* ---------------------------------------------------------------- plan ---- */

const sherdi_plan_moves *sherdi_plan_moves_of(const sherdi_plan *plan)
{
    static const sherdi_plan_moves NONE;

    return plan->moves == NULL ? &NONE : plan->moves;
}

uint64_t sherdi_plan_moved(const sherdi_plan *plan, sherdi_medium medium)
{
    const sherdi_plan_moves *moves = sherdi_plan_moves_of(plan);

    return moves->micro[medium] * (uint64_t)plan->settings.batch.accumulation + moves->step[medium];
}

sherd_status sherdi_engine_plan_borrow(sherd_engine *engine, const char *call, sherdi_plan **out)
{
    sherdi_machine machine = {.ranks_per_host =
                                  1}; /* before seal a real one is not asked: that is collective */

    SHERDI_TRY(sherdi_engine_check_alive(engine, call));
    if (engine->plan != NULL) {
        *out = engine->plan;
        return SHERD_OK;
    }
    if (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) {
        SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    }
    return sherdi_engine_plan_make(engine, &machine, out);
}

void sherdi_engine_plan_return(const sherd_engine *engine, sherdi_plan *plan)
{
    if (plan != engine->plan) {
        sherdi_plan_destroy(plan);
    }
}

/* ----------------------------------------------------------------- memory -- */

/* The fields of the report that have the bytes of each purpose. */
#define PURPOSE(id, name)                                                                          \
    [SHERDI_MEM_##id] = {offsetof(sherd_memory_report, name##_planned),                            \
                         offsetof(sherd_memory_report, name##_held)}

static const size_t PURPOSES[SHERDI_MEM_PURPOSES][2] = {
    PURPOSE(PARAMS, params),
    PURPOSE(GRADS, grads),
    PURPOSE(STATE, state),
    PURPOSE(GATHER, gather),
    PURPOSE(TRANSIENT, transient),
    PURPOSE(STAGING, staging),
    PURPOSE(HOST_PARAMS, host_params),
    PURPOSE(HOST_GRADS, host_grads),
    PURPOSE(HOST_STATE, host_state),
    PURPOSE(HOST_STAGING, host_staging),
    PURPOSE(ACTIVATIONS, activations),
    PURPOSE(HOST_ACTIVATIONS, host_activations),
};

/* The memory of the device that others than this engine and its world hold. */
static size_t device_outside(const sherd_engine *engine, const sherd_memory_report *held)
{
    size_t total = 0;
    size_t left  = engine->backend->device->is_async
                       ? engine->backend->device->free_bytes(engine->backend, &total)
                       : 0;
    size_t host  = held->host_params_held + held->host_grads_held + held->host_state_held +
                  held->host_staging_held + held->host_activations_held;
    size_t ours = held->total_held - host + held->receive_held + held->transport_device_held;

    return total - left > ours ? total - left - ours : 0;
}

/* Returns what the worlds hold over which the engine's ranks meet; and the bytes that they have
 * sent. */
static sherdi_world_held worlds_held(const sherd_engine *engine)
{
    const sherd_world *worlds[] = {engine->world, engine->shards, engine->group};
    sherdi_world_held  sum      = {0};

    for (int i = 0; i < 3; i++) {
        if (worlds[i] != NULL && (i != 1 || worlds[1] != worlds[0])) {
            sum.overhead_bytes += sherdi_world_held_of(worlds[i])->overhead_bytes;
            sum.room_bytes += sherdi_world_held_of(worlds[i])->room_bytes;
            sum.taken_bytes += sherdi_world_held_of(worlds[i])->taken_bytes;
        }
    }
    return sum;
}

static size_t worlds_sent(const sherd_engine *engine, size_t (*figure)(const sherd_world *))
{
    return figure(engine->world) + (engine->shards == engine->world ? 0 : figure(engine->shards)) +
           (engine->group == NULL ? 0 : figure(engine->group));
}

static void field_add(sherd_memory_report *report, size_t offset, size_t bytes)
{
    *(size_t *)(void *)((unsigned char *)report + offset) += bytes;
}

/* Returns the control data that were allocated since the last purpose was noted. */
static size_t control_since(const sherd_engine *engine)
{
    const sherd_memory_report *noted = &engine->reports.memory;

    return sherdi_mem_held(&engine->mem, SHERDI_MEM_CONTROL) - noted->control_model -
           noted->control_plan - noted->control_run - noted->control_store - noted->control_updater;
}

static sherd_status model_note(sherd_engine *engine)
{
    engine->reports.memory               = (sherd_memory_report){0}; /* of a seal that failed */
    engine->reports.memory.control_model = control_since(engine);
    return SHERD_OK;
}

static sherd_status plan_note(sherd_engine *engine)
{
    engine->reports.memory.control_plan = control_since(engine);
    return SHERD_OK;
}

static sherd_status run_note(sherd_engine *engine)
{
    engine->reports.memory.control_run = control_since(engine);
    return SHERD_OK;
}

static sherd_status store_note(sherd_engine *engine)
{
    engine->reports.memory.control_store = control_since(engine);
    return SHERD_OK;
}

static sherd_status updater_note(sherd_engine *engine)
{
    engine->reports.memory.control_updater = control_since(engine);
    return SHERD_OK;
}

static void sent_note(sherd_engine *engine)
{
    engine->reports.wire_bytes    = worlds_sent(engine, sherdi_world_sent_bytes);
    engine->reports.between_bytes = worlds_sent(engine, sherdi_world_between_bytes);
}

/* A purpose is noted when all of it is allocated: before the modules that allocate the next one,
 * and behind them. */
const sherdi_module sherdi_module_reports_before = {.storage_open = run_note,
                                                    .updater_open = store_note};
const sherdi_module sherdi_module_reports_behind = {
    .sealing = model_note, .check = plan_note, .updater_open = updater_note, .sealed = sent_note};

sherd_status sherd_engine_memory(sherd_engine *engine, sherd_memory_report *out)
{
    sherdi_world_held   held;
    sherd_memory_report report;
    sherdi_plan        *plan;

    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_memory_report)));
    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_memory", &plan));
    held               = worlds_held(engine);
    report             = engine->reports.memory;
    report.struct_size = sizeof(report);
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        field_add(&report, PURPOSES[plan->packing.buffers[b].purpose][0],
                  plan->packing.buffers[b].bytes);
    }
    for (int p = SHERDI_MEM_PARAMS; p <= SHERDI_MEM_HOST_ACTIVATIONS; p++) {
        size_t held = sherdi_mem_held(&engine->mem, (sherdi_mem_purpose)p);

        field_add(&report, PURPOSES[p][1], held);
        report.total_held += held;
    }
    report.pinned_planned = plan->packing.pinned_bytes;
    report.pinned_held    = engine->backend->device->is_async ? plan->packing.pinned_bytes
                                                              : engine->storage.pinned_bytes;
    report.nvme_planned =
        plan->nvme_bytes[0] + plan->nvme_bytes[1] + plan->nvme_bytes[2] + plan->nvme_bytes[3];
    report.nvme_state_planned       = plan->nvme_bytes[0];
    report.nvme_params_planned      = plan->nvme_bytes[1];
    report.nvme_grads_planned       = plan->nvme_bytes[2];
    report.nvme_activations_planned = plan->nvme_bytes[3];
    report.nvme_index_planned       = plan->index_bytes;
    report.has_spare_state          = plan->has_generations;
    report.receive_planned          = plan->packing.receive_bytes;
    report.receive_held             = held.room_bytes;
    report.transport_held           = held.overhead_bytes - held.room_bytes;
    report.transport_device_held    = held.taken_bytes;
    report.control_held = sherdi_mem_held(&engine->mem, SHERDI_MEM_CONTROL) + sizeof(*engine);
    report.control_run += sizeof(*engine);
    report.device_outside_held = device_outside(engine, &report);
    report.padding_elems       = plan->layout.padding_elems;
    report.checkpoint_planned  = sherdi_plan_checkpoint_bytes(plan);
    report.total_planned       = plan->packing.total_bytes;
    sherdi_engine_plan_return(engine, plan);
    sherdi_api_write(&report, out);
    return SHERD_OK;
}

/* Counts what has gone to other hosts since seal. Calls of the world count it while they are made,
 * so those that were enqueued are waited for. A queued update has gathered slices, each to all ranks
 * and so to each other host. */
static uint64_t between_count(const sherd_engine *engine)
{
    const sherdi_plan *plan   = engine->plan;
    uint64_t           hosts  = plan->num_replicas > 1 ? 1 : (uint64_t)plan->machine.num_hosts;
    uint64_t           others = (uint64_t)plan->world_size - 1;

    sherdi_world_drain(engine->shards);
    if (engine->group != NULL) {
        sherdi_world_drain(engine->group);
    }
    return worlds_sent(engine, sherdi_world_between_bytes) - engine->reports.between_bytes -
           (hosts > 1 ? engine->updater.published_bytes / others * (hosts - 1) : 0);
}

/* Counts the bytes that the world has sent since seal, and those that the store has moved. A queued
 * update counts when it is joined. */
static void traffic_count(sherd_engine *engine, sherd_traffic_report *out)
{
    const sherdi_link  *own     = &engine->run.links[SHERDI_USER_TRAINER];
    const sherdi_link  *updates = &engine->updater.joined_link;
    sherdi_file_traffic files;

    SHERDI_TELL(updater, settle_ahead, engine);
    files             = SHERDI_IF(storage, traffic, (engine), (sherdi_file_traffic){0});
    out->wire_counted = worlds_sent(engine, sherdi_world_sent_bytes) - engine->reports.wire_bytes -
                        engine->updater.published_bytes;
    out->between_counted = between_count(engine);
    out->down_counted    = own->down_bytes + updates->down_bytes;
    out->up_counted      = own->up_bytes + updates->up_bytes;
    out->read_counted    = files.read_bytes;
    out->written_counted = files.written_bytes;
}

sherd_status sherd_engine_traffic(sherd_engine *engine, sherd_traffic_report *out)
{
    sherd_traffic_report report = {.struct_size = sizeof(report)};
    sherdi_plan_wear     wear;
    const uint64_t      *micro, *step;
    sherdi_plan         *plan;

    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_traffic_report)));
    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_traffic", &plan));
    wear                         = sherdi_plan_drive_wear(plan);
    micro                        = sherdi_plan_moves_of(plan)->micro;
    step                         = sherdi_plan_moves_of(plan)->step;
    report.accumulation          = plan->settings.batch.accumulation;
    report.wire_micro_planned    = micro[SHERDI_MOVES_WIRE];
    report.wire_step_planned     = step[SHERDI_MOVES_WIRE];
    report.between_micro_planned = micro[SHERDI_MOVES_BETWEEN];
    report.between_step_planned  = step[SHERDI_MOVES_BETWEEN];
    report.down_micro_planned    = micro[SHERDI_MOVES_DOWN];
    report.down_step_planned     = step[SHERDI_MOVES_DOWN];
    report.up_micro_planned      = micro[SHERDI_MOVES_UP];
    report.up_step_planned       = step[SHERDI_MOVES_UP];
    report.read_micro_planned    = micro[SHERDI_MOVES_READ];
    report.read_step_planned     = step[SHERDI_MOVES_READ];
    report.written_micro_planned = micro[SHERDI_MOVES_WRITTEN];
    report.written_step_planned =
        step[SHERDI_MOVES_WRITTEN] + SHERDI_IF(storage, blob_bytes, (engine), 0);
    report.update_device_planned = step[SHERDI_MOVES_DEVICE];
    report.update_host_planned   = step[SHERDI_MOVES_HOST];
    report.update_flops_planned  = step[SHERDI_MOVES_FLOPS];
    report.wear_days             = wear.days;
    report.wear_step_s           = wear.step_seconds;
    if (plan == engine->plan) {
        traffic_count(engine, &report);
    }
    sherdi_engine_plan_return(engine, plan);
    sherdi_api_write(&report, out);
    return SHERD_OK;
}

/* ------------------------------------------------------------------- wear -- */

/* The rate of a common drive, if the step's time is not set. */
#define ASSUMED_RATE 2e9 /* bytes a second, read and written together */
#define DAY_SECONDS  86400.0

/* Assumes one drive per folder; the ranks of a host share the drives. */
sherdi_plan_wear sherdi_plan_drive_wear(const sherdi_plan *plan)
{
    int              folders = plan->settings.offload.state.num_folders;
    double           sharers = plan->machine.ranks_per_host / (folders > 1 ? folders : 1.0);
    double           read    = (double)sherdi_plan_moved(plan, SHERDI_MOVES_READ);
    sherdi_plan_wear wear    = {
           .written_bytes = (double)sherdi_plan_moved(plan, SHERDI_MOVES_WRITTEN),
           .step_seconds  = plan->settings.io.step_seconds,
           .rated_bytes   = plan->settings.io.drive_tbw * 1e12,
    };

    if (wear.step_seconds == 0) {
        wear.is_assumed   = 1;
        wear.step_seconds = sharers * (read + wear.written_bytes) / ASSUMED_RATE;
    }
    if (wear.written_bytes > 0) {
        wear.bytes_a_day = sharers * wear.written_bytes * DAY_SECONDS / wear.step_seconds;
        wear.days        = wear.rated_bytes / wear.bytes_a_day;
    }
    return wear;
}
