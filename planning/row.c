/* Makes rows of plans. See row.h. */
#include "planning/row.h"

#include "models/activations.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_OF_A_HOST 8

/* ---------------------------------------------------------------- offload -- */

typedef struct offload_name {
    const char *name, *state, *params; /* the "device" keys of the configuration */
} offload_name;

static const offload_name OFFLOADS[PLANNING_OFFLOADS] = {
    [PLANNING_OFFLOAD_NONE]           = {"none", "none", "none"},
    [PLANNING_OFFLOAD_OPTIMIZER_CPU]  = {"optimizer-cpu", "cpu", "none"},
    [PLANNING_OFFLOAD_OPTIMIZER_NVME] = {"optimizer-nvme", "nvme", "none"},
    [PLANNING_OFFLOAD_PARAMS_CPU]     = {"params-cpu", "cpu", "cpu"},
    [PLANNING_OFFLOAD_PARAMS_NVME]    = {"params-nvme", "nvme", "nvme"},
};

const char *planning_offload_name(planning_offload offload)
{
    return offload < 0 ? "as configured" : OFFLOADS[offload].name;
}

const char *planning_offload_state_device(planning_offload offload)
{
    return offload < 0 ? "none" : OFFLOADS[offload].state;
}

const char *planning_offload_param_device(planning_offload offload)
{
    return offload < 0 ? "none" : OFFLOADS[offload].params;
}

int planning_offload_find(const char *name, planning_offload *out)
{
    static const struct {
        const char      *name;
        planning_offload offload;
    } OTHERS[] = {{"cpu", PLANNING_OFFLOAD_OPTIMIZER_CPU},
                  {"nvme", PLANNING_OFFLOAD_OPTIMIZER_NVME},
                  {"param-cpu", PLANNING_OFFLOAD_PARAMS_CPU},
                  {"param-nvme", PLANNING_OFFLOAD_PARAMS_NVME}};
    char wanted[32];

    (void)snprintf(wanted, sizeof(wanted), "%s", name);
    for (char *at = wanted; *at != '\0'; at++) {
        *at = *at == '_' ? '-' : *at; /* configurations write _ in their keys */
    }
    for (int i = 0; i < PLANNING_OFFLOADS; i++) {
        if (strcmp(OFFLOADS[i].name, wanted) == 0) {
            *out = (planning_offload)i;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++) {
        if (strcmp(OTHERS[i].name, wanted) == 0) {
            *out = OTHERS[i].offload;
            return 0;
        }
    }
    return -1;
}

int planning_offload_fits_stage(planning_offload offload, int stage)
{
    switch (offload) {
    case PLANNING_OFFLOAD_OPTIMIZER_CPU:
    case PLANNING_OFFLOAD_OPTIMIZER_NVME:
        return stage >= 1;
    case PLANNING_OFFLOAD_PARAMS_CPU:
    case PLANNING_OFFLOAD_PARAMS_NVME:
        return stage == 3;
    case PLANNING_OFFLOAD_AS_CONFIGURED:
    case PLANNING_OFFLOAD_NONE:
    case PLANNING_OFFLOADS:
        break;
    }
    return 1;
}

/* Returns the offload that a plan has, whatever asked for it. */
static planning_offload offload_seen(const sherd_memory_report *memory)
{
    if (memory->nvme_params_planned > 0) {
        return PLANNING_OFFLOAD_PARAMS_NVME;
    }
    if (memory->host_params_planned > 0) {
        return PLANNING_OFFLOAD_PARAMS_CPU;
    }
    if (memory->nvme_state_planned > 0) {
        return PLANNING_OFFLOAD_OPTIMIZER_NVME;
    }
    return memory->host_state_planned > 0 ? PLANNING_OFFLOAD_OPTIMIZER_CPU : PLANNING_OFFLOAD_NONE;
}

/* ----------------------------------------------------------------- engine -- */

static sherd_status device_set(sherd_config *config, const char *block, const char *device,
                               int is_pinned)
{
    char         key[96];
    char         value[16];
    char         path[96];
    sherd_status status;

    (void)snprintf(key, sizeof(key), "!zero_optimization.%s.device", block);
    (void)snprintf(value, sizeof(value), "\"%s\"", device);
    status = sherd_config_set(config, key, value);
    if (status != SHERD_OK || strcmp(device, "none") == 0) {
        return status;
    }
    if (is_pinned) {
        (void)snprintf(key, sizeof(key), "!zero_optimization.%s.pin_memory", block);
        status = sherd_config_set(config, key, "true");
    }
    (void)snprintf(path, sizeof(path), "zero_optimization.%s.nvme_path", block);
    if (status == SHERD_OK && strcmp(device, "nvme") == 0 && !sherd_config_has(config, path)) {
        status = sherd_config_set(config, path, "\"/local_nvme\""); /* a plan opens no folder */
    }
    return status;
}

/* Resets the keys of a configuration about state in files: without state in files they would be an
 * error or a warning. */
static sherd_status files_unset(sherd_config *config)
{
    static const char *const DEFAULTS[][2] = {{"gradients", "\"cpu\""},
                                              {"verify_reads", "false"},
                                              {"resume", "false"},
                                              {"keep", "false"},
                                              {"durable", "true"}};
    sherd_status             status        = SHERD_OK;

    for (size_t i = 0; i < sizeof(DEFAULTS) / sizeof(DEFAULTS[0]) && status == SHERD_OK; i++) {
        char key[96];

        (void)snprintf(key, sizeof(key), "!zero_optimization.offload_optimizer.%s", DEFAULTS[i][0]);
        status = sherd_config_set(config, key, DEFAULTS[i][1]);
    }
    return status;
}

static sherd_status offload_set(const planning_request *request, planning_offload offload,
                                sherd_config *config)
{
    int          is_cuda = strcmp(request->backend, "cuda") == 0;
    sherd_status status  = SHERD_OK;

    if (offload < 0) {
        return SHERD_OK;
    }
    if (strcmp(OFFLOADS[offload].state, "nvme") != 0) {
        status = files_unset(config);
    }
    if (status == SHERD_OK) {
        status = device_set(config, "offload_optimizer", OFFLOADS[offload].state, is_cuda);
    }
    if (status == SHERD_OK) {
        status = device_set(config, "offload_param", OFFLOADS[offload].params, is_cuda);
    }
    if (status == SHERD_OK && offload == PLANNING_OFFLOAD_PARAMS_NVME) {
        /* otherwise the first billion elements of each rank rest in host memory */
        status = sherd_config_set(config, "!zero_optimization.offload_param.max_in_cpu", "0");
    }
    return status;
}

static sherd_status number_set(sherd_config *config, const char *key, double number)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%.10g", number);
    return number == 0 ? SHERD_OK : sherd_config_set(config, key, text);
}

sherd_status planning_tuning_set(const planning_layout *layout, sherd_config *config)
{
    const char  *device = layer_place_device(layout->place);
    sherd_status status = number_set(config, PLANNING_RATIO_KEY, layout->ratio);
    char         value[16];

    if (status == SHERD_OK) {
        status = number_set(config, PLANNING_BUFFERS_KEY, layout->buffers);
    }
    if (status == SHERD_OK) {
        status = number_set(config, PLANNING_REPLICA_KEY, layout->replica_ranks);
    }
    if (status == SHERD_OK) {
        status = number_set(config, PLANNING_SECOND_COPY_KEY, layout->second_copy_ranks);
    }
    if (status == SHERD_OK && device != NULL) {
        (void)snprintf(value, sizeof(value), "\"%s\"", device);
        status = sherd_config_set(config, PLANNING_PLACE_KEY, value);
    }
    return status;
}

static layer_places places_of(const planning_request *request, const planning_layout *layout)
{
    return layout->place == LAYER_KEPT ? request->places : layer_places_all(layout->place);
}

/* Returns the layers whose activations the engine moves. */
static size_t layers_moved(const planning_request *request, const planning_layout *layout)
{
    layer_places places = places_of(request, layout);
    size_t       layers = request->model->has_arch ? request->model->sizes.layers : 0;

    return layer_places_count(&places, layers, layer_place_is_moved);
}

static sherd_status config_set_text(sherd_config *config, const char *setting)
{
    const char *equals = strchr(setting, '=');
    char        key[128];

    /* without '=' the key is unknown, and the engine's message names it */
    (void)snprintf(key, sizeof(key), "!%.*s",
                   (int)(equals == NULL ? strlen(setting) : (size_t)(equals - setting)), setting);
    return sherd_config_set(config, key, equals == NULL ? "null" : equals + 1);
}

/* Keys that trainers fill in when they are "auto" or missing. A plan needs them, but its bytes do
 * not depend on them (except on the batch). Values of a scheduler are filled in only if the
 * configuration has one. */
static const struct {
    const char *key, *value, *with;
} AUTOS[] = {
    {"optimizer.type", "\"AdamW\"", NULL},
    {"optimizer.params.lr", "1e-4", NULL},
    {"scheduler.params.total_num_steps", "10000", "scheduler.type"},
    {"scheduler.params.warmup_num_steps", "100", "scheduler.type"},
    {"scheduler.params.warmup_max_lr", "1e-4", "scheduler.type"},
};

static sherd_status auto_set(sherd_config *config, const char *key, const char *value,
                             planning_assumed *out)
{
    size_t used = strlen(out->text);

    (void)snprintf(out->text + used, sizeof(out->text) - used, "%s%s %s", used == 0 ? "" : ", ",
                   key, value);
    return sherd_config_set(config, key, value);
}

static sherd_status autos_fill(sherd_config *config, planning_assumed *out)
{
    sherd_status status = SHERD_OK;

    if (!sherd_config_has(config, "train_batch_size") &&
        !sherd_config_has(config, "train_micro_batch_size_per_gpu")) {
        status = auto_set(config, "train_micro_batch_size_per_gpu", "1", out);
    }
    for (size_t i = 0; i < sizeof(AUTOS) / sizeof(AUTOS[0]) && status == SHERD_OK; i++) {
        if (!sherd_config_has(config, AUTOS[i].key) &&
            (AUTOS[i].with == NULL || sherd_config_has(config, AUTOS[i].with))) {
            status = auto_set(config, AUTOS[i].key, AUTOS[i].value, out);
        }
    }
    return status;
}

static sherd_status activations_path_set(sherd_config *config)
{
    return sherd_config_has(config, "sherd.activations.nvme_path")
               ? SHERD_OK
               : sherd_config_set(config, "sherd.activations.nvme_path", "\"/local_nvme\"");
}

static sherd_status config_fill(const planning_request *request, const planning_layout *layout,
                                sherd_config *config, planning_assumed *assumed)
{
    char         text[32];
    sherd_status status = SHERD_OK;

    if (request->model->has_arch) {
        (void)snprintf(text, sizeof(text), "%zu", request->model->sizes.hidden);
        status = sherd_config_set(config, "hidden_size", text);
    }
    for (size_t i = 0; i < request->num_settings && status == SHERD_OK; i++) {
        status = config_set_text(config, request->settings[i]);
    }
    /* the layout comes last, so that older names of its keys cannot override it */
    if (status == SHERD_OK && layout->stage >= 0) {
        (void)snprintf(text, sizeof(text), "%d", layout->stage);
        status = sherd_config_set(config, "!zero_optimization.stage", text);
    }
    if (status == SHERD_OK && layout->is_beside) {
        status = sherd_config_set(config, PLANNING_MASTER_KEY, PLANNING_MASTER_BESIDE);
    }
    if (status == SHERD_OK) {
        status = offload_set(request, layout->offload, config);
    }
    if (status == SHERD_OK) {
        status = planning_tuning_set(layout, config);
    }
    if (status == SHERD_OK && layers_moved(request, layout) > 0) {
        status = activations_path_set(config);
    }
    return status == SHERD_OK ? autos_fill(config, assumed) : status;
}

int planning_ranks_per_host(const planning_request *request, int world_size)
{
    int most = request->ranks_per_host;

    if (most == 0) {
        most = strcmp(request->backend, "cuda") == 0 ? GPUS_OF_A_HOST : world_size;
    }
    return most < world_size ? most : world_size;
}

const char *planning_sharing_name(const planning_layout *layout)
{
    return layout->replica_ranks > 0       ? "replicas"
           : layout->second_copy_ranks > 0 ? "second copy"
                                           : "flat";
}

static size_t product(size_t a, size_t b)
{
    return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

/* Returns the activations of a host's ranks, where they are in host memory. */
static size_t host_activations(const planning_request *request, int world_size, size_t each)
{
    return strcmp(request->backend, "cuda") == 0
               ? 0
               : product(each, (size_t)planning_ranks_per_host(request, world_size));
}

/* Returns the memory of a device or host without the activations; never 0, which would mean
 * unknown. */
static size_t left_of(size_t bytes, size_t taken)
{
    if (bytes == 0) {
        return 0;
    }
    return bytes > taken ? bytes - taken : 1;
}

static sherd_status world_open(const planning_request *request, const planning_layout *layout,
                               size_t activation_bytes, sherd_world **out)
{
    int                   is_cuda = strcmp(request->backend, "cuda") == 0;
    int                   ranks   = planning_ranks_per_host(request, layout->world_size);
    sherd_simulate_params params;

    sherd_simulate_params_init(&params);
    params.backend        = request->backend;
    params.ranks_per_host = ranks;
    params.device_bytes   = is_cuda ? left_of(request->device_bytes, activation_bytes) : 0;
    params.host_bytes     = left_of(request->host_bytes,
                                    host_activations(request, layout->world_size, activation_bytes));
    return sherd_world_simulate_with(request->rank, layout->world_size, &params, out);
}

static int knows_activations(const planning_request *request)
{
    return request->activation_bytes == 0 && request->model->has_arch && request->batch > 0 &&
           request->length > 0;
}

static activations_params shape_of(const planning_request *request, const planning_layout *layout,
                                   sherd_dtype dtype)
{
    return (activations_params){.batch   = request->batch,
                                .length  = request->length,
                                .places  = places_of(request, layout),
                                .dtype   = dtype,
                                .backend = request->backend,
                                .threads = 1};
}

/* Declares the activations that are moved, as the trainer does; its units are the first, the layers
 * and the last. */
static sherd_status activations_declare(const planning_request *request,
                                        const planning_layout *layout, sherd_engine *engine)
{
    sherd_engine_info       info;
    sherd_activation_params params;
    sherd_status            status;
    activations_params      shape;

    if (!knows_activations(request) || layers_moved(request, layout) == 0) {
        return SHERD_OK;
    }
    sherd_engine_info_init(&info);
    sherd_activation_params_init(&params);
    status = sherd_engine_query(engine, &info);
    shape  = shape_of(request, layout, info.compute_dtype);
    for (size_t l = 0; l < request->model->sizes.layers && status == SHERD_OK; l++) {
        layer_place place = layer_place_of(&shape.places, l);

        if (layer_place_is_moved(place)) {
            params.len_bytes = activations_layer_bytes(&request->model->sizes, &shape, place);
            params.device    = layer_place_device(place);
            status           = sherd_activation_add(engine, (sherd_unit)(l + 1), &params);
        }
    }
    return status;
}

static sherd_status engine_open(const planning_request *request, const planning_layout *layout,
                                size_t activation_bytes, planning_assumed *assumed,
                                sherd_engine **out)
{
    sherd_config *config;
    sherd_world  *world;
    sherd_engine *engine = NULL;
    sherd_status  status =
        request->config_path == NULL
             ? sherd_config_parse(PLANNING_DEFAULT_CONFIG, strlen(PLANNING_DEFAULT_CONFIG), &config)
             : sherd_config_load(request->config_path, &config);

    if (status != SHERD_OK) {
        return status;
    }
    assumed->text[0] = '\0';
    status           = config_fill(request, layout, config, assumed);
    if (status == SHERD_OK) {
        status = world_open(request, layout, activation_bytes, &world);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_create(world, config, &engine);
        sherd_world_destroy(world);
    }
    sherd_config_destroy(config);
    if (status == SHERD_OK) {
        status = planning_model_declare(request->model, engine);
    }
    if (status == SHERD_OK) {
        status = activations_declare(request, layout, engine);
    }
    if (status != SHERD_OK) {
        sherd_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return SHERD_OK;
}

/* Returns the memory that the trainer holds, without the engine's memory for it. */
static size_t activations_of(const planning_request *request, const planning_layout *layout,
                             sherd_dtype dtype)
{
    activations_params params = shape_of(request, layout, dtype);

    return knows_activations(request) ? activations_bytes(&request->model->sizes, &params)
                                      : request->activation_bytes;
}

sherd_status planning_engine_open(const planning_request *request, const planning_layout *layout,
                                  sherd_engine **out)
{
    planning_assumed assumed;

    return engine_open(request, layout, activations_of(request, layout, SHERD_BF16), &assumed, out);
}

/* ------------------------------------------------------------------- time -- */

const char *planning_bound_name(planning_bound bound)
{
    static const char *const NAMES[] = {"compute", "wire", "link", "nvme", "update"};

    return NAMES[bound];
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

typedef struct moved {
    double wire, between, down, up, read, written; /* bytes; between is a part of wire */
} moved;

/* Computes the seconds of transfers. On a GPU both directions of the link run at the same time; on
 * the CPU one thread copies. The ranks of a host share its drives, and reading and writing do
 * too. */
static void moved_time(const planning_request *request, int world_size, const moved *bytes,
                       double by_bound[PLANNING_BOUNDS])
{
    const double *rates = request->rates.values;
    double        ranks = planning_ranks_per_host(request, world_size);
    double        down  = bytes->down / rates[PLANNING_RATE_DOWN];
    double        up    = bytes->up / rates[PLANNING_RATE_UP];

    by_bound[PLANNING_BOUND_WIRE] =
        larger(bytes->wire - bytes->between, 0) / rates[PLANNING_RATE_WIRE] +
        bytes->between / rates[PLANNING_RATE_BETWEEN];
    by_bound[PLANNING_BOUND_LINK] =
        strcmp(request->backend, "cuda") == 0 ? larger(down, up) : down + up;
    by_bound[PLANNING_BOUND_NVME] = ranks * (bytes->read / rates[PLANNING_RATE_NVME_READ] +
                                             bytes->written / rates[PLANNING_RATE_NVME_WRITE]);
}

static double compute_time(const planning_request *request, const planning_layout *layout)
{
    size_t       layers = request->model->has_arch ? request->model->sizes.layers : 0;
    size_t       again;
    layer_places places;
    double       flops = planning_model_flops_per_token(request->model, request->length) *
                   (double)request->batch * (double)request->length;

    places = places_of(request, layout);
    again  = layer_places_count(&places, layers, layer_place_is_recomputed);
    flops *= 1.0 + (layers > 0 ? (double)again / (double)layers / 3.0 : 0.0); /* a second forward */
    return flops / request->rates.values[PLANNING_RATE_FLOPS];
}

/* Computes how long each resource alone is busy. */
static void times_make(const planning_request *request, planning_row *row)
{
    const sherd_traffic_report *t     = &row->traffic;
    const double               *rates = request->rates.values;
    planning_time              *time  = &row->time;
    moved  micro              = {(double)t->wire_micro_planned, (double)t->between_micro_planned,
                                 (double)t->down_micro_planned, (double)t->up_micro_planned,
                                 (double)t->read_micro_planned, (double)t->written_micro_planned};
    moved  step               = {(double)t->wire_step_planned, (double)t->between_step_planned,
                                 (double)t->down_step_planned, (double)t->up_step_planned,
                                 (double)t->read_step_planned, (double)t->written_step_planned};
    double m[PLANNING_BOUNDS] = {0};
    double s[PLANNING_BOUNDS] = {0};

    moved_time(request, row->layout.world_size, &micro, m);
    moved_time(request, row->layout.world_size, &step, s);
    m[PLANNING_BOUND_COMPUTE] = compute_time(request, &row->layout);
    s[PLANNING_BOUND_UPDATE]  = (double)t->update_device_planned / rates[PLANNING_RATE_DEVICE] +
                               (double)t->update_host_planned / rates[PLANNING_RATE_HOST] +
                               (double)t->update_flops_planned / rates[PLANNING_RATE_PRODUCTS];
    time->bound = PLANNING_BOUND_COMPUTE;
    for (int i = 0; i < PLANNING_BOUNDS; i++) {
        time->by_bound[i] = row->accumulation * m[i] + s[i];
        if (time->by_bound[i] > time->by_bound[time->bound]) {
            time->bound = (planning_bound)i;
        }
    }
}

/* Plays the program of a step against the rates of one rank. */
static sherd_status time_make(const planning_request *request, sherd_engine *engine,
                              planning_row *row)
{
    const double    *values = request->rates.values;
    double           ranks  = planning_ranks_per_host(request, row->layout.world_size);
    sherd_rates      rates;
    sherd_prediction predicted;
    sherd_status     status;

    sherd_rates_init(&rates);
    sherd_prediction_init(&predicted);
    rates.wire       = values[PLANNING_RATE_WIRE];
    rates.between    = values[PLANNING_RATE_BETWEEN];
    rates.down       = values[PLANNING_RATE_DOWN];
    rates.up         = values[PLANNING_RATE_UP];
    rates.nvme_read  = values[PLANNING_RATE_NVME_READ] / ranks;
    rates.nvme_write = values[PLANNING_RATE_NVME_WRITE] / ranks;
    rates.device     = values[PLANNING_RATE_DEVICE];
    rates.host       = values[PLANNING_RATE_HOST];
    rates.products   = values[PLANNING_RATE_PRODUCTS];
    rates.compute_s  = compute_time(request, &row->layout);
    times_make(request, row);
    status                  = sherd_engine_predict(engine, &rates, &predicted);
    row->time.micro_s       = predicted.micro_s;
    row->time.boundary_s    = predicted.boundary_s;
    row->time.step_s        = predicted.step_s;
    row->time.exposed_s     = predicted.exposed_s;
    row->time.queued_s      = predicted.queued_s;
    row->time.beside_s      = predicted.beside_s;
    row->time.wait_update_s = predicted.wait_update_s;
    return status;
}

/* -------------------------------------------------------------------- row -- */

double planning_paper_bytes(double elems, int stage, int world_size, size_t param_bytes,
                            double state_bytes)
{
    double params = (double)param_bytes * elems;
    double state  = state_bytes * elems;

    return (stage >= 3 ? params / world_size : params) +
           (stage >= 2 ? params / world_size : params) + (stage >= 1 ? state / world_size : state);
}

double planning_state_bytes(const planning_row *row, int is_fp32)
{
    double bytes = 0;
    double elems = 0; /* each element has a master */

    for (int i = 0; i < row->num_state_parts; i++) {
        const sherd_state_part *part = &row->state_parts[i];

        elems += strcmp(part->part, "master") == 0 ? (double)part->elems : 0;
        if (!is_fp32) {
            bytes += (double)part->bytes;
        } else if (part->bytes > 0 && strcmp(part->part, "parameter") != 0) {
            bytes += (double)part->elems * sizeof(float);
        }
    }
    return elems > 0 ? bytes / elems : 0;
}

static void bytes_sum(planning_row *row)
{
    const sherd_memory_report *m = &row->memory;
    size_t host = m->host_params_planned + m->host_grads_planned + m->host_state_planned +
                  m->host_staging_planned + m->host_activations_planned;
    size_t kept = m->nvme_state_planned / (m->has_spare_state ? 2 : 1);

    row->params_bytes    = m->params_planned + m->host_params_planned + m->nvme_params_planned;
    row->grads_bytes     = m->grads_planned + m->host_grads_planned + m->nvme_grads_planned;
    row->optimizer_bytes = m->state_planned + m->host_state_planned + kept;
    row->gathered_bytes  = m->gather_planned;
    row->transient_bytes = m->transient_planned;
    row->staging_bytes   = m->staging_planned + m->host_staging_planned + m->receive_planned +
                         m->activations_planned + m->host_activations_planned;
    row->device_bytes = m->total_planned - host + m->receive_planned;
    row->host_bytes   = host;
    row->pinned_bytes = m->pinned_planned;
    row->nvme_bytes   = m->nvme_planned;
    row->paper_bytes  = planning_paper_bytes(
                            (double)row->trainable_elems, row->layout.stage, row->layout.world_size,
                            sherd_dtype_bytes(row->compute_dtype), planning_state_bytes(row, 1)) +
                       (double)(row->param_elems - row->trainable_elems) *
                           (double)sherd_dtype_bytes(row->compute_dtype) /
                           (row->layout.stage >= 3 ? row->layout.world_size : 1);
}

static sherd_status state_part_take(void *ctx, const sherd_state_part *part)
{
    planning_row *row = ctx;

    if (row->num_state_parts < PLANNING_MOST_STATE_PARTS) {
        row->state_parts[row->num_state_parts++] = *part;
    }
    return SHERD_OK;
}

static sherd_status row_ask(sherd_engine *engine, planning_row *row)
{
    sherd_engine_info info;
    sherd_status      status;

    sherd_engine_info_init(&info);
    sherd_memory_report_init(&row->memory);
    sherd_traffic_report_init(&row->traffic);
    status = sherd_engine_query(engine, &info);
    if (status == SHERD_OK) {
        status = sherd_engine_memory(engine, &row->memory);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_traffic(engine, &row->traffic);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_state_parts(engine, state_part_take, row);
    }
    row->layout.stage    = info.stage;
    row->accumulation    = info.accumulation;
    row->compute_dtype   = info.compute_dtype;
    row->param_elems     = info.param_elems;
    row->trainable_elems = info.trainable_elems;
    return status;
}

/* Returns 1, with the message, when the activations leave no memory; then no setting of the engine
 * helps. */
static int activations_fill(const planning_request *request, planning_row *row)
{
    int    is_cuda = strcmp(request->backend, "cuda") == 0;
    size_t whole   = is_cuda ? request->device_bytes : request->host_bytes;
    size_t taken   = is_cuda
                         ? row->activation_bytes
                         : host_activations(request, row->layout.world_size, row->activation_bytes);

    row->lacks_activations = whole > 0 && row->activation_bytes == 0;
    if (whole == 0 || taken < whole) {
        return 0;
    }
    (void)snprintf(
        row->why, sizeof(row->why),
        "activations alone take %.1f MiB of the %.1f MiB of a %s; a smaller micro-batch, "
        "shorter sequences or recomputation need less",
        (double)taken / 0x1p20, (double)whole / 0x1p20, is_cuda ? "device" : "host");
    return 1;
}

int planning_has_limits(const planning_request *request)
{
    return request->device_bytes > 0 || request->host_bytes > 0 || request->nvme_bytes > 0;
}

double planning_nvme_need(const planning_request *request, const planning_row *row)
{
    return ((double)row->nvme_bytes + (double)row->memory.nvme_index_planned) *
           planning_ranks_per_host(request, row->layout.world_size);
}

/* Checks the drives, which an engine does not know before seal opens them. Returns 1, with the
 * message, when they are too small. */
static int drives_fill(const planning_request *request, planning_row *row)
{
    double need = planning_nvme_need(request, row);
    double have = (double)request->nvme_bytes;

    if (have == 0 || need <= have) {
        return 0;
    }
    (void)snprintf(
        row->why, sizeof(row->why),
        "the plan needs %.1f MiB of the drives of each host, %.1f MiB more than they have; "
        "what rests in host memory needs none, and with more hosts each has less to keep",
        need / 0x1p20, (need - have) / 0x1p20);
    return 1;
}

static void fit_ask(const planning_request *request, sherd_engine *engine, planning_row *row)
{
    row->has_fit = planning_has_limits(request);
    row->fits    = 1;
    if (!row->has_fit) {
        return;
    }
    if (activations_fill(request, row)) {
        row->fits = 0;
        return;
    }
    if (sherd_engine_fits(engine) == SHERD_OK) {
        row->fits = !drives_fill(request, row);
        return;
    }
    row->fits = 0;
    if (row->activation_bytes > 0) {
        (void)snprintf(row->why, sizeof(row->why), "with %.1f MiB of activations %s",
                       (double)row->activation_bytes / 0x1p20, sherd_last_error());
    } else {
        (void)snprintf(row->why, sizeof(row->why), "%s", sherd_last_error());
    }
}

/* Finds the type of the activations. It is the configuration's, and known once an engine has read
 * that. */
static sherd_status dtype_ask(const planning_request *request, const planning_layout *layout,
                              sherd_dtype *out)
{
    planning_assumed  assumed;
    sherd_engine_info info;
    sherd_engine     *engine;
    sherd_status      status = engine_open(request, layout, 0, &assumed, &engine);

    if (status != SHERD_OK) {
        return status;
    }
    sherd_engine_info_init(&info);
    status = sherd_engine_query(engine, &info);
    *out   = info.compute_dtype;
    sherd_engine_destroy(engine);
    return status;
}

sherd_status planning_row_make(const planning_request *request, const planning_layout *layout,
                               planning_row *out)
{
    planning_row  row   = {.layout = *layout, .rank = request->rank};
    sherd_dtype   dtype = SHERD_BF16;
    sherd_engine *engine;
    sherd_status  status = SHERD_OK;

    if (request->batch > 0) {
        status = dtype_ask(request, layout, &dtype);
    }
    if (status != SHERD_OK) {
        return status;
    }
    row.activation_bytes = activations_of(request, layout, dtype);
    status = engine_open(request, layout, row.activation_bytes, &row.assumed, &engine);
    if (status != SHERD_OK) {
        return status;
    }
    status = row_ask(engine, &row);
    if (status == SHERD_OK) {
        row.layout.offload = offload_seen(&row.memory);
        bytes_sum(&row);
        fit_ask(request, engine, &row);
        status = time_make(request, engine, &row);
        *out   = row;
    }
    sherd_engine_destroy(engine);
    return status;
}
