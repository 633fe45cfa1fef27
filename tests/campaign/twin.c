/* Trains a layout without an engine: on whole arrays, one rank after another. See layout.h. */
#include "tests/campaign/layout.h"

#include "kernels/codecs.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The loss scaler, as docs/configuration.md describes its keys. */
typedef struct twin_scaler {
    double scale;
    int    left;  /* overflows until the scale is halved */
    int    clean; /* steps since the last overflow */
} twin_scaler;

typedef struct twin {
    const layout *what;
    plain_param   params[LAYOUT_PARAMS];
    twin_scaler   scaler;
    int           updates;
    int64_t       micro;
    int           is_finite; /* no gradient of the window was Inf or NaN */
} twin;

/* ---------------------------------------------------------------- storing -- */

static void chunk_store_fp8(float *x, size_t count, int is_signless, uint64_t index,
                            sherdi_random random)
{
    uint32_t largest = 0;
    float    scale;
    float    inverse;

    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = sherdi_bits_f32(x[i]) & 0x7fffffffu;

        largest = magnitude > largest ? magnitude : largest;
    }
    scale   = sherdi_fp8_scale(largest);
    inverse = sherdi_fp8_inverse(scale);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = sherdi_random_bits(random, sherdi_mix_key(index + i));

        x[i] = is_signless ? sherdi_ufp8_decode(sherdi_ufp8_encode(x[i], inverse, bits, 1), scale)
                           : sherdi_fp8_decode(sherdi_fp8_encode(x[i], inverse, bits, 1), scale);
    }
}

/* Without `random` it rounds to nearest. */
static float store_bf16(float x, uint64_t index, const sherdi_random *random)
{
    uint16_t stored =
        random == NULL
            ? sherdi_bf16_encode(x)
            : sherdi_bf16_encode_random(x, sherdi_random_bits(*random, sherdi_mix_key(index)));

    return sherdi_f32_from_bits((uint32_t)stored << 16);
}

static void moment_store(float *x, size_t elems, int is_fp8, int is_signless, uint64_t index,
                         sherdi_random random)
{
    for (size_t at = 0; at < elems && is_fp8; at += SHERD_CHUNK_ELEMS) {
        chunk_store_fp8(x + at, elems - at < SHERD_CHUNK_ELEMS ? elems - at : SHERD_CHUNK_ELEMS,
                        is_signless, index + at, random);
    }
    for (size_t i = 0; i < elems && !is_fp8; i++) {
        x[i] = store_bf16(x[i], index + i, &random);
    }
}

/* Makes of a master, from element `first` on, what rests of it, and makes the weights of that. */
static void master_store(const layout *what, plain_param *param, uint64_t index, size_t first,
                         const sherdi_random *random)
{
    int is_rounded = what->has_bf16_masters && param->dtype == SHERD_BF16 && !param->is_frozen;

    for (size_t i = first; i < param->elems; i++) {
        if (is_rounded) {
            param->master[i] = store_bf16(param->master[i], index + i, random);
        }
        param->weight[i] = plain_round(param->master[i], param->dtype);
    }
}

/* Makes of what an update has made what rests of it. */
static void update_store(const layout *what, plain_param *param, plain_kind kind, uint64_t index,
                         int step)
{
    float *moments[] = {kind == PLAIN_SGD ? NULL : param->m,
                        kind <= PLAIN_LAMB_PAPER ? param->v : NULL};
    sherdi_random random = sherdi_random_of((uint64_t)step, 0);

    master_store(what, param, index, 0, &random);
    for (unsigned i = 0; i < 2; i++) {
        if (what->moments > 0 && moments[i] != NULL) {
            moment_store(moments[i], param->elems, what->moments == 2,
                         i == 1 || kind == PLAIN_ADAGRAD, index,
                         sherdi_random_of((uint64_t)step, i + 1));
        }
    }
}

/* Returns the number of a parameter's first element in the model. */
static uint64_t first_index(const layout *what, int param)
{
    uint64_t index = 0;

    for (int p = 0; p < param; p++) {
        index += what->params[p].elems;
    }
    return index;
}

static void twin_open(twin *t, const layout *what)
{
    *t = (twin){.what = what, .scaler = {.scale = what->loss_scale, .left = what->hysteresis}};
    for (int p = 0; p < what->num_params; p++) {
        const layout_param *from  = &what->params[p];
        plain_param        *param = &t->params[p];

        plain_param_init(param, from->elems);
        param->cols         = from->shape[1];
        param->dtype        = from->dtype;
        param->is_frozen    = from->is_frozen;
        param->lr           = what->group_lr[from->group];
        param->decay        = what->group_decay[from->group];
        param->has_no_ratio = what->group_excludes[from->group] && from->ndim <= 1;
        (void)layout_fill((void *)(uintptr_t)p, 0, from->elems, param->master);
        master_store(what, param, first_index(what, p), 0, NULL);
    }
}

static void twin_close(twin *t)
{
    for (int p = 0; p < t->what->num_params; p++) {
        plain_param_fini(&t->params[p]);
    }
}

/* ------------------------------------------------------------- gradients -- */

/* Gives the visits of the window's backward that touch the parameter; returns how many there
 * are. */
static int uses_of(const layout *what, const layout_window *window, int param,
                   int uses[LAYOUT_PASS])
{
    int order[LAYOUT_PASS];
    int visits = layout_backward(what, window, order);
    int count  = 0;

    for (int i = 0; i < visits; i++) {
        if (layout_touches(what, order[i], param)) {
            uses[count++] = i;
        }
    }
    return count;
}

/* The gradient of one element in the window, summed in the order of the stage. */
typedef struct element {
    const layout        *what;
    const layout_window *window;
    int                  param;
    size_t               index;
    float                weight, scale;
    int                  num_uses;
    int                  uses[LAYOUT_PASS];
    int                  order[LAYOUT_PASS]; /* the units of the window's backward */
} element;

static float rank_gradient(const element *e, int64_t micro, int k, int rank)
{
    int64_t n      = micro * e->what->world_size + rank;
    float   g      = 0;
    int     visits = 0;

    if (layout_skips(e->what, e->window, k, rank)) {
        return 0;
    }
    for (int u = 0; u < e->num_uses; u++) {
        int more = layout_visits(e->what, e->window, e->order[e->uses[u]], rank);

        for (int v = 0; v < more; v++) {
            g = plain_round(
                g + layout_gradient(n, e->param, e->uses[u], e->index, e->weight, e->scale),
                e->what->params[e->param].dtype);
        }
        visits += more;
    }
    if (visits > 0 && e->window->has_inf && e->window->inf_rank == rank &&
        e->window->inf_micro == k && e->window->inf_param == e->param &&
        e->window->inf_elem == e->index) {
        return INFINITY;
    }
    return g;
}

/* What a rank's gradient is multiplied by. */
static uint64_t weight_of(const layout *what, const layout_window *window, int64_t micro, int k,
                          int rank)
{
    if (layout_skips(what, window, k, rank)) {
        return 0;
    }
    return what->most_weight == 0 ? 1 : layout_weight(what, micro * what->world_size + rank);
}

static double factor_of(const element *e, int64_t micro, int k, int rank)
{
    return e->what->most_weight == 0 ? 1
                                     : (double)weight_of(e->what, e->window, micro, k, rank) /
                                           (double)e->what->most_weight;
}

/* How many micro-batches of the full weight a window is worth, on all ranks together. */
static double window_worth(const twin *t, const layout_window *window)
{
    const layout *what  = t->what;
    uint64_t      most  = what->most_weight == 0 ? 1 : what->most_weight;
    uint64_t      total = 0;

    for (int k = 0; k < window->micro; k++) {
        for (int r = 0; r < what->world_size; r++) {
            total += weight_of(what, window, t->micro + k, k, r);
        }
    }
    return (double)total / (double)most;
}

static float sum_of(const float *g, int count)
{
    float sum = g[0];

    for (int r = 1; r < count; r++) {
        sum += g[r];
    }
    return sum;
}

/* The reduction inside a replica, to the mean over all ranks. Without replicas the hosts may be
 * added up first. */
static float replica_mean(const element *e, const float *g)
{
    const layout *what = e->what;
    float         hosts[LAYOUT_RANKS];
    float         sum   = sum_of(g, what->shard_size);
    int           first = 0;

    for (int h = 0; h < what->num_hosts; h++) {
        hosts[h] = sum_of(g + first, what->hosts[h]);
        first += what->hosts[h];
    }
    if (what->adds_by_host && what->num_hosts > 1 && what->shard_size == what->world_size) {
        sum = sum_of(hosts, what->num_hosts);
    }
    return plain_round(sum * (float)(1.0 / what->world_size), what->params[e->param].comm);
}

/* Adds up what the replicas have. */
static float replicas_sum(const element *e, const float *totals)
{
    const layout *what = e->what;
    int           adds = what->accumulation > 1 || what->opens_windows;
    float         sum  = totals[0];

    if (what->shard_size == what->world_size) {
        return sum;
    }
    for (int k = 1; k < what->world_size / what->shard_size; k++) {
        sum += totals[k];
    }
    return plain_round(sum, adds ? SHERD_F32 : what->params[e->param].comm);
}

/* Reduces each micro-batch, and adds up the results. */
static float sum_early(const element *e, int64_t first)
{
    float totals[LAYOUT_RANKS];
    int   size = e->what->shard_size;

    for (int k = 0; k < e->window->micro; k++) {
        float g[LAYOUT_RANKS];

        for (int r = 0; r < e->what->world_size; r++) {
            g[r] = rank_gradient(e, first + k, k, r) * (float)factor_of(e, first + k, k, r);
        }
        for (int r = 0; r < e->what->world_size; r += size) {
            float mean = replica_mean(e, g + r);

            totals[r / size] = k == 0 ? mean : totals[r / size] + mean;
        }
    }
    return replicas_sum(e, totals);
}

/* Adds up the micro-batches of each rank, and reduces once. */
static float sum_late(const element *e, int64_t first)
{
    float own[LAYOUT_RANKS];
    float totals[LAYOUT_RANKS];
    int   size = e->what->shard_size;

    for (int r = 0; r < e->what->world_size; r++) {
        float sum = 0;

        for (int k = 0; k < e->window->micro; k++) {
            float g = rank_gradient(e, first + k, k, r) * (float)factor_of(e, first + k, k, r);

            sum = k == 0 ? g : sum + g;
        }
        own[r] = plain_round(sum, e->what->params[e->param].comm);
    }
    for (int r = 0; r < e->what->world_size; r += size) {
        totals[r / size] = replica_mean(e, own + r);
    }
    return replicas_sum(e, totals);
}

/* Adds up as deterministic mode does: in fixed point. */
static float sum_fixed(const element *e, int64_t first, int shift)
{
    int64_t sum = 0;

    for (int k = 0; k < e->window->micro; k++) {
        for (int r = 0; r < e->what->world_size; r++) {
            float g = rank_gradient(e, first + k, k, r);

            if (!isfinite(g)) {
                return INFINITY;
            }
            sum += plain_fixed(g, e->scale, shift, factor_of(e, first + k, k, r));
        }
    }
    return (float)(double)sum;
}

static void window_gradients(twin *t, const layout_window *window, int shift)
{
    const layout *what    = t->what;
    int           is_late = what->stage < 2 && (what->accumulation > 1 || what->opens_windows);

    t->is_finite = 1;
    for (int p = 0; p < what->num_params; p++) {
        element e = {.what = what, .window = window, .param = p, .scale = (float)t->scaler.scale};

        e.num_uses = uses_of(what, window, p, e.uses);
        (void)layout_backward(what, window, e.order);
        for (size_t i = 0; i < t->params[p].elems && !t->params[p].is_frozen; i++) {
            float g;

            e.index              = i;
            e.weight             = t->params[p].weight[i];
            g                    = what->is_deterministic ? sum_fixed(&e, t->micro, shift)
                                   : is_late              ? sum_late(&e, t->micro)
                                                          : sum_early(&e, t->micro);
            t->params[p].grad[i] = g;
            t->is_finite         = t->is_finite && isfinite(g);
        }
    }
}

/* --------------------------------------------------------------- windows -- */

static void scaler_step(twin_scaler *scaler, const layout *what, int had_overflow)
{
    if (!what->is_dynamic) {
        return;
    }
    if (had_overflow) {
        scaler->clean = 0;
        if (scaler->left > 1) {
            scaler->left--;
        } else {
            scaler->scale /= 2;
        }
        return;
    }
    if (++scaler->clean % what->scale_window == 0) {
        scaler->scale *= 2;
        scaler->left = what->hysteresis;
    }
}

static void window_step(twin *t, const layout_window *window, layout_outcome *out)
{
    const layout *what    = t->what;
    int           shift   = plain_fixed_shift(what->world_size * what->accumulation);
    double        worth   = window_worth(t, window);
    double        unscale = 1 / (t->scaler.scale * (worth / what->world_size));
    double        clip    = 1;
    double        norm;

    if (what->is_deterministic) {
        unscale = ldexp(1, -shift) / worth;
    }
    *out = (layout_outcome){.loss_scale = t->scaler.scale};
    window_gradients(t, window, shift);
    if (t->is_finite) {
        norm = sqrt(plain_sumsq(t->params, (size_t)what->num_params)) * unscale;
        if (what->clip > 0 && what->clip / (norm + 1e-6) < 1) {
            clip = what->clip / (norm + 1e-6);
        }
        t->updates++;
        for (int p = 0; p < what->num_params; p++) {
            if (!t->params[p].is_frozen) {
                plain_rule rule = what->rule;

                rule.kind = what->group_kind[what->params[p].group];
                plain_update(&t->params[p], &rule, clip * unscale, t->updates);
                update_store(what, &t->params[p], rule.kind, first_index(what, p), t->updates);
            }
        }
        out->norm = norm;
    }
    out->has_overflow = !t->is_finite;
    out->fingerprint  = plain_fingerprint(t->params, (size_t)what->num_params);
    scaler_step(&t->scaler, what, !t->is_finite);
    t->micro += window->micro;
}

/* Copies all that an update changes: the arrays of a parameter follow each other, from `master`
 * on. */
static void twin_copy(const twin *from, twin *to)
{
    for (int p = 0; p < from->what->num_params; p++) {
        memcpy(to->params[p].master, from->params[p].master,
               5 * from->params[p].elems * sizeof(float));
    }
    to->scaler  = from->scaler;
    to->updates = from->updates;
}

/* Writes values; where state has generations, that is a commit. */
static void window_write(twin *t, const layout_window *window)
{
    plain_param *param = &t->params[window->written];
    size_t       first = layout_written_from(t->what, window);

    for (size_t i = first; i < param->elems; i++) {
        param->master[i] = layout_written(window, i);
    }
    master_store(t->what, param, first_index(t->what, window->written), first, NULL);
}

/* An undo goes back to what the update before had left: windows that were skipped since are undone
 * too. A resume goes back to the last commit. */
void layout_twin(const layout *what, layout_result *out)
{
    twin t, last, before; /* now, after the last update, and after the update before that */

    twin_open(&t, what);
    twin_open(&last, what);
    twin_open(&before, what);
    for (int w = 0; w < what->num_windows; w++) {
        const layout_window *window = &what->windows[w];

        if (window->written >= 0) {
            window_write(&t, window);
            twin_copy(&t, &last);
        }
        if (window->is_left) {
            t.micro += window->leave_micro;
            twin_copy(&last, &t);
            out->resumed[w] = plain_fingerprint(t.params, (size_t)what->num_params);
        }
        if (window->drop > 0) {
            t.micro += window->micro + (window->drop == 2);
            continue;
        }
        window_step(&t, window, &out->windows[w]);
        if (out->windows[w].has_overflow) {
            continue;
        }
        twin_copy(&last, &before);
        twin_copy(&t, &last);
        if (window->is_undone) {
            t.micro += window->undo_micro;
            twin_copy(&before, &t);
            twin_copy(&before, &last);
            out->undone[w] = plain_fingerprint(t.params, (size_t)what->num_params);
        }
    }
    twin_close(&t);
    twin_close(&last);
    twin_close(&before);
}
