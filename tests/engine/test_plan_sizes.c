/* What a plan says of its sizes, in a table and as JSON, and whether it fits the machine. */
#include "engine/proof/check.h"
#include "engine/proof/emit.h"
#include "tests/engine/planner.h"

#include "engine/limits.h"
#include "engine/report.h"
#include "engine/run/engine_impl.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const int WORLDS[] = {1, 2, 3, 4, 7, 8, 64, 1024};

typedef struct text {
    char  *bytes;
    size_t len_bytes, capacity;
} text;

static sherd_status text_add(void *ctx, const char *portion, size_t len_bytes)
{
    text *all = ctx;

    if (all->len_bytes + len_bytes + 1 > all->capacity) {
        all->capacity = 2 * (all->len_bytes + len_bytes + 1);
        all->bytes    = realloc(all->bytes, all->capacity);
        CHECK(all->bytes != NULL);
    }
    memcpy(all->bytes + all->len_bytes, portion, len_bytes);
    all->len_bytes += len_bytes;
    all->bytes[all->len_bytes] = '\0';
    return SHERD_OK;
}

static text plan_text(const sherdi_plan *plan, const planner *b, sherd_plan_format format)
{
    text all = {0};

    CHECK_OK(sherdi_dry_print(plan, &b->model, format, text_add, &all));
    return all;
}

/* A plan that is made twice, whatever is made in between, gives the same bytes as a table and as
 * JSON. */
static void plan_is_pure(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options  options = {.stage = stage, .accumulation = 2, .dtype = SHERD_BF16};
        sherdi_plan *plans[3];
        planner      b;

        planner_open(&b);
        planner_declare_odd(&b, 640);
        planner_settings(&b, &options, 7);
        plans[0] = planner_plan(&b, 3, 7);
        plans[1] = planner_plan(&b, 0, 7); /* another plan in between */
        plans[2] = planner_plan(&b, 3, 7);
        for (int format = SHERD_PLAN_TABLE; format <= SHERD_PLAN_JSON; format++) {
            text one   = plan_text(plans[0], &b, (sherd_plan_format)format);
            text other = plan_text(plans[2], &b, (sherd_plan_format)format);

            CHECK_INT(one.len_bytes, other.len_bytes);
            CHECK_BYTES_EQUAL(one.bytes, other.bytes, one.len_bytes);
            free(one.bytes);
            free(other.bytes);
        }
        /* ranks own different parts, but hold and send the same number of bytes */
        CHECK_INT(plans[0]->packing.total_bytes, plans[1]->packing.total_bytes);
        CHECK_INT(sherdi_plan_moves_of(plans[0])->micro[SHERDI_MOVES_WIRE],
                  sherdi_plan_moves_of(plans[1])->micro[SHERDI_MOVES_WIRE]);
        CHECK_INT(sherdi_plan_moves_of(plans[0])->step[SHERDI_MOVES_WIRE],
                  sherdi_plan_moves_of(plans[1])->step[SHERDI_MOVES_WIRE]);
        CHECK_INT(plans[0]->layout.num_blocks, plans[1]->layout.num_blocks);
        for (int i = 0; i < 3; i++) {
            sherdi_plan_destroy(plans[i]);
        }
        planner_close(&b);
    }
}

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        test_fail(__FILE__, __LINE__, "no number %s in the plan's JSON", key);
    }
    return json_integer_value(value);
}

/* Returns the number that follows `row` in the table. */
static int64_t table_number(const text *table, const char *row)
{
    char        line[64];
    const char *at;

    (void)snprintf(line, sizeof(line), "\n%s", row);
    at = strstr(table->bytes, line);
    CHECK(at != NULL);
    at += strlen(line);
    return strtoll(at + strcspn(at, "0123456789"), NULL, 10);
}

static void plan_json_adds_up_to_the_table(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options   options = {.stage = stage, .accumulation = 2, .dtype = SHERD_BF16};
        int64_t       bytes   = 0;
        int64_t       micro   = 0;
        int64_t       elems   = 0;
        int64_t       padding = 0;
        sherdi_plan  *plan;
        const json_t *item;
        size_t        i;
        text          json;
        text          table;
        json_t       *root;
        planner       b;

        planner_open(&b);
        planner_declare_odd(&b, 640);
        planner_settings(&b, &options, 3);
        plan  = planner_plan(&b, 1, 3);
        json  = plan_text(plan, &b, SHERD_PLAN_JSON);
        table = plan_text(plan, &b, SHERD_PLAN_TABLE);
        root  = json_loadb(json.bytes, json.len_bytes, 0, NULL);
        CHECK(json_is_object(root));
        json_array_foreach(json_object_get(root, "buffers"), i, item)
        {
            bytes += number(item, "bytes");
            CHECK_INT(number(item, "bytes"),
                      table_number(&table, json_string_value(json_object_get(item, "name"))));
        }
        CHECK_INT(number(root, "device_bytes"), bytes);
        CHECK_INT(bytes, table_number(&table, "total "));
        json_array_foreach(json_object_get(root, "segments"), i, item)
        {
            elems += number(item, "elems");
            padding += number(item, "padded_elems") - number(item, "elems");
        }
        CHECK_INT(number(root, "param_elems"), elems);
        CHECK_INT(number(root, "padding_elems"), padding);
        json_array_foreach(json_object_get(root, "collectives"), i, item)
        {
            const char *phase = json_string_value(json_object_get(item, "phase"));

            micro += strcmp(phase, "forward") == 0 || strcmp(phase, "backward") == 0
                         ? number(item, "sent_bytes")
                         : 0;
        }
        CHECK_INT(number(root, "wire_bytes_per_micro_batch"), micro);
        CHECK_INT(micro, table_number(&table, "wire:"));
        CHECK_INT(b.model.num_params, json_array_size(json_object_get(root, "params")));
        json_decref(root);
        free(json.bytes);
        free(table.bytes);
        sherdi_plan_destroy(plan);
        planner_close(&b);
    }
}

/* At stage 3 in bf16, the owner of an element holds 2 bytes of parameter, 2 of gradient and 12 of
 * state. In addition, memory for gathered units and transient gradients, and the buffer for first
 * values. */
static void plan_of_stage_3_holds_16_bytes_an_element_shared(void)
{
    static const int RANKS[] = {2, 3, 8};

    for (size_t w = 0; w < sizeof(RANKS) / sizeof(RANKS[0]); w++) {
        rig_options  options = {.stage = 3, .dtype = SHERD_BF16};
        double       want;
        double       got;
        sherdi_plan *plan;
        planner      b;

        planner_open(&b);
        for (int u = 0; u < 12; u++) {
            char name[16];

            (void)snprintf(name, sizeof(name), "u%d", u);
            (void)planner_unit(&b, name);
            (void)planner_param(&b, u, 512 * 1024, 1, 0);
            (void)planner_param(&b, u, 1000, 1, 0);
        }
        planner_settings(&b, &options, RANKS[w]);
        plan = planner_plan(&b, 0, RANKS[w]);
        want = (double)b.model.total_elems * (2 + 2 + 12) / RANKS[w];
        got =
            (double)(plan->packing.total_bytes - plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes -
                     plan->packing.buffers[SHERDI_BUFFER_TRANSIENT].bytes -
                     plan->packing.buffers[SHERDI_BUFFER_FILL].bytes);
        CHECK(got >= want);
        CHECK_CLOSE(want, got, 0.01);
        /* room for a few units at a time, not for the model */
        CHECK(plan->packing.buffers[SHERDI_BUFFER_TRANSIENT].bytes <= (size_t)3 * (513 << 11));
        CHECK_INT(0, plan->packing.buffers[SHERDI_BUFFER_STAGING].bytes);
        CHECK(plan->packing.buffers[SHERDI_BUFFER_FILL].bytes <= SHERDI_FILL_ELEMS * sizeof(float));
        sherdi_plan_destroy(plan);
        planner_close(&b);
    }
}

/* A higher stage never takes more memory of a rank. */
static void plan_of_a_higher_stage_is_smaller(void)
{
    for (size_t w = 1; w < 6; w++) {
        size_t before = SIZE_MAX;

        for (int stage = 0; stage <= 3; stage++) {
            rig_options  options = {.stage = stage,
                                    .dtype = SHERD_BF16,
                                    .zero  = ", \"stage3_prefetch_bucket_size\": 0"};
            sherdi_plan *plan;
            planner      b;

            planner_open(&b);
            for (int u = 0; u < 8; u++) {
                char name[16];

                (void)snprintf(name, sizeof(name), "u%d", u);
                (void)planner_unit(&b, name);
                (void)planner_param(&b, u, 100000, 1, 0);
            }
            planner_settings(&b, &options, WORLDS[w]);
            plan = planner_plan(&b, 0, WORLDS[w]);
            CHECK(plan->packing.total_bytes < before);
            before = plan->packing.total_bytes;
            sherdi_plan_destroy(plan);
            planner_close(&b);
        }
    }
}

/* ----------------------------------------------------------- does it fit -- */

/* Checks whether a plan fits. With a `device_share` above 0, device memory is apart from the host's
 * and has room for that many bytes for each element. */
static void fit_case_on(int stage, int world_size, int ranks_per_host, double share,
                        double device_share, const char *says)
{
    rig_options    options = {.stage = stage, .dtype = SHERD_BF16};
    sherdi_machine machine = {.ranks_per_host = ranks_per_host,
                              .has_device     = device_share > 0,
                              .device_bytes   = (size_t)(device_share * 8 * 0x1p20)};
    sherdi_plan   *plan;
    planner        b;

    planner_open(&b);
    for (int u = 0; u < 8; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)planner_unit(&b, name);
        (void)planner_param(&b, u, 1 << 20, 1, 0);
    }
    planner_settings(&b, &options, world_size);
    machine.memory_bytes = (size_t)(share * 8 * 0x1p20 * ranks_per_host);
    CHECK_OK(sherdi_dry_plan(&b.model, &b.settings, 0, world_size, &machine, &b.mem, &plan));
    CHECK_STATUS(says == NULL ? SHERD_OK : SHERD_E_NOMEM, sherdi_plan_check_fit(plan, &b.model));
    if (says != NULL) {
        CHECK_ERROR_SAYS(says);
        CHECK_ERROR_SAYS("MiB more than");
    }
    sherdi_plan_destroy(plan);
    planner_close(&b);
}

static void fit_case(int stage, int world_size, int ranks_per_host, double share, const char *says)
{
    fit_case_on(stage, world_size, ranks_per_host, share, 0, says);
}

static void plan_that_does_not_fit_a_device_says_what_would(void)
{
    fit_case_on(0, 4, 4, 0.2, 17, NULL); /* the host only holds first values */
    fit_case_on(0, 4, 4, 16, 12, "zero_optimization.stage 1 would fit");
    fit_case_on(2, 2, 2, 16, 5, "offload_optimizer on cpu would fit");
    fit_case_on(3, 2, 2, 16, 3.5, "zero_optimization.stage 3 with offload_optimizer");
    fit_case_on(3, 1, 1, 12, 7, "on nvme would fit");
    fit_case_on(1, 4, 4, 16, 0.001, "no stage fits");
}

/* Checks plans with room for `share` bytes for each element and rank. */
static void plan_that_does_not_fit_says_what_would(void)
{
    fit_case(0, 4, 4, 17, NULL); /* 16 are needed */
    fit_case(0, 4, 4, 12, "zero_optimization.stage 1 would fit");
    fit_case(0, 4, 4, 6, "zero_optimization.stage 2 would fit");
    fit_case(2, 4, 4, 5.5, "zero_optimization.stage 3 with stage3_prefetch_bucket_size 0");
    fit_case(2, 4, 4, 4.9, "zero_optimization.stage 3 with stage3_prefetch_bucket_size 0");
    fit_case(3, 4, 4, 4.5,
             "stage3_prefetch_bucket_size 0 and sherd.master_encoding \"bf16_beside\"");
    fit_case(3, 4, 4, 2.5, "stage 3 on 32 ranks over 8 such hosts would fit");
    fit_case(3, 4, 4, 0.001, "no stage fits");
    fit_case(3, 64, 4, 3, NULL);
}

static void seal_under_a_limit(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 0};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    (void)rig_unit(&r, "unit");
    (void)rig_unit(&r, "other");
    (void)rig_param(&r, 0, "w", 1 << 19);
    (void)rig_param(&r, 1, "v", 1 << 19);
    CHECK_STATUS(SHERD_E_NOMEM, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("more than the 20.0 MiB that SHERD_MEMORY_LIMIT allows; ");
    CHECK_ERROR_SAYS("on each of 2 ranks");
    CHECK_ERROR_SAYS("stage 3 on 16 ranks over 8 such hosts would fit");
    rig_close(&r);
}

static void seal_under_nonsense(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 0};
    rig         r;

    rig_open(&r, world, &options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", 10);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("SHERD_MEMORY_LIMIT");
    CHECK_ERROR_SAYS(ctx);
    rig_close(&r);
}

static void memory_limit_of_the_environment_is_kept(void)
{
    static const char *const NONSENSE[] = {"2G", "0", "-1", "much"};

    CHECK_INT(0, setenv("SHERD_MEMORY_LIMIT", "20971520", 1));
    test_world(2, seal_under_a_limit, NULL);
    for (size_t i = 0; i < sizeof(NONSENSE) / sizeof(NONSENSE[0]); i++) {
        CHECK_INT(0, setenv("SHERD_MEMORY_LIMIT", NONSENSE[i], 1));
        test_world(2, seal_under_nonsense, (void *)(uintptr_t)NONSENSE[i]);
    }
    CHECK_INT(0, unsetenv("SHERD_MEMORY_LIMIT"));
}

static void write_file(const char *folder, const char *name, const char *content)
{
    char  path[256];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(content, file) >= 0);
    CHECK_INT(0, fclose(file));
}

/* The file cache of a control group can be given back, so it counts as free. */
static void control_group_leaves_what_is_not_used(void)
{
    char folder[128];

    (void)snprintf(folder, sizeof(folder), "%s/group", test_scratch());
    CHECK_INT(0, mkdir(folder, 0700));
    CHECK(sherdi_machine_group_left(folder) == SIZE_MAX);
    write_file(folder, "memory.max", "1000\n");
    write_file(folder, "memory.current", "900\n");
    CHECK_INT(100, sherdi_machine_group_left(folder));
    write_file(folder, "memory.stat", "anon 200\nfile 700\ninactive_file 600\n");
    CHECK_INT(700, sherdi_machine_group_left(folder));
    write_file(folder, "memory.max", "max\n");
    CHECK(sherdi_machine_group_left(folder) == SIZE_MAX);
    write_file(folder, "memory.limit_in_bytes", "2000\n");
    write_file(folder, "memory.usage_in_bytes", "2500\n");
    CHECK_INT(0, sherdi_machine_group_left(folder));
    write_file(folder, "memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
    CHECK_INT(500, sherdi_machine_group_left(folder));
}

/* One rank of a large world is simulated alone. It plans, holds and sends what a real one would. */
static void simulated_rank_holds_and_sends_what_it_plans(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options         options = {.stage = stage, .accumulation = 2, .dtype = SHERD_BF16};
        sherd_memory_report planned = {.struct_size = sizeof(planned)};
        sherd_memory_report held    = {.struct_size = sizeof(held)};
        uint64_t            sent[2];
        uint64_t            received;
        sherd_world        *world;
        text                json = {0};
        json_t             *root;
        rig                 r;

        CHECK_OK(sherd_world_simulate(5, 1024, &world));
        rig_open(&r, world, &options);
        (void)rig_unit(&r, "first");
        (void)rig_unit(&r, "second");
        (void)rig_param(&r, 0, "a", 100000);
        (void)rig_param(&r, 1, "b", 777);
        CHECK_OK(sherd_engine_memory(r.engine, &planned));
        CHECK_INT(0, planned.total_held);
        rig_seal(&r);
        CHECK_OK(sherd_engine_memory(r.engine, &held));
        CHECK_INT(planned.total_planned, held.total_planned);
        CHECK_INT(held.total_planned, held.total_held);
        CHECK_OK(sherd_engine_plan(r.engine, SHERD_PLAN_JSON, text_add, &json));
        root = json_loadb(json.bytes, json.len_bytes, 0, NULL);
        CHECK_INT(1024, number(root, "world_size"));
        (void)rig_train(&r, 2);
        sherd_world_traffic(world, &sent[0], &received);
        CHECK_INT(2, rig_train(&r, 2).step);
        sherd_world_traffic(world, &sent[1], &received);
        CHECK_INT(2 * number(root, "wire_bytes_per_micro_batch") +
                      number(root, "wire_bytes_per_boundary"),
                  sent[1] - sent[0]);
        json_decref(root);
        free(json.bytes);
        rig_close(&r);
        sherd_world_destroy(world);
    }
}

static const test_case CASES[] = {
    CASE(plan_is_pure),
    CASE(plan_json_adds_up_to_the_table),
    CASE(plan_of_stage_3_holds_16_bytes_an_element_shared),
    CASE(plan_of_a_higher_stage_is_smaller),
    CASE(plan_that_does_not_fit_says_what_would),
    CASE(plan_that_does_not_fit_a_device_says_what_would),
    CASE(memory_limit_of_the_environment_is_kept),
    CASE(control_group_leaves_what_is_not_used),
    CASE(simulated_rank_holds_and_sends_what_it_plans),
};

RUN_MAIN(CASES)
