/* State on a device has the bits of the CPU's: in every encoding, by several optimizers in one
 * engine, on the device and in host memory, at every stage. The same engine runs on both in
 * turn. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS      2
#define MOST_RANKS 3

typedef struct training {
    rig_options options;
    int         has_groups;
    uint64_t    fingerprint;
    double      grad_norm;
    uint64_t    state; /* of the parts read back */
} training;

/* Parameters of one unit by several optimizers, each named as its group. */
static void groups_add(rig *r)
{
    static const char *const NAMES[] = {"adamw", "plain", "lion", "momentum", "tensor", "sums"};
    int                      units[] = {rig_unit(r, "first"), rig_unit(r, "second")};

    for (int i = 0; i < 6; i++) {
        (void)rig_param(r, units[i % 2], NAMES[i], 200 + 333 * (size_t)i);
    }
}

#define GROUP(name, type, numbers)                                                                 \
    "{\"name\": \"" name "\", \"type\": \"" type "\", \"matching\": [\"" name                      \
    "\"], \"params\": {" numbers "}}"
#define GROUP_KEYS                                                                                               \
    "\"groups\": [" GROUP("plain", "SGD", "\"lr\": 0.02") ", " GROUP("lion", "Lion", "\"lr\": 1e-3") ", " GROUP( \
        "momentum", "SGD",                                                                                       \
        "\"lr\": 0.01, \"momentum\": 0.9") ", " GROUP("tensor", "Lamb",                                          \
                                                      "\"lr\": 0.01") ", " GROUP("sums",                         \
                                                                                 "Adagrad",                      \
                                                                                 "\"lr\": "                      \
                                                                                 "0.01") "]"

static uint64_t state_hash(rig *r)
{
    static const sherd_value VALUES[] = {SHERD_MASTER, "exp_avg", "exp_avg_sq", "momentum_buffer",
                                         "sum"};
    uint64_t                 hash     = 0;

    for (int p = 0; p < r->num_params; p++) {
        size_t elems = r->params[p].elems;
        float *x     = calloc(elems, sizeof(*x));

        CHECK(x != NULL);
        for (size_t v = 0; v < sizeof(VALUES) / sizeof(VALUES[0]); v++) {
            if (sherd_param_read(r->engine, r->params[p].handle, VALUES[v], 0, elems, x) ==
                SHERD_OK) {
                for (size_t i = 0; i < elems; i++) {
                    uint32_t bits;

                    memcpy(&bits, &x[i], sizeof(bits));
                    hash = hash * 1099511628211u + bits + v;
                }
            }
        }
        free(x);
    }
    return hash;
}

static void training_body(sherd_world *world, void *ctx)
{
    training         *t = ctx;
    sherd_step_report report;
    rig               r;
    uint64_t          fingerprint;
    uint64_t          state;

    rig_open(&r, world, &t->options);
    if (t->has_groups) {
        groups_add(&r);
    } else {
        rig_three(&r, 700);
    }
    rig_seal(&r);
    if (t->has_groups) { /* the group counts: Lion has one moment */
        float x;

        CHECK_STATUS(SHERD_E_INVAL,
                     sherd_param_read(r.engine, r.params[2].handle, "exp_avg_sq", 0, 1, &x));
    }
    report      = rig_train(&r, STEPS);
    fingerprint = rig_fingerprint(&r);
    state       = state_hash(&r);
    rig_close(&r);
    if (sherd_world_rank(world) == 0) {
        t->fingerprint = fingerprint;
        t->state       = state;
        t->grad_norm   = report.grad_norm;
    }
}

static void train_on(const char *backend, int world_size, training *t)
{
    CHECK_INT(0, setenv("SHERD_BACKEND", backend, 1));
    test_world(world_size, training_body, t);
    CHECK_INT(0, setenv("SHERD_BACKEND", "cuda", 1));
}

/* `plain`: what the CPU keeps in place of `encoded`, where that loses nothing; NULL: the same. */
static void check_same(int world_size, training t, const char *encoded, const char *plain)
{
    training want = t;
    training got  = t;

    want.options.top = plain == NULL ? encoded : plain;
    got.options.top  = encoded;
    train_on("cpu", world_size, &want);
    train_on("cuda", world_size, &got);
    if (want.fingerprint != got.fingerprint || want.state != got.state ||
        want.grad_norm != got.grad_norm) {
        test_fail(__FILE__, __LINE__,
                  "stage %d on %d ranks, groups %d, %s: other bits than the CPU's", t.options.stage,
                  world_size, t.has_groups, encoded);
    }
}

#define SHERD(keys)       ", \"sherd\": {" keys "}"
#define MASTER(encoding)  "\"master_encoding\": \"" encoding "\""
#define MOMENTS(encoding) "\"moment_encoding\": \"" encoding "\""

/* ------------------------------------------------------------------ cases -- */

static void ten_bytes_have_the_bits_of_fp32(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        for (int world_size = 1; world_size <= MOST_RANKS; world_size++) {
            training t = {.options = {.stage = stage, .dtype = SHERD_BF16}};

            t.options.optimizer = world_size == 2 ? "Lamb" : NULL;
            check_same(world_size, t, SHERD(MASTER("bf16_beside")), "");
        }
    }
}

static void rounded_state_has_the_bits_of_the_cpu(void)
{
    static const char *const ENCODED[] = {
        SHERD(MOMENTS("bf16")),
        SHERD(MOMENTS("fp8")),
        SHERD(MASTER("bf16") ", " MOMENTS("bf16")),
        SHERD(MASTER("bf16_beside") ", " MOMENTS("fp8")),
    };

    for (int i = 0; i < 4; i++) {
        for (int stage = 0; stage <= 3; stage++) {
            int      world_size = 1 + (i + stage) % MOST_RANKS;
            training t          = {.options = {.stage = stage, .dtype = SHERD_BF16}};

            t.options.optimizer = world_size == 3 ? "Lamb" : NULL;
            check_same(world_size, t, ENCODED[i], NULL);
        }
    }
}

static void several_optimizers_have_the_bits_of_the_cpu(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        for (int world_size = 1; world_size <= MOST_RANKS; world_size++) {
            training t = {.options = {.stage = stage, .dtype = SHERD_BF16}, .has_groups = 1};

            check_same(world_size, t, SHERD(GROUP_KEYS), NULL);
        }
    }
}

/* Those without a part that is never negative have their ties in a plane. */
static void several_optimizers_and_encodings_go_together(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        training t = {.options = {.stage = stage, .dtype = SHERD_BF16}, .has_groups = 1};

        check_same(1 + stage % MOST_RANKS, t, SHERD(MASTER("bf16_beside") ", " GROUP_KEYS),
                   SHERD(GROUP_KEYS));
        check_same(1 + stage % MOST_RANKS, t,
                   SHERD(MASTER("bf16_beside") ", " MOMENTS("fp8") ", " GROUP_KEYS), NULL);
    }
}

/* In host memory as on the CPU; of a share the device's kernels have the rest. */
static void state_in_host_memory_has_the_bits_of_the_cpu(void)
{
    static const char BOTH[] =
        ", \"sub_group_size\": 4096, \"offload_optimizer\": {\"device\": \"cpu\", \"buffer_size\": "
        "4096}, \"offload_param\": {\"device\": \"cpu\"}";
    static const char HALF[] =
        ", \"sub_group_size\": 640, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}";

    for (int world_size = 1; world_size <= MOST_RANKS; world_size++) {
        training both = {.options = {.stage = 3, .dtype = SHERD_BF16, .zero = BOTH}};
        training half = {.options = {.stage = 2, .dtype = SHERD_BF16, .zero = HALF}};

        check_same(world_size, both, SHERD(MASTER("bf16_beside")), "");
        check_same(world_size, half, SHERD(MOMENTS("fp8")), NULL);
    }
}

static const test_case CASES[] = {
    CASE(ten_bytes_have_the_bits_of_fp32),
    CASE(rounded_state_has_the_bits_of_the_cpu),
    CASE(several_optimizers_have_the_bits_of_the_cpu),
    CASE(several_optimizers_and_encodings_go_together),
    CASE(state_in_host_memory_has_the_bits_of_the_cpu),
};

RUN_MAIN(CASES)
