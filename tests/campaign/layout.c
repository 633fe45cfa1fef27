/* Draws random layouts. See layout.h. */
#include "tests/campaign/layout.h"

#include "sherd_build.h"
#include "tests/lib/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *layout_setting_name(int setting)
{
    static const char *const NAMES[] = {
#define LAYOUT_NAME(name) #name,
        LAYOUT_SETTINGS(LAYOUT_NAME)
#undef LAYOUT_NAME
    };

    return NAMES[setting];
}

/* ------------------------------------------------------------- drawing -- */

typedef struct draw {
    uint64_t    seed, without, state;
    const char *state_tier, *param_tier; /* where the configuration puts state and parameters; "":
                                          * on the device */
    int         has_ratio;
    int         is_kept; /* the state rests on a drive and outlives engines, in bf16 */
} draw;

/* Starts the setting's own stream of random numbers; returns whether the setting is drawn at
 * all. */
static int draw_begins(draw *d, layout_setting setting)
{
    d->state = d->seed * 0x100000001b3u + (uint64_t)setting * 0x9e3779b9u;
    (void)test_random(&d->state);
    return (d->without >> setting & 1) == 0;
}

static int below(draw *d, int count)
{
    return (int)(test_random(&d->state) % (uint64_t)count);
}

static int is_one_in(draw *d, int count)
{
    return below(d, count) == 0;
}

static size_t pick(draw *d, const size_t *from, size_t count)
{
    return from[test_random(&d->state) % count];
}

#define PICK(d, ...)                                                                               \
    pick(d, (const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))

/* Appends text to the configuration. */
static void say(layout *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(layout *out, const char *fmt, ...)
{
    size_t  at = strlen(out->json);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(out->json + at, sizeof(out->json) - at, fmt, args);
    va_end(args);
}

/* ------------------------------------------------------------- the model -- */

static void draw_param(draw *d, int is_device, layout_param *param)
{
    param->ndim     = below(d, 3);
    param->shape[0] = PICK(d, 1, 2, 63, 64, 65, 129, 300, 1000, 2049, 5000);
    param->shape[1] = 1;
    if (is_device && param->shape[0] > 1000) {
        param->shape[0] = 1000;
    }
    if (param->ndim == 2) {
        param->shape[1] = PICK(d, 1, 2, 3, 7);
    }
    if (param->ndim == 0) {
        param->shape[0] = 1;
    }
    param->elems = param->shape[0] * param->shape[1];
}

/* Draws a few parameters for each unit; at least one parameter is trainable. */
static void draw_model(draw *d, int is_device, layout *out)
{
    d->state        = d->seed;
    out->num_units  = 1 + below(d, LAYOUT_UNITS);
    out->num_groups = 1;
    for (int u = 0; u < out->num_units; u++) {
        int count = 1 + below(d, LAYOUT_PARAMS / LAYOUT_UNITS);

        for (int i = 0; i < count; i++) {
            layout_param *param = &out->params[out->num_params++];

            param->unit = u;
            draw_param(d, is_device, param);
        }
    }
    /* The reduction of a large unit takes long, so that an operation which should wait for it and
     * does not shows. */
    if (draw_begins(d, LAYOUT_large) && !is_device && is_one_in(d, 8)) {
        layout_param *param = &out->params[below(d, out->num_params)];

        *param =
            (layout_param){.unit = param->unit, .ndim = 1, .shape = {200003, 1}, .elems = 200003};
    }
    if (draw_begins(d, LAYOUT_frozen) && is_one_in(d, 2)) {
        for (int p = 1; p < out->num_params; p++) {
            out->params[p].is_frozen = is_one_in(d, 4);
        }
    }
    if (draw_begins(d, LAYOUT_groups)) {
        out->num_groups = 1 + below(d, LAYOUT_GROUPS);
        for (int g = 1; g < out->num_groups; g++) {
            out->group_lr[g]       = 0.004 * (1 + below(d, 9));
            out->group_decay[g]    = 0.05 * below(d, 4);
            out->group_excludes[g] = below(d, 2);
        }
        for (int p = 0; p < out->num_params; p++) {
            out->params[p].group = below(d, out->num_groups);
        }
    }
    if (draw_begins(d, LAYOUT_atoms) && is_one_in(d, 3)) {
        for (int p = 0; p < out->num_params; p++) {
            out->params[p].atom_elems = is_one_in(d, 3) ? PICK(d, 1, 3, 32, 64, 100) : 0;
        }
    }
}

/* Draws which units read parameters of other units, and the order of units. */
static void draw_order(draw *d, layout *out)
{
    for (int u = 0; u < LAYOUT_UNITS; u++) {
        out->reads[u] = -1;
    }
    for (int u = 0; u < out->num_units; u++) {
        out->forward[out->num_forward++] = u;
    }
    if (draw_begins(d, LAYOUT_reads) && out->num_units > 1 && is_one_in(d, 3)) {
        int reader = 1 + below(d, out->num_units - 1);

        for (int p = 0; p < out->num_params; p++) {
            if (out->params[p].unit < reader && (out->reads[reader] < 0 || is_one_in(d, 3))) {
                out->reads[reader] = p;
            }
        }
    }
    if (draw_begins(d, LAYOUT_repeats) && is_one_in(d, 4)) {
        int more = 1 + below(d, LAYOUT_PASS - LAYOUT_UNITS);

        for (int i = 0; i < more; i++) {
            out->forward[out->num_forward++] = below(d, out->num_units);
        }
    }
    if (draw_begins(d, LAYOUT_uses) && is_one_in(d, 2)) {
        for (int u = 0; u < out->num_units; u++) {
            out->is_any[u] = is_one_in(d, 2);
        }
    }
}

/* ------------------------------------------------------- the configuration -- */

static void draw_precision(draw *d, layout *out)
{
    int is_drawn = draw_begins(d, LAYOUT_precision);

    out->loss_scale = 1;
    out->dtype      = is_drawn ? (sherd_dtype)below(d, 3) : SHERD_F32;
    out->dtype      = is_drawn && d->is_kept ? SHERD_BF16 : out->dtype;
    out->comm       = out->dtype;
    if (out->dtype == SHERD_BF16) {
        say(out, ", \"bf16\": {\"enabled\": true}");
    } else if (out->dtype == SHERD_F16 && is_one_in(d, 4)) {
        /* Only powers of two are drawn: for other scales docs/numerics.md says that the quotient is
         * rounded. */
        out->loss_scale = (double)PICK(d, 1, 64, 1024);
        say(out, ", \"fp16\": {\"enabled\": true, \"loss_scale\": %g}", out->loss_scale);
    } else if (out->dtype == SHERD_F16) {
        int power = (int)PICK(d, 8, 10, 15, 16);

        out->is_dynamic   = 1;
        out->loss_scale   = (double)(1 << power);
        out->scale_window = (int)PICK(d, 1, 2, 3, 1000);
        out->hysteresis   = 1 + below(d, 2);
        say(out,
            ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": %d, \"loss_scale_window\": "
            "%d,"
            " \"hysteresis\": %d}",
            power, out->scale_window, out->hysteresis);
    }
    if (out->dtype != SHERD_F32 && !out->is_deterministic && is_one_in(d, 4)) {
        out->comm = SHERD_F32;
        say(out, ", \"communication_data_type\": \"fp32\"");
    }
}

/* Some parameters stay fp32. */
static void draw_types(draw *d, layout *out)
{
    int has_wide = draw_begins(d, LAYOUT_types) && is_one_in(d, 3);

    for (int p = 0; p < out->num_params; p++) {
        int is_wide = has_wide && is_one_in(d, 2);

        out->params[p].dtype = is_wide ? SHERD_F32 : out->dtype;
        out->params[p].comm  = is_wide ? SHERD_F32 : out->comm;
    }
}

static void draw_optimizer(draw *d, layout *out)
{
    out->rule = (plain_rule){
        .kind = PLAIN_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .max_coeff = 10};
    out->rule.muon = (plain_muon){.momentum = 0.95, .is_nesterov = 1, .steps = 5};
    if (draw_begins(d, LAYOUT_optimizer)) {
        out->rule.kind  = (plain_kind)below(d, PLAIN_KINDS);
        out->rule.beta2 = is_one_in(d, 2) ? 0.95 : 0.999;
    }
    if (out->rule.kind == PLAIN_MOMENTUM || out->rule.kind == PLAIN_NESTEROV) {
        out->rule.muon.momentum = 0.9; /* one key of the configuration sets the momentum of both */
    }
    out->group_lr[0]    = 0.01;
    out->group_decay[0] = 0.1;
    say(out,
        ", \"optimizer\": {\"type\": %s\"lr\": 0.01, \"betas\": [0.9, %g], \"eps\": 1e-8,"
        " \"weight_decay\": 0.1}}",
        plain_type(out->rule.kind), out->rule.beta2);
}

/* Muon updates only matrices, so other parameters become matrices with one column. */
static void matrices_make(layout *out, int group)
{
    for (int p = 0; p < out->num_params; p++) {
        layout_param *param = &out->params[p];

        if (param->group == group && !param->is_frozen && param->ndim < 2) {
            param->ndim     = 2;
            param->shape[1] = 1;
        }
    }
}

/* Draws groups that name another optimizer. The configuration's optimizer decides what Adam means
 * in them, and which form of LAMB. */
static void draw_group_optimizers(draw *d, layout *out)
{
    int        has_other = draw_begins(d, LAYOUT_mixed) && is_one_in(d, 2);
    plain_kind adam      = out->rule.kind == PLAIN_ADAM ? PLAIN_ADAM : PLAIN_ADAMW;
    plain_kind lamb      = out->rule.kind == PLAIN_LAMB_PAPER ? PLAIN_LAMB_PAPER : PLAIN_LAMB;

    for (int g = 0; g < out->num_groups; g++) {
        const char *const NAMES[] = {NULL, "AdamW", "adam", "LAMB", "lion", "muon"};
        const plain_kind  KINDS[] = {out->rule.kind, PLAIN_ADAMW, adam,
                                     lamb,           PLAIN_LION,  PLAIN_MUON};
        int which = has_other && g > 0 ? below(d, (int)(sizeof(NAMES) / sizeof(NAMES[0]))) : 0;

        out->group_optimizer[g] = NAMES[which];
        out->group_kind[g]      = KINDS[which];
        if (KINDS[which] == PLAIN_MUON) {
            matrices_make(out, g);
        }
    }
}

static void draw_state_tier(draw *d, const char *folder, layout *out)
{
    int has_drive = 1;
    int is_drawn  = draw_begins(d, LAYOUT_state) && out->stage > 0;
    /* of four values, 0 is cpu and 1 is nvme; for the others the state stays on the device */
    int tier = below(d, 4);

#ifndef SHERDI_HAVE_XXHASH
    has_drive = 0;
#endif
    tier = d->is_kept ? 1 : tier;
    if (!is_drawn || tier > 1 || (tier == 1 && !has_drive)) {
        return;
    }
    say(out,
        ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\", \"durable\": false",
        tier == 0 ? "cpu" : "nvme", folder);
    out->can_undo = tier == 1;
    d->state_tier = tier == 0 ? "cpu" : "nvme";
    if (is_one_in(d, 4) && !d->is_kept) {
        d->has_ratio = 1;
        say(out, ", \"ratio\": 0.%d", 1 + below(d, 9));
        out->can_undo = 0;
    }
    if (tier == 1 && is_one_in(d, 3)) {
        say(out, ", \"gradients\": \"nvme\"");
    }
    if (out->stage >= 2 && is_one_in(d, 3)) {
        say(out, ", \"accumulate\": \"%s\"", is_one_in(d, 2) ? "cpu" : "device");
    }
    /* Each draw is in a statement of its own: the compiler may evaluate arguments in any order. */
    if (tier == 1) {
        const char *init   = is_one_in(d, 3) ? ", \"fast_init\": true" : "";
        const char *verify = is_one_in(d, 3) ? ", \"verify_reads\": true" : "";
        const char *writes = is_one_in(d, 3) ? "false" : "true";
        const char *reads  = is_one_in(d, 3) ? "false" : "true";
        int         count  = 1 + below(d, 4);

        say(out, ", \"buffer_count\": %d, \"pipeline_read\": %s, \"pipeline_write\": %s%s%s", count,
            reads, writes, verify, init);
    }
    if (is_one_in(d, 3)) {
        say(out, ", \"buffer_size\": %zu", PICK(d, 4096, 8192, 100000));
    }
    say(out, "%s}", d->is_kept ? ", \"resume\": true" : "");
}

static void draw_param_tier(draw *d, const char *folder, layout *out)
{
    int is_drawn = draw_begins(d, LAYOUT_parameters) && out->stage == 3;
    int tier     = below(d, 4);

    if (!is_drawn || tier > 1) {
        return;
    }
    d->param_tier = tier == 0 ? "cpu" : "nvme";
    say(out, ", \"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"",
        tier == 0 ? "cpu" : "nvme", folder);
    if (tier == 1) {
        int    count = 1 + below(d, 4);
        size_t most  = PICK(d, 0, 0, 3000, 1000000);

        say(out, ", \"max_in_cpu\": %zu, \"buffer_count\": %d", most, count);
    }
    if (is_one_in(d, 3)) {
        say(out, ", \"buffer_size\": %zu", PICK(d, 64, 4096, 100000));
    }
    say(out, "}");
}

/* Draws a number that divides the ranks. */
static int draw_share(draw *d, int ranks)
{
    int size;

    do {
        size = 1 + below(d, ranks);
    } while (ranks % size != 0);
    return size;
}

static void draw_zero(draw *d, const char *folder, layout *out)
{
    say(out, ", \"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": %zu",
        out->stage,
        draw_begins(d, LAYOUT_persistence) ? PICK(d, 0, 0, 1, 64, 300, 100000) : (size_t)0);
    if (draw_begins(d, LAYOUT_overlap) && is_one_in(d, 2)) {
        say(out, ", \"overlap_comm\": %s", is_one_in(d, 2) ? "true" : "false");
    } else if ((d->without >> LAYOUT_overlap & 1) != 0) {
        say(out, ", \"overlap_comm\": false");
    }
    if (draw_begins(d, LAYOUT_gathering) && is_one_in(d, 2)) {
        say(out, ", \"stage3_prefetch_bucket_size\": %zu", PICK(d, 0, 100, 3000, 1000000));
        say(out, ", \"stage3_max_reuse_distance\": %zu", PICK(d, 0, 0, 2000, 1000000000));
    }
    if (draw_begins(d, LAYOUT_blocks) && is_one_in(d, 2)) {
        say(out, ", \"sub_group_size\": %zu", PICK(d, 64, 2048, 2048, 5000, 100000));
    }
    draw_state_tier(d, folder, out);
    draw_param_tier(d, folder, out);
    if (draw_begins(d, LAYOUT_copies) && out->stage == 3 && is_one_in(d, 4) &&
        strcmp(d->param_tier, "nvme") != 0) {
        out->copy_ranks = draw_share(d, out->world_size);
        say(out, ", \"zero_hpz_partition_size\": %d", out->copy_ranks);
    }
    say(out, "}");
}

/* Whether masters may be split (bf16_beside): the parameter has to be where the state is, or all
 * state has to be on a drive. */
static int can_be_beside(const draw *d, const layout *out, int is_device)
{
    if (out->dtype != SHERD_BF16 || out->is_bound) {
        return 0;
    }
    if (strcmp(d->state_tier, "nvme") == 0) {
        return !d->has_ratio || (d->param_tier[0] == '\0' && !is_device);
    }
    return !is_device && !d->has_ratio && strcmp(d->state_tier, d->param_tier) == 0;
}

/* Draws encodings that round; the reference rounds as they do. */
static void draw_rounding(draw *d, int is_beside, layout *out)
{
    if (draw_begins(d, LAYOUT_rounding)) {
        out->moments          = is_one_in(d, 2) ? below(d, 3) : 0;
        out->has_bf16_masters = is_one_in(d, 2) && out->dtype == SHERD_BF16 && !is_beside;
    }
}

/* Adds a key to the engine's own. */
static void own_key_say(layout *out, int *count, const char *key)
{
    if (key[0] != '\0') {
        say(out, "%s%s", (*count)++ == 0 ? ", \"sherd\": {" : ", ", key);
    }
}

/* Draws how many ranks share a copy; returns the key for it. */
static const char *draw_replicas(draw *d, int is_device, layout *out)
{
    static char key[32];

    out->shard_size = out->world_size;
    if (!draw_begins(d, LAYOUT_replicas) || out->stage == 0 || !is_one_in(d, 3) ||
        (is_device && out->is_deterministic) || out->copy_ranks > 1) {
        return "";
    }
    out->shard_size = draw_share(d, out->world_size);
    (void)snprintf(key, sizeof(key), "\"shard_size\": %d", out->shard_size);
    return key;
}

/* Draws the greatest weight of micro-batches; returns the key for it. */
static const char *draw_weights(draw *d, layout *out)
{
    static char key[48];

    if (!draw_begins(d, LAYOUT_weights) || !is_one_in(d, 3)) {
        return "";
    }
    out->most_weight = PICK(d, 1, 7, 1000, 4096);
    (void)snprintf(key, sizeof(key), "\"most_weight\": %llu", (unsigned long long)out->most_weight);
    return key;
}

/* Draws the engine's own keys, at most one of each kind. */
/* Fingerprints of units are made on the CPU. */
static const char *draw_fingerprints(draw *d, const char *folder, int is_device)
{
    static char key[512];

    if (!draw_begins(d, LAYOUT_fingerprints) || !is_one_in(d, 3) || is_device) {
        return "";
    }
    (void)snprintf(key, sizeof(key),
                   "\"fingerprints\": {\"file\": \"%s/fingerprints\", \"state_interval\": %d}",
                   folder, (int)PICK(d, 0, 1, 2, 16));
    return key;
}

static void draw_own_keys(draw *d, const char *folder, int is_device, layout *out)
{
    static const char *const GATHERING[4] = {"\"free_packing\": true", "\"eval_keep_units\": 1",
                                             "\"eval_keep_units\": 3", ""};
    static const char *const MOMENTS[3]   = {"", "\"moment_encoding\": \"bf16\"",
                                             "\"moment_encoding\": \"fp8\""};
    int                      count        = 0;
    const char *gathering = draw_begins(d, LAYOUT_gathering) ? GATHERING[below(d, 4)] : "";
    int         is_beside =
        draw_begins(d, LAYOUT_encoding) && is_one_in(d, 2) && can_be_beside(d, out, is_device);

    draw_rounding(d, is_beside, out);
    own_key_say(out, &count, gathering);
    own_key_say(out, &count,
                is_beside               ? "\"master_encoding\": \"bf16_beside\""
                : out->has_bf16_masters ? "\"master_encoding\": \"bf16\""
                                        : "");
    own_key_say(out, &count, MOMENTS[out->moments]);
    own_key_say(out, &count, out->opens_windows ? "\"open_windows\": true" : "");
    own_key_say(out, &count, draw_replicas(d, is_device, out));
    out->adds_by_host = draw_begins(d, LAYOUT_host_sums) && is_one_in(d, 3);
    own_key_say(out, &count, out->adds_by_host ? "\"host_sums\": true" : "");
    own_key_say(out, &count, draw_weights(d, out));
    own_key_say(out, &count, draw_fingerprints(d, folder, is_device));
    say(out, "%s", count > 0 ? "}" : "");
}

static void draw_configuration(draw *d, const char *folder, int is_device, layout *out)
{
    static const double CLIPS[] = {0, 0.5, 1, 100};

    d->is_kept            = draw_begins(d, LAYOUT_leaves) && is_one_in(d, 4);
    out->stage            = draw_begins(d, LAYOUT_stage) ? (int)PICK(d, 0, 1, 2, 3, 3) : 0;
    out->accumulation     = draw_begins(d, LAYOUT_accumulation) ? 1 + below(d, 4) : 1;
    out->opens_windows    = draw_begins(d, LAYOUT_open_windows) && is_one_in(d, 4);
    out->is_deterministic = draw_begins(d, LAYOUT_deterministic) && is_one_in(d, 3);
    out->clip             = draw_begins(d, LAYOUT_clipping) ? CLIPS[below(d, 4)] : 0;
    say(out,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": %d,"
        " \"gradient_clipping\": %g%s",
        out->accumulation, out->clip, out->is_deterministic ? ", \"deterministic\": true" : "");
    draw_precision(d, out);
    draw_optimizer(d, out);
    draw_group_optimizers(d, out);
    draw_zero(d, folder, out);
    out->is_bound = draw_begins(d, LAYOUT_bound) && out->stage < 3 && !is_device && is_one_in(d, 4);
    draw_own_keys(d, folder, is_device, out);
    out->is_debug = draw_begins(d, LAYOUT_debug) && is_one_in(d, 2);
    out->is_alike = is_device || d->param_tier[0] != '\0' || out->copy_ranks > 1;
    if (draw_begins(d, LAYOUT_requests) && is_one_in(d, 3)) {
        int         depth  = 1 + below(d, 4);
        size_t      block  = PICK(d, 4096, 8192, 1048576);
        const char *engine = is_one_in(d, 2) ? "threads" : "auto";

        say(out, ", \"aio\": {\"engine\": \"%s\", \"block_size\": %zu, \"queue_depth\": %d}",
            engine, block, depth);
    }
    say(out, "}");
}

/* --------------------------------------------------------- what happens -- */

static void draw_inf(draw *d, const layout *what, layout_window *window)
{
    int param = below(d, what->num_params);

    if (what->params[param].is_frozen) {
        param = 0;
    }
    window->has_inf   = 1;
    window->inf_rank  = below(d, what->world_size);
    window->inf_micro = below(d, window->micro);
    window->inf_param = param;
    window->inf_elem  = (size_t)below(d, (int)what->params[param].elems);
}

/* Whether units may come in another order. If units come twice or read parameters of others, the
 * engine refuses other orders so far. */
static int can_turn(const layout *what)
{
    for (int u = 0; u < what->num_units; u++) {
        if (what->reads[u] >= 0) {
            return 0;
        }
    }
    return what->num_forward == what->num_units && what->num_units > 1;
}

/* Whether the unit's backward may be left out. It may not if the unit reads a parameter of another
 * unit or has one that another reads: the gradient to which several units add would stay open,
 * where the plan puts others. */
static int can_skip(const layout *what, int unit)
{
    for (int u = 0; u < what->num_units; u++) {
        if (what->reads[u] >= 0 && (u == unit || what->params[what->reads[u]].unit == unit)) {
            return 0;
        }
    }
    return what->num_units > 1;
}

/* A rank without data uses the units as the passes are declared, so the others do, too. */
static void draw_skips(draw *d, const layout *what, layout_window *out)
{
    if (!draw_begins(d, LAYOUT_weights) || !is_one_in(d, 4)) {
        return;
    }
    out->skips         = test_random(&d->state) | 1;
    out->has_recompute = 0;
    out->skipped       = -1;
    out->off_plan      = 0;
    out->uses          = what->is_alike ? 0 : out->uses;
}

static void draw_window(draw *d, int is_last, const layout *what, layout_window *out)
{
    *out = (layout_window){.micro = what->accumulation, .skipped = -1, .written = -1};
    if (is_last) {
        return;
    }
    if (draw_begins(d, LAYOUT_short_windows) && is_one_in(d, 5)) {
        int is_bound = !what->opens_windows || what->is_deterministic;

        out->micro = 1 + below(d, what->accumulation + (is_bound ? 0 : 3));
    }
    if (draw_begins(d, LAYOUT_discards) && is_one_in(d, 3)) {
        out->drop  = 1 + below(d, 3);
        out->micro = out->drop == 3            ? what->accumulation
                     : what->accumulation == 1 ? 0
                                               : below(d, what->accumulation);
        out->drop  = out->micro == 0 ? 2 : out->drop;
    }
    if (draw_begins(d, LAYOUT_overflows) && out->micro > 0 && is_one_in(d, out->drop > 0 ? 2 : 8)) {
        draw_inf(d, what, out);
    }
    if (draw_begins(d, LAYOUT_undo) && out->drop == 0 && is_one_in(d, 3)) {
        out->is_undone  = what->can_undo;
        out->undo_micro = below(d, what->accumulation);
    }
    if (draw_begins(d, LAYOUT_passes)) {
        out->has_eval      = is_one_in(d, 4);
        out->has_recompute = is_one_in(d, 4);
        out->skipped  = what->num_units > 1 && is_one_in(d, 6) ? below(d, what->num_units) : -1;
        out->skipped  = can_skip(what, out->skipped) ? out->skipped : -1;
        out->off_plan = is_one_in(d, 4) && can_turn(what) ? 1 + below(d, what->num_units - 1) : 0;
    }
    if (draw_begins(d, LAYOUT_uses) && !is_one_in(d, 3)) {
        out->uses = test_random(&d->state) | 1;
    }
    if (draw_begins(d, LAYOUT_writes) && is_one_in(d, 4)) {
        out->written = below(d, what->num_params);
        if (d->is_kept && what->params[out->written].is_frozen) {
            out->written = -1; /* a resume has the frozen values that the trainer fills */
        }
    }
    if (draw_begins(d, LAYOUT_leaves) && is_one_in(d, 3)) {
        out->is_left     = d->is_kept && what->can_undo;
        out->leave_micro = below(d, what->accumulation);
    }
    if (draw_begins(d, LAYOUT_queued)) {
        out->ending = (layout_ending)below(d, LAYOUT_ENDINGS);
        out->asking = (layout_asking)below(d, LAYOUT_ASKINGS);
    }
    draw_skips(d, what, out);
}

void layout_draw(uint64_t seed, uint64_t without, const char *folder, int is_device, layout *out)
{
    draw d = {.seed = seed, .without = without, .state_tier = "", .param_tier = ""};

    memset(out, 0, sizeof(*out));
    out->seed = seed;
    out->world_size =
        draw_begins(&d, LAYOUT_ranks) ? (int)PICK(&d, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8) : 1;
    if (is_device && out->world_size > 3) {
        out->world_size -= 4;
        out->world_size += out->world_size == 0;
    }
    out->is_processes = draw_begins(&d, LAYOUT_processes) && is_one_in(&d, 5);
    draw_model(&d, is_device, out);
    draw_order(&d, out);
    draw_configuration(&d, folder, is_device, out);
    draw_types(&d, out);
    d.state          = seed + 1;
    out->num_windows = 3 + below(&d, LAYOUT_WINDOWS - 2);
    for (int w = 0; w < out->num_windows; w++) {
        /* each window has streams of its own; the last two windows are plain, and their bytes are
         * counted */
        d.seed = seed + 1 + (uint64_t)w;
        draw_window(&d, w >= out->num_windows - 2, out, &out->windows[w]);
        if (w == 0 && out->windows[w].drop > 0) {
            out->windows[w].uses =
                0; /* a rank that drops before it has begun ends the others' start */
        }
    }
}

void layout_describe(const layout *what, char *text, size_t len_bytes)
{
    size_t elems = 0, at;
    int    wide  = 0;

    for (int p = 0; p < what->num_params; p++) {
        elems += what->params[p].elems;
        wide += what->params[p].dtype != what->dtype;
    }
    (void)snprintf(
        text, len_bytes,
        "%d ranks as %s, %d units, %d parameters (%d stay fp32) of %zu elements%s, windows",
        what->world_size, what->is_processes ? "processes" : "threads", what->num_units,
        what->num_params, wide, elems, what->is_bound ? " in the trainer's memory" : "");
    for (int w = 0; w < what->num_windows; w++) {
        const layout_window *window = &what->windows[w];

        at = strlen(text);
        (void)snprintf(text + at, len_bytes - at, " %d%s%s%s%s%s%s%s%s%s%s%s%s", window->micro,
                       window->skips != 0 ? "+without data" : "", window->has_inf ? "+Inf" : "",
                       window->drop == 0   ? ""
                       : window->drop == 1 ? "+dropped"
                       : window->drop == 2 ? "+dropped in backward"
                                           : "+dropped for the update",
                       window->is_undone ? "+undone" : "", window->has_eval ? "+eval" : "",
                       window->has_recompute ? "+recomputed" : "",
                       window->skipped >= 0 ? "+unit skipped" : "",
                       window->off_plan != 0 ? "+turned" : "", window->uses != 0 ? "+uses" : "",
                       window->written >= 0 ? "+written" : "", window->is_left ? "+left" : "",
                       window->ending == LAYOUT_ENDS_BY_STEP  ? ""
                       : window->ending == LAYOUT_ENDS_QUEUED ? "+queued"
                                                              : "+queued in halves");
    }
    for (int g = 1; g < what->num_groups; g++) {
        at = strlen(text);
        (void)snprintf(text + at, len_bytes - at, "%s%s",
                       what->group_optimizer[g] == NULL ? "" : ", a group by ",
                       what->group_optimizer[g] == NULL ? "" : what->group_optimizer[g]);
    }
    for (int u = 0; u < what->num_units; u++) {
        at = strlen(text);
        (void)snprintf(text + at, len_bytes - at, "%s",
                       what->is_any[u] ? ", an open-ended unit" : "");
    }
    at = strlen(text);
    (void)snprintf(text + at, len_bytes - at, "%s; %s", what->is_debug ? ", SHERD_DEBUG" : "",
                   what->json);
}

/* -------------------------------------------------------- how it is used -- */

int layout_backward(const layout *what, const layout_window *window, int order[LAYOUT_PASS])
{
    int count = 0;

    for (int i = 0; i < what->num_forward; i++) {
        int unit =
            what->forward[(what->num_forward - 1 - i + window->off_plan) % what->num_forward];

        if (unit != window->skipped) {
            order[count++] = unit;
        }
    }
    return count;
}

int layout_touches(const layout *what, int unit, int param)
{
    return !what->params[param].is_frozen &&
           (what->params[param].unit == unit || what->reads[unit] == param);
}

/* Each rank may visit an open-ended unit never, once or twice. Rank 0 visits it, so that each
 * micro-batch has a backward. */
int layout_visits(const layout *what, const layout_window *window, int unit, int rank)
{
    uint64_t state =
        window->uses + (uint64_t)unit * 0x9e3779b9u + (uint64_t)(what->is_alike ? 0 : rank) * 77;
    int visits;

    if (window->uses == 0 || !what->is_any[unit]) {
        return 1;
    }
    (void)test_random(&state);
    visits = (int)(test_random(&state) % 3);
    return visits == 0 && (rank == 0 || what->is_alike) ? 1 : visits;
}

/* Rank 0 has data in the first micro-batch, and where other ranks may visit no unit. */
int layout_skips(const layout *what, const layout_window *window, int k, int rank)
{
    uint64_t state = window->skips + (uint64_t)k * 0x9e3779b9u + (uint64_t)rank * 77;

    (void)what;
    if (window->skips == 0 || (rank == 0 && (k == 0 || window->uses != 0))) {
        return 0;
    }
    (void)test_random(&state);
    return test_random(&state) % 3 == 0;
}

uint64_t layout_weight(const layout *what, int64_t n)
{
    uint64_t state = what->seed + (uint64_t)n * 0x9e3779b9u;

    (void)test_random(&state);
    if (n % what->world_size == 0) { /* a window has a weight */
        return 1 + test_random(&state) % what->most_weight;
    }
    return test_random(&state) % (what->most_weight + 1);
}

static float noise(uint64_t stream, uint64_t index)
{
    uint64_t state = stream * 0x100000001b3u + index;

    return test_random_float(&state);
}

size_t layout_written_from(const layout *what, const layout_window *window)
{
    return what->params[window->written].elems / 3;
}

float layout_written(const layout_window *window, size_t index)
{
    return noise(500 + (uint64_t)window->written, index) * 1.2345678f;
}

float layout_gradient(int64_t n, int param, int use, size_t index, float weight, float loss_scale)
{
    uint64_t stream = ((uint64_t)n * LAYOUT_PARAMS + (uint64_t)param) * LAYOUT_PASS + (uint64_t)use;

    return (noise(1000 + stream, index) + 0.25f * weight) * loss_scale;
}

sherd_status layout_fill(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = noise((uint64_t)(uintptr_t)ctx, first_elem + i);
    }
    return SHERD_OK;
}
