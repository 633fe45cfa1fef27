/* Units in another order than declared, and more of them at once than the plan has room for. */
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <string.h>

static rig self_rig(const rig_options *options)
{
    sherd_world *world;
    rig          r;

    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, options);
    sherd_world_destroy(world); /* the engine holds it */
    return r;
}

/* A failed nested acquire leaves nothing behind: the unit is not held, the step goes on. */
static void acquire_without_room_is_as_if_it_had_not_been_called(void)
{
    rig_options options = {.stage = 2,
                           .zero = ", \"overlap_comm\": false, \"stage3_prefetch_bucket_size\": 0"};
    rig         r       = self_rig(&options);

    (void)rig_unit(&r, "first");
    (void)rig_unit(&r, "second");
    (void)rig_param(&r, 0, "a", 5000);
    (void)rig_param(&r, 1, "b", 5000);
    rig_seal(&r);
    rig_acquire(&r, 1, SHERD_BACKWARD);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_unit_acquire(r.engine, 0, SHERD_BACKWARD));
    CHECK_ERROR_SAYS("unit first");
    CHECK_ERROR_SAYS("the memory of unit second, which is still acquired");
    CHECK_ERROR_SAYS("release second before this acquire");
    CHECK_ERROR_SAYS("sherd_pass_add_held");
    CHECK(sherd_param_data(r.engine, 0) == NULL);
    CHECK(sherd_param_grad(r.engine, 0) == NULL);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_release(r.engine, 0, SHERD_BACKWARD));
    rig_touch(&r, 1, 1);
    rig_release(&r, 1, SHERD_BACKWARD);
    rig_backward(&r, 0);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

/* The same when what fails is the second of the units that an acquire reaches. */
static void acquire_without_room_for_what_it_reads_leaves_nothing(void)
{
    rig_options options = {.stage = 2, .zero = ", \"overlap_comm\": false"};
    rig         r       = self_rig(&options);

    (void)rig_unit(&r, "table");
    (void)rig_unit(&r, "head");
    (void)rig_unit(&r, "small");
    (void)rig_param(&r, 0, "table.w", 5000);
    (void)rig_param(&r, 1, "head.w", 5000);
    (void)rig_param(&r, 2, "small.w", 10);
    CHECK_OK(sherd_unit_reads(r.engine, 1, 0));
    rig_seal(&r);
    rig_acquire(&r, 2, SHERD_BACKWARD);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_unit_acquire(r.engine, 1, SHERD_BACKWARD));
    CHECK(sherd_param_grad(r.engine, 0) == NULL);
    CHECK(sherd_param_grad(r.engine, 1) == NULL);
    rig_release(&r, 2, SHERD_BACKWARD);
    rig_backward(&r, 1);
    rig_backward(&r, 0);
    CHECK_INT(1, rig_step(&r).was_updated);
    rig_close(&r);
}

/* Nothing is held, but a gradient is open: of a unit that is used twice, or that another one reads.
 * What the plan has no room for is refused with who is in the way, and the declared order goes
 * on. */
static void acquire_off_the_plan_says_whose_gradient_is_open(void)
{
    rig_options options = {.stage = 2, .zero = ", \"overlap_comm\": false"};

    for (int is_shared = 0; is_shared <= 1; is_shared++) {
        static const int ORDER[] = {1, 0, 2};
        rig              r       = self_rig(&options);

        (void)rig_unit(&r, "table");
        (void)rig_unit(&r, "head");
        (void)rig_unit(&r, "big");
        (void)rig_param(&r, 0, "table.w", 700);
        (void)rig_param(&r, 1, "head.w", 100);
        (void)rig_param(&r, 2, "big.w", 5000);
        for (int i = 0; i < 3; i++) {
            int unit = !is_shared && i == 0 ? 0 : ORDER[i]; /* table twice, or head reads it */

            CHECK_OK(sherd_pass_add(r.engine, SHERD_BACKWARD, r.units[unit]));
        }
        if (is_shared) {
            CHECK_OK(sherd_unit_reads(r.engine, 1, r.params[0].handle));
        }
        rig_seal(&r);
        rig_backward(&r, is_shared ? 1 : 0);
        CHECK_STATUS(SHERD_E_NOMEM, sherd_unit_acquire(r.engine, 2, SHERD_BACKWARD));
        CHECK_ERROR_SAYS("unit big");
        CHECK_ERROR_SAYS("unit table still expects 1 of its 2 uses");
        CHECK(strstr(sherd_last_error(), "before this acquire") == NULL);
        rig_backward(&r, 0);
        rig_backward(&r, 2);
        CHECK_INT(1, rig_step(&r).was_updated);
        rig_close(&r);
    }
}

static const test_case CASES[] = {
    CASE(acquire_without_room_is_as_if_it_had_not_been_called),
    CASE(acquire_without_room_for_what_it_reads_leaves_nothing),
    CASE(acquire_off_the_plan_says_whose_gradient_is_open),
};

RUN_MAIN(CASES)
