/* See rig.h. */
#include "tests/planning/rig.h"

#include <string.h>

static const char CONFIG[] = "{\"train_micro_batch_size_per_gpu\": 1,"
                             " \"optimizer\": {\"type\": \"AdamW\"},"
                             " \"zero_optimization\": {\"stage\": 3}}";

sherd_engine *rig_engine_open(sherd_world **world_out)
{
    sherd_config *config;
    sherd_engine *engine;

    CHECK_OK(sherd_world_simulate(1, 3, world_out));
    CHECK_OK(sherd_config_parse(CONFIG, strlen(CONFIG), &config));
    CHECK_OK(sherd_engine_create(*world_out, config, &engine));
    sherd_config_destroy(config);
    return engine;
}

void rig_engine_close(sherd_engine *engine, sherd_world *world)
{
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
}

static void check_sums(const planning_model *model)
{
    size_t elems = 0, num_params = 0;

    for (size_t u = 0; u < model->num_units; u++) {
        CHECK_INT(num_params, model->units[u].first_param);
        num_params += model->units[u].num_params;
    }
    CHECK_INT(model->num_params, num_params);
    for (size_t k = 0; k < model->num_params; k++) {
        elems += model->params[k].elems;
    }
    CHECK_INT(model->elems, elems);
}

void rig_check_declared(const planning_model *model)
{
    sherd_world      *world;
    sherd_engine     *engine = rig_engine_open(&world);
    sherd_engine_info info;
    size_t            trainable = 0;

    check_sums(model);
    CHECK_OK(planning_model_declare(model, engine));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(engine, &info));
    CHECK_INT(model->elems, info.param_elems);
    for (size_t k = 0; k < model->num_params; k++) {
        trainable += model->params[k].is_frozen ? 0 : model->params[k].elems;
    }
    CHECK_INT(trainable, info.trainable_elems);
    rig_engine_close(engine, world);
}
