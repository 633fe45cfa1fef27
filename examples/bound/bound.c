/* bound: a program whose parameters stay in its own memory. The network below is a struct of plain
 * arrays: its functions use the weights by name, and its file is a copy of the struct.
 * sherd_param_bind passes the addresses of the arrays to sherd, which reads gradients, writes new
 * values and shards the optimizer's state. No function of the network changes.
 *
 * Programs that use addresses of sherd (examples/minimal, examples/gpt2) need less memory, and can
 * use stage 3.
 *
 *     ./bound [STAGE [FILE]]   alone; or as ranks by sherd launch, mpirun, torchrun or srun */
#include <sherd.h>

#include <math.h>
#include <stdio.h>

#define TRY(call)                                                                                  \
    if ((call) != SHERD_OK) {                                                                      \
        (void)fprintf(stderr, "bound: %s\n", sherd_last_error());                                  \
        return 1;                                                                                  \
    }

/* ------------------------------------------ the program as it was ---- */

enum { HIDDEN = 32, BATCH = 16, STEPS = 600 };

typedef struct network {
    float weight[HIDDEN], bias[HIDDEN], out_weight[HIDDEN], out_bias;
} network;

static network net, slope; /* the weights; the gradient of the loss, to which network_learn adds */

static void network_begin(void)
{
    for (int i = 0; i < HIDDEN; i++) {
        net.weight[i]     = 2.0f * sinf(1.0f + (float)i);
        net.bias[i]       = 2.0f * cosf(3.0f * (float)i);
        net.out_weight[i] = 0.1f * sinf(5.0f * (float)i);
    }
}

static float network_value(float x)
{
    float y = net.out_bias;

    for (int i = 0; i < HIDDEN; i++) {
        y += net.out_weight[i] * tanhf(net.weight[i] * x + net.bias[i]);
    }
    return y;
}

/* Adds the gradient of weight * (value - wanted)^2. */
static void network_learn(float x, float wanted, float weight)
{
    float down = 2.0f * weight * (network_value(x) - wanted);

    slope.out_bias += down;
    for (int i = 0; i < HIDDEN; i++) {
        float h = tanhf(net.weight[i] * x + net.bias[i]),
              d = down * net.out_weight[i] * (1 - h * h);

        slope.out_weight[i] += down * h;
        slope.weight[i] += d * x;
        slope.bias[i] += d;
    }
}

static int network_save(const char *path)
{
    FILE *file = fopen(path, "wb");

    return file == NULL || fwrite(&net, sizeof(net), 1, file) != 1 || fclose(file) != 0;
}

/* -------------------------------------------- the additions for sherd ---- */

/* Declares and binds the arrays. They are not filled: their memory has the first values. */
static int network_bind(sherd_engine *engine, sherd_unit *out)
{
    const struct {
        const char *name;
        float      *data, *grad;
        size_t      elems;
    } arrays[] = {{"weight", net.weight, slope.weight, HIDDEN},
                  {"bias", net.bias, slope.bias, HIDDEN},
                  {"out_weight", net.out_weight, slope.out_weight, HIDDEN},
                  {"out_bias", &net.out_bias, &slope.out_bias, 1}};
    sherd_unit_params unit;

    sherd_unit_params_init(&unit);
    unit.name = "network";
    TRY(sherd_unit_add(engine, &unit, out));
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        sherd_param_params params;
        sherd_param        param;

        sherd_param_params_init(&params);
        params.name     = arrays[i].name;
        params.ndim     = 1;
        params.shape[0] = arrays[i].elems;
        TRY(sherd_param_add(engine, *out, &params, &param));
        TRY(sherd_param_bind(engine, param, arrays[i].data, arrays[i].grad));
    }
    return 0;
}

/* A step. sherd zeroes `slope` at acquire, reads it at release, and has written new weights to
 * `net` when sherd_step returns. FORWARD is not acquired: network_learn has it inside. */
static int step_run(sherd_engine *engine, sherd_unit unit, int number)
{
    TRY(sherd_unit_acquire(engine, unit, SHERD_BACKWARD));
    for (int i = 0; i < BATCH; i++) {
        float x = sinf((float)(number * BATCH + i)) * 3.0f;

        network_learn(x, sinf(x), 1.0f / BATCH);
    }
    TRY(sherd_unit_release(engine, unit, SHERD_BACKWARD));
    TRY(sherd_step(engine, NULL));
    return 0;
}

int main(int argc, char **argv)
{
    static const char json[] = "{\"train_micro_batch_size_per_gpu\": 16,"
                               "\"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01}}}";
    sherd_world      *world;
    sherd_config     *config;
    sherd_engine     *engine;
    sherd_unit        unit;
    int               result;

    network_begin();
    TRY(sherd_world_from_env(NULL, &world));
    TRY(sherd_config_parse(json, sizeof(json) - 1, &config));
    TRY(sherd_config_set(config, "zero_optimization.stage", argc > 1 ? argv[1] : "1"));
    TRY(sherd_engine_create(world, config, &engine));
    result = network_bind(engine, &unit);
    if (result == 0) {
        TRY(sherd_engine_seal(engine));
    }
    for (int step = 0; step < STEPS && result == 0; step++) {
        result = step_run(engine, unit, step * sherd_world_size(world) + sherd_world_rank(world));
    }
    if (result == 0 && sherd_world_rank(world) == 0) {
        printf("sin(1) = %.3f, the network says %.3f\n", sin(1.0), (double)network_value(1.0f));
        result = argc > 2 ? network_save(argv[2]) : 0;
    }
    sherd_engine_destroy(engine); /* before the memory that is bound ends */
    sherd_config_destroy(config);
    sherd_world_destroy(world);
    return result;
}
