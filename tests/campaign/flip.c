#include "tests/campaign/flip.h"

#include "engine/program/program_walk.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --------------------------------------------------------------------- model -- */

static void model_open(const flip *f, rig *r, sherd_world *world)
{
    char top[1536], zero[640], name[32];

    (void)snprintf(zero, sizeof(zero), "%s", f->zero);
    (void)snprintf(top, sizeof(top),
                   "%s, \"sherd\": {\"fingerprints\": {\"file\": \"%s\", \"state_interval\": %d}}",
                   f->top, f->path[f->run], f->interval);
    rig_open(r, world,
             &(rig_options){.stage        = f->run == 0 ? f->stage : f->other_stage,
                            .accumulation = f->accumulation,
                            .dtype        = f->dtype,
                            .clip         = f->clip,
                            .optimizer    = f->optimizer,
                            .has_matrices = 1,
                            .zero         = zero,
                            .top          = top});
    for (int u = 0; u < FLIP_UNITS; u++) {
        (void)snprintf(name, sizeof(name), "unit %d", u);
        (void)rig_unit(r, name);
        (void)snprintf(name, sizeof(name), "unit%d.w", u);
        (void)rig_param(r, u, name, f->elems + 61 * (size_t)u);
        (void)snprintf(name, sizeof(name), "unit%d.b", u);
        (void)rig_param(r, u, name, 5 + (size_t)u);
    }
    rig_seal(r);
}

/* Returns the rank that has the element in its slice, which it saves; at stage 0, too. */
static int saver_of(const rig *r, int param, size_t index)
{
    const sherdi_plan *plan = r->engine->plan;

    return (int)((plan->layout.params[param].offset_elems + index) /
                 sherdi_param_segment(plan, (size_t)param)->slice_elems);
}

/* Returns the rank that alone has the element; -1: every rank has it. */
static int owner_of(const rig *r, int param, size_t index, int is_gradient)
{
    const sherdi_plan_layout *layout = &r->engine->plan->layout;

    return layout->is_sliced || (is_gradient && layout->is_deterministic)
               ? saver_of(r, param, index)
               : -1;
}

/* ---------------------------------------------------------------------- bits -- */

static void gradient_flip(flip *f, rig *r)
{
    unsigned char *grad  = sherd_param_grad(r->engine, r->params[f->param].handle);
    size_t         bytes = sherd_dtype_bytes(r->params[f->param].dtype);
    unsigned       bit   = f->bit % (8 * (unsigned)bytes);

    grad[f->index * bytes + bit / 8] ^= (unsigned char)(1u << bit % 8);
    f->unit = r->params[f->param].unit;
}

/* Returns the element of a part of the state in this rank's memory; NULL: it is not there. */
static float *state_find(const flip *f, const rig *r)
{
    const sherd_engine   *engine  = r->engine;
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = sherdi_param_segment(plan, (size_t)f->param);
    size_t                at      = plan->layout.params[f->param].offset_elems + f->index;

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];
        size_t              first = segment->own_first + block->offset_elems;
        sherdi_range        range;

        if (at < first || at >= first + block->elems) {
            continue;
        }
        if (f->part_number == 0 && !segment->has_master) {
            range = sherdi_program_param_at(plan, segment, block);
            range.offset += (at - first) * sizeof(float);
        } else {
            range = sherdi_state_at(plan, block);
            range.offset += sherdi_plan_part_offset(plan, block, f->part_number, at - first);
        }
        return (float *)(void *)(engine->memory.buffers[range.where] + range.offset);
    }
    return NULL;
}

static float bit_changed(const flip *f, float value)
{
    uint32_t bits = sherdi_bits_f32(value) ^ 1u << f->bit % 32;

    return sherdi_f32_from_bits(bits);
}

/* Changes a bit of state: in memory on one rank, on a drive by a write of all ranks. */
static void state_flip(flip *f, rig *r)
{
    int    is_file = strstr(f->zero, "nvme\",") != NULL;
    int    rank    = sherd_world_rank(r->world);
    int    owner   = owner_of(r, f->param, f->index, 0);
    int    target  = owner >= 0             ? owner
                     : f->where == IN_SAVED ? saver_of(r, f->param, f->index)
                                            : f->rank;
    float *at;
    float  value;

    if (is_file) {
        CHECK_OK(
            sherd_param_read(r->engine, r->params[f->param].handle, f->part, f->index, 1, &value));
        value = isfinite(bit_changed(f, value)) ? bit_changed(f, value) : 1.5f;
        CHECK_OK(
            sherd_param_write(r->engine, r->params[f->param].handle, f->part, f->index, 1, &value));
    } else if (rank == target) {
        at = state_find(f, r);
        CHECK(at != NULL);
        *at = bit_changed(f, *at);
    }
    if (rank == 0) { /* a checkpoint does not say of which copy it is */
        f->owner = owner < 0 && (is_file || f->where == IN_SAVED) ? -1 : target;
        f->unit  = r->params[f->param].unit;
    }
}

/* ---------------------------------------------------------------------- runs -- */

static void micro_batch(flip *f, rig *r, int step, int micro)
{
    for (int u = 0; u < FLIP_UNITS; u++) { /* values are not read: they may not be finite */
        rig_acquire(r, u, SHERD_FORWARD);
        rig_release(r, u, SHERD_FORWARD);
    }
    for (int u = FLIP_UNITS - 1; u >= 0; u--) {
        rig_acquire(r, u, SHERD_BACKWARD);
        rig_touch(r, 2 * u, 1);
        rig_touch(r, 2 * u + 1, 1);
        if (f->run == 1 && f->where == IN_GRADIENT && step == f->step && micro == f->micro &&
            r->params[f->param].unit == u && sherd_world_rank(r->world) == f->rank) {
            gradient_flip(f, r);
        }
        rig_release(r, u, SHERD_BACKWARD);
    }
}

/* Ends a micro-batch. Returns 0 where the engine refuses the gradient that came of the bit. */
static int step_end(flip *f, rig *r, uint64_t *fingerprint)
{
    sherd_step_report report;
    sherd_status      status;

    sherd_step_report_init(&report);
    status = f->is_queued ? sherd_step_queue(r->engine) : sherd_step(r->engine, &report);
    if (status == SHERD_E_NUMERIC && f->run == 1) {
        f->is_refused = 1;
        return 0;
    }
    CHECK_OK(status);
    if (f->is_queued) {
        CHECK_OK(sherd_step_wait(r->engine, &report));
    }
    r->micro++;
    *fingerprint = report.fingerprint;
    return 1;
}

static void save(const flip *f, rig *r)
{
    sherd_save_params params;

    sherd_save_params_init(&params);
    CHECK_OK(sherd_checkpoint_save(r->engine, f->dir, "saved", &params));
}

void flip_train(sherd_world *world, void *ctx)
{
    flip *f = ctx;
    rig   r;

    model_open(f, &r, world);
    if (sherd_world_rank(world) == 0 && f->where == IN_GRADIENT) {
        f->owner = owner_of(&r, f->param, f->index, 1);
    }
    for (int step = 1; step <= FLIP_STEPS; step++) {
        uint64_t fingerprint = 0;
        int      goes_on     = 1;

        for (int k = 0; k < f->accumulation && goes_on; k++) {
            micro_batch(f, &r, step, k);
            goes_on = step_end(f, &r, &fingerprint);
        }
        if (!goes_on) {
            break;
        }
        if (sherd_world_rank(world) == 0) {
            f->fingerprints[f->run][step] = fingerprint;
        }
        if (step == f->step) {
            if (f->where == IN_SAVED ||
                (f->run == 1 && (f->where == IN_WEIGHTS || f->where == IN_MOMENTS))) {
                state_flip(f, &r);
            }
            if (f->where == IN_SAVED || f->where == IN_FILE) {
                save(f, &r);
            }
        }
    }
    rig_close(&r);
}

/* --------------------------------------------------------------------- files -- */

/* Finds the tensor NAME:PART:FIRST whose values are at a byte of the data; returns its parameter,
 * -1: none has it. */
static int tensor_find(const char *header, size_t at)
{
    static const char OFFSETS[] = "\"data_offsets\":[";

    for (const char *next = header; (next = strstr(next, OFFSETS)) != NULL; next++) {
        size_t      begin, end;
        const char *name = next;
        int         unit, length = 0;
        char        which;

        if (sscanf(next + sizeof(OFFSETS) - 1, "%zu,%zu", &begin, &end) != 2 || at < begin ||
            at >= end) {
            continue;
        }
        while (name > header && *name != '{') {
            name--;
        }
        while (name > header && strncmp(name, "\"unit", 5) != 0) {
            name--;
        }
        if (sscanf(name, "\"unit%d.%c:%n", &unit, &which, &length) == 2 && length > 0) {
            return 2 * unit + (which == 'b');
        }
    }
    return -1;
}

/* Changes a bit of the values in a rank's data file. */
void flip_file(flip *f, uint64_t *random)
{
    static char header[1 << 20];
    char        path[600];
    uint64_t    length = 0, at;
    struct stat info;
    FILE       *file;
    int         byte, param;

    (void)snprintf(path, sizeof(path), "%s/saved/rank-%05d-of-%05d.safetensors", f->dir, f->rank,
                   f->ranks);
    if (stat(path, &info) != 0) { /* the rank has nothing */
        f->rank = 0;
        (void)snprintf(path, sizeof(path), "%s/saved/rank-%05d-of-%05d.safetensors", f->dir, 0,
                       f->ranks);
        CHECK(stat(path, &info) == 0);
    }
    file = fopen(path, "r+b");
    CHECK(file != NULL && fread(&length, 8, 1, file) == 1 && length < sizeof(header) - 1);
    CHECK(fread(header, 1, length, file) == length);
    header[length] = '\0';
    do {
        at    = test_random(random) % ((uint64_t)info.st_size - 8 - length);
        param = tensor_find(header, at);
    } while (param < 0);
    CHECK(fseek(file, (long)(8 + length + at), SEEK_SET) == 0 && (byte = fgetc(file)) != EOF);
    CHECK(fseek(file, -1, SEEK_CUR) == 0);
    CHECK(fputc(byte ^ 1 << f->bit % 8, file) != EOF && fclose(file) == 0);
    f->unit  = param / 2;
    f->owner = f->stage == 0 ? -1 : f->rank;
}
