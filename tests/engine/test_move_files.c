/* An engine whose data rests on a drive moves between worlds of threads: it has the bits of one that
 * does not move, and no more files than that one. */
#include "engine/run/engine_impl.h"
#include "tests/engine/mover.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DETERMINISTIC ", \"deterministic\": true"
#define ENCODED(keys) ", \"sherd\": {" keys "}, \"deterministic\": true"

/* An emulated device takes its time. */
#ifdef TEST_EMULATED
enum { IS_BRIEF = 1 };
#else
enum { IS_BRIEF = 0 };
#endif

/* What rests in the test's folder. */
typedef struct place {
    const char *optimizer; /* further keys of offload_optimizer on NVMe; NULL: it is not there */
    const char *params;    /* the same of offload_param */
    const char *more;      /* further keys of zero_optimization */
    int         first_stage;
} place;

static const char *place_keys(const place *at, char out[2048])
{
    int len = 0;

    out[0] = '\0';
    if (at->optimizer != NULL) {
        len += snprintf(out + len, 2048 - (size_t)len,
                        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"%s}",
                        test_scratch(), at->optimizer);
    }
    if (at->params != NULL) {
        len += snprintf(out + len, 2048 - (size_t)len,
                        ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"%s}",
                        test_scratch(), at->params);
    }
    (void)snprintf(out + len, 2048 - (size_t)len, "%s", at->more == NULL ? "" : at->more);
    return out;
}

static void expect_same(const place *at, const rig_options *options)
{
    char keys[2048];

    for (int stage = IS_BRIEF ? 3 : at->first_stage; stage <= 3; stage++) {
        mover        m    = {.options = *options};
        mover_result want = {0};
        mover_result got  = {0};
        char         text[2300];

        m.options.zero  = place_keys(at, keys);
        m.options.stage = stage;
        (void)snprintf(text, sizeof(text), "stage %d%s%s", stage, keys, options->top);
        mover_usual(&m);
        mover_twin(&m, 4, &want);
        mover_threads(&m, &got);
        mover_compare(text, &want, &got);
        CHECK_INT(0, test_files_count(test_scratch(), ""));
    }
}

static void state_on_a_drive_keeps_its_bits(void)
{
    static const place PLACES[] = {
        {.optimizer = "", .first_stage = 1},
        {.optimizer   = ", \"buffer_count\": 3",
         .more        = ", \"sub_group_size\": 640",
         .first_stage = 1},
        {.optimizer   = ", \"gradients\": \"nvme\"",
         .more        = ", \"sub_group_size\": 1280",
         .first_stage = 2},
        {.optimizer = ", \"ratio\": 0.5", .more = ", \"sub_group_size\": 640", .first_stage = 1},
    };

    for (size_t i = 0; i < sizeof(PLACES) / sizeof(PLACES[0]); i++) {
        expect_same(&PLACES[i],
                    &(rig_options){.dtype = SHERD_BF16, .clip = 1, .top = DETERMINISTIC});
    }
    for (int i = 0; i < 2 && !IS_BRIEF; i++) {
        expect_same(&PLACES[i],
                    &(rig_options){.dtype = i == 0 ? SHERD_F16 : SHERD_F32, .top = DETERMINISTIC});
    }
}

static void parameters_on_a_drive_keep_their_bits(void)
{
    static const place PLACES[] = {
        {.optimizer = "", .params = ", \"max_in_cpu\": 0", .first_stage = 3},
        {.optimizer = "", .params = ", \"max_in_cpu\": 2000", .first_stage = 3},
        {.params = ", \"max_in_cpu\": 0, \"buffer_size\": 4096", .first_stage = 3},
        {.params      = ", \"max_in_cpu\": 0",
         .more        = ", \"offload_optimizer\": {\"device\": \"cpu\"}",
         .first_stage = 3},
    };

    for (size_t i = 0; i < sizeof(PLACES) / sizeof(PLACES[0]); i++) {
        expect_same(&PLACES[i],
                    &(rig_options){.dtype = SHERD_BF16, .clip = 1, .top = DETERMINISTIC});
    }
}

static void encoded_state_on_a_drive_keeps_its_bits(void)
{
    static const place PLACES[] = {
        {.optimizer = "", .more = ", \"sub_group_size\": 1280", .first_stage = 1},
        {.optimizer   = "",
         .params      = ", \"max_in_cpu\": 1e9",
         .more        = ", \"sub_group_size\": 1280",
         .first_stage = 3},
        {.optimizer = "", .params = ", \"max_in_cpu\": 0", .first_stage = 3},
    };
    static const char *const TOP[] = {
        ENCODED("\"master_encoding\": \"bf16_beside\""),
        ENCODED("\"master_encoding\": \"bf16_beside\", \"moment_encoding\": \"bf16\""),
        ENCODED("\"moment_encoding\": \"fp8\""),
    };

    for (size_t i = 0; i < (IS_BRIEF ? 1 : sizeof(PLACES) / sizeof(PLACES[0])); i++) {
        for (int t = 0; t < (IS_BRIEF ? 1 : 3); t++) {
            expect_same(&PLACES[i], &(rig_options){.dtype = SHERD_BF16, .clip = 1, .top = TOP[t]});
        }
    }
}

static void each_optimizer_on_a_drive_keeps_its_bits(void)
{
    static const place PLACE = {
        .optimizer = "", .more = ", \"sub_group_size\": 1280", .first_stage = 1};

    expect_same(&PLACE,
                &(rig_options){.dtype = SHERD_BF16, .optimizer = "Lamb", .top = DETERMINISTIC});
    if (!IS_BRIEF) {
        expect_same(&PLACE, &(rig_options){.dtype        = SHERD_BF16,
                                           .optimizer    = "Muon",
                                           .has_matrices = 1,
                                           .top          = DETERMINISTIC});
    }
}

static void replicas_and_second_copies_on_a_drive_keep_their_bits(void)
{
    static const place REPLICAS[] = {
        {.optimizer = "", .more = ", \"sub_group_size\": 1280", .first_stage = 2},
        {.optimizer = "", .params = ", \"max_in_cpu\": 0", .first_stage = 3},
    };
    static const place COPIES = {
        .optimizer = "", .more = ", \"zero_hpz_partition_size\": 2", .first_stage = 3};
    rig_options options = {.dtype = SHERD_BF16, .clip = 1};

    options.top = ENCODED("\"elastic\": [1, 6]");
    expect_same(&COPIES, &options);
    options.top = ENCODED("\"shard_size\": 2, \"elastic\": [1, 6]");
    for (size_t i = 0; i < 2 && getenv("SHERD_BACKEND") == NULL; i++) { /* a device has none */
        expect_same(&REPLICAS[i], &options);
    }
}

static const test_case CASES[] = {
    CASE(state_on_a_drive_keeps_its_bits),
    CASE(parameters_on_a_drive_keep_their_bits),
    CASE(encoded_state_on_a_drive_keeps_its_bits),
    CASE(each_optimizer_on_a_drive_keeps_its_bits),
    CASE(replicas_and_second_copies_on_a_drive_keep_their_bits),
};

RUN_MAIN(CASES)
