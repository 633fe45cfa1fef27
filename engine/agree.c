/* What must be the same on all ranks is compared by hash; when it is not, the ranks look
 * closer together until they can name the first difference. All calls are collective. */
#include "engine/engine_impl.h"

#include "base/checked.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

/* Finds a rank whose value differs from rank 0's; 0 when all agree. */
static int odd_rank(const uint64_t *values, int world_size)
{
    for (int r = 1; r < world_size; r++) {
        if (values[r] != values[0]) {
            return r;
        }
    }
    return 0;
}

/* -------------------------------------------------------------- status ---- */

#define NUM_STATUSES (SHERDI_AGREE_STATUS_WORDS - 1)

sherd_status sherdi_agree_status(sherd_world *world, sherd_status own)
{
    double       counts[NUM_STATUSES + 1] = {0}; /* ranks by status; sum of the failed ranks */
    char         text[SHERDI_ERROR_BYTES];
    sherd_status status;
    double       failed;

    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    counts[own]          = 1;
    counts[NUM_STATUSES] = own == SHERD_OK ? 0 : sherd_world_rank(world);
    status               = sherd_world_sum_f64(world, counts, NUM_STATUSES + 1);
    if (own != SHERD_OK) {
        return sherdi_fail_relay(own, text);
    }
    SHERDI_TRY(status);
    failed = sherd_world_size(world) - counts[SHERD_OK];
    for (int code = SHERD_OK + 1; code < NUM_STATUSES && failed > 0; code++) {
        if (counts[code] == 0) {
            continue;
        }
        if (failed > 1) {
            return sherdi_fail((sherd_status)code,
                               "%d other ranks could not take part: %s; their own "
                               "sherd_last_error() says more",
                               (int)failed, sherd_status_text((sherd_status)code));
        }
        return sherdi_fail((sherd_status)code,
                           "rank %d could not take part: %s; its own sherd_last_error() says more",
                           (int)counts[NUM_STATUSES], sherd_status_text((sherd_status)code));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------ settings ---- */

typedef struct named_value {
    const char *key;
    uint64_t    bits;
} named_value;

static uint64_t double_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Folders, pinning and the requests to a drive are not here: the hosts' drives may differ. */
#define NUM_SETTINGS 64

static void settings_list(const sherdi_settings *s, named_value *list)
{
    const named_value values[NUM_SETTINGS] = {
        {"train_batch_size", (uint64_t)s->train_batch_size},
        {"train_micro_batch_size_per_gpu", (uint64_t)s->micro_batch_size},
        {"gradient_accumulation_steps", (uint64_t)s->accumulation},
        {"fp16.enabled or bf16.enabled", (uint64_t)s->compute_dtype},
        {"communication_data_type", (uint64_t)s->comm_dtype},
        {"data_types.grad_accum_dtype", (uint64_t)s->accum_dtype},
        {"bf16.check_grad_overflow", (uint64_t)s->check_overflow},
        {"fp16.loss_scale", (uint64_t)s->scaler.is_dynamic},
        {"fp16.initial_scale_power", double_bits(s->scaler.initial_scale)},
        {"fp16.loss_scale_window", (uint64_t)s->scaler.window},
        {"fp16.hysteresis", (uint64_t)s->scaler.hysteresis},
        {"fp16.consecutive_hysteresis", (uint64_t)s->scaler.is_consecutive_hysteresis},
        {"fp16.min_loss_scale", double_bits(s->scaler.min_scale)},
        {"optimizer.type", sherdi_optimizer_index(s->optimizer)},
        {"optimizer.params.lr", double_bits(s->lr)},
        {"optimizer.params.betas", double_bits(s->betas[0])},
        {"optimizer.params.betas", double_bits(s->betas[1])},
        {"optimizer.params.eps", double_bits(s->eps)},
        {"optimizer.params.weight_decay", double_bits(s->weight_decay)},
        {"optimizer.params.bias_correction", (uint64_t)s->bias_correction},
        {"optimizer.params.max_coeff", double_bits(s->lamb.max_coeff)},
        {"optimizer.params.min_coeff", double_bits(s->lamb.min_coeff)},
        {"optimizer.params.eps_inside_sqrt", (uint64_t)s->lamb.eps_inside_sqrt},
        {"optimizer.params.lamb_form", (uint64_t)s->lamb.is_papers},
        {"optimizer.params.exclude_1d", (uint64_t)s->lamb.exclude_1d},
        {"sherd.vendor_reduction", (uint64_t)s->vendor_reduction},
        {"sherd.free_packing", (uint64_t)s->free_packing},
        {"zero_optimization.offload_optimizer.accumulate", (uint64_t)s->accumulate},
        {"scheduler.type", (uint64_t)s->schedule.kind},
        {"scheduler.params.warmup_min_lr", double_bits(s->schedule.min_lr)},
        {"scheduler.params.warmup_max_lr", double_bits(s->schedule.max_lr)},
        {"scheduler.params.warmup_num_steps", (uint64_t)s->schedule.warmup_steps},
        {"scheduler.params.total_num_steps", (uint64_t)s->schedule.total_steps},
        {"scheduler.params.warmup_type", (uint64_t)s->schedule.is_linear},
        {"scheduler.params.warmup_min_ratio", double_bits(s->schedule.min_ratio)},
        {"scheduler.params.cos_min_ratio", double_bits(s->schedule.cos_min_ratio)},
        {"gradient_clipping", double_bits(s->gradient_clipping)},
        {"zero_optimization.stage", (uint64_t)s->stage},
        {"zero_optimization.stage3_param_persistence_threshold", s->persistence_threshold},
        {"zero_optimization.stage3_model_persistence_threshold", s->model_persistence_threshold},
        {"zero_optimization.sub_group_size", s->sub_group_size},
        {"zero_optimization.stage3_prefetch_bucket_size", s->prefetch_bucket_size},
        {"zero_optimization.stage3_max_live_parameters", s->max_live_parameters},
        {"zero_optimization.stage3_max_reuse_distance", s->max_reuse_distance},
        {"zero_optimization.overlap_comm", (uint64_t)s->overlap_comm},
        {"deterministic", (uint64_t)s->deterministic},
        {"wall_clock_breakdown", (uint64_t)s->wall_clock_breakdown},
        {"zero_optimization.offload_optimizer.device", sherdi_tier_index(s->offload_state.tier)},
        {"zero_optimization.offload_optimizer.buffer_count",
         (uint64_t)s->offload_state.buffer_count},
        {"zero_optimization.offload_optimizer.buffer_size", s->offload_state.buffer_elems},
        {"zero_optimization.offload_optimizer.ratio", double_bits(s->offload_ratio)},
        {"zero_optimization.offload_optimizer.pipeline_read", (uint64_t)s->pipeline_read},
        {"zero_optimization.offload_optimizer.pipeline_write", (uint64_t)s->pipeline_write},
        {"zero_optimization.offload_optimizer.fast_init", (uint64_t)s->fast_init},
        {"zero_optimization.offload_optimizer.gradients", (uint64_t)s->gradients_on_nvme},
        {"zero_optimization.offload_optimizer.verify_reads", (uint64_t)s->verify_reads},
        {"zero_optimization.offload_optimizer.resume", (uint64_t)s->resume_state},
        {"zero_optimization.offload_optimizer.keep", (uint64_t)s->keep_state},
        {"zero_optimization.offload_optimizer.durable", (uint64_t)s->durable},
        {"zero_optimization.offload_param.device", sherdi_tier_index(s->offload_param.tier)},
        {"zero_optimization.offload_param.buffer_count", (uint64_t)s->offload_param.buffer_count},
        {"zero_optimization.offload_param.buffer_size", s->offload_param.buffer_elems},
        {"zero_optimization.offload_param.max_in_cpu", s->params_in_cpu},
        {"SHERD_DEBUG (environment)", (uint64_t)s->is_debug},
    };

    memcpy(list, values, sizeof(values));
}

sherd_status sherdi_agree_settings(sherd_world *world, const sherdi_settings *settings,
                                   sherdi_mem *mem)
{
    named_value list[NUM_SETTINGS];
    uint64_t    mine[NUM_SETTINGS];
    int         world_size = sherd_world_size(world);
    uint64_t   *all = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)world_size, sizeof(mine));
    sherd_status status = sherdi_agree_status(world, all == NULL ? SHERD_E_NOMEM : SHERD_OK);

    settings_list(settings, list);
    for (int i = 0; i < NUM_SETTINGS; i++) {
        mine[i] = list[i].bits;
    }
    if (status == SHERD_OK) {
        status = sherdi_world_exchange(world, mine, all, sizeof(mine));
    }
    for (int r = 1; r < world_size && status == SHERD_OK; r++) {
        for (int i = 0; i < NUM_SETTINGS && status == SHERD_OK; i++) {
            if (all[(size_t)r * NUM_SETTINGS + (size_t)i] != all[i]) {
                status =
                    sherdi_fail(SHERD_E_INVAL,
                                "rank %d has another value of %s than rank 0; all ranks must be "
                                "given the same configuration",
                                r, list[i].key);
            }
        }
    }
    sherdi_free(all);
    return status;
}

/* --------------------------------------------------------------- model ---- */

static uint64_t items_hash(const sherdi_model *model, size_t count)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < count && i < sherdi_model_num_items(model); i++) {
        hash = sherdi_hash_u64(hash, sherdi_model_item_hash(model, i));
    }
    return hash;
}

/* All ranks halve the list together until one item is left. */
static sherd_status first_difference(sherd_engine *engine, uint64_t *all, size_t *out)
{
    size_t low  = 0; /* the first `low` items agree */
    size_t high = sherdi_model_num_items(&engine->model);

    while (high - low > 1) {
        size_t   middle = low + (high - low) / 2;
        uint64_t mine   = items_hash(&engine->model, middle);

        SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, all, sizeof(mine)));
        if (odd_rank(all, engine->world_size) == 0) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *out = low;
    return SHERD_OK;
}

#define ITEM_TEXT_BYTES 192

static sherd_status model_difference_name(sherd_engine *engine, uint64_t *all, char *texts)
{
    char     mine[ITEM_TEXT_BYTES] = "";
    uint64_t hash;
    size_t   item;
    int      rank;

    SHERDI_TRY(first_difference(engine, all, &item));
    hash = sherdi_model_item_hash(&engine->model, item);
    sherdi_model_item_text(&engine->model, item, mine, sizeof(mine));
    SHERDI_TRY(sherdi_world_exchange(engine->world, &hash, all, sizeof(hash)));
    SHERDI_TRY(sherdi_world_exchange(engine->world, mine, texts, sizeof(mine)));
    rank = odd_rank(all, engine->world_size);
    return sherdi_fail(SHERD_E_INVAL,
                       "the ranks declare different models: rank 0 has %s where rank %d has %s; "
                       "declare the same on every rank",
                       texts, rank, texts + (size_t)rank * ITEM_TEXT_BYTES);
}

sherd_status sherdi_agree_model(sherd_engine *engine)
{
    size_t    world = (size_t)engine->world_size;
    size_t    count = sherdi_model_num_items(&engine->model);
    uint64_t  mine;
    uint64_t *all   = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, sizeof(*all));
    char     *texts = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, world, ITEM_TEXT_BYTES);
    sherd_status status =
        sherdi_agree_status(engine->world, all == NULL || texts == NULL ? SHERD_E_NOMEM : SHERD_OK);

    if (status == SHERD_OK) {
        mine   = count;
        status = sherdi_world_exchange(engine->world, &mine, all, sizeof(mine));
    }
    if (status == SHERD_OK && odd_rank(all, engine->world_size) != 0) {
        int rank = odd_rank(all, engine->world_size);

        status =
            sherdi_fail(SHERD_E_INVAL,
                        "the ranks declare different models: rank 0 has %llu groups, units and "
                        "parameters, rank %d has %llu; declare the same on every rank",
                        (unsigned long long)all[0], rank, (unsigned long long)all[rank]);
    }
    if (status == SHERD_OK) {
        mine   = items_hash(&engine->model, count);
        status = sherdi_world_exchange(engine->world, &mine, all, sizeof(mine));
    }
    if (status == SHERD_OK && odd_rank(all, engine->world_size) != 0) {
        status = model_difference_name(engine, all, texts);
    }
    sherdi_free(texts);
    sherdi_free(all);
    return status;
}

/* ---------------------------------------------------------------- uses ---- */

/* One of a unit's counts; `count` is that of a pass, or NUM_PASSES: of backward passes that were complete. */
#define NUM_PASSES (SHERD_EVAL + 1)

static uint64_t uses_count(const sherd_engine *engine, int rank, size_t unit, int count)
{
    const sherdi_unit_uses *uses = &engine->uses_all[(size_t)rank * engine->plan->num_units + unit];

    return count == NUM_PASSES ? uses->runs : uses->acquired[count];
}

/* Ranks whose count differs from rank 0's, " 1 3"; as many as fit. Returns the length. */
static size_t uses_odd_ranks(const sherd_engine *engine, size_t unit, int count, char *text,
                             size_t len_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int r = 1; r < engine->world_size && used < len_bytes; r++) {
        if (uses_count(engine, r, unit, count) != uses_count(engine, 0, unit, count)) {
            used += (size_t)snprintf(text + used, len_bytes - used, " %d", r);
        }
    }
    return used;
}

/* Which unit the ranks disagree on, and who. What a missing pass leaves behind comes after the pass. */
static sherd_status uses_difference_name(sherd_engine *engine)
{
    char ranks[64];

    for (size_t u = 0; u < engine->plan->num_units; u++) {
        if (uses_odd_ranks(engine, u, NUM_PASSES, ranks, sizeof(ranks)) > 0) {
            return sherdi_fail(
                SHERD_E_STATE,
                "the ranks disagree about unit %s: rank 0 ran its backward %llu times "
                "in this window, not so rank(s)%s; every rank must use the same units",
                engine->model.units[u].name,
                (unsigned long long)uses_count(engine, 0, u, NUM_PASSES), ranks);
        }
    }
    for (size_t u = 0; u < engine->plan->num_units; u++) {
        for (int pass = 0; pass < NUM_PASSES; pass++) {
            if (uses_odd_ranks(engine, u, pass, ranks, sizeof(ranks)) > 0) {
                return sherdi_fail(
                    SHERD_E_STATE,
                    "the ranks disagree about unit %s: rank 0 acquired it %llu time(s) for %s in "
                    "this window, not so rank(s)%s; every rank acquires the same units, to "
                    "evaluate too; the window was dropped, nothing was updated",
                    engine->model.units[u].name, (unsigned long long)uses_count(engine, 0, u, pass),
                    sherdi_engine_pass_name((sherd_pass)pass), ranks);
            }
        }
    }
    return sherdi_fail(SHERD_E_STATE,
                       "the ranks disagree about the number of micro-batches in this "
                       "window; every rank must call step equally often");
}

sherd_status sherdi_agree_uses(sherd_engine *engine)
{
    size_t               num_units = engine->plan->num_units;
    sherdi_unit_uses    *mine      = &engine->uses_all[(size_t)engine->rank * num_units];
    sherdi_agree_message message   = {.micro_seen     = (uint64_t)engine->micro_seen,
                                      .micro_backward = (uint64_t)engine->micro_backward};
    int                  differs   = 0;

    for (size_t u = 0; u < num_units; u++) {
        mine[u]           = sherdi_unit_of(engine, (int)u)->uses;
        message.uses_hash = sherdi_hash_bytes(message.uses_hash, &mine[u], sizeof(mine[u]));
    }
    SHERDI_TRY(sherdi_run_exchange(engine, &message, engine->agree_all, sizeof(message)));
    for (int r = 1; r < engine->world_size; r++) {
        differs |= memcmp(&engine->agree_all[r], &engine->agree_all[0], sizeof(message)) != 0;
    }
    if (!differs && engine->micro_backward == engine->micro_seen) {
        return SHERD_OK;
    }
    if (!differs) {
        return sherdi_fail(SHERD_E_STATE,
                           "%d of the %d micro-batches of this window had no backward pass: a step "
                           "follows the backward pass of its micro-batch",
                           engine->micro_seen - engine->micro_backward, engine->micro_seen);
    }
    SHERDI_TRY(
        sherdi_world_exchange(engine->world, mine, engine->uses_all, num_units * sizeof(*mine)));
    return uses_difference_name(engine);
}
