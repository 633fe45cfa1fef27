/* Fits y = 3x + 1 as examples/minimal does, saves a checkpoint every 50 steps, and goes on from the
 * latest one when it is started again, on any number of ranks: resume FOLDER STEPS. */
#include <sherd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != SHERD_OK) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, sherd_last_error());                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char json[] = "{\"train_micro_batch_size_per_gpu\": 1,"
                           "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.05}},"
                           "\"zero_optimization\": {\"stage\": 3}}";

static sherd_status zeros(void *ctx, size_t first, size_t n, float *out)
{
    (void)ctx, (void)first;
    memset(out, 0, n * sizeof(*out));
    return SHERD_OK;
}

/* Whether the folder has a checkpoint: rank 0 looks, and broadcasts the answer. */
static int has_checkpoint(sherd_world *world, const char *folder)
{
    char        latest[4096];
    struct stat info;
    int         is_there;

    (void)snprintf(latest, sizeof(latest), "%s/latest", folder);
    is_there = stat(latest, &info) == 0;
    TRY(sherd_world_broadcast(world, &is_there, sizeof(is_there), 0));
    return is_there;
}

/* A micro-batch of one sample, which depends on its number alone. */
static void train(sherd_world *world, sherd_engine *engine, sherd_unit line, sherd_param w,
                  long long sample)
{
    float        x = (float)((sample * 7 + sherd_world_rank(world) * 3) % 10) / 10;
    float        error;
    const float *v;
    float       *g;

    TRY(sherd_unit_acquire(engine, line, SHERD_FORWARD));
    v     = sherd_param_data(engine, w);
    error = v[0] * x + v[1] - (3 * x + 1);
    TRY(sherd_unit_release(engine, line, SHERD_FORWARD));
    TRY(sherd_unit_acquire(engine, line, SHERD_BACKWARD));
    g = sherd_param_grad(engine, w);
    g[0] += 2 * error * x;
    g[1] += 2 * error;
    TRY(sherd_unit_release(engine, line, SHERD_BACKWARD));
}

int main(int argc, char **argv)
{
    const char        *folder = argc == 3 ? argv[1] : "saves";
    int                steps  = argc == 3 ? atoi(argv[2]) : 300;
    sherd_world       *world;
    sherd_config      *config;
    sherd_engine      *engine;
    sherd_unit         line;
    sherd_param        w;
    sherd_unit_params  unit;
    sherd_param_params param;
    sherd_engine_info  info;
    uint64_t           fingerprint;

    sherd_unit_params_init(&unit);
    unit.name = "line";
    sherd_param_params_init(&param);
    param.name     = "w";
    param.ndim     = 1;
    param.shape[0] = 2;
    TRY(sherd_world_from_env(NULL, &world));
    TRY(sherd_config_parse(json, sizeof(json) - 1, &config));
    TRY(sherd_engine_create(world, config, &engine));
    TRY(sherd_unit_add(engine, &unit, &line));
    TRY(sherd_param_add(engine, line, &param, &w));
    TRY(sherd_engine_seal(engine));

    if (has_checkpoint(world, folder)) { /* after seal, in place of the first values: the latest */
        TRY(sherd_checkpoint_load(engine, folder, NULL, NULL));
    } else {
        TRY(sherd_param_fill(engine, w, zeros, NULL));
    }
    sherd_engine_info_init(&info);
    TRY(sherd_engine_query(engine, &info)); /* info.step: updates that the run has done */

    for (int step = (int)info.step + 1; step <= steps; step++) {
        train(world, engine, line, w, step); /* the data follow from the step */
        TRY(sherd_step(engine, NULL));
        if (step % 50 == 0) { /* every rank, between steps: FOLDER/step-000050 */
            TRY(sherd_checkpoint_save(engine, folder, NULL, NULL));
        }
    }

    TRY(sherd_engine_fingerprint(engine, &fingerprint));
    if (sherd_world_rank(world) == 0) {
        printf("steps %lld to %d: fingerprint %016llx\n", (long long)info.step + 1, steps,
               (unsigned long long)fingerprint);
    }
    sherd_engine_destroy(engine);
    sherd_config_destroy(config);
    sherd_world_destroy(world);
    return 0;
}
