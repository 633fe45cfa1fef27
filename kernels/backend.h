/* What one kind of device offers: memory and the numeric kernels. The engine and
 * the transports see only this. `cpu` is the first (kernels/cpu); a second device
 * adds its streams here, see docs/architecture.md.
 *
 * Every kernel gives the same bits on every backend, instruction set and thread
 * count: the arithmetic stands once in formulas.h, and no result depends on how
 * the elements were split. */
#ifndef SHERDI_KERNELS_BACKEND_H
#define SHERDI_KERNELS_BACKEND_H

#include "base/mem.h"
#include "kernels/formulas.h"
#include "sherd.h"

typedef struct sherdi_backend sherdi_backend;

/* A run of one parameter's elements inside a block of a slice. Between spans lies
 * padding, which no update touches: it is zero and stays zero. */
typedef struct sherdi_span {
    size_t   offset_elems; /* from the start of the block; a multiple of SHERD_CHUNK_ELEMS,
                              or further where a cut (atom, slice) starts inside a parameter */
    size_t   count_elems;
    uint64_t first_index; /* global element index of the first: elements of all earlier
                             parameters plus row-major index */
    int32_t  param;
    int32_t  group;
} sherdi_span;

/* Adam and AdamW over one block. Arrays start at the block's first element and may
 * have any alignment of their element type; grad and param never overlap the rest. */
typedef struct sherdi_adam_args {
    const sherdi_span        *spans;
    size_t                    num_spans;
    const sherdi_adam_coeffs *coeffs; /* indexed by group */
    const void               *grad;
    sherd_dtype               grad_dtype;
    float                    *master;
    float                    *m;
    float                    *v;
    void                     *param; /* receives the new value in param_dtype; NULL: master is it */
    sherd_dtype               param_dtype;
    uint64_t                 *fingerprint; /* the block's share is added; see sherdi_mix_element */
} sherdi_adam_args;

/* One slice of a reduction: for i < count_elems
 *   x = round_to(comm_dtype, (((s0[i] + s1[i]) + s2[i]) + ...) * scale), sums in fp32
 *   accumulate ? dst[i] = round_to(dst_dtype, dst[i] + x) : dst[i] = x as dst_dtype. */
typedef struct sherdi_reduce_args {
    const void *const
                *srcs; /* in the order of ranks, at least one, all src_dtype; srcs[k] may be dst */
    int          num_srcs;
    sherd_dtype  src_dtype;
    sherd_dtype  comm_dtype;
    void        *dst;
    sherd_dtype  dst_dtype; /* without accumulate: comm_dtype, or wider */
    size_t       count_elems;
    float        scale;
    int          accumulate;
    void *const *more_dsts; /* the same result is written there too; may be NULL; each may
                                     be one of srcs */
    int          num_more_dsts;
} sherdi_reduce_args;

/* One slice of a deterministic reduction: acc[i] (+)= sum over k of the integers of srcs[k][i]; see
 * sherdi_fixed_element. Without accumulate the old contents are overwritten. */
typedef struct sherdi_fixed_args {
    const void *const   *srcs;
    int                  num_srcs;
    sherd_dtype          src_dtype;
    int64_t             *acc;
    size_t               count_elems;
    double               multiplier;
    double               limit;
    int                  accumulate;
    sherdi_fixed_counts *counts; /* added to */
} sherdi_fixed_args;

/* Pure functions of their arguments; they return when the result is in memory. None
 * fails, none allocates. Lengths may be 0. */
typedef struct sherdi_kernel_ops {
    size_t      struct_size;
    const char *isa; /* "scalar", "avx2", "avx512"; unique, static storage */

    void (*adam)(const sherdi_backend *backend, const sherdi_adam_args *args);
    /* Adds the chunk sums of x[0 .. count_elems) to *acc, which is normalised after;
     * count_elems a multiple of SHERD_CHUNK_ELEMS (padding is zero). */
    void (*sumsq)(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                  size_t count_elems, sherdi_norm_acc *acc);
    void (*reduce)(const sherdi_backend *backend, const sherdi_reduce_args *args);
    /* fp32 is exact from both 16-bit types; the others round to nearest even. Equal types
     * copy. NaN becomes the quiet NaN of the target with the sign kept when the type changes
     * (bf16 to fp32 keeps all bits). dst == src only when types are equal. */
    void (*cast)(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype, const void *src,
                 sherd_dtype src_dtype, size_t count_elems);
    /* acc = round_to(acc_dtype, acc + x), the sum in fp32. */
    void (*accumulate)(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                       const void *x, sherd_dtype x_dtype, size_t count_elems);
    void (*copy)(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes);
    void (*zero)(const sherdi_backend *backend, void *dst, size_t len_bytes);
    /* Sum of sherdi_mix_element over the spans of `master` (which starts at the block). */
    uint64_t (*fingerprint)(const sherdi_backend *backend, const sherdi_span *spans,
                            size_t num_spans, const float *master);
    void (*reduce_fixed)(const sherdi_backend *backend, const sherdi_fixed_args *args);
    /* dst[i] = sherdi_fixed_f32(acc[i]); not overlapping. */
    void (*fixed_to_f32)(const sherdi_backend *backend, float *dst, const int64_t *acc,
                         size_t count_elems);
} sherdi_kernel_ops;

struct sherdi_backend {
    const char              *name;    /* "cpu" */
    const sherdi_kernel_ops *kernels; /* filled at creation, never changes */
    int                      threads; /* of one kernel call */
    sherdi_mem              *mem;     /* account of the handle */
    struct sherdi_team      *team;    /* the other threads; NULL: the caller runs all parts */
};

typedef struct sherdi_cpu_params {
    int threads; /* of each kernel call, the caller's among them; at least 1 */
    int share;   /* this rank among the `shares` that may run on the same CPUs */
    int shares;  /* at least 1 */
    int rank;    /* for the log; -1: none */
    int is_idle; /* will run next to nothing: no threads are made, the caller runs all parts */
} sherdi_cpu_params;

/**
 * The CPU backend, with threads of its own.
 *
 * Environment SHERD_ISA=scalar|avx2|avx512 in place of the machine's best; SHERD_CPU_BIND=none|auto|LIST,
 *            see kernels/cpu/places.h. Read here, once.
 * Threads    any number may call kernels at once; one has the team, the others work alone.
 *            After fork a child runs kernels alone, and destroy does not wait for threads that it
 *            has not got.
 * Errors     E_INVAL   threads below 1, an unknown word in the environment, CPUs that may not be used
 *            E_NOTSUP  the machine or build lacks SHERD_ISA
 *            E_NOMEM   no memory or no more threads
 */
sherd_status sherdi_backend_cpu_create_with(const sherdi_cpu_params *params, sherdi_mem *mem,
                                            sherdi_backend **out);
/** The same for somebody alone on the machine. */
sherd_status sherdi_backend_cpu_create(int threads, sherdi_mem *mem, sherdi_backend **out);
/** No kernel is running. Accepts NULL. */
void sherdi_backend_destroy(sherdi_backend *backend);

/** How its threads are bound, for people: "2 threads, workers bound to cpu 1". */
void sherdi_backend_cpu_describe(const sherdi_backend *backend, char *text, size_t text_bytes);
/** Whether this build knows (hwloc) which CPUs are one core, which cores are neighbours. */
int sherdi_backend_cpu_knows_cores(void);

/** The table of an instruction set by name; NULL when it is not built in or the
 *  machine cannot run it. For tests and benchmarks. */
const sherdi_kernel_ops *sherdi_kernels_cpu_find(const char *isa);

/** Bytes that the engine counts for the update pass of one block (design, budgets). */
size_t sherdi_adam_traffic_bytes(const sherdi_adam_args *args);

#endif
