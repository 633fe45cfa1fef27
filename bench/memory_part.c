/* One rank of a real row of bench-memory: makes an engine like any trainer and stops at every mark
 * until the parent has looked at it. See memory.h. */
#include "bench/memory.h"

#include "base/clock.h"
#include "engine/run/engine_impl.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STEPS 2
/* Of gradients that are copied to a GPU. */
#define PORTION_BYTES ((size_t)1 << 20)
/* A GPU's memory is free some time after the process that had it has ended. */
#define STILL_NS       ((int64_t)500 * 1000 * 1000)
#define STILL_WAIT_NS  ((int64_t)15 * 1000 * 1000 * 1000)
#define STILL_PAUSE_NS 10000000

typedef struct part {
    int             rank, world_size, device;
    const char     *rendezvous, *config_path, *model_name, *backend;
    planning_model *model;
    sherd_world    *world;
    sherd_config   *config;
    sherd_engine   *engine;
} part;

static unsigned char portion[PORTION_BYTES];

/* -------------------------------------------------------------- the parent -- */

static void message_send(const memory_message *message)
{
    if (send(STDOUT_FILENO, message, sizeof(*message), MSG_NOSIGNAL) != (ssize_t)sizeof(*message)) {
        _exit(1); /* nobody remains to notify */
    }
}

_Noreturn static void part_fail(const char *what, const char *sentence)
{
    memory_message message = {.mark = MEMORY_FAILED};

    (void)snprintf(message.why, sizeof(message.why), "%s: %s", what, sentence);
    message_send(&message);
    _exit(1);
}

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        part_fail(what, sherd_last_error());
    }
}

/* Waits until the free memory of this rank's GPU has not changed for a while: a figure counts what
 * all processes have there, and is taken from the one of MEMORY_PLATFORM. */
static void device_wait_still(const part *p)
{
    static const struct timespec PAUSE = {.tv_nsec = STILL_PAUSE_NS};
    const sherdi_backend        *lane  = p->engine->backend;
    size_t                       last  = lane->device->free_bytes(lane, NULL);
    int64_t                      begin = sherdi_now_ns();
    int64_t                      since = begin;
    int64_t                      now   = begin;

    while (now - since < STILL_NS) {
        size_t left;

        if (now - begin > STILL_WAIT_NS) {
            part_fail("device", "its free memory goes on changing; let no other process use it");
        }
        (void)nanosleep(&PAUSE, NULL);
        left  = lane->device->free_bytes(lane, NULL);
        now   = sherdi_now_ns();
        since = left == last ? since : now;
        last  = left;
    }
}

static void mark_reach(const part *p, memory_mark mark)
{
    const sherdi_backend *lane    = p->engine->backend;
    memory_message        message = {.mark = mark};
    char                  answer;

    sherd_memory_report_init(&message.memory);
    if (mark != MEMORY_PLATFORM) {
        must(sherd_engine_memory(p->engine, &message.memory), "memory report");
    }
    must(lane->device->lane_wait(lane), "device");
    must(sherd_world_barrier(p->world),
         "all ranks"); /* those that share a device count each other */
    if (mark == MEMORY_PLATFORM && p->device >= 0) {
        device_wait_still(p);
    }
    message.device_free_bytes = p->device >= 0 ? lane->device->free_bytes(lane, NULL) : 0;
    message_send(&message);
    if (recv(STDOUT_FILENO, &answer, 1, 0) != 1) {
        _exit(1); /* the parent is gone */
    }
}

/* ------------------------------------------------------------------ training -- */

static sherd_status fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = (float)((int)((first_elem + i) & 255) - 128) * 0x1p-12f;
    }
    return SHERD_OK;
}

/* The same small number everywhere: its value does not matter, but the pages must be written. */
static void grad_write(const part *p, const planning_model *model, size_t k)
{
    unsigned char *grad = sherd_param_grad(p->engine, (sherd_param)k);
    size_t         len_bytes =
        model->params[k].elems * sherd_dtype_bytes(p->engine->settings.numerics.compute_dtype);

    if (model->params[k].is_frozen) {
        return;
    }
    if (grad == NULL) {
        part_fail("gradient", sherd_last_error());
    }
    if (p->engine->backend == p->engine->host) {
        memset(grad, 0x38, len_bytes);
        return;
    }
    for (size_t at = 0; at < len_bytes; at += PORTION_BYTES) {
        must(sherd_copy(p->engine, grad + at, portion,
                        len_bytes - at < PORTION_BYTES ? len_bytes - at : PORTION_BYTES),
             "copy");
    }
}

static void unit_backward(const part *p, const planning_model *model, size_t u)
{
    const planning_unit *unit = &model->units[u];

    must(sherd_unit_acquire(p->engine, (sherd_unit)u, SHERD_BACKWARD), "acquire");
    for (size_t k = unit->first_param; k < unit->first_param + unit->num_params; k++) {
        grad_write(p, model, k);
    }
    for (size_t r = 0; r < model->num_reads; r++) {
        if (model->reads[r].unit == u) {
            grad_write(p, model, model->reads[r].param);
        }
    }
    must(sherd_unit_release(p->engine, (sherd_unit)u, SHERD_BACKWARD), "release");
}

static void steps_run(const part *p, const planning_model *model)
{
    for (int step = 0; step < STEPS; step++) {
        for (size_t u = 0; u < model->num_units; u++) {
            must(sherd_unit_acquire(p->engine, (sherd_unit)u, SHERD_FORWARD), "acquire");
            must(sherd_unit_release(p->engine, (sherd_unit)u, SHERD_FORWARD), "release");
        }
        for (size_t u = model->num_units; u-- > 0;) {
            unit_backward(p, model, u);
        }
        must(sherd_step(p->engine, NULL), "step");
    }
}

static void params_fill(const part *p, const planning_model *model)
{
    for (size_t k = 0; k < model->num_params; k++) {
        must(sherd_param_fill(p->engine, (sherd_param)k, fill, NULL), "fill");
    }
}

/* A life of a small engine with the same configuration: its remains (libraries, stacks, the
 * allocator's and the transport's pages, a GPU's context) belongs to the platform. */
static void platform_warm(part *p)
{
    char            why[256];
    planning_model *small = planning_model_from_count(200000, why, sizeof(why));

    if (small == NULL) {
        part_fail("model", why);
    }
    must(sherd_engine_create(p->world, p->config, &p->engine), "engine");
    must(planning_model_declare(small, p->engine), "declare");
    must(sherd_engine_seal(p->engine), "seal");
    params_fill(p, small);
    steps_run(p, small);
    sherd_engine_destroy(p->engine);
    planning_model_destroy(small);
}

static void part_run(part *p)
{
    must(sherd_engine_create(p->world, p->config, &p->engine), "engine");
    mark_reach(p, MEMORY_PLATFORM);
    must(planning_model_declare(p->model, p->engine), "declare");
    must(sherd_engine_seal(p->engine), "seal");
    mark_reach(p, MEMORY_SEALED);
    params_fill(p, p->model);
    mark_reach(p, MEMORY_FILLED);
    steps_run(p, p->model);
    mark_reach(p, MEMORY_STEPPED);
    sherd_engine_destroy(p->engine);
}

static void world_open(part *p)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.backend     = p->backend;
    params.device      = p->device;
    params.local_rank  = p->rank;
    params.cpu_threads = 1; /* eight ranks shall be bearable on two cores */
    if (p->device < 0) {
        params.transport = "shm";
    }
    must(sherd_world_create(p->rank, p->world_size, p->rendezvous, &params, &p->world), "world");
}

/* --part RANK WORLD DEVICE RENDEZVOUS CONFIG MODEL BACKEND */
int memory_part_main(int argc, char **argv)
{
    char why[256];
    part p;

    if (argc != 9) {
        (void)fputs("bench-memory: --part is for its own use\n", stderr);
        return 2;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(portion, 0x38, sizeof(portion));
    p       = (part){.rank        = atoi(argv[2]),
                     .world_size  = atoi(argv[3]),
                     .device      = atoi(argv[4]),
                     .rendezvous  = argv[5],
                     .config_path = argv[6],
                     .model_name  = argv[7],
                     .backend     = argv[8]};
    p.model = memory_model_find(p.model_name, why, sizeof(why));
    if (p.model == NULL) {
        part_fail("model", why);
    }
    must(sherd_config_load(p.config_path, &p.config), "configuration");
    world_open(&p);
    platform_warm(&p);
    part_run(&p);
    sherd_config_destroy(p.config);
    sherd_world_destroy(p.world);
    planning_model_destroy(p.model);
    return 0;
}
