/* range_lamb_norms over vectors. */

enum { LAMB_PARTS = 3 };

/* The prefetching distance of the norms. Where prefetching does not help updates, the distance is a
 * line or two, so that each line is requested twice: first-level prefetchers follow such streams
 * further. One line is best for four arrays of fp32, two lines with a 16-bit gradient. */
INLINE size_t lamb_norms_ahead_bytes(const sherdi_update_range *range)
{
    if (range->ahead_bytes > 0) {
        return range->ahead_bytes;
    }
    return range->grad_dtype == SHERD_F32 ? CACHE_LINE_BYTES : 2 * CACHE_LINE_BYTES;
}

/* A pipeline of three tiles, so that nothing waits for roots and quotients that have just begun: it
 * takes the roots of one tile, the quotients of the tile before, and the squares of the tile before
 * that. */
typedef struct lamb_stages {
    float        roots[TILE_ELEMS] __attribute__((aligned(CACHE_LINE_BYTES))); /* eps added */
    float        moments[TILE_ELEMS];
    float        directions[TILE_ELEMS];
    const float *divided; /* weights of the tile to which roots and moments belong */
    const float *squared; /* weights of the tile to which the directions belong */
} lamb_stages;

/* Advances every stage by one tile, a few registers of each stage in turn. The loop is not
 * unrolled, since the compiler would then separate the stages again. The results are the lanes of
 * the tile that has left the last stage. */
INLINE void lamb_stages_step(lamb_stages *stages, const sherdi_lamb_coeffs *c,
                             const sherdi_update_range *range, size_t first, __m256d *param_out,
                             __m256d *update_out)
{
    lane_sums param  = lane_sums_empty();
    lane_sums update = lane_sums_empty();

#pragma GCC unroll 1
    for (size_t at = 0; at < TILE_ELEMS; at += UPDATE_VECS * LANES) {
        update_vecs x;

        for (size_t row = 0; row < UPDATE_VECS * LANES / 8; row++) {
            lanes_add_row(&param, (const char *)(stages->squared + at), SHERD_F32, row);
            lanes_add_row(&update, (const char *)(stages->directions + at), SHERD_F32, row);
        }
        for (size_t i = 0; i < UPDATE_VECS; i++) {
            size_t  k        = at + i * LANES;
            vec_f32 quotient = vec_load(stages->moments + k) / vec_load(stages->roots + k);

            vec_store(stages->directions + k,
                      vec_fma(vec_set(c->decay), vec_load(stages->divided + k), quotient));
        }
        update_load(&x, range, LAMB_PARTS, first + at);
        for (size_t i = 0; i < UPDATE_VECS; i++) {
            vec_f32 m = x.x[1][i];
            vec_f32 v = x.x[2][i];

            sherdi_lamb_moments(c, x.g[i], &m, &v);
            vec_store(stages->moments + at + i * LANES, m * vec_set(c->inv_bias1));
            vec_store(stages->roots + at + i * LANES, sherdi_lamb_root(c, v) + vec_set(c->eps));
        }
    }
    *param_out      = _mm256_add_pd(param.low, param.high);
    *update_out     = _mm256_add_pd(update.low, update.high);
    stages->squared = stages->divided;
    stages->divided = range->master + first;
}

/* Takes the norms of whole tiles; returns where they end. The squares of a tile come out two steps
 * after it went in. So the first two results are dropped, and at the end the last tile goes in
 * again until all results are out. The loop takes four tiles at a time: a test after each tile
 * whether four results were there made it a third slower, with one compiler or the other. */
INLINE size_t lamb_norms_tiles(const sherdi_update_range *range, const sherdi_lamb_coeffs *c,
                               sherdi_lamb_norms *norms)
{
    static const float zeros[TILE_ELEMS];
    size_t             tiles        = range->count_elems / TILE_ELEMS;
    lamb_stages        stages       = {.divided = zeros, .squared = zeros};
    norm_cache         param_cache  = cache_empty();
    norm_cache         update_cache = cache_empty();

    for (size_t group = 0; tiles > 0 && group < tiles + 2; group += 4) {
        __m256d param[4];
        __m256d update[4];

        for (size_t k = 0; k < 4; k++) {
            size_t first = sherdi_min_size(group + k, tiles - 1) * TILE_ELEMS;

            update_prefetch(range, LAMB_PARTS, first, lamb_norms_ahead_bytes(range));
            lamb_stages_step(&stages, c, range, first, &param[k], &update[k]);
            if (group + k - 2 >= tiles) { /* true of the first two as well: the difference wraps */
                param[k]  = _mm256_setzero_pd();
                update[k] = _mm256_setzero_pd();
            }
        }
        cache_add(&param_cache, &norms->param, chunk_sums(param));
        cache_add(&update_cache, &norms->update, chunk_sums(update));
    }
    cache_flush(&param_cache, &norms->param);
    cache_flush(&update_cache, &norms->update);
    return tiles * TILE_ELEMS;
}

/* Takes the norms of the last chunk of a span, filled up with zeros. */
static void lamb_norms_rest(const sherdi_update_range *range, const sherdi_lamb_coeffs *c,
                            size_t first, sherdi_lamb_norms *norms)
{
    size_t              count = range->count_elems - first;
    float               u[TILE_ELEMS];
    update_tile         tile;
    sherdi_update_range rest;

    if (count == 0) {
        return;
    }
    rest = update_tile_of(range, LAMB_PARTS, first, &tile);
    for (size_t i = 0; i < TILE_ELEMS; i += LANES) {
        vec_f32 m = vec_load(rest.m + i);
        vec_f32 v = vec_load(rest.v + i);

        vec_store(u + i, sherdi_lamb_direction(c, vec_load(tile.grad + i),
                                               vec_load(rest.master + i), &m, &v));
    }
    memset(u + count, 0, (TILE_ELEMS - count) * sizeof(float)); /* where u is 0 / 0 */
    sherdi_norm_add(&norms->param, sherdi_norm_chunk(rest.master));
    sherdi_norm_add(&norms->update, sherdi_norm_chunk(u));
}

static void range_lamb_norms(const sherdi_update_range *range, const sherdi_lamb_coeffs *coeffs,
                             sherdi_lamb_norms *norms)
{
    const sherdi_lamb_coeffs own  = *coeffs;
    sherdi_update_range      same = *range;
    size_t                   first;

    if (range->grad_dtype == SHERD_F32) {
        same.grad_dtype = SHERD_F32;
        first           = lamb_norms_tiles(&same, &own, norms);
    } else if (range->grad_dtype == SHERD_BF16) {
        same.grad_dtype = SHERD_BF16;
        first           = lamb_norms_tiles(&same, &own, norms);
    } else {
        first = lamb_norms_tiles(&same, &own, norms);
    }
    lamb_norms_rest(range, &own, first, norms);
}
