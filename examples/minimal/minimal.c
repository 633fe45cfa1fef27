#include <sherd.h>
#include <stdio.h>

#define TRY(call) if ((call) != SHERD_OK) { fprintf(stderr, "%s\n", sherd_last_error()); return 1; }

static sherd_status zeros(void *ctx, size_t first, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = 0;
    return (void)ctx, (void)first, SHERD_OK;
}

int main(void) /* fits y = 3x + 1; alone or under mpirun, srun, torchrun */
{
    sherd_world *world; sherd_config *config; sherd_engine *engine; sherd_settings settings;
    sherd_unit line; sherd_param w; sherd_unit_params unit; sherd_param_params param; float *g;

    sherd_settings_init(&settings);  settings.stage = 3; settings.lr = 0.05;
    settings.micro_batch_size = 1; /* AdamW, fp32, and gradients clipped to 1 are the defaults */
    sherd_unit_params_init(&unit);   unit.name = "line";
    sherd_param_params_init(&param); param.name = "w"; param.ndim = 1; param.shape[0] = 2;
    TRY(sherd_launcher() ? sherd_world_from_env(NULL, &world) : sherd_world_self(&world));
    TRY(sherd_config_from_settings(&settings, &config)); /* or sherd_config_load, of a file */
    TRY(sherd_engine_create(world, config, &engine));
    TRY(sherd_unit_add(engine, &unit, &line));
    TRY(sherd_param_add(engine, line, &param, &w));
    TRY(sherd_engine_seal(engine));  /* plans, then allocates; after it nothing does */
    TRY(sherd_param_fill(engine, w, zeros, NULL));
    for (int step = 0; step < 300; step++) {
        float x = (float)((step * 7 + sherd_world_rank(world) * 3) % 10) / 10, error;
        const float *v;
        TRY(sherd_unit_acquire(engine, line, SHERD_FORWARD));
        v = sherd_param_data(engine, w); error = v[0] * x + v[1] - (3 * x + 1);
        TRY(sherd_unit_release(engine, line, SHERD_FORWARD));
        TRY(sherd_unit_acquire(engine, line, SHERD_BACKWARD));
        g = sherd_param_grad(engine, w); g[0] += 2 * error * x; g[1] += 2 * error;
        TRY(sherd_unit_release(engine, line, SHERD_BACKWARD));
        TRY(sherd_step(engine, NULL)); /* reduces, clips, updates */
    }
    TRY(sherd_unit_acquire(engine, line, SHERD_EVAL));
    g = sherd_param_data(engine, w);
    printf("rank %d of %d: y = %.2f x + %.2f\n", sherd_world_rank(world), sherd_world_size(world),
           g[0], g[1]);
    sherd_engine_destroy(engine); sherd_config_destroy(config); sherd_world_destroy(world);
    return 0;
}
