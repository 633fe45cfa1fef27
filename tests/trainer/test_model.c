/* Whole models on plain memory, without an engine: the file of the oracle, other ways to compute
 * the same, and gradients by differences at sizes that nothing divides. */
#include "tests/lib/check.h"
#include "tests/trainer/cases.h"

#include "models/activations.h"
#include "models/onednn.h"
#include "trainer/model.h"
#include "kernels/formulas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A model with all its parameters in memory. */
typedef struct whole {
    const model_case *c;
    pool             *threads;
    model            *m;
    model_unit       *units;
    int32_t          *tokens;
    sherd_dtype       dtype;
    layer_place       place;
} whole;

static void *fresh(size_t count, size_t each)
{
    void *memory = calloc(count, each);

    CHECK(memory != NULL);
    return memory;
}

static void param_make(whole *w, size_t k)
{
    arch_param info;
    tensor    *t;
    size_t     elems;
    float     *full;
    uint16_t  *half;

    arch_param_get(&w->c->sizes, k, &info);
    t     = &w->units[info.unit].by_role[info.role];
    elems = arch_param_elems(&info);
    full  = fresh(elems, sizeof(float));
    half  = fresh(elems, sizeof(float));
    case_weights(w->c, k, 0, elems, full);
    for (size_t i = 0; i < elems; i++) {
        half[i] = sherdi_cast_f32_bf16(full[i]);
        full[i] = w->dtype == SHERD_F32 ? full[i] : sherdi_cast_bf16_f32(half[i]);
    }
    free(w->dtype == SHERD_F32 ? (void *)half : (void *)full);
    *t = (tensor){.data  = w->dtype == SHERD_F32 ? (void *)full : (void *)half,
                  .grad  = fresh(elems, sizeof(float)),
                  .dtype = w->dtype};
}

/* The memory of layers whose activations would be the engine's. */
static void activations_make(whole *w)
{
    activations_params shape = {
        .batch = w->c->batch, .length = w->c->length, .dtype = w->dtype, .backend = "cpu"};

    for (size_t l = 0; l < w->c->sizes.layers && layer_place_is_moved(w->place); l++) {
        w->units[l + 1].activation =
            fresh(activations_layer_bytes(&w->c->sizes, &shape, w->place), 1);
    }
}

static whole whole_open(const model_case *c, int threads, layer_place place, sherd_dtype dtype)
{
    whole  w     = {.c = c, .threads = pool_create(threads), .dtype = dtype};
    size_t units = arch_unit_count(&c->sizes), tokens = c->batch * c->length;

    char why[256];

    w.m = model_create(&(model_params){.sizes   = c->sizes,
                                       .batch   = c->batch,
                                       .length  = c->length,
                                       .dtype   = dtype,
                                       .places  = layer_places_all(place),
                                       .threads = w.threads},
                       why, sizeof(why));
    CHECK(w.m != NULL);
    w.units  = fresh(units, sizeof(*w.units));
    w.place  = place;
    w.tokens = fresh(2 * tokens, sizeof(*w.tokens));
    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        param_make(&w, k);
    }
    w.units[units - 1].by_role[ARCH_TOKENS] = w.units[0].by_role[ARCH_TOKENS];
    activations_make(&w);
    case_tokens(c, w.tokens, w.tokens + tokens);
    model_batch_set(w.m, w.tokens, w.tokens + tokens);
    return w;
}

static void whole_close(whole *w)
{
    for (size_t unit = 0; unit < arch_unit_count(&w->c->sizes); unit++) {
        free(w->units[unit].activation);
        for (int role = 0; role < ARCH_ROLES; role++) {
            if (role != ARCH_TOKENS || unit == 0) {
                free(w->units[unit].by_role[role].data);
                free(w->units[unit].by_role[role].grad);
            }
        }
    }
    free(w->units);
    free(w->tokens);
    model_destroy(w->m);
    pool_destroy(w->threads);
}

static double whole_run(whole *w, int has_backward)
{
    size_t units = arch_unit_count(&w->c->sizes);
    double loss;

    for (size_t unit = 0; unit < units; unit++) {
        model_forward(w->m, unit, &w->units[unit], has_backward ? 1.0f : 0.0f);
    }
    for (size_t unit = units; has_backward && unit-- > 0;) {
        model_backward(w->m, unit, &w->units[unit]);
    }
    CHECK_OK(model_losses_take(w->m, &loss));
    return loss;
}

static tensor whole_param(const whole *w, size_t k, size_t *elems_out)
{
    arch_param info;

    arch_param_get(&w->c->sizes, k, &info);
    *elems_out = arch_param_elems(&info);
    return w->units[info.unit].by_role[info.role];
}

/* Odd sizes: one head of keys for three of queries, an inner width below the hidden one. */
static const model_case odd_cases[] = {
    {.name   = "odd minimind",
     .sizes  = ARCH_SIZES(ARCH_MINIMIND, 42, 2, 3, 1, 25, 37, 64),
     .batch  = 3,
     .length = 7,
     .scale  = 0.3},
    {.name   = "odd gpt2",
     .sizes  = ARCH_SIZES(ARCH_GPT2, 33, 2, 3, 3, 130, 300, 9),
     .batch  = 2,
     .length = 9,
     .scale  = 0.3},
    /* q wider than the stream, biases, a head of its own, angles of all three kinds */
    {.name   = "odd llama",
     .sizes  = {.kind       = ARCH_LLAMA,
                .hidden     = 38,
                .layers     = 2,
                .heads      = 3,
                .kv_heads   = 1,
                .inner      = 25,
                .vocab      = 37,
                .max_length = 64,
                .head_elems = 22,
                .features   = ARCH_HAS_QKV_BIAS | ARCH_HAS_O_BIAS | ARCH_HAS_MLP_BIAS,
                .is_untied  = 1,
                .norm_eps   = 1e-5,
                .rope       = {1e4, ARCH_ROPE_LLAMA3, 4.0, 1.0, 4.0, 32}},
     .batch  = 3,
     .length = 7,
     .scale  = 0.3},
    /* the same with norms of q and k, and a window that reaches over all */
    {.name   = "odd qwen",
     .sizes  = {.kind       = ARCH_QWEN3,
                .hidden     = 38,
                .layers     = 2,
                .heads      = 2,
                .kv_heads   = 2,
                .inner      = 25,
                .vocab      = 37,
                .max_length = 64,
                .head_elems = 30,
                .norm_eps   = 1e-5,
                .rope       = {1e4, ARCH_ROPE_LINEAR, 2.0, 0.0, 0.0, 0},
                .window     = 7},
     .batch  = 2,
     .length = 7,
     .scale  = 0.3},
    {.name   = "one token",
     .sizes  = ARCH_SIZES(ARCH_GPT2, 8, 1, 2, 2, 16, 5, 4),
     .batch  = 1,
     .length = 1,
     .scale  = 0.3},
};

#define NUM_ODD (sizeof(odd_cases) / sizeof(odd_cases[0]))

static void models_match_the_oracle(void)
{
    model_case *cases;
    size_t      count;
    char        text[512];

    CHECK_INT(0, cases_load(TEST_MODELS_JSON, &cases, &count, text, sizeof(text)));
    CHECK(count >= 2);
    for (size_t i = 0; i < count; i++) {
        whole  w   = whole_open(&cases[i], 2, LAYER_KEPT, SHERD_F32);
        double sum = 0.0;

        CHECK_CLOSE(cases[i].loss, whole_run(&w, 1), 1e-6);
        for (size_t k = 0; k < cases[i].num_params; k++) {
            size_t elems;
            tensor t   = whole_param(&w, k, &elems);
            double own = 0.0;

            for (size_t j = 0; j < elems; j++) {
                double grad = (double)((float *)t.grad)[j];

                own += grad * grad;
            }
            CHECK_CLOSE(cases[i].params[k].grad_l2, sqrt(own), 1e-5);
            sum += own;
        }
        CHECK_CLOSE(cases[i].grad_norm, sqrt(sum), 1e-6);
        whole_close(&w);
    }
    cases_free(cases, count);
}

/* Moves one weight of each parameter and looks at the loss. fp32 gives differences of the loss to
 * about 1e-6, so small gradients are compared loosely. */
static void gradients_match_differences_of_the_loss(void)
{
    for (size_t i = 0; i < NUM_ODD; i++) {
        whole w = whole_open(&odd_cases[i], 2, LAYER_KEPT, SHERD_F32);

        (void)whole_run(&w, 1);
        for (size_t k = 0; k < arch_param_count(&odd_cases[i].sizes); k++) {
            size_t elems, at;
            tensor t    = whole_param(&w, k, &elems);
            float *data = t.data, *grad = t.grad, kept;
            double up, down, want;

            for (at = 0; at < elems && fabsf(grad[at]) < 0.01f; at++) {
            }
            at       = at == elems ? elems / 2 : at;
            kept     = data[at];
            data[at] = kept + 0x1p-7f;
            up       = whole_run(&w, 0);
            data[at] = kept - 0x1p-7f;
            down     = whole_run(&w, 0);
            data[at] = kept;
            want     = (up - down) / 0x1p-6;
            if (!(fabs(want - (double)grad[at]) <= 3e-4 + 1e-2 * fabs(want))) {
                test_fail(__FILE__, __LINE__,
                          "%s, parameter %zu [%zu]: gradient %g, differences %g", odd_cases[i].name,
                          k, at, (double)grad[at], want);
            }
        }
        whole_close(&w);
    }
}

static void whole_compare(const model_case *c, whole *a, whole *b)
{
    double loss_a = whole_run(a, 1), loss_b = whole_run(b, 1);

    CHECK_BYTES_EQUAL(&loss_a, &loss_b, sizeof(loss_a));
    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        size_t elems;
        tensor ta = whole_param(a, k, &elems), tb = whole_param(b, k, &elems);

        CHECK_BYTES_EQUAL(ta.grad, tb.grad, elems * sherd_dtype_bytes(a->dtype));
    }
}

static void threads_do_not_change_a_bit(void)
{
    for (size_t i = 0; i < NUM_ODD; i++) {
        for (int dtype = SHERD_F32; dtype <= SHERD_BF16; dtype++) {
            whole a = whole_open(&odd_cases[i], 1, LAYER_KEPT, (sherd_dtype)dtype);
            whole b = whole_open(&odd_cases[i], 3, LAYER_KEPT, (sherd_dtype)dtype);

            whole_compare(&odd_cases[i], &a, &b);
            whole_close(&a);
            whole_close(&b);
        }
    }
}

static void places_of_layers_do_not_change_a_bit(void)
{
    for (size_t i = 0; i < NUM_ODD; i++) {
        for (int j = 0; j < 2 * LAYER_PLACES; j++) {
            sherd_dtype dtype = j % 2 == 0 ? SHERD_F32 : SHERD_BF16;
            whole       a     = whole_open(&odd_cases[i], 2, LAYER_KEPT, dtype);
            whole       b     = whole_open(&odd_cases[i], 2, (layer_place)(j / 2), dtype);

            CHECK(odd_cases[i].sizes.layers == 1 || b.place == LAYER_KEPT ||
                  model_bytes(b.m) < model_bytes(a.m));
            whole_compare(&odd_cases[i], &a, &b);
            whole_close(&a);
            whole_close(&b);
        }
    }
}

/* bf16 parameters compared with their values in fp32: the loss to `loss_apart`, gradients to
 * `apart` of the largest entry. */
static void half_check(const model_case *c, double loss_apart, double apart)
{
    whole half = whole_open(c, 2, LAYER_KEPT, SHERD_BF16);
    whole full = whole_open(c, 2, LAYER_KEPT, SHERD_F32);

    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        size_t elems;
        tensor to = whole_param(&full, k, &elems), from = whole_param(&half, k, &elems);

        for (size_t j = 0; j < elems; j++) {
            ((float *)to.data)[j] = sherdi_cast_bf16_f32(((uint16_t *)from.data)[j]);
        }
    }
    CHECK_CLOSE(whole_run(&full, 1), whole_run(&half, 1), loss_apart);
    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        size_t elems;
        tensor tf = whole_param(&full, k, &elems), th = whole_param(&half, k, &elems);
        float *got = fresh(elems, sizeof(*got)), *want = tf.grad, most = 0.0f;

        for (size_t j = 0; j < elems; j++) {
            got[j] = sherdi_cast_bf16_f32(((uint16_t *)th.grad)[j]);
            most   = fmaxf(most, fabsf(want[j]));
        }
        CHECK_CLOSE_F32(got, want, elems, 0x1p-8, (double)most * apart + 1e-9);
        free(got);
    }
    whole_close(&half);
    whole_close(&full);
}

/* Widened, the loss is that of the values in fp32, and gradients are rounded to bf16 once per use.
 * The tied table adds two uses, which may cancel: so relative to the largest entry. */
static void bf16_parameters_give_gradients_of_bf16(void)
{
    const double widened[ONEDNN_LEVELS] = {[ONEDNN_NONE] = 1.0};
    double       own[ONEDNN_LEVELS]     = {0};

    own[onednn_open()->own_level] = 1.0;
    onednn_settle(widened);
    for (size_t i = 0; i < NUM_ODD; i++) {
        half_check(&odd_cases[i], 1e-6, 0x1p-8);
    }
    onednn_settle(own);
}

/* Multiplied as bf16, activations and their gradients are rounded on the way, once for each
 * product. */
static void products_of_bf16_stay_near_those_of_fp32(void)
{
    if (onednn_open()->level == ONEDNN_NONE) {
        test_skip("no products of bf16: %s", onednn_open()->why);
    }
    for (size_t i = 0; i < NUM_ODD; i++) {
        half_check(&odd_cases[i], 1e-3, 0x1p-4);
    }
}

/* ------------------------------------------------------------ counted -- */

static void counted_check(const arch *sizes, const activations_params *params)
{
    pool  *threads = pool_create(params->threads);
    char   why[256];
    model *m = model_create(&(model_params){.sizes   = *sizes,
                                            .batch   = params->batch,
                                            .length  = params->length,
                                            .dtype   = params->dtype,
                                            .places  = params->places,
                                            .backend = params->backend,
                                            .threads = threads},
                            why, sizeof(why));

    CHECK(m != NULL);
    CHECK_INT(model_bytes(m), activations_bytes(sizes, params));
    model_destroy(m);
    pool_destroy(threads);
}

/* The smallest and largest of each axis against the others. */
static void activations_are_counted_without_a_model(void)
{
    static const struct {
        arch_kind   kind;
        const char *preset;
        size_t      batch, length;
    } models[] = {
        {ARCH_MINIMIND, "tiny", 1, 1},    {ARCH_MINIMIND, "tiny", 3, 7},
        {ARCH_MINIMIND, "bytes", 4, 128}, {ARCH_MINIMIND, "26m", 2, 96},
        {ARCH_GPT2, "tiny", 1, 1},        {ARCH_GPT2, "tiny", 5, 33},
        {ARCH_GPT2, "bytes", 1, 129},     {ARCH_GPT2, "bytes", 2, 40},
        {ARCH_LLAMA, "tiny", 2, 33},      {ARCH_QWEN2, "tiny", 1, 7},
        {ARCH_QWEN3, "tiny", 3, 40},      {ARCH_MISTRAL, "tiny", 1, 1},
    };

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        arch sizes;

        if (arch_preset(models[i].kind, models[i].preset, &sizes) != 0) {
            test_fail(__FILE__, __LINE__, "no preset %s", models[i].preset);
        }
        for (int j = 0; j < 2 * LAYER_PLACES; j++) {
            counted_check(&sizes,
                          &(activations_params){.batch   = models[i].batch,
                                                .length  = models[i].length,
                                                .places  = layer_places_all((layer_place)(j / 2)),
                                                .dtype   = j % 2 == 0 ? SHERD_F32 : SHERD_BF16,
                                                .backend = "cpu",
                                                .threads = j % 3 == 0 ? 2 : 1});
        }
    }
}

static void odd_activations_are_counted_without_a_model(void)
{
    for (size_t i = 0; i < NUM_ODD; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            counted_check(&odd_cases[i].sizes, &(activations_params){.batch   = odd_cases[i].batch,
                                                                     .length  = odd_cases[i].length,
                                                                     .dtype   = SHERD_BF16,
                                                                     .backend = "cpu",
                                                                     .threads = threads});
        }
    }
}

static void a_window_that_sequences_exceed_is_refused(void)
{
    model_case   c = odd_cases[NUM_ODD - 2];
    char         why[256];
    model_params params = {.sizes = c.sizes, .batch = 1, .length = c.sizes.window + 1};

    CHECK_INT(7, c.sizes.window);
    params.threads = pool_create(1);
    CHECK(model_create(&params, why, sizeof(why)) == NULL);
    test_check_contains(__FILE__, __LINE__, why, "a window of 7 tokens is not computed");
    pool_destroy(params.threads);
}

static const test_case cases[] = {
    CASE(a_window_that_sequences_exceed_is_refused),
    CASE(models_match_the_oracle),
    CASE(gradients_match_differences_of_the_loss),
    CASE(threads_do_not_change_a_bit),
    CASE(places_of_layers_do_not_change_a_bit),
    CASE(bf16_parameters_give_gradients_of_bf16),
    CASE(products_of_bf16_stay_near_those_of_fp32),
    CASE(activations_are_counted_without_a_model),
    CASE(odd_activations_are_counted_without_a_model),
};

RUN_MAIN(cases)
