/* The calls that report on a plan, and the proof's part in an engine's life. */
#include "base/assert.h"
#include "engine/report.h"
#include "engine/proof/check.h"
#include "engine/proof/prove.h"
#include "engine/proof/emit.h"
#include "engine/run/engine_impl.h"
#include "engine/run/failure.h"
#include "engine/modules.h"
#include "engine/run/needs.h"
#include "base/format.h"
#include "kernels/encoding_names.h"
#include "sherd_tools.h"
#include "engine/plan/offload.h"

#include <math.h>
#include <string.h>

sherd_status sherd_engine_plan(sherd_engine *engine, sherd_plan_format format, sherd_write_fn write,
                               void *ctx)
{
    sherdi_plan *plan;
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(write != NULL, "sherd_engine_plan", "write"));
    SHERDI_TRY(sherdi_api_check_format(format, "sherd_engine_plan"));
    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_plan", &plan));
    sherdi_engine_callback_begin(engine, "sherd_engine_plan");
    status = sherdi_dry_print(plan, &engine->model, format, write, ctx);
    sherdi_engine_callback_end(engine);
    sherdi_engine_plan_return(engine, plan);
    return status;
}

void sherd_rates_init(sherd_rates *rates)
{
    sherdi_api_init(rates, &(sherd_rates){.struct_size = sizeof(*rates)});
}

void sherd_prediction_init(sherd_prediction *prediction)
{
    sherdi_api_init(prediction, &(sherd_prediction){.struct_size = sizeof(*prediction)});
}

static sherd_status rates_check(const sherd_rates *rates)
{
    static const char *const NAMES[] = {"wire",   "down", "up",        "nvme_read", "nvme_write",
                                        "device", "host", "compute_s", "products",  "between"};
    const double values[] = {rates->wire,       rates->down,   rates->up,   rates->nvme_read,
                             rates->nvme_write, rates->device, rates->host, rates->compute_s,
                             rates->products,   rates->between};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (!(values[i] >= 0) || !isfinite(values[i])) {
            return sherdi_fail(
                SHERD_E_INVAL,
                "sherd_rates.%s is %g: it must be finite and not below 0 (0: it takes no time)",
                NAMES[i], values[i]);
        }
    }
    return SHERD_OK;
}

sherd_status sherd_engine_predict(sherd_engine *engine, const sherd_rates *rates,
                                  sherd_prediction *out)
{
    sherd_rates      own;
    sherd_prediction prediction = {.struct_size = sizeof(prediction)};
    sherdi_plan     *plan;
    sherd_status     status;

    SHERDI_TRY(sherdi_api_need(rates != NULL, "sherd_engine_predict", "rates"));
    sherd_rates_init(&own);
    SHERDI_TRY(sherdi_api_read(rates, SHERDI_API(sherd_rates), &own));
    SHERDI_TRY(sherdi_api_check(out, SHERDI_API(sherd_prediction)));
    SHERDI_TRY(rates_check(&own));
    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_predict", &plan));
    status = sherdi_dry_play(plan, &engine->model, &own, &prediction);
    sherdi_engine_plan_return(engine, plan);
    SHERDI_TRY(status);
    sherdi_api_write(&prediction, out);
    return SHERD_OK;
}

/* ------------------------------------------------------------ state by part -- */

static const char *part_encoding(const sherdi_segment *segment, int part)
{
    return part == 0 && !segment->has_master ? "parameter"
                                             : sherdi_encoding_name(segment->encodings[part]);
}

/* Sums a part over all segments that store it in this encoding. */
static sherd_state_part part_sum(const sherdi_plan *plan, const sherdi_optimizer *optimizer,
                                 int part, const char *encoding)
{
    sherd_state_part sum = {.struct_size = sizeof(sum),
                            .optimizer   = sherdi_optimizer_name(optimizer),
                            .part        = optimizer->parts[part].name,
                            .encoding    = encoding};

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                owned   = segment->own_elems;

        if (segment->optimizer == optimizer &&
            strcmp(part_encoding(segment, part), encoding) == 0) {
            sum.elems += owned;
            sum.bytes += part == 0 && !segment->has_master
                             ? 0
                             : sherdi_segment_part_bytes(segment, part, owned);
        }
    }
    return sum;
}

/* Sums the bf16 values that extents on storage have in addition to the halves of the masters. */
static sherd_state_part values_sum(const sherdi_plan *plan, const sherdi_optimizer *optimizer)
{
    sherd_state_part sum = {.struct_size = sizeof(sum),
                            .optimizer   = sherdi_optimizer_name(optimizer),
                            .part        = "parameter",
                            .encoding    = sherdi_encoding_name(SHERDI_ENCODING_BF16)};

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[b];

        if (sherdi_block_segment(plan, block)->optimizer == optimizer &&
            sherdi_block_keeps_values(block)) {
            sum.elems += block->elems;
            sum.bytes += block->elems * sherdi_compute_bytes(sherdi_block_segment(plan, block));
        }
    }
    return sum;
}

static sherd_status parts_report(const sherdi_plan *plan, sherd_state_part_fn fn, void *ctx)
{
    static const char *const ENCODINGS[] = {"parameter", "fp32", "bf16_beside", "bf16", "fp8"};

    for (size_t o = 0; o < plan->layout.num_optimizers; o++) {
        const sherdi_optimizer *optimizer = plan->layout.optimizers[o].optimizer;
        sherd_state_part        values    = values_sum(plan, optimizer);

        for (int part = 0; part < optimizer->num_parts; part++) {
            for (size_t e = 0; e < sizeof(ENCODINGS) / sizeof(ENCODINGS[0]); e++) {
                sherd_state_part sum = part_sum(plan, optimizer, part, ENCODINGS[e]);

                if (sum.elems > 0) {
                    SHERDI_TRY(fn(ctx, &sum));
                }
            }
        }
        if (values.elems > 0) {
            SHERDI_TRY(fn(ctx, &values));
        }
    }
    return SHERD_OK;
}

sherd_status sherd_engine_state_parts(sherd_engine *engine, sherd_state_part_fn fn, void *ctx)
{
    sherdi_plan *plan;
    sherd_status status;

    SHERDI_TRY(sherdi_api_need(fn != NULL, "sherd_engine_state_parts", "fn"));
    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_state_parts", &plan));
    sherdi_engine_callback_begin(engine, "sherd_engine_state_parts");
    status = parts_report(plan, fn, ctx);
    sherdi_engine_callback_end(engine);
    sherdi_engine_plan_return(engine, plan);
    return status;
}

sherd_status sherd_engine_check_plans(sherd_engine *engine)
{
    sherdi_plan *plan;
    sherd_status status;

    SHERDI_TRY(sherdi_engine_plan_borrow(engine, "sherd_engine_check_plans", &plan));
    status = sherdi_prove_ranks(plan, &engine->model);
    sherdi_engine_plan_return(engine, plan);
    return status;
}

static sherd_status planned(sherdi_plan *plan, const sherdi_model *model)
{
    SHERDI_SLOW_ASSERT(sherdi_plan_check(plan, model) == SHERD_OK);
    return sherdi_dry_count(plan, model);
}

/* The plan has to fit. With SHERD_DEBUG, a debug build proves it before it is carried out. */
static sherd_status check(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_plan_check_fit(engine->plan, &engine->model));
#ifdef NDEBUG
    return SHERD_OK;
#else
    return engine->settings.is_debug ? sherdi_prove_next(engine->plan, &engine->model) : SHERD_OK;
#endif
}

const sherdi_module sherdi_module_proof = {.planned = planned, .check = check};
