/* Fits y = 3x + 1 to points that are scattered around it, while ranks come, leave and die:
 *
 *   sherd launch -n 4 --elastic 2:6 elastic STEPS
 *
 * A step has twelve micro-batches of one sample, whoever makes them. */
#include <sherd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != SHERD_OK) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, sherd_last_error());                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const char json[] = "{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 1,"
                           "\"deterministic\": true, \"sherd\": {\"redundancy\": \"host\"},"
                           "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.05}},"
                           "\"zero_optimization\": {\"stage\": 3}}";

static sherd_status zeros(void *ctx, size_t first, size_t n, float *out)
{
    (void)ctx, (void)first;
    memset(out, 0, n * sizeof(*out));
    return SHERD_OK;
}

static void declare(sherd_engine *engine, sherd_unit *line, sherd_param *w)
{
    sherd_unit_params  unit;
    sherd_param_params param;

    sherd_unit_params_init(&unit);
    unit.name = "line";
    sherd_param_params_init(&param);
    param.name     = "w";
    param.ndim     = 1;
    param.shape[0] = 2;
    TRY(sherd_unit_add(engine, &unit, line));
    TRY(sherd_param_add(engine, *line, &param, w));
}

/* Makes a micro-batch. The sample, and the seed of dropout where there is any, depend on its number
 * alone: not on the rank, nor on the number of ranks. */
static sherd_status pass(sherd_engine *engine, sherd_unit line, sherd_param w, long long number)
{
    float        x = (float)(number * 7 % 10) / 10;
    float        y = 3 * x + 1 + (float)(number * 13 % 101 - 50) / 500;
    float        error;
    sherd_status status = sherd_unit_acquire(engine, line, SHERD_FORWARD);
    const float *v;
    float       *g;

    if (status != SHERD_OK) {
        return status;
    }
    v      = sherd_param_data(engine, w);
    error  = v[0] * x + v[1] - y;
    status = sherd_unit_release(engine, line, SHERD_FORWARD);
    if (status == SHERD_OK) {
        status = sherd_unit_acquire(engine, line, SHERD_BACKWARD);
    }
    if (status != SHERD_OK) {
        return status;
    }
    g = sherd_param_grad(engine, w);
    g[0] += 2 * error * x;
    g[1] += 2 * error;
    return sherd_unit_release(engine, line, SHERD_BACKWARD);
}

/* Makes this rank's micro-batches of a step, and the step. */
static sherd_status step(sherd_engine *engine, sherd_unit line, sherd_param w)
{
    sherd_share  share;
    sherd_status status;

    sherd_share_init(&share);
    status = sherd_step_share(engine, &share);
    for (int k = 0; k < share.calls && status == SHERD_OK; k++) {
        status = k < share.count ? pass(engine, line, w, share.number + (long long)k * share.stride)
                                 : sherd_micro_batch_skip(engine);
        if (status == SHERD_OK) {
            status = sherd_step(engine, NULL);
        }
    }
    return status;
}

/* Takes the engine to another world; NULL: this rank leaves. */
static sherd_status move(sherd_engine *engine, sherd_world **world, sherd_world *next)
{
    sherd_status status = sherd_engine_move(engine, next);

    if (status != SHERD_OK) {
        sherd_world_destroy(next);
        return status;
    }
    sherd_world_destroy(*world);
    *world = next;
    return SHERD_OK;
}

/* Between two steps: takes in newcomers, or leaves. */
static sherd_status turn(sherd_engine *engine, sherd_world **world)
{
    sherd_world *next   = NULL;
    sherd_status status = sherd_world_turn(*world, &next);

    return status != SHERD_OK || next == *world ? status : move(engine, world, next);
}

/* A rank is lost: goes on without it. Again, if one more is lost in the move. */
static void recover(sherd_engine *engine, sherd_world **world)
{
    sherd_status status;

    do {
        sherd_world *next = NULL;

        TRY(sherd_world_shrink(*world, &next));
        status = move(engine, world, next);
    } while (status == SHERD_E_PEER_LOST);
    TRY(status); /* the state is gone: load a checkpoint in a new job */
}

/* A newcomer: declares the model, is taken in, and gets everything by the move. Returns NULL where it
 * is not needed. */
static sherd_world *join(sherd_config *config, sherd_engine **engine, sherd_unit *line,
                         sherd_param *w)
{
    for (;;) {
        sherd_world *alone, *world;
        sherd_status status;

        TRY(sherd_world_self(&alone));
        TRY(sherd_engine_create(alone, config, engine));
        declare(*engine, line, w);
        TRY(sherd_world_join(NULL, &world));
        status = world == NULL ? SHERD_OK : sherd_engine_move(*engine, world);
        sherd_world_destroy(alone);
        if (status == SHERD_OK) {
            return world;
        }
        sherd_engine_destroy(*engine); /* one of the others was lost: once more */
        sherd_world_destroy(world);
    }
}

static sherd_world *begin(sherd_config *config, sherd_engine **engine, sherd_unit *line,
                          sherd_param *w)
{
    sherd_world *world;

    TRY(sherd_world_from_env(NULL, &world));
    TRY(sherd_engine_create(world, config, engine));
    declare(*engine, line, w);
    TRY(sherd_engine_seal(*engine));
    TRY(sherd_param_fill(*engine, *w, zeros, NULL));
    return world;
}

int main(int argc, char **argv)
{
    long long     steps  = argc == 2 ? atoll(argv[1]) : 200;
    int           is_new = sherd_launched_late();
    sherd_world  *world;
    sherd_config *config;
    sherd_engine *engine;
    sherd_unit    line;
    sherd_param   w;
    sherd_share   share;
    uint64_t      fingerprint = 0;

    TRY(sherd_config_parse(json, sizeof(json) - 1, &config));
    world = is_new ? join(config, &engine, &line, &w) : begin(config, &engine, &line, &w);
    sherd_share_init(&share);

    while (world != NULL) {
        sherd_status status = is_new ? SHERD_OK : turn(engine, &world);

        is_new = 0; /* the turn that has taken it in was its turn, too */
        if (status == SHERD_OK && world != NULL) {
            TRY(sherd_step_share(engine, &share));
            if (share.window_first / share.window_count >= steps) {
                break;
            }
            status = step(engine, line, w);
        }
        if (status == SHERD_E_PEER_LOST) {
            recover(engine, &world);
        } else {
            TRY(status);
        }
    }

    if (world != NULL) {
        TRY(sherd_engine_fingerprint(engine, &fingerprint));
    }
    if (world != NULL && sherd_world_rank(world) == 0) {
        printf("%lld steps: fingerprint %016llx\n", steps, (unsigned long long)fingerprint);
    }
    sherd_engine_destroy(engine);
    sherd_config_destroy(config);
    sherd_world_destroy(world);
    return 0;
}
