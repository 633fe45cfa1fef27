/* A tier that the library has not (cupboard.c), added by its tables and one line of a list: a
 * configuration names it, and what rests there is trained to the bits of the training without any
 * sharding. */
#include "offload/tier.h"
#include "offload/tiers.h"
#include "tests/engine/cupboard.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <string.h>

#define STATE "\"offload_optimizer\": {\"device\": \"cupboard\", \"buffer_count\": 2"
#define PARAM "\"offload_param\": {\"device\": \"cupboard\", \"max_in_cpu\": 0}"

typedef struct row {
    const char *keys; /* of zero_optimization */
    int         least_stage;
} row;

static const row ROWS[] = {
    {", \"sub_group_size\": 2048, " STATE "}", 1},
    {", \"sub_group_size\": 2048, " STATE ", \"ratio\": 0.5}", 1},
    {", \"sub_group_size\": 2048, " STATE "}, " PARAM, 3},
    {", " PARAM, 3},
};

static void train(int world_size, const toy_options *options)
{
    toy_result       want = {0};
    toy_result       got  = {0};
    cupboard_traffic traffic;

    toy_reference(world_size, options, &want);
    (void)cupboard_traffic_take();
    toy_train_threads(world_size, options, &got);
    traffic = cupboard_traffic_take();
    CHECK_INT(want.fingerprint, got.fingerprint);
    CHECK_INT(got.memory.total_planned, got.memory.total_held);
    CHECK(traffic.read_bytes > 0 && traffic.written_bytes > 0);
    CHECK(!got.memory.has_spare_state); /* it keeps no generations */
}

static void added_tier_equals_unsharded(void)
{
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        toy_options options = {.zero_extra = ROWS[i].keys, .clip = 1, .accumulation = 1};

        for (options.stage = ROWS[i].least_stage; options.stage <= 3; options.stage++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                options.dtype        = ranks == 2 ? SHERD_F32 : SHERD_BF16;
                options.accumulation = 1 + ranks % 2;
                train(ranks, &options);
            }
        }
    }
}

static void added_tier_is_a_choice(void)
{
    static const char JSON[] =
        "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1}}, "
        "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"drawer\"}}}";
    sherd_config *config;

    CHECK(strcmp(sherdi_tier_name(sherdi_tier_at(3)), "cupboard") == 0);
    CHECK(sherd_config_parse(JSON, sizeof(JSON) - 1, &config) != SHERD_OK);
    CHECK_ERROR_SAYS("known: none|cpu|nvme|cupboard");
}

static const test_case CASES[] = {
    CASE(added_tier_equals_unsharded),
    CASE(added_tier_is_a_choice),
};

RUN_MAIN(CASES)
