#include "engine/proof/emit.h"
#include "tests/engine/planner.h"

#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

const sherdi_machine PLANNER_UNKNOWN = {.ranks_per_host = 1};

void planner_open(planner *b)
{
    memset(b, 0, sizeof(*b));
    sherdi_mem_init(&b->mem);
    CHECK_OK(sherdi_model_init(&b->model, &b->mem));
}

void planner_settings(planner *b, const rig_options *options, int world_size)
{
    const char   *json = rig_json(options);
    sherd_config *config;

    CHECK_OK(sherd_config_parse(json, strlen(json), &config));
    CHECK_OK(sherdi_config_resolve(config, world_size, &b->settings));
    sherd_config_destroy(config);
}

void planner_close(planner *b)
{
    sherdi_model_fini(&b->model);
    CHECK_INT(0, sherdi_mem_held_all(&b->mem));
}

int planner_unit_as(planner *b, const char *name, sherd_unit_params *params)
{
    int unit;

    params->name = name;
    CHECK_OK(sherdi_model_add_unit(&b->model, params, &unit));
    return unit;
}

int planner_unit(planner *b, const char *name)
{
    sherd_unit_params params;

    sherd_unit_params_init(&params);
    return planner_unit_as(b, name, &params);
}

int planner_param(planner *b, int unit, size_t elems, size_t atom_elems, int is_frozen)
{
    sherd_param_params params;
    char               name[32];
    int                param;

    sherd_param_params_init(&params);
    (void)snprintf(name, sizeof(name), "p%zu", b->model.num_params);
    params.name       = name;
    params.ndim       = 1;
    params.shape[0]   = elems;
    params.atom_elems = atom_elems;
    params.frozen     = is_frozen;
    params.dtype      = b->wide >> b->model.num_params & 1 ? SHERD_F32 : -1;
    CHECK_OK(sherdi_model_add_param(&b->model, unit, &params, &param));
    return param;
}

sherdi_plan *planner_plan(planner *b, int rank, int world_size)
{
    sherdi_plan *plan;

    CHECK_OK(sherdi_dry_plan(&b->model, &b->settings, rank, world_size, &PLANNER_UNKNOWN, &b->mem,
                             &plan));
    return plan;
}

void planner_declare_odd(planner *b, size_t slice_elems)
{
    const size_t ELEMS[] = {0,  1,   63,  64, 65, slice_elems - 1,    slice_elems, slice_elems + 1,
                            13, 129, 700, 1,  0,  5 * slice_elems + 3};
    const int    UNIT[]  = {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5};

    for (int u = 0; u < 6; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)planner_unit(b, name);
    }
    for (size_t p = 0; p < sizeof(ELEMS) / sizeof(ELEMS[0]); p++) {
        (void)planner_param(b, UNIT[p], ELEMS[p], 1, p == 4 || p == 9);
    }
    CHECK_OK(sherdi_model_add_read(&b->model, 5, 3));
    CHECK_OK(sherdi_model_add_read(&b->model, 3, 13));
}
