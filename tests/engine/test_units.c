/* Units of every kind: frozen, unused, small, empty or bound, and what their gradients are. */
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include "kernels/formulas.h"

#include <math.h>
#include <stdio.h>

/* ------------------------------------- frozen, unused, small, empty parts -- */

static void keep_frozen(sherd_world *world, void *raw)
{
    float               want[130];
    float               got[130];
    sherd_param_params  fixed;
    sherd_memory_report memory = {.struct_size = sizeof(memory)};
    rig                 r;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(&r, world, raw);
    (void)rig_unit(&r, "all frozen");
    (void)rig_unit(&r, "trained");
    (void)rig_unit(&r, "also frozen");
    (void)rig_param_as(&r, 0, "f", 130, &fixed);
    (void)rig_param(&r, 1, "w", 10);
    (void)rig_param_as(&r, 1, "g", 9, &fixed);
    (void)rig_param_as(&r, 2, "h", 64, &fixed);
    rig_seal(&r);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK(memory.state_held <= 4096 && memory.grads_held <= 4096); /* those of w only */
    rig_acquire(&r, 1, SHERD_BACKWARD);
    CHECK(sherd_param_grad(r.engine, r.params[2].handle) == NULL);
    CHECK_ERROR_SAYS("parameter g is frozen");
    rig_release(&r, 1, SHERD_BACKWARD);
    CHECK_INT(1, rig_step(&r).was_updated);
    /* this goes backward through the frozen units too */
    CHECK_INT(1, rig_train(&r, 3).was_updated);
    CHECK_OK(rig_fill((void *)(uintptr_t)0, 0, 130, want));
    rig_values(&r, 0, got);
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
    CHECK_OK(rig_fill((void *)(uintptr_t)3, 0, 64, want));
    rig_values(&r, 3, got);
    CHECK_BYTES_EQUAL(want, got, 64 * sizeof(float));
    rig_close(&r);
}

static void frozen_parameters_never_change(void)
{
    ways_on_every_stage(3, keep_frozen);
}

/* A model with frozen units only has nothing to update, and still makes a step. */
static void train_nothing(sherd_world *world, void *raw)
{
    sherd_param_params fixed;
    uint64_t           before;
    rig                r;

    sherd_param_params_init(&fixed);
    fixed.frozen = 1;
    rig_open(&r, world, raw);
    (void)rig_unit(&r, "all frozen");
    (void)rig_param_as(&r, 0, "f", 130, &fixed);
    rig_seal(&r);
    before = rig_fingerprint(&r);
    CHECK_INT(before, rig_train(&r, 2).fingerprint);
    rig_close(&r);
}

static void model_without_trainable_parameters_steps(void)
{
    ways_on_every_stage(2, train_nothing);
}

/* With a gradient of zero, AdamW's moments stay zero and the weights decay. */
static void leave_a_unit_out(sherd_world *world, void *raw)
{
    float want[150];
    float got[150];
    rig   r;

    ways_declare_layers(&r, world, raw);
    rig_seal(&r);
    CHECK_OK(rig_fill((void *)(uintptr_t)0, 0, 150, want));
    for (int step = 0; step < 3; step++) {
        for (int u = 3; u >= 1; u--) {
            rig_backward(&r, u);
        }
        (void)rig_step(&r);
        for (size_t i = 0; i < 150; i++) {
            want[i] = fmaf((float)(-0.01 * 0.1), want[i], want[i]);
        }
    }
    rig_values(&r, 0, got);
    CHECK_BYTES_EQUAL(want, got, sizeof(want));
    rig_close(&r);
}

static void unused_unit_decays_and_no_more(void)
{
    ways_on_every_stage(3, leave_a_unit_out);
}

/* A unit that is used only in the second micro-batch of a window has half of the gradient that it
 * left there. */
static void use_a_unit_once_in_a_window(sherd_world *world, void *raw)
{
    rig_options       options = *(const rig_options *)raw;
    sherd_step_report report;
    rig               r;

    options.accumulation = 2;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "always");
    (void)rig_unit(&r, "once");
    (void)rig_param(&r, 0, "a", 100);
    (void)rig_param(&r, 1, "o", 100);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < 2; k++) {
            rig_acquire(&r, 0, SHERD_BACKWARD); /* leaves the gradient zero */
            rig_release(&r, 0, SHERD_BACKWARD);
            if (k == 1) {
                rig_acquire(&r, 1, SHERD_BACKWARD);
                rig_poke(&r, 1, 42, 3);
                rig_release(&r, 1, SHERD_BACKWARD);
            }
            report = rig_step(&r);
        }
        CHECK_CLOSE(1.5, report.grad_norm, 0);
    }
    rig_close(&r);
}

static void unit_used_once_in_a_window_brings_its_share(void)
{
    ways_on_every_stage(3, use_a_unit_once_in_a_window);
}

/* If a unit is used in one window and not in the next, nothing of the old gradient remains. */
static void use_a_unit_in_the_first_window(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    rig_open(&r, world, &options);
    (void)rig_unit(&r, "always");
    (void)rig_unit(&r, "first");
    (void)rig_param(&r, 0, "a", 100);
    (void)rig_param(&r, 1, "f", 100);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < options.accumulation; k++) {
            rig_acquire(&r, 0, SHERD_BACKWARD);
            rig_release(&r, 0, SHERD_BACKWARD);
            if (step == 0) {
                rig_acquire(&r, 1, SHERD_BACKWARD);
                rig_poke(&r, 1, 42, 3);
                rig_release(&r, 1, SHERD_BACKWARD);
            }
            if (k < options.accumulation - 1) {
                (void)rig_step(&r);
            }
        }
        CHECK_CLOSE(step == 0 ? 3 : 0, rig_step(&r).grad_norm, 0);
    }
    rig_close(&r);
}

static void unit_that_is_no_longer_used_has_no_gradient(void)
{
    for (size_t kind = 0; kind < WAYS_NUM_KINDS; kind++) {
        for (int stage = 0; stage <= 3; stage++) {
            rig_options options = WAYS_KINDS[kind];

            options.stage = stage;
            test_world(2, use_a_unit_in_the_first_window, &options);
        }
    }
}

static void train_odd_sizes(sherd_world *world, void *raw)
{
    static const size_t ELEMS[] = {0, 1, 63, 64, 65, 0, 127, 129};
    uint64_t            fingerprint;
    rig                 r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "odd");
    (void)rig_unit(&r, "empty");
    (void)rig_unit(&r, "without parameters");
    for (size_t i = 0; i < sizeof(ELEMS) / sizeof(ELEMS[0]); i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "p%zu", i);
        (void)rig_param(&r, i == 5 ? 1 : 0, name, ELEMS[i]);
    }
    rig_seal(&r);
    rig_acquire(&r, 1, SHERD_BACKWARD);
    CHECK(sherd_param_data(r.engine, r.params[5].handle) != NULL);
    CHECK(sherd_param_grad(r.engine, r.params[5].handle) != NULL);
    rig_release(&r, 1, SHERD_BACKWARD);
    (void)rig_step(&r);
    (void)rig_train(&r, 2);
    fingerprint = rig_fingerprint(&r);
    rig_close(&r);
    CHECK(fingerprint != 0);
}

static void odd_and_empty_sizes_train(void)
{
    ways_on_every_stage(1, train_odd_sizes);
    ways_on_every_stage(3, train_odd_sizes);
}

static uint64_t train_persistent(sherd_world *world, const rig_options *options)
{
    rig_options with = *options;
    uint64_t    got;
    rig         r;

    with.zero = ", \"stage3_param_persistence_threshold\": 7";
    ways_declare_layers(&r, world, &with);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    got       = ways_close(&r, 4 / options->accumulation);
    with.zero = ", \"stage3_param_persistence_threshold\": 1000,"
                "\"stage3_model_persistence_threshold\": 300";
    ways_declare_layers(&r, world, &with);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    CHECK_INT(got, ways_close(&r, 4 / options->accumulation));
    return got;
}

static void small_parameters_that_stay_whole_change_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_persistent, 3);
}

/* ------------------------------------------------------- bound memory ----- */

static uint64_t train_bound(sherd_world *world, const rig_options *options)
{
    uint64_t   got;
    ways_bound memory;
    rig        r;

    ways_declare_layers(&r, world, options);
    ways_bind(&r, &memory);
    rig_seal(&r);
    (void)rig_train(&r, 4);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    CHECK(sherd_param_data(r.engine, r.params[4].handle) == memory.data[4]);
    CHECK(sherd_param_grad(r.engine, r.params[4].handle) == memory.grad[4]);
    rig_release(&r, 2, SHERD_BACKWARD);
    got = ways_close(&r, 4 / options->accumulation);
    ways_unbind(&memory);
    return got;
}

static void bound_memory_changes_nothing(void)
{
    ways_expect_same(ways_train_as_planned, train_bound, 2);
}

/* Parameters that are never filled start from the values that the bound memory has. */
static uint64_t train_bound_from_memory(sherd_world *world, const rig_options *options)
{
    uint64_t   got;
    ways_bound memory;
    rig        r;

    ways_declare_layers(&r, world, options);
    ways_bind(&r, &memory);
    CHECK_OK(sherd_engine_seal(r.engine));
    for (int p = 0; p < r.num_params; p++) {
        float    values[512];
        uint16_t halves[512];
        int      is_wide = r.dtype == SHERD_F32;

        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, r.params[p].elems, values));
        for (size_t i = 0; i < r.params[p].elems; i++) {
            halves[i] = sherdi_cast_f32_bf16(values[i]);
        }
        CHECK_OK(sherd_copy(r.engine, memory.data[p], is_wide ? (void *)values : halves,
                            r.params[p].elems * (is_wide ? sizeof(float) : sizeof(uint16_t))));
    }
    (void)rig_train(&r, 4);
    got = ways_close(&r, 4 / options->accumulation);
    ways_unbind(&memory);
    return got;
}

/* The master of a filled bf16 parameter has more bits than the memory. So the training for
 * comparison is filled with rounded values. */
static sherd_status fill_rounded(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)rig_fill(ctx, first_elem, count_elems, out);
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = sherdi_cast_bf16_f32(sherdi_cast_f32_bf16(out[i]));
    }
    return SHERD_OK;
}

static uint64_t train_rounded(sherd_world *world, const rig_options *options)
{
    rig r;

    ways_declare_layers(&r, world, options);
    CHECK_OK(sherd_engine_seal(r.engine));
    for (int p = 0; p < r.num_params; p++) {
        CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle,
                                  r.dtype == SHERD_F32 ? rig_fill : fill_rounded,
                                  (void *)(uintptr_t)p));
    }
    (void)rig_train(&r, 4);
    return ways_close(&r, 4 / options->accumulation);
}

static void bound_memory_never_filled_starts_from_what_it_holds(void)
{
    ways_expect_same(train_rounded, train_bound_from_memory, 2);
}

static void bind_in_part(sherd_world *world, void *raw)
{
    sherdi_mem mem;
    void      *data, *grad;
    rig        r;

    sherdi_mem_init(&mem);
    ways_declare_layers(&r, world, raw);
    data = ways_alloc(world, &mem, 7 * sizeof(float));
    grad = ways_alloc(world, &mem, 7 * sizeof(float));
    CHECK_OK(sherd_param_bind(r.engine, r.params[1].handle, data, grad));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("unit zero");
    CHECK_ERROR_SAYS("bind all of a unit or none");
    rig_close(&r);
    ways_free(world, data);
    ways_free(world, grad);
}

static void binding_a_part_of_a_unit_is_refused(void)
{
    rig_options options = {.stage = 2};

    test_world(2, bind_in_part, &options);
}

static void bind_at_stage_3(sherd_world *world, void *raw)
{
    float data[7];
    float grad[7];
    rig   r;

    ways_declare_layers(&r, world, raw);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_param_bind(r.engine, r.params[1].handle, data, grad));
    CHECK_ERROR_SAYS("stage 3");
    rig_close(&r);
}

static void binding_at_stage_3_is_refused(void)
{
    rig_options options = {.stage = 3};

    test_world(1, bind_at_stage_3, &options);
}

#ifdef TEST_EMULATED
/* Kernels of a GPU that read the host's memory end with an error that names nobody. */
static void bind_memory_of_the_host(sherd_world *world, void *raw)
{
    static float data[512], grad[512];
    ways_bound   memory;
    rig          r;

    ways_declare_layers(&r, world, raw);
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_bind(r.engine, r.params[1].handle, data, grad));
    CHECK_ERROR_SAYS("memory of the host");
    rig_seal(&r); /* it is not bound, and its unit not in part */
    rig_close(&r);

    ways_declare_layers(&r, world, raw);
    ways_bind(&r, &memory);
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_param_bind(r.engine, r.params[1].handle, memory.data[1], grad));
    rig_seal(&r); /* what was bound before stays */
    CHECK(sherd_param_address(r.engine, r.params[1].handle) == memory.data[1]);
    rig_close(&r);
    ways_unbind(&memory);
}

static void binding_the_hosts_memory_on_a_device_is_refused(void)
{
    rig_options options = {.stage = 2};

    test_world(1, bind_memory_of_the_host, &options);
}
#endif

/* ------------------------------------------------- gradients and padding -- */

/* Whatever a gradient's memory had before, the gradient is zero at the first acquire of every
 * micro-batch, and is preserved after that. */
static void find_gradients_zero(sherd_world *world, void *raw)
{
    rig_options options = *(const rig_options *)raw;
    rig         r;

    options.accumulation = 2;
    ways_declare_tied(&r, world, &options);
    CHECK_OK(sherd_unit_reads(r.engine, r.units[2], r.params[0].handle));
    rig_seal(&r);
    for (int k = 0; k < 5; k++) {
        for (int u = 2; u >= 0; u--) {
            float grad[512];

            rig_acquire(&r, u, SHERD_BACKWARD);
            CHECK(r.params[u].elems <= 512);
            CHECK_OK(sherd_copy(r.engine, grad, sherd_param_grad(r.engine, r.params[u].handle),
                                r.params[u].elems * sizeof(*grad)));
            for (size_t i = 0; i < r.params[u].elems; i++) {
                /* the part of the head is kept */
                CHECK(grad[i] == (u == 0 && i == 5 ? 8.0f : 0.0f));
            }
            if (u == 2) {
                rig_poke(&r, 0, 5, 8);
            }
            rig_touch(&r, u, 1);
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    rig_close(&r);
}

static void gradients_are_zero_at_the_first_acquire(void)
{
    ways_on_every_stage(2, find_gradients_zero);
}

/* The gradient is one everywhere, so the norm counts the elements, and padding would show. */
static void count_by_norm(sherd_world *world, void *raw)
{
    static const size_t ELEMS[] = {1, 65, 127, 200};
    sherd_step_report   report;
    size_t              total = 0;
    rig                 r;

    rig_open(&r, world, raw);
    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    for (size_t i = 0; i < 4; i++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "p%zu", i);
        (void)rig_param(&r, (int)(i / 2), name, ELEMS[i]);
        total += ELEMS[i];
    }
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        for (int u = 1; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            for (int p = 2 * u; p < 2 * u + 2; p++) {
                for (size_t i = 0; i < ELEMS[p]; i++) {
                    rig_poke(&r, p, i, 1);
                }
            }
            rig_release(&r, u, SHERD_BACKWARD);
        }
        report = rig_step(&r);
        CHECK_CLOSE(sqrt((double)total), report.grad_norm, 1e-15);
    }
    rig_close(&r);
}

static void padding_is_in_no_norm(void)
{
    ways_on_every_stage(1, count_by_norm);
    ways_on_every_stage(3, count_by_norm);
}

static const test_case CASES[] = {
    CASE(frozen_parameters_never_change),
    CASE(model_without_trainable_parameters_steps),
    CASE(unused_unit_decays_and_no_more),
    CASE(unit_used_once_in_a_window_brings_its_share),
    CASE(unit_that_is_no_longer_used_has_no_gradient),
    CASE(odd_and_empty_sizes_train),
    CASE(small_parameters_that_stay_whole_change_nothing),
    CASE(bound_memory_changes_nothing),
    CASE(bound_memory_never_filled_starts_from_what_it_holds),
    CASE(binding_a_part_of_a_unit_is_refused),
    CASE(binding_at_stage_3_is_refused),
#ifdef TEST_EMULATED
    CASE(binding_the_hosts_memory_on_a_device_is_refused),
#endif
    CASE(gradients_are_zero_at_the_first_acquire),
    CASE(padding_is_in_no_norm),
};

RUN_MAIN(CASES)
