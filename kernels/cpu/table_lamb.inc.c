/* The part of a kernel table for LAMB. table_list.h explains the two faces of this file.
 *
 * range_lamb_norms only reads the range, and adds to *norms; the range starts at a multiple of 64
 * from its span's start. Vectors have one of their own (vector_lamb.inc.c). */
#if defined(TABLE_SLOTS)

.lamb_norms = table_lamb_norms, .lamb_ratios = table_lamb_ratios,

#else

#if !TABLE_HAS_VECTORS

static void range_lamb_norms(const sherdi_update_range *range, const sherdi_lamb_coeffs *coeffs,
                             sherdi_lamb_norms *norms)
{
    for (size_t first = 0; first < range->count_elems; first += SHERD_CHUNK_ELEMS) {
        float p[SHERD_CHUNK_ELEMS] = {0};
        float u[SHERD_CHUNK_ELEMS] = {0};

        for (size_t i = 0; i < SHERD_CHUNK_ELEMS && first + i < range->count_elems; i++) {
            float m = range->m[first + i];
            float v = range->v[first + i];

            p[i] = range->master[first + i];
            u[i] = sherdi_lamb_direction(
                coeffs, sherdi_load_elem(range->grad, range->grad_dtype, first + i), p[i], &m, &v);
        }
        sherdi_norm_add(&norms->param, sherdi_norm_chunk(p));
        sherdi_norm_add(&norms->update, sherdi_norm_chunk(u));
    }
}

#endif

static void lamb_norms_range(const update_call *call, encoded_tile *tile, const span_range *where,
                             sherdi_lamb_norms *share)
{
    const sherdi_lamb_coeffs *coeffs =
        (const sherdi_lamb_coeffs *)call->args->coeffs + where->span->group;

    if (!sherdi_has_encoded(call->args->encodings, SHERDI_UPDATE_MOST_PARTS)) {
        sherdi_update_range range = update_range_at(&call->block, where);

        range_lamb_norms(&range, coeffs, share);
        return;
    }
    encoded_tile_init(tile, call, 1);
    for (size_t done = 0; done < where->count_elems; done += ENCODED_TILE_ELEMS) {
        size_t              count = sherdi_min_size(where->count_elems - done, ENCODED_TILE_ELEMS);
        sherdi_update_range range = tile_open(tile, call, where, done, count, 0);

        range_lamb_norms(&range, coeffs, share);
    }
}

static void lamb_norms_task(void *ctx, int task, int tasks)
{
    const update_call        *call = ctx;
    const sherdi_update_args *args = call->args;
    span_walk    walk = walk_task(args->spans, args->num_spans, call->chunks, task, tasks);
    span_range   where;
    encoded_tile tile;

    while (walk_next(&walk, &where)) {
        sherdi_lamb_norms  share = {0};
        sherdi_lamb_norms *norms = &args->norms[where.span->param];

        lamb_norms_range(call, &tile, &where, &share);
        norm_share(&norms->param, &share.param);
        norm_share(&norms->update, &share.update);
    }
}

static void table_lamb_norms(const sherdi_backend *backend, const sherdi_update_args *args)
{
    update_call call = {.args = args};

    update_call_run(backend, &call, sherdi_update_parts(SHERDI_UPDATE_lamb),
                    sherdi_lamb_norms_traffic_bytes(args), range_ahead_bytes(backend),
                    lamb_norms_task);
}

static void table_lamb_ratios(const sherdi_backend *backend, const sherdi_lamb_ratio_args *args)
{
    (void)backend;
    for (size_t i = 0; i < args->num_params; i++) {
        args->ratios[i] = args->groups[i] < 0
                              ? 1
                              : sherdi_lamb_ratio(&args->coeffs[args->groups[i]],
                                                  &args->norms[i].param, &args->norms[i].update);
    }
}

#endif
