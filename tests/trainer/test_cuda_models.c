/* Whole models on the emulator against the CPU's, and everything twice for the same bits. */
#include "tests/trainer/cases.h"
#include "tests/trainer/close.h"
#include "tests/lib/check.h"

#include "trainer/compute.h"
#include "trainer/model.h"
#include "models/activations.h"

#include <cuda_runtime_api.h>
#include <emulator.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------- whole models -- */

/* A model with all its parameters, on one backend; host holds their gradients after whole_run. */
typedef struct whole {
    const model_case *c;
    sherd_dtype       dtype;
    int               is_gpu;
    layer_place       place;
    pool             *threads;
    cudaStream_t      stream;
    model            *m;
    model_unit       *units;
    int32_t          *tokens;
} whole;

static void *memory_make(const whole *w, size_t len_bytes)
{
    void *memory = NULL;

    if (!w->is_gpu) {
        return calloc(1, len_bytes);
    }
    CHECK(cudaMalloc(&memory, len_bytes) == cudaSuccess);
    CHECK(cudaMemset(memory, 0, len_bytes) == cudaSuccess);
    return memory;
}

static void memory_free(const whole *w, void *memory)
{
    if (w->is_gpu) {
        (void)cudaFree(memory);
    } else {
        free(memory);
    }
}

static void memory_put(const whole *w, void *to, const void *from, size_t len_bytes)
{
    if (w->is_gpu) {
        CHECK(cudaMemcpy(to, from, len_bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    } else {
        memcpy(to, from, len_bytes);
    }
}

static void memory_get(const whole *w, void *to, const void *from, size_t len_bytes)
{
    if (w->is_gpu) {
        CHECK(cudaMemcpy(to, from, len_bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
    } else {
        memcpy(to, from, len_bytes);
    }
}

static void whole_fill(whole *w)
{
    for (size_t k = 0; k < arch_param_count(&w->c->sizes); k++) {
        arch_param info;
        size_t     elems, bytes;
        float     *full;
        void      *half;
        tensor    *t;

        arch_param_get(&w->c->sizes, k, &info);
        elems = arch_param_elems(&info);
        bytes = elems * sherd_dtype_bytes(w->dtype);
        full  = calloc(elems, sizeof(*full));
        half  = calloc(elems, sizeof(*full));
        CHECK(full != NULL && half != NULL);
        case_weights(w->c, k, 0, elems, full);
        narrow(w->dtype, full, half, elems);
        t  = &w->units[info.unit].by_role[info.role];
        *t = (tensor){
            .data = memory_make(w, bytes), .grad = memory_make(w, bytes), .dtype = w->dtype};
        memory_put(w, t->data, half, bytes);
        free(full);
        free(half);
    }
}

/* The memory of layers whose activations would be the engine's. */
static void activations_make(whole *w)
{
    activations_params shape = {
        .batch = w->c->batch, .length = w->c->length, .dtype = w->dtype, .backend = "cuda"};

    for (size_t l = 0; l < w->c->sizes.layers && layer_place_is_moved(w->place); l++) {
        w->units[l + 1].activation =
            memory_make(w, activations_layer_bytes(&w->c->sizes, &shape, w->place));
    }
}

/* Of the models that are opened from now on. */
static compute_choices choices;

static whole whole_open(const model_case *c, int is_gpu, layer_place place, sherd_dtype dtype)
{
    whole        w     = {.c = c, .dtype = dtype, .is_gpu = is_gpu, .place = place};
    size_t       units = arch_unit_count(&c->sizes), tokens = c->batch * c->length;
    model_params params = {.sizes   = c->sizes,
                           .batch   = c->batch,
                           .length  = c->length,
                           .dtype   = dtype,
                           .places  = layer_places_all(place),
                           .backend = is_gpu ? "cuda" : "cpu",
                           .choices = choices};
    char         why[256];

    w.threads = params.threads = pool_create(1);
    CHECK(cudaStreamCreate(&w.stream) == cudaSuccess);
    params.stream = w.stream;
    w.m           = model_create(&params, why, sizeof(why));
    if (w.m == NULL) {
        test_fail(__FILE__, __LINE__, "no model: %s", why);
    }
    w.units  = calloc(units, sizeof(*w.units));
    w.tokens = calloc(2 * tokens, sizeof(*w.tokens));
    CHECK(w.units != NULL && w.tokens != NULL);
    whole_fill(&w);
    activations_make(&w);
    w.units[units - 1].by_role[ARCH_TOKENS] = w.units[0].by_role[ARCH_TOKENS];
    case_tokens(c, w.tokens, w.tokens + tokens);
    return w;
}

static tensor whole_param(const whole *w, size_t k, size_t *elems_out)
{
    arch_param info;

    arch_param_get(&w->c->sizes, k, &info);
    *elems_out = arch_param_elems(&info);
    return w->units[info.unit].by_role[info.role];
}

static void whole_close(whole *w)
{
    model_destroy(w->m);
    for (size_t k = 0; k < arch_param_count(&w->c->sizes); k++) {
        size_t elems;
        tensor t = whole_param(w, k, &elems);

        memory_free(w, t.data);
        memory_free(w, t.grad);
    }
    for (size_t unit = 0; unit < arch_unit_count(&w->c->sizes); unit++) {
        memory_free(w, w->units[unit].activation);
    }
    CHECK(cudaStreamDestroy(w->stream) == cudaSuccess);
    free(w->units);
    free(w->tokens);
    pool_destroy(w->threads);
}

/* Loss; with a backward the gradients are added to. */
static double whole_run(whole *w, int has_backward)
{
    size_t units = arch_unit_count(&w->c->sizes);
    double loss;

    model_batch_set(w->m, w->tokens, w->tokens + w->c->batch * w->c->length);
    for (size_t unit = 0; unit < units; unit++) {
        model_forward(w->m, unit, &w->units[unit], has_backward ? 1.0f : 0.0f);
    }
    for (size_t unit = units; has_backward && unit-- > 0;) {
        model_backward(w->m, unit, &w->units[unit]);
    }
    if (model_losses_take(w->m, &loss) != SHERD_OK) {
        test_fail(__FILE__, __LINE__, "%s", model_why(w->m));
    }
    return loss;
}

/* weight -= rate * gradient, on the host, in fp32 alone; gradients become zero. */
static void whole_step(whole *w, float rate)
{
    for (size_t k = 0; k < arch_param_count(&w->c->sizes); k++) {
        size_t elems;
        tensor t    = whole_param(w, k, &elems);
        float *data = calloc(2 * elems, sizeof(*data)), *grad = data + elems;

        memory_get(w, data, t.data, elems * sizeof(*data));
        memory_get(w, grad, t.grad, elems * sizeof(*grad));
        for (size_t i = 0; i < elems; i++) {
            data[i] -= rate * grad[i];
            grad[i] = 0.0f;
        }
        memory_put(w, t.data, data, elems * sizeof(*data));
        memory_put(w, t.grad, grad, elems * sizeof(*grad));
        free(data);
    }
}

static const model_case models[] = {
    {.name   = "minimind",
     .sizes  = ARCH_SIZES(ARCH_MINIMIND, 64, 2, 4, 2, 88, 61, 64),
     .batch  = 3,
     .length = 21,
     .scale  = 0.3},
    {.name   = "gpt2",
     .sizes  = ARCH_SIZES(ARCH_GPT2, 48, 2, 3, 3, 96, 300, 40),
     .batch  = 2,
     .length = 40,
     .scale  = 0.3},
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
};

#define NUM_MODELS (sizeof(models) / sizeof(models[0]))

/* Families of transformers, with the widths that their heads have: q wider than the stream, grouped
 * keys. */
static const model_case families[] = {
    {.name   = "llama with biases, heads of 64",
     .sizes  = {.kind       = ARCH_LLAMA,
                .hidden     = 32,
                .layers     = 2,
                .heads      = 2,
                .kv_heads   = 1,
                .inner      = 40,
                .vocab      = 61,
                .max_length = 64,
                .head_elems = 64,
                .features   = ARCH_HAS_QKV_BIAS | ARCH_HAS_O_BIAS | ARCH_HAS_MLP_BIAS,
                .is_untied  = 1,
                .norm_eps   = 1e-5,
                .rope       = {1e4, ARCH_ROPE_LLAMA3, 4.0, 1.0, 4.0, 32}},
     .batch  = 2,
     .length = 9,
     .scale  = 0.3},
    {.name   = "qwen2, heads of 80",
     .sizes  = {.kind       = ARCH_QWEN2,
                .hidden     = 40,
                .layers     = 1,
                .heads      = 2,
                .kv_heads   = 2,
                .inner      = 24,
                .vocab      = 61,
                .max_length = 64,
                .head_elems = 80,
                .norm_eps   = 1e-6,
                .rope       = {.theta = 1e6}},
     .batch  = 2,
     .length = 9,
     .scale  = 0.3},
    {.name   = "qwen3, heads of 128",
     .sizes  = {.kind       = ARCH_QWEN3,
                .hidden     = 24,
                .layers     = 2,
                .heads      = 2,
                .kv_heads   = 1,
                .inner      = 30,
                .vocab      = 61,
                .max_length = 64,
                .head_elems = 128,
                .is_untied  = 1,
                .norm_eps   = 1e-5,
                .rope       = {1e4, ARCH_ROPE_LINEAR, 2.0, 0.0, 0.0, 0}},
     .batch  = 2,
     .length = 9,
     .scale  = 0.3},
};

#define NUM_FAMILIES (sizeof(families) / sizeof(families[0]))

static void follow(const model_case *c, int steps)
{
    whole cpu = whole_open(c, 0, LAYER_KEPT, SHERD_F32);
    whole gpu = whole_open(c, 1, LAYER_KEPT, SHERD_F32);

    CHECK_CLOSE(whole_run(&cpu, 0), whole_run(&gpu, 0), 1e-6);
    for (int step = 0; step < steps; step++) {
        CHECK_CLOSE(whole_run(&cpu, 1), whole_run(&gpu, 1), step == 0 ? 1e-6 : 1e-5);
        whole_step(&cpu, 0.05f);
        whole_step(&gpu, 0.05f);
    }
    whole_close(&cpu);
    whole_close(&gpu);
}

static void models_follow_the_cpu(void)
{
    for (size_t i = 0; i < NUM_MODELS; i++) {
        follow(&models[i], 5);
    }
    for (size_t i = 0; i < NUM_FAMILIES; i++) {
        follow(&families[i], 2);
    }
}

/* 16-bit activations: gradients near those of fp32 at the same weights, relative to the largest of
 * each parameter. */
static void be_near(const model_case *c, sherd_dtype dtype)
{
    whole  cpu   = whole_open(c, 0, LAYER_KEPT, dtype);
    whole  gpu   = whole_open(c, 1, LAYER_KEPT, dtype);
    double bound = dtype == SHERD_BF16 ? 0.06 : 0.008;

    CHECK_CLOSE(whole_run(&cpu, 1), whole_run(&gpu, 1), dtype == SHERD_BF16 ? 1e-2 : 2e-3);
    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        size_t elems;
        tensor a = whole_param(&cpu, k, &elems), b = whole_param(&gpu, k, &elems);
        size_t bytes = elems * sherd_dtype_bytes(gpu.dtype);
        void  *raw   = malloc(bytes);
        float *want = malloc(elems * sizeof(*want)), *got = malloc(elems * sizeof(*got));
        char   name[1024];

        arch_param info;

        arch_param_get(&c->sizes, k, &info);
        (void)snprintf(name, sizeof(name), "%s, %s of %.100s", sherd_dtype_name(gpu.dtype),
                       info.name, c->name);
        widen(cpu.dtype, a.grad, want, elems);
        memory_get(&gpu, raw, b.grad, bytes);
        widen(gpu.dtype, raw, got, elems);
        close_check(name, want, got, elems, (tolerance){bound, 0.0, 0.0});
        free(raw);
        free(want);
        free(got);
    }
    whole_close(&cpu);
    whole_close(&gpu);
}

static void models_of_half_types_are_near_the_cpu(void)
{
    for (size_t i = 0; i < NUM_MODELS; i++) {
        be_near(&models[i], SHERD_BF16);
        be_near(&models[i], SHERD_F16);
    }
    for (size_t i = 0; i < NUM_FAMILIES; i++) {
        be_near(&families[i], SHERD_BF16);
    }
}

static void gradients_compare(const whole *a, const whole *b)
{
    for (size_t k = 0; k < arch_param_count(&a->c->sizes); k++) {
        size_t elems;
        tensor ta = whole_param(a, k, &elems), tb = whole_param(b, k, &elems);
        size_t bytes = elems * sherd_dtype_bytes(a->dtype);
        char  *room  = malloc(2 * bytes);

        memory_get(a, room, ta.grad, bytes);
        memory_get(b, room + bytes, tb.grad, bytes);
        CHECK_BYTES_EQUAL(room, room + bytes, bytes);
        free(room);
    }
}

static void wholes_compare(whole *a, whole *b)
{
    double loss_a = whole_run(a, 1), loss_b = whole_run(b, 1);

    CHECK_BYTES_EQUAL(&loss_a, &loss_b, sizeof(loss_a));
    gradients_compare(a, b);
}

/* Wherever activations wait, on the device first. Those on a drive are in the model as those in
 * host memory are. */
static void again(const model_case *c, sherd_dtype dtype)
{
    static const layer_place PLACES[] = {LAYER_KEPT, LAYER_CHEAP, LAYER_CPU, LAYER_RECOMPUTED,
                                         LAYER_RECOMPUTED_CPU};
    whole                    a        = whole_open(c, 1, LAYER_KEPT, dtype);
    double                   loss_a   = whole_run(&a, 1);

    for (size_t i = 0; i < sizeof(PLACES) / sizeof(PLACES[0]); i++) {
        whole  b      = whole_open(c, 1, PLACES[i], dtype);
        double loss_b = whole_run(&b, 1);

        CHECK(i == 0 || c->sizes.layers == 1 || model_bytes(b.m) < model_bytes(a.m));
        CHECK_BYTES_EQUAL(&loss_a, &loss_b, sizeof(loss_a));
        gradients_compare(&a, &b);
        whole_close(&b);
    }
    whole_close(&a);
}

static void models_give_the_same_bits_again(void)
{
    for (size_t i = 0; i < NUM_MODELS; i++) {
        again(&models[i], SHERD_F32);
        again(&models[i], SHERD_BF16);
    }
    for (size_t i = 0; i < NUM_FAMILIES; i++) {
        again(&families[i], SHERD_BF16);
    }
}

static void counted_check(const model_case *c, sherd_dtype dtype, layer_place place)
{
    activations_params counted  = {.batch   = c->batch,
                                   .length  = c->length,
                                   .places  = layer_places_all(place),
                                   .dtype   = dtype,
                                   .backend = "cuda"};
    model_params       params   = {.sizes   = c->sizes,
                                   .batch   = c->batch,
                                   .length  = c->length,
                                   .dtype   = dtype,
                                   .places  = counted.places,
                                   .backend = "cuda"};
    size_t             held     = emulator_held_bytes();
    char               why[256] = "";
    cudaStream_t       stream;
    model             *m;

    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    params.stream = stream;
    m             = model_create(&params, why, sizeof(why));
    if (m == NULL) {
        test_fail(__FILE__, __LINE__, "no model: %s", why);
    }
    CHECK_INT(model_bytes(m), activations_bytes(&c->sizes, &counted));
    CHECK_INT(emulator_held_bytes() - held, activations_bytes(&c->sizes, &counted));
    model_destroy(m);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

static void memory_is_counted_without_a_device(void)
{
    static const model_case wide = {.sizes =
                                        ARCH_SIZES(ARCH_MINIMIND, 64, 2, 4, 2, 192, 151936, 512),
                                    .batch  = 5,
                                    .length = 511};

    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        for (int place = 0; place < LAYER_PLACES; place++) {
            for (size_t i = 0; i < NUM_MODELS; i++) {
                counted_check(&models[i], (sherd_dtype)dtype, (layer_place)place);
            }
            for (size_t i = 0; i < NUM_FAMILIES; i++) {
                counted_check(&families[i], (sherd_dtype)dtype, (layer_place)place);
            }
        }
    }
    counted_check(&wide, SHERD_BF16, LAYER_RECOMPUTED); /* logits of a part of the rows */
}

/* Each allocation of a model fails once: a sentence, and nothing stays. */
static void a_failed_allocation_leaves_nothing_behind(void)
{
    cudaStream_t stream;
    model       *m = NULL;
    long         n;

    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    for (n = 1; m == NULL && n < 50; n++) {
        model_params params   = {.sizes   = models[0].sizes,
                                 .batch   = 2,
                                 .length  = 8,
                                 .dtype   = SHERD_BF16,
                                 .backend = "cuda",
                                 .stream  = stream};
        size_t       held     = emulator_held_bytes();
        char         why[256] = "";

        emulator_fail_alloc(n);
        m = model_create(&params, why, sizeof(why));
        emulator_fail_alloc(0);
        CHECK(m != NULL || why[0] != '\0');
        CHECK(m != NULL || emulator_held_bytes() == held);
    }
    CHECK(m != NULL && n > 4);
    model_destroy(m);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

/* A launch that is refused and a kernel that faults are reported when the losses are taken. */
static void a_failed_kernel_is_told(void)
{
    for (int is_launch = 0; is_launch < 2; is_launch++) {
        whole  w     = whole_open(&models[0], 1, LAYER_KEPT, SHERD_BF16);
        size_t units = arch_unit_count(&w.c->sizes);
        double loss  = 7.0;

        (void)whole_run(&w, 1);
        if (is_launch) {
            emulator_fail_launch(9);
        } else {
            emulator_fail_kernel(9);
        }
        model_batch_set(w.m, w.tokens, w.tokens + w.c->batch * w.c->length);
        for (size_t unit = 0; unit < units; unit++) {
            model_forward(w.m, unit, &w.units[unit], 0.0f);
        }
        CHECK_STATUS(SHERD_E_DEVICE, model_losses_take(w.m, &loss));
        CHECK(strstr(model_why(w.m), "GPU") != NULL && loss == 7.0);
        emulator_heal(0);
        whole_close(&w);
    }
}

/* Kernels of ours, without the products, and waits of the host. */
static void a_step_has_so_many_launches_and_waits(void)
{
    static const struct {
        layer_place   place;
        unsigned long launches;
    } WANT[] = {{LAYER_KEPT, 38}, {LAYER_CHEAP, 42}}; /* two norms more in each of two layers */

    for (size_t i = 0; i < sizeof(WANT) / sizeof(WANT[0]); i++) {
        whole         w = whole_open(&models[1], 1, WANT[i].place, SHERD_BF16);
        unsigned long launches, waits;

        (void)whole_run(&w, 1); /* the first of a shape may take more */
        launches = emulator_launches();
        waits    = emulator_waits();
        (void)whole_run(&w, 1);
        CHECK_INT(WANT[i].launches, emulator_launches() - launches);
        CHECK_INT(2, emulator_waits() - waits); /* for the batch before the last, and the losses */
        whole_close(&w);
    }
}

/* --------------------------------------------------------------- graphs -- */

static whole graphed_open(const model_case *c, layer_place place, sherd_dtype dtype)
{
    whole w;

    choices.is_graphed = 1;
    w                  = whole_open(c, 1, place, dtype);
    choices.is_graphed = 0;
    return w;
}

/* Passes are captured in the second round, replayed in those after it. One model's attention is by
 * tensor cores. */
static void replayed_passes_give_the_same_bits(void)
{
    static const struct {
        size_t      model;
        layer_place place;
    } KINDS[] = {{0, LAYER_RECOMPUTED}, {0, LAYER_CPU}, {3, LAYER_KEPT}, {3, LAYER_RECOMPUTED}};

    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        const model_case *c       = &models[KINDS[i].model];
        whole             plain   = whole_open(c, 1, KINDS[i].place, SHERD_BF16);
        whole             graphed = graphed_open(c, KINDS[i].place, SHERD_BF16);

        for (int round = 0; round < 3; round++) {
            wholes_compare(&plain, &graphed);
        }
        CHECK(strstr(model_note(graphed.m), "5 passes of units as graphs") != NULL);
        whole_close(&plain);
        whole_close(&graphed);
    }
}

/* What is left of the launches is the first unit's, the last one's forward and the batch's; the
 * host waits no more often. */
static void replayed_passes_are_a_call_each(void)
{
    whole         w = graphed_open(&models[1], LAYER_KEPT, SHERD_BF16);
    unsigned long launches, graphs, waits;

    (void)whole_run(&w, 1);
    (void)whole_run(&w, 1);
    launches = emulator_launches();
    graphs   = emulator_graph_launches();
    waits    = emulator_waits();
    (void)whole_run(&w, 1);
    CHECK_INT(4, emulator_launches() - launches);
    CHECK_INT(5, emulator_graph_launches() - graphs);
    CHECK_INT(2, emulator_waits() - waits);
    whole_close(&w);
}

/* Parameters elsewhere are another pass; of many places the first ones are kept, and the others
 * queued as ever. */
static void passes_of_other_memory_are_apart(void)
{
    whole      plain   = whole_open(&models[3], 1, LAYER_KEPT, SHERD_BF16);
    whole      graphed = graphed_open(&models[3], LAYER_KEPT, SHERD_BF16);
    model_unit held    = graphed.units[1];
    size_t     bytes =
        held.by_role[ARCH_UP].data == NULL ? 0 : models[3].sizes.hidden * models[3].sizes.inner * 2;

    CHECK(bytes > 0);
    for (int round = 0; round < 10; round++) {
        void *moved = memory_make(&graphed, bytes);

        CHECK(cudaMemcpy(moved, held.by_role[ARCH_UP].data, bytes, cudaMemcpyDeviceToDevice) ==
              cudaSuccess);
        graphed.units[1].by_role[ARCH_UP].data = moved;
        wholes_compare(&plain, &graphed);
        wholes_compare(&plain, &graphed);
        graphed.units[1] = held;
        memory_free(&graphed, moved);
    }
    whole_close(&plain);
    whole_close(&graphed);
}

/* A graph that is not launched, and one in which a kernel faults, are reported like failed work; a
 * capture that is spoiled names the option. */
static void a_failed_graph_is_told(void)
{
    for (int kind = 0; kind < 3; kind++) {
        whole  w    = graphed_open(&models[1], LAYER_KEPT, SHERD_BF16);
        double loss = 7.0;

        for (int round = 0; round < (kind == 2 ? 1 : 3); round++) {
            (void)whole_run(&w, 1);
        }
        model_batch_set(w.m, w.tokens, w.tokens + w.c->batch * w.c->length);
        model_forward(w.m, 0, &w.units[0], 1.0f);
        if (kind == 0) {
            emulator_fail_launch(1);
        } else if (kind == 1) {
            emulator_fail_kernel(3);
        } else { /* in the thread's name, as a library's call might */
            CHECK(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeThreadLocal) ==
                  cudaSuccess);
        }
        model_forward(w.m, 1, &w.units[1], 1.0f);
        if (kind == 2) {
            cudaGraph_t graph;

            CHECK(cudaStreamEndCapture(w.stream, &graph) == cudaSuccess);
            CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        }
        CHECK_STATUS(SHERD_E_DEVICE, model_losses_take(w.m, &loss));
        CHECK(strstr(model_why(w.m), kind == 1 ? "GPU" : "train without --graphs") != NULL &&
              loss == 7.0);
        emulator_heal(0);
        whole_close(&w);
    }
}

/* ------------------------------------------------------- by measurement -- */

/* The file, with the kernel of every line replaced where `kernel` is not 0. Returns its lines. */
static int choices_count(const char *path, int kernel)
{
    FILE *file = fopen(path, "re");
    char  text[1 << 16];
    int   lines = 0;

    CHECK(file != NULL);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    (void)fclose(file);
    for (char *at = text; (at = strstr(at, " us ")) != NULL; at++) {
        lines++;
        at[5] = (char)(kernel == 0 ? at[5] : '0' + kernel);
    }
    if (kernel != 0) {
        file = fopen(path, "we");
        CHECK(file != NULL && fputs(text, file) >= 0);
        (void)fclose(file);
    }
    return lines;
}

typedef struct tuned_run {
    double   loss;
    uint64_t bits; /* of all gradients: in fp32 they distinguish the kernels */
} tuned_run;

static tuned_run tuned_run_of(const model_case *c)
{
    whole     w   = whole_open(c, 1, LAYER_KEPT, SHERD_F32);
    tuned_run run = {.loss = whole_run(&w, 1)};

    for (size_t k = 0; k < arch_param_count(&c->sizes); k++) {
        size_t    elems;
        tensor    t    = whole_param(&w, k, &elems);
        uint32_t *grad = malloc(elems * sizeof(*grad));

        memory_get(&w, grad, t.grad, elems * sizeof(*grad));
        for (size_t i = 0; i < elems; i++) {
            run.bits = (run.bits ^ grad[i]) * 0x100000001b3u;
        }
        free(grad);
    }
    whole_close(&w);
    return run;
}

static void what_was_measured_is_kept_and_taken(void)
{
    const char *folder = test_scratch();
    char        path[512];
    tuned_run   runs[4];
    int         lines;

    (void)snprintf(path, sizeof(path), "%s/products.tsv", folder);
    choices.tune  = 5;
    choices.tuned = path;
    runs[0]       = tuned_run_of(&models[1]);
    lines         = choices_count(path, 0);
    CHECK(lines > 10);
    for (int kernel = 1; kernel <= 3; kernel++) {
        CHECK_INT(lines, choices_count(path, kernel));
        runs[kernel] = tuned_run_of(&models[1]);
        CHECK_CLOSE(runs[0].loss, runs[kernel].loss, 1e-5);
        CHECK(runs[kernel].bits == tuned_run_of(&models[1]).bits);
        CHECK_INT(lines, choices_count(path, 0)); /* nothing was measured again */
    }
    CHECK(runs[1].bits != runs[2].bits && runs[2].bits != runs[3].bits);
    CHECK_INT(lines, choices_count(path, 7)); /* no such kernel: all are measured anew */
    CHECK_CLOSE(runs[0].loss, tuned_run_of(&models[1]).loss, 1e-5);
    CHECK_INT(2 * lines, choices_count(path, 0));
    choices.tuned = NULL;
    CHECK_INT(0, setenv("XDG_CACHE_HOME", folder, 1));
    (void)tuned_run_of(&models[1]);
    (void)snprintf(path, sizeof(path), "%s/sherd/products.tsv", folder);
    CHECK_INT(lines, choices_count(path, 0));
    choices.tune = 0;
    CHECK(runs[1].bits == tuned_run_of(&models[1]).bits); /* the first that the library names */
}

static void a_file_that_cannot_be_written_is_told_at_once(void)
{
    char         why[256] = "";
    model_params params   = {.sizes   = models[1].sizes,
                             .batch   = 1,
                             .length  = 8,
                             .backend = "cuda",
                             .choices = {.tune = 2, .tuned = "/nowhere/products.tsv"}};

    CHECK(cudaStreamCreate((cudaStream_t *)&params.stream) == cudaSuccess);
    CHECK(model_create(&params, why, sizeof(why)) == NULL);
    CHECK(strstr(why, "/nowhere/products.tsv") != NULL);
    CHECK(cudaStreamDestroy(params.stream) == cudaSuccess);
}

/* The emulated device has no driver, so cuDNN does not start, if it is there at all: this is
 * reported, and the own kernels give their bits. */
static void attention_by_cudnn_falls_back_with_the_reason(void)
{
    static const char *const LIBRARIES[] = {"/nowhere/libcudnn.so", NULL};

    for (int i = 0; i < 2; i++) {
        whole own, chosen;

        choices.attention = ATTENTION_OWN;
        own               = whole_open(&models[1], 1, LAYER_KEPT, SHERD_BF16);
        if (LIBRARIES[i] != NULL) {
            CHECK_INT(0, setenv("SHERD_CUDNN_LIBRARY", LIBRARIES[i], 1));
        } else {
            CHECK_INT(0, unsetenv("SHERD_CUDNN_LIBRARY"));
        }
        choices.attention = i == 0 ? ATTENTION_CUDNN : ATTENTION_AUTO;
        chosen            = whole_open(&models[1], 1, LAYER_KEPT, SHERD_BF16);
        wholes_compare(&own, &chosen);
        CHECK(model_note(own.m)[0] == '\0');
        CHECK(strstr(model_note(chosen.m), "attention by kernels of its own: ") != NULL);
        whole_close(&own);
        whole_close(&chosen);
    }
    choices.attention = ATTENTION_AUTO;
}

static const test_case cases[] = {
    CASE(models_follow_the_cpu),
    CASE(models_of_half_types_are_near_the_cpu),
    CASE(models_give_the_same_bits_again),
    CASE(what_was_measured_is_kept_and_taken),
    CASE(a_file_that_cannot_be_written_is_told_at_once),
    CASE(attention_by_cudnn_falls_back_with_the_reason),
    CASE(a_step_has_so_many_launches_and_waits),
    CASE(replayed_passes_give_the_same_bits),
    CASE(replayed_passes_are_a_call_each),
    CASE(passes_of_other_memory_are_apart),
    CASE(a_failed_graph_is_told),
    CASE(memory_is_counted_without_a_device),
    CASE(a_failed_allocation_leaves_nothing_behind),
    CASE(a_failed_kernel_is_told),
};

RUN_MAIN(cases)
