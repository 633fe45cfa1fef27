/* The life of an engine, and the calls to declare a model and to seal. An engine has four phases:
 * open (the model is declared), sealed (it has its plan and memory), running, and prepared (between
 * the two halves of a step). Acquire and release are in run/loop.c, the calls of a step in
 * run/step.c. */
#include "engine/engine.h"

#include "base/absent.h"
#include "base/checked.h"
#include "base/log.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/modules.h"
#include "engine/run/needs.h"
#include "engine/run/optimizer.h"
#include "engine/run/scalars.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------- defaults ---- */

void sherd_unit_params_init(sherd_unit_params *params)
{
    sherdi_api_init(params, &(sherd_unit_params){.struct_size = sizeof(*params)});
}

void sherd_param_params_init(sherd_param_params *params)
{
    sherdi_api_init(params, &(sherd_param_params){.struct_size = sizeof(*params), .dtype = -1});
}

void sherd_step_report_init(sherd_step_report *report)
{
    sherdi_api_init(report, &(sherd_step_report){.struct_size = sizeof(*report)});
}

/* ------------------------------------------------------- create, declare ---- */

sherd_status sherdi_engine_lane(sherd_engine *engine, void *stream)
{
    sherdi_backend *device = (sherdi_backend *)(uintptr_t)sherdi_world_backend(engine->shards);
    sherdi_backend *lane;

    SHERDI_TRY(device->device->lane_create(device, "compute", stream, &lane));
    sherdi_backend_destroy(engine->backend);
    engine->backend = lane;
    return SHERD_OK;
}

/* Makes the steps of a rank by itself, which may therefore fail on one rank only. */
static sherd_status engine_open(sherd_engine *engine, const sherd_config *config)
{
    sherdi_scaler scaler;

    SHERDI_TRY(sherdi_config_resolve(config, engine->world_size, &engine->settings));
    if (engine->settings.numerics.deterministic && engine->host->kernels->reduce_fixed == NULL) {
        return sherdi_absent("deterministic", "sherd_settings.is_deterministic");
    }
    SHERDI_TRY(sherdi_engine_lane(engine, NULL));
    sherdi_scaler_init(&engine->scaler, &engine->settings.numerics.scaler);
    scaler = engine->scaler;
    SHERDI_TRY(sherdi_modules_scaler_update(&scaler, 0));
    if (scaler.params.is_dynamic && scaler.iteration == 0) { /* nobody counts */
        return sherdi_absent("scaling", "a dynamic loss scale");
    }
    return sherdi_model_init(&engine->model, &engine->mem);
}

sherd_status sherd_engine_create(sherd_world *world, const sherd_config *config, sherd_engine **out)
{
    sherd_engine *engine;
    sherd_status  status;

    SHERDI_TRY(sherdi_world_check_caller(world, "sherd_engine_create"));
    SHERDI_TRY(sherdi_api_need(config != NULL, "sherd_engine_create", "config"));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_engine_create"));
    /* The account lives in the engine, so the engine itself is not counted. */
    engine = aligned_alloc(64, sherdi_round_up(sizeof(*engine), 64));
    if (engine == NULL) {
        return sherdi_agree_world(world, sherdi_fail(SHERD_E_NOMEM, "no memory for the engine"));
    }
    memset(engine, 0, sizeof(*engine));
    sherdi_mem_init(&engine->mem);
    engine->process    = getpid();
    engine->model.mem  = &engine->mem;
    engine->world      = sherdi_world_retain(world);
    engine->shards     = sherdi_world_retain(world);
    engine->host       = sherdi_world_host(world);
    engine->rank       = sherd_world_rank(world);
    engine->world_size = sherd_world_size(world);
    status             = engine_open(engine, config);
    if (status == SHERD_OK) {
        status = sherdi_modules_create(engine);
    }
    status = sherdi_agree_world(world, status);
    if (status == SHERD_OK) {
        status = sherdi_modules_created(engine);
    }
    if (status == SHERD_OK && engine->group == NULL &&
        sherdi_shard_ranks(&engine->settings, engine->world_size) != engine->world_size) {
        status = sherdi_absent("replicas", "sherd_settings.shard_size");
    }
    if (status != SHERD_OK) {
        sherd_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return SHERD_OK;
}

sherd_status sherd_unit_add(sherd_engine *engine, const sherd_unit_params *params, sherd_unit *out)
{
    sherd_unit_params given;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_unit_add", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_unit_add"));
    sherd_unit_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API(sherd_unit_params), &given));
    return sherdi_model_add_unit(&engine->model, &given, out);
}

sherd_status sherd_param_add(sherd_engine *engine, sherd_unit unit,
                             const sherd_param_params *params, sherd_param *out)
{
    sherd_param_params given;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_param_add", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_api_check_out(out, "sherd_param_add"));
    sherd_param_params_init(&given);
    SHERDI_TRY(sherdi_api_read(params, SHERDI_API_WITH(sherd_param_params, shape), &given));
    given.frozen |= engine->settings.update.optimizer->is_inference;
    return sherdi_model_add_param(&engine->model, unit, &given, out);
}

sherd_status sherd_unit_reads(sherd_engine *engine, sherd_unit unit, sherd_param param)
{
    SHERDI_TRY(sherdi_engine_need(engine, "sherd_unit_reads", SHERDI_NEED_OPEN));
    return sherdi_model_add_read(&engine->model, unit, param);
}

/* ----------------------------------------------------------------- seal ---- */

sherd_status sherdi_engine_plan_make(sherd_engine *engine, const sherdi_machine *machine,
                                     sherdi_plan **out)
{
    sherdi_plan *plan;
    sherd_status status;

    if (engine->model.num_params == 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "no parameter is declared; add units and parameters first");
    }
    SHERDI_TRY(sherdi_modules_declared(engine));
    SHERDI_TRY(sherdi_plan_create(&engine->model, &engine->settings, engine->rank,
                                  engine->world_size, machine, &engine->mem, &plan));
    status = sherdi_modules_planned(plan, &engine->model);
    if (status != SHERD_OK) {
        sherdi_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return SHERD_OK;
}

/* Locked buffers have pages of their own, so that the pages that are locked are the plan's. */
sherd_status sherdi_engine_buffer_open(sherd_engine *engine, const sherdi_plan_buffer *buffer,
                                       void **out)
{
    if (buffer->bytes >= SHERDI_HUGE_BYTES || buffer->is_pinned) {
        return sherdi_host_alloc(engine->host, &engine->mem, buffer->purpose, buffer->bytes, out);
    }
    *out = sherdi_alloc(&engine->mem, buffer->purpose, buffer->bytes);
    return *out == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static sherd_status buffer_open(sherd_engine *engine, const sherdi_plan_buffer *buffer, void **out)
{
    if (buffer->is_shared == 1) {
        SHERDI_TRY(sherdi_world_alloc(buffer->is_group ? engine->group : engine->shards,
                                      buffer->bytes, out));
        sherdi_mem_note(&engine->mem, buffer->purpose, (int64_t)buffer->bytes);
        return SHERD_OK;
    }
    return SHERDI_IF(kernel_data, buffer_open, (engine, buffer, out),
                     sherdi_engine_buffer_open(engine, buffer, out));
}

static void buffer_close(sherd_engine *engine, int b)
{
    void                     *memory = engine->memory.buffers[b];
    const sherdi_plan_buffer *buffer;

    engine->memory.buffers[b] = NULL;
    if (memory == NULL || memory == engine->memory.nothing) {
        return;
    }
    buffer = &engine->plan->packing.buffers[b];
    if (buffer->is_shared == 1) {
        sherdi_world_free(buffer->is_group ? engine->group : engine->shards, memory);
        sherdi_mem_note(&engine->mem, buffer->purpose, -(int64_t)buffer->bytes);
        return;
    }
    SHERDI_IF(kernel_data, buffer_close, (engine, buffer, memory), sherdi_free(memory));
}

/* A world agrees on its memory itself, but with replicas there are several. */
static sherd_status buffers_open(sherd_engine *engine)
{
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &engine->plan->packing.buffers[b];
        void                     *memory = engine->memory.nothing;
        sherd_status              status = SHERD_OK;

        if (buffer->bytes > 0) {
            memory = NULL;
            status = buffer_open(engine, buffer, &memory);
        }
        engine->memory.buffers[b] = memory;
        SHERDI_TRY((buffer->is_shared && engine->group == NULL) || status == SHERD_E_PEER_LOST
                       ? status
                       : sherdi_agree_status(engine, status));
    }
    return SHERD_OK;
}

/* Refuses what the plan of this build does not have of what units and parameters declare. */
static sherd_status declared_check(const sherd_engine *engine)
{
    for (size_t u = 0; u < engine->model.num_units; u++) {
        const sherdi_plan_unit *unit = &engine->plan->layout.units[u];

        if (engine->model.units[u].has_any_uses && !unit->is_open_ended) {
            return sherdi_absent("uses", "SHERD_USES_ANY");
        }
        if (engine->model.units[u].retains_grads && !unit->retains_grads) {
            return sherdi_absent("uses", "sherd_unit_params.retain_grads");
        }
    }
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (engine->model.params[p].atom_elems > 1 && !engine->plan->layout.keeps_atoms) {
            return sherdi_absent("declarations", "sherd_param_params.atom_elems");
        }
    }
    return SHERD_OK;
}

/* Opens what a rank makes by itself. */
static sherd_status own_open(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_fill_open(engine));
    SHERDI_TRY(sherdi_lanes_open(engine));
    SHERDI_TRY(sherdi_run_open(engine));
    SHERDI_TRY(sherdi_modules_open(engine));
    return declared_check(engine);
}

void sherdi_engine_parts_close(sherd_engine *engine)
{
    SHERDI_TELL(updater, close, engine);
    sherdi_modules_abandon(engine);
    SHERDI_TELL(lanes, drain, engine); /* transfers into and out of the memory below end */
    sherdi_modules_close(engine);
    sherdi_run_close(engine);
    SHERDI_TELL(storage, close, engine);
    sherdi_lanes_close(engine);
    engine->storage = (sherdi_storage){0};
    engine->updater = (sherdi_updater){0};
    engine->times   = (sherdi_times){0};
    sherdi_scalars_close(engine);
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        buffer_close(engine, b);
    }
    sherdi_fill_close(engine);
    sherdi_plan_destroy(engine->plan);
    engine->plan = NULL;
}

static sherd_status overlap_start(sherd_engine *engine)
{
    sherd_status status;

    if (!engine->settings.sharding.overlap_comm || engine->world_size == 1) {
        return SHERD_OK;
    }
    status = sherdi_world_overlap(engine->shards);
    if (status == SHERD_E_NOTSUP) {
        sherdi_log(SHERD_LOG_WARN, engine->rank,
                   "overlap_comm: %s; communication is not overlapped", sherd_last_error());
        return SHERD_OK;
    }
    return status;
}

static sherd_status plan_open(sherd_engine *engine, const sherdi_machine *machine)
{
    SHERDI_TRY(sherdi_engine_plan_make(engine, machine, &engine->plan));
    return sherdi_modules_check(engine);
}

sherd_status sherdi_engine_parts_open(sherd_engine *engine, const sherdi_machine *machine)
{
    SHERDI_TRY(sherdi_agree_status(engine, plan_open(engine, machine)));
    SHERDI_TRY(sherdi_agree_status(engine, own_open(engine)));
    SHERDI_TRY(buffers_open(engine));
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_scalars_open(engine)));
    SHERDI_TRY(sherdi_agree_status(engine, overlap_start(engine)));
    SHERDI_TRY(sherdi_modules_storage_open(engine));
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_modules_updater_open(engine)));
    return engine->storage.is_resumed ? SHERDI_ASK(storage, resume, engine) : SHERD_OK;
}

sherd_status sherd_engine_seal(sherd_engine *engine)
{
    sherdi_machine machine;
    sherd_status   status;

    SHERDI_TRY(sherdi_engine_need(engine, "sherd_engine_seal", SHERDI_NEED_OPEN));
    SHERDI_TRY(sherdi_agree_status(engine, sherdi_modules_declared(engine)));
    SHERDI_TRY(sherdi_modules_sealing(engine));
    SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    status = sherdi_engine_parts_open(engine, &machine);
    if (status != SHERD_OK) {
        sherdi_engine_parts_close(engine);
        return status;
    }
    engine->phase = SHERDI_PHASE_SEALED;
    sherdi_modules_sealed(engine);
    sherdi_log(SHERD_LOG_INFO, engine->rank,
               "sealed: stage %d, %zu parameters, %zu elements, %zu bytes on this rank",
               engine->settings.sharding.stage, engine->model.num_params, engine->model.total_elems,
               engine->plan->packing.total_bytes);
    return SHERD_OK;
}

void sherd_engine_destroy(sherd_engine *engine)
{
    if (engine == NULL || engine->process != getpid()) {
        return;
    }
    if (sherdi_engine_check_caller(engine, "sherd_engine_destroy") != SHERD_OK) {
        sherdi_log(SHERD_LOG_ERROR, engine->rank, "%s", sherd_last_error());
        return;
    }
    sherdi_modules_give_up(engine);
    sherdi_engine_parts_close(engine);
    sherdi_modules_destroy(engine);
    sherdi_model_fini(&engine->model);
    sherdi_backend_destroy(engine->backend);
    sherd_world_destroy(engine->shards);
    sherd_world_destroy(engine->world);
    assert(sherdi_mem_held_all(&engine->mem) == 0 && "the engine leaves memory behind");
    free(engine);
}
