/* The reference: every kernel element by element, by formulas.h, never tuned. The other instruction
 * sets must give the same bits. Read this file first. */
#include "kernels/cpu/elements.h"
#include "kernels/updates/updates.h"

/* Stores the parameter that is made of the new master, and returns the element's share of the
 * fingerprint. */
static uint64_t update_finish(const sherdi_update_range *range, size_t i)
{
    if (range->param != NULL) {
        sherdi_store_elem(range->param, range->param_dtype, i, range->master[i]);
    }
    return sherdi_mix_element(range->first_index + i, range->master[i]);
}

#define SHERDI_UPDATE(name, num_parts)                                                             \
    static uint64_t range_##name(const sherdi_update_range    *range,                              \
                                 const sherdi_##name##_coeffs *coeffs)                             \
    {                                                                                              \
        uint64_t fingerprint = 0;                                                                  \
                                                                                                   \
        for (size_t i = 0; i < range->count_elems; i++) {                                          \
            float x[num_parts];                                                                    \
                                                                                                   \
            for (int part = 0; part < (num_parts); part++) {                                       \
                x[part] = range->parts[part][i];                                                   \
            }                                                                                      \
            sherdi_##name##_element(coeffs, sherdi_load_elem(range->grad, range->grad_dtype, i),   \
                                    x);                                                            \
            for (int part = 0; part < (num_parts); part++) {                                       \
                range->parts[part][i] = x[part];                                                   \
            }                                                                                      \
            fingerprint += update_finish(range, i);                                                \
        }                                                                                          \
        return fingerprint;                                                                        \
    }
#include "kernels/updates/rows.h"

static void range_sumsq(const void *x, sherd_dtype dtype, size_t count_elems, sherdi_norm_acc *acc)
{
    float chunk[SHERD_CHUNK_ELEMS];

    for (size_t first = 0; first < count_elems; first += SHERD_CHUNK_ELEMS) {
        for (size_t i = 0; i < SHERD_CHUNK_ELEMS; i++) {
            chunk[i] = sherdi_load_elem(x, dtype, first + i);
        }
        sherdi_norm_add(acc, sherdi_norm_chunk(chunk));
    }
}

static void range_reduce(const sherdi_reduce_args *args, size_t first, size_t count_elems,
                         int is_streaming, size_t ahead_bytes)
{
    (void)is_streaming;
    (void)ahead_bytes;
    sherdi_reduce_elems(args, first, first + count_elems);
}

static void range_cast(void *dst, sherd_dtype dst_dtype, const void *src, sherd_dtype src_dtype,
                       size_t count_elems, int is_streaming)
{
    (void)is_streaming;
    sherdi_cast_elems(dst, dst_dtype, src, src_dtype, 0, count_elems);
}

static void range_accumulate(void *acc, sherd_dtype acc_dtype, const void *x, sherd_dtype x_dtype,
                             size_t count_elems, size_t ahead_bytes)
{
    (void)ahead_bytes;
    sherdi_accumulate_elems(acc, acc_dtype, x, x_dtype, 0, count_elems);
}

static void range_copy(void *dst, const void *src, size_t len_bytes, int is_streaming,
                       size_t ahead_bytes)
{
    (void)is_streaming;
    (void)ahead_bytes;
    memcpy(dst, src, len_bytes);
}

static void range_zero(void *dst, size_t len_bytes, int is_streaming)
{
    (void)is_streaming;
    memset(dst, 0, len_bytes);
}

static uint64_t range_fingerprint(const float *master, uint64_t first_index, size_t count_elems)
{
    return sherdi_fingerprint_elems(master, first_index, 0, count_elems);
}

/* Nothing is prefetched, and nothing is tried. */
static size_t range_ahead_bytes(const sherdi_backend *backend)
{
    (void)backend;
    return 0;
}

typedef struct range_trial {
    size_t ahead_bytes;
} range_trial;

static range_trial range_ahead_begin(const sherdi_backend *backend, int is_encoded, size_t bytes)
{
    (void)backend, (void)is_encoded, (void)bytes;
    return (range_trial){0};
}

static void range_ahead_end(const sherdi_backend *backend, const range_trial *trial)
{
    (void)backend, (void)trial;
}

/* Does nothing: all stores go through the caches. */
static void range_stream_end(void)
{
}

#define TABLE_NAME        sherdi_kernels_scalar
#define TABLE_ISA         "scalar"
#define TABLE_OWN_BYTES   0
#define TABLE_HAS_VECTORS 0
#include "kernels/cpu/table.inc.c"
