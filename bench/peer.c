/* One rank of the C trainer's model in the comparison of pytorch.py, which starts it: the weights
 * and the rows come from files, what to do comes by lines on standard input ("step COUNT"), and
 * answers are lines of JSON. The rank, the world and where they meet are in the environment, as
 * torchrun sets it. */
#include "bench/options.h"

#include "models/blas.h"
#include "trainer/declare.h"
#include "trainer/passes.h"
#include "trainer/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct peer {
    arch        sizes;
    size_t      batch, length;
    int         threads;
    double      started; /* seconds since 1970 */
    const char *config, *weights, *rows;

    sherd_world  *world;
    sherd_engine *engine;
    pool         *pool;
    passes       *passes;
    int32_t      *drawn;             /* [num_drawn, batch, length + 1]: this rank's */
    int32_t      *tokens;            /* inputs, targets [batch, length] */
    size_t        num_drawn, number; /* micro-batches there are, so far trained on */
    char          why[512];
} peer;

static double clock_seconds(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int peer_fail(peer *p, const char *what)
{
    (void)snprintf(p->why, sizeof(p->why), "%s", what[0] != '\0' ? what : sherd_last_error());
    return -1;
}

/* ---------------------------------------------------------------- set-up -- */

static sherd_status engine_open(peer *p)
{
    sherd_world_params params;
    sherd_config      *config = NULL;
    sherd_status       status;

    sherd_world_params_init(&params);
    params.cpu_threads = p->threads;
    status             = sherd_world_from_env(&params, &p->world);
    if (status == SHERD_OK) {
        status = sherd_config_parse(p->config, strlen(p->config), &config);
    }
    if (status == SHERD_OK) {
        status = sherd_engine_create(p->world, config, &p->engine);
    }
    sherd_config_destroy(config);
    if (status == SHERD_OK) {
        status = arch_declare(&p->sizes, p->engine);
    }
    return status == SHERD_OK ? sherd_engine_seal(p->engine) : status;
}

static int model_open(peer *p)
{
    sherd_engine_info info     = {.struct_size = sizeof(info)};
    model_params      params   = {.sizes = p->sizes, .batch = p->batch, .length = p->length};
    char              why[256] = "";

    if (sherd_engine_query(p->engine, &info) != SHERD_OK) {
        return peer_fail(p, "");
    }
    p->pool        = pool_create(p->threads);
    params.threads = p->pool;
    params.dtype   = info.compute_dtype;
    p->passes      = p->pool == NULL ? NULL : passes_create(p->engine, &params, why, sizeof(why));
    if (p->passes == NULL) {
        return peer_fail(p, why[0] != '\0' ? why : "threads cannot be started");
    }
    if (weights_import(&p->sizes, p->engine, p->weights, why, sizeof(why)) != SHERD_OK) {
        return peer_fail(p, why);
    }
    return 0;
}

/* The file has [number, rank, batch, length + 1] tokens of 4 bytes; only this rank's stay. */
static int rows_open(peer *p)
{
    size_t world = (size_t)sherd_world_size(p->world), rank = (size_t)sherd_world_rank(p->world);
    size_t each = p->batch * (p->length + 1), len_bytes = each * sizeof(int32_t);
    FILE  *file = fopen(p->rows, "rb");
    long   end  = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
    int    is_read;

    p->num_drawn = (size_t)end / (world * len_bytes);
    p->drawn     = calloc(p->num_drawn + 1, len_bytes);
    p->tokens    = calloc(2 * p->batch, p->length * sizeof(*p->tokens));
    is_read      = p->num_drawn > 0 && p->drawn != NULL && p->tokens != NULL;
    for (size_t i = 0; is_read && i < p->num_drawn; i++) {
        is_read = fseek(file, (long)((i * world + rank) * len_bytes), SEEK_SET) == 0 &&
                  fread(p->drawn + i * each, 1, len_bytes, file) == len_bytes;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return is_read ? 0 : peer_fail(p, "the rows cannot be read");
}

static void peer_close(peer *p)
{
    passes_destroy(p->passes);
    sherd_engine_destroy(p->engine);
    sherd_world_destroy(p->world);
    pool_destroy(p->pool);
    free(p->drawn);
    free(p->tokens);
}

/* ----------------------------------------------------------------- steps -- */

typedef struct peer_step {
    double loss, seconds, cpu_seconds, boundary_seconds;
} peer_step;

static void batch_take(peer *p)
{
    const int32_t *drawn = p->drawn + p->number % p->num_drawn * p->batch * (p->length + 1);

    for (size_t b = 0; b < p->batch; b++) {
        const int32_t *row = drawn + b * (p->length + 1);

        memcpy(p->tokens + b * p->length, row, p->length * sizeof(*row));
        memcpy(p->tokens + (p->batch + b) * p->length, row + 1, p->length * sizeof(*row));
    }
    p->number++;
}

static int step_run(peer *p, int is_last, peer_step *out)
{
    double start = clock_seconds(CLOCK_MONOTONIC), cpu = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    double middle;
    sherd_status status;

    batch_take(p);
    status = passes_train(p->passes, p->tokens, p->tokens + p->batch * p->length);
    if (status == SHERD_OK) {
        status = passes_losses_take(p->passes, &out->loss);
    }
    middle = clock_seconds(CLOCK_MONOTONIC);
    if (status == SHERD_OK) {
        status = sherd_step_queue(p->engine);
    }
    if (status == SHERD_OK && is_last) { /* a queued update counts for the last step */
        status = sherd_step_wait(p->engine, NULL);
    }
    out->seconds          = clock_seconds(CLOCK_MONOTONIC) - start;
    out->boundary_seconds = out->seconds - (middle - start);
    out->cpu_seconds      = clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    return status == SHERD_OK ? 0 : peer_fail(p, "");
}

static void list_print(const char *name, const peer_step *steps, size_t count, size_t offset)
{
    printf("%s\"%s\": [", offset == 0 ? "{" : ", ", name);
    for (size_t i = 0; i < count; i++) {
        double value;

        memcpy(&value, (const char *)&steps[i] + offset, sizeof(value));
        printf("%s%.9g", i > 0 ? ", " : "", value);
    }
    printf("]");
}

static int steps_run(peer *p, size_t count)
{
    peer_step *steps  = calloc(count + 1, sizeof(*steps));
    int        result = steps != NULL ? 0 : peer_fail(p, "out of memory");

    for (size_t i = 0; result == 0 && i < count; i++) {
        result = step_run(p, i + 1 == count, &steps[i]);
    }
    if (result == 0) {
        list_print("losses", steps, count, offsetof(peer_step, loss));
        list_print("seconds", steps, count, offsetof(peer_step, seconds));
        list_print("cpu_seconds", steps, count, offsetof(peer_step, cpu_seconds));
        list_print("boundary_seconds", steps, count, offsetof(peer_step, boundary_seconds));
        printf("}\n");
        (void)fflush(stdout);
    }
    free(steps);
    return result;
}

static int serve(peer *p)
{
    char     line[64];
    unsigned count;

    printf("{\"import_s\": 0.0, \"ready_s\": %.3f}\n", clock_seconds(CLOCK_REALTIME) - p->started);
    (void)fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (sscanf(line, "step %u", &count) != 1) {
            return peer_fail(p, "a line that is no step");
        }
        if (steps_run(p, count) != 0) {
            return -1;
        }
    }
    return 0;
}

static void options_read(int argc, char **argv, peer *p)
{
    const bench_option rows[] = {
        {"layers", "N", "layers of GPT-2", BENCH_SIZE, .value = &p->sizes.layers, .least = 1},
        {"width", "N", "width of the model", BENCH_SIZE, .value = &p->sizes.hidden, .least = 1},
        {"heads", "N", "attention heads", BENCH_SIZE, .value = &p->sizes.heads, .least = 1},
        {"vocab", "N", "tokens that the model knows", BENCH_SIZE, .value = &p->sizes.vocab,
         .least = 1},
        {"positions", "N", "positions of the table", BENCH_SIZE, .value = &p->sizes.max_length,
         .least = 1},
        {"batch", "N", "sequences of a micro-batch", BENCH_SIZE, .value = &p->batch, .least = 1},
        {"length", "N", "tokens of a sequence", BENCH_SIZE, .value = &p->length, .least = 1},
        {"threads", "N", "threads of this rank", BENCH_INT, .value = &p->threads, .least = 1,
         .most = 256},
        {"started", "S", "time of the start, in seconds since 1970", BENCH_REAL,
         .value = &p->started},
        {"config", "JSON", "configuration of the engine", BENCH_TEXT, .value = &p->config},
        {"weights", "FILE", "first weights, as llm.c writes them", BENCH_TEXT,
         .value = &p->weights},
        {"rows", "FILE", "file of tokens", BENCH_TEXT, .value = &p->rows}};
    const bench_command command =
        BENCH_COMMAND("peer", "One rank of the C trainer; ./run bench peers starts it.", rows);

    (void)bench_options_read(&command, argc, argv);
    arch_complete(&p->sizes);
    if (p->config == NULL || p->weights == NULL || p->rows == NULL) {
        bench_options_refuse(&command, "--config, --weights and --rows are needed");
    }
}

int main(int argc, char **argv)
{
    peer p = {.sizes   = {.kind       = ARCH_GPT2,
                          .hidden     = 768,
                          .layers     = 12,
                          .heads      = 12,
                          .vocab      = 50257,
                          .max_length = 1024},
              .batch   = 4,
              .length  = 128,
              .threads = 1};
    int  result;

    options_read(argc, argv, &p);
    (void)blas_open();
    result = engine_open(&p) == SHERD_OK ? 0 : peer_fail(&p, "");
    if (result == 0 && (model_open(&p) != 0 || rows_open(&p) != 0 || serve(&p) != 0)) {
        result = 1;
    }
    if (result != 0) {
        (void)fprintf(stderr, "bench-peer: %s\n", p.why);
    }
    peer_close(&p);
    return result == 0 ? 0 : 1;
}
