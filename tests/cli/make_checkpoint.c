/* Saves checkpoints as a trainer would, for test_checkpoint.sh: make_checkpoint DIR TAG... */
#include "sherd.h"

#include <stdio.h>
#include <string.h>

static const char CONFIG[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
    "{\"lr\": 0.01}}, \"zero_optimization\": {\"stage\": 2}}";

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = (float)(first_elem + i) / 1024;
    }
    return SHERD_OK;
}

static sherd_status param_add(sherd_engine *engine, sherd_unit unit, const char *name, int frozen,
                              sherd_param *out)
{
    sherd_param_params params;

    sherd_param_params_init(&params);
    params.name     = name;
    params.ndim     = 2;
    params.shape[0] = 300;
    params.shape[1] = 128;
    params.frozen   = frozen;
    return sherd_param_add(engine, unit, &params, out);
}

static sherd_status model_make(sherd_engine *engine)
{
    static const char *const NAMES[] = {"embed.weight", "head\033[31m.weight", "fixed.weight"};
    sherd_unit_params        params;
    sherd_unit               unit;
    sherd_param              param[3];
    sherd_status             status;

    sherd_unit_params_init(&params);
    params.name = "unit";
    status      = sherd_unit_add(engine, &params, &unit);
    for (int p = 0; p < 3 && status == SHERD_OK; p++) {
        status = param_add(engine, unit, NAMES[p], p == 2, &param[p]);
    }
    status = status == SHERD_OK ? sherd_engine_seal(engine) : status;
    for (int p = 0; p < 3 && status == SHERD_OK; p++) {
        status = sherd_param_fill(engine, param[p], fill, NULL);
    }
    return status;
}

static sherd_status save_all(char **argv)
{
    sherd_config *config;
    sherd_world  *world  = NULL;
    sherd_engine *engine = NULL;
    sherd_status  status = sherd_config_parse(CONFIG, strlen(CONFIG), &config);

    status = status == SHERD_OK ? sherd_world_self(&world) : status;
    status = status == SHERD_OK ? sherd_engine_create(world, config, &engine) : status;
    status = status == SHERD_OK ? model_make(engine) : status;
    for (int i = 2; argv[i] != NULL && status == SHERD_OK; i++) {
        status = sherd_checkpoint_save(engine, argv[1], argv[i], NULL);
    }
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    sherd_config_destroy(config);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        return 2;
    }
    if (save_all(argv) != SHERD_OK) {
        (void)fprintf(stderr, "make_checkpoint: %s\n", sherd_last_error());
        return 1;
    }
    return 0;
}
