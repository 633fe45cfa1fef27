/* One start of a job that will lose a rank, or its link: starts FOLDER SEED LIMIT. The ranks that a launcher has
 * started train, on a layout that the seed chooses, until something fails; a call ends after LIMIT seconds. A rank leaves its process's number
 * in FOLDER/RANK.pid, and at its end FOLDER/RANK.end: the error. starts.sh kills, and looks at the time. */
#include "base/status.h"
#include "tests/engine/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 100000

static char folder[256];
static int  number; /* of this rank, as the launcher says */

static void file_write(const char *what, const char *text)
{
    char  path[320];
    char  partial[340];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%d.%s", folder, number, what);
    (void)snprintf(partial, sizeof(partial), "%s.partial", path);
    file = fopen(partial, "w");
    if (file == NULL || fprintf(file, "%s\n", text) < 0 || fclose(file) != 0 ||
        rename(partial, path) != 0) {
        _exit(3);
    }
}

/* A micro-batch of the rig, but a failure ends it. */
static sherd_status micro_batch(sherd_engine *engine, const sherd_unit *units, int num_units)
{
    for (int i = 0; i < 2 * num_units; i++) {
        sherd_pass   pass   = i < num_units ? SHERD_FORWARD : SHERD_BACKWARD;
        sherd_unit   unit   = units[i < num_units ? i : 2 * num_units - 1 - i];
        sherd_status status = sherd_unit_acquire(engine, unit, pass);

        if (status == SHERD_OK) {
            status = sherd_unit_release(engine, unit, pass);
        }
        if (status != SHERD_OK) {
            return status;
        }
    }
    return sherd_step(engine, NULL);
}

static sherd_status zeros(void *ctx, size_t first, size_t count, float *out)
{
    (void)ctx, (void)first;
    memset(out, 0, count * sizeof(*out));
    return SHERD_OK;
}

/* The three ways to shard over hosts, at stages 1 to 3. */
static void json_make(unsigned seed, int per_host, char *out, size_t len_bytes)
{
    unsigned way = seed % 3;

    (void)snprintf(out, len_bytes,
                   "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, "
                   "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.001}}, "
                   "\"zero_optimization\": {\"stage\": %u, \"overlap_comm\": %s, "
                   "\"zero_hpz_partition_size\": %d}, \"sherd\": {\"shard_size\": %d}}",
                   way == 2 ? 3 : 1 + seed / 3 % 3, seed / 9 % 2 ? "true" : "false",
                   way == 2 ? per_host : 1, way == 1 ? per_host : 0);
}

static sherd_status job_train(sherd_world *world, unsigned seed)
{
    sherd_engine *engine = NULL;
    sherd_unit    units[4];
    char          json[512];

    json_make(seed, 2, json, sizeof(json));
    SHERDI_TRY(rig_create(world, json, &engine));
    for (int u = 0; u < 4; u++) {
        sherd_unit_params  unit;
        sherd_param_params params;
        sherd_param        param;
        char               name[8];

        (void)snprintf(name, sizeof(name), "u%d", u);
        sherd_unit_params_init(&unit);
        unit.name = name;
        SHERDI_TRY(sherd_unit_add(engine, &unit, &units[u]));
        sherd_param_params_init(&params);
        params.name     = name;
        params.ndim     = 1;
        params.shape[0] = 200000;
        SHERDI_TRY(sherd_param_add(engine, units[u], &params, &param));
    }
    SHERDI_TRY(sherd_engine_seal(engine));
    for (sherd_param p = 0; p < 4; p++) {
        SHERDI_TRY(sherd_param_fill(engine, p, zeros, NULL));
    }
    for (int step = 0; step < STEPS; step++) {
        SHERDI_TRY(micro_batch(engine, units, 4));
    }
    return SHERD_OK;
}

int main(int argc, char **argv)
{
    const char        *rank = getenv("OMPI_COMM_WORLD_RANK");
    sherd_world_params params;
    sherd_world       *world = NULL;
    char               text[32];
    sherd_status       status;

    if (argc < 4 || rank == NULL) {
        (void)fprintf(stderr, "usage: starts FOLDER SEED LIMIT, under mpirun\n");
        return 2;
    }
    number = atoi(rank);
    (void)snprintf(folder, sizeof(folder), "%s", argv[1]);
    (void)snprintf(text, sizeof(text), "%d", (int)getpid());
    file_write("pid", text);
    sherd_world_params_init(&params);
    params.timeout_ns = (int64_t)atoi(argv[3]) * 1000000000;
    status            = sherd_world_from_env(&params, &world);
    if (status == SHERD_OK) {
        file_write("met", "");
        status = job_train(world, (unsigned)atoi(argv[2]));
    }
    file_write("end", sherd_last_error());
    if (status != SHERD_E_PEER_LOST) { /* the others may still be in the call that has failed */
        sherd_world_destroy(world);
    }
    _exit(1); /* MPI's end would wait for the rank that is lost */
}
