/* A client of the core alone: trains at stage 3 on two threads from sherd_settings, and prints the
 * fingerprint of the weights. With an argument it then makes a call of a module and prints how that
 * failed. */
#include <pthread.h>
#include <sherd.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2, UNITS = 3, ELEMS = 1000, STEPS = 4 };

static void need(sherd_status status)
{
    if (status != SHERD_OK) {
        fprintf(stderr, "%s\n", sherd_last_error());
        exit(1);
    }
}

static sherd_status values(void *ctx, size_t first, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)((first + i) % 7) * *(const float *)ctx;
    }
    return SHERD_OK;
}

static sherd_engine *engine_make(sherd_world *world, sherd_unit *units, sherd_param *params)
{
    static const char *const NAMES[UNITS] = {"a", "b", "c"};
    sherd_engine            *engine;
    sherd_config            *config;
    sherd_settings           settings;
    sherd_unit_params        unit;
    sherd_param_params       param;
    float                    scale = 0.125f;

    sherd_settings_init(&settings);
    settings.stage                 = 3;
    settings.micro_batch_size      = 1;
    settings.lr                    = 0.01;
    settings.dtype                 = SHERD_BF16;
    settings.persistence_threshold = 0;
    settings.sub_group_size        = 128;
    need(sherd_config_from_settings(&settings, &config));
    need(sherd_engine_create(world, config, &engine));
    sherd_config_destroy(config);
    sherd_unit_params_init(&unit);
    sherd_param_params_init(&param);
    param.ndim     = 1;
    param.shape[0] = ELEMS;
    for (int u = 0; u < UNITS; u++) {
        unit.name = param.name = NAMES[u];
        need(sherd_unit_add(engine, &unit, &units[u]));
        need(sherd_param_add(engine, units[u], &param, &params[u]));
    }
    need(sherd_engine_seal(engine));
    for (int u = 0; u < UNITS; u++) {
        need(sherd_param_fill(engine, params[u], values, &scale));
    }
    return engine;
}

/* The gradient is a function of the parameter's own bits and the rank. */
static void unit_pass(sherd_engine *engine, sherd_unit unit, sherd_param param, int rank)
{
    const uint16_t *data;
    uint16_t       *grad;

    need(sherd_unit_acquire(engine, unit, SHERD_BACKWARD));
    data = sherd_param_data(engine, param);
    grad = sherd_param_grad(engine, param);
    for (int i = 0; i < ELEMS; i++) { /* bf16 between 1 and 2, with the sign of the rank */
        grad[i] =
            (uint16_t)(0x3f80 | ((data[i] ^ i) & 0x7f) | (rank == 1 && i % 3 == 0 ? 0x8000 : 0));
    }
    need(sherd_unit_release(engine, unit, SHERD_BACKWARD));
}

static void *rank_run(void *world)
{
    sherd_unit    units[UNITS];
    sherd_param   params[UNITS];
    sherd_engine *engine      = engine_make(world, units, params);
    uint64_t      fingerprint = 0;

    for (int step = 0; step < STEPS; step++) {
        for (int u = 0; u < UNITS; u++) {
            need(sherd_unit_acquire(engine, units[u], SHERD_FORWARD));
            need(sherd_unit_release(engine, units[u], SHERD_FORWARD));
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            unit_pass(engine, units[u], params[u], sherd_world_rank(world));
        }
        need(sherd_step(engine, NULL));
    }
    need(sherd_engine_fingerprint(engine, &fingerprint));
    if (sherd_world_rank(world) == 0) {
        printf("%016llx\n", (unsigned long long)fingerprint);
    }
    sherd_engine_destroy(engine);
    sherd_world_destroy(world);
    return NULL;
}

int main(int argc, char **argv)
{
    sherd_world *worlds[RANKS];
    pthread_t    threads[RANKS];

    (void)argv;
    need(sherd_world_threads(RANKS, worlds));
    for (int r = 0; r < RANKS; r++) {
        if (pthread_create(&threads[r], NULL, rank_run, worlds[r]) != 0) {
            return 1;
        }
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(threads[r], NULL);
    }
    if (argc > 1) {
        sherd_status status = sherd_checkpoint_save(NULL, "/nowhere", "tag", NULL);

        printf("%s: %s\n", sherd_status_name(status), sherd_last_error());
    }
    return 0;
}
