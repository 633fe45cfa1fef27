/* The backend: what one kind of device offers, namely memory, lanes, events and the numeric
 * kernels. The engine and the transports see only this; the kinds are `cpu` (kernels/cpu) and
 * `cuda` (kernels/cuda).
 *
 * Lanes. A backend handle is a lane: calls on it run in the order in which they are made. A
 * device's lane is a stream: calls return at once, lanes run at the same time and wait for each
 * other through sherdi_lane_follow and events, and the host waits through sherdi_lane_wait and an
 * event's wait. The CPU has one lane, the calling thread: every call has ended when it returns, and
 * following and waiting do nothing. So the same engine code drives both.
 *
 * Every kernel gives the same bits on every backend, instruction set and thread count: the
 * arithmetic is written once, in formulas.h, and no result depends on how the elements are
 * split. */
#ifndef SHERDI_KERNELS_BACKEND_H
#define SHERDI_KERNELS_BACKEND_H

#include "base/mem.h"
#include "kernels/encoding.h"
#include "kernels/formulas.h"
#include "sherd.h"

#include <assert.h>

typedef struct sherdi_backend sherdi_backend;

/* A range of one parameter's elements inside a block of a slice. In an array of spans, offset_elems
 * ascends and no two overlap. Between them lies padding, which no update touches: it is zero and
 * stays zero. */
typedef struct sherdi_span {
    /* From the start of the block; a multiple of SHERD_CHUNK_ELEMS, or another number where a cut
     * (atom, slice) lies inside a parameter */
    size_t offset_elems;
    size_t count_elems;
    /* Global index of the first element: elements of all earlier parameters plus row-major index */
    uint64_t first_index;
    int32_t  param;
    int32_t  group;
} sherdi_span;

/* Memory of kernels. The data that an args struct points at (arrays, spans, coefficients, norms,
 * ratios, counts, sums) is memory of the backend's device, borrowed until the lane has passed the
 * call. The args struct itself, and the array of pointers `srcs`, are read before the call returns.
 * Pinned host memory may take the place of device memory. What is "added to" is added as integers,
 * so lanes may share it. */

/* The element-wise updates: SHERDI_UPDATE_adam and so on; kernels/updates/ has their formulas. */
typedef enum sherdi_update_id {
#define SHERDI_UPDATE(name, num_parts) SHERDI_UPDATE_##name,
#include "kernels/updates/rows.h"
    SHERDI_UPDATE_IDS,
} sherdi_update_id;

/* The arrays of kernels and of their tests have room for so many parts. */
enum { SHERDI_UPDATE_MOST_PARTS = 4 };
#define SHERDI_UPDATE(name, num_parts)                                                             \
    static_assert((num_parts) <= SHERDI_UPDATE_MOST_PARTS,                                         \
                  #name " has more parts: raise SHERDI_UPDATE_MOST_PARTS");
#include "kernels/updates/rows.h"

/* kernels/updates/lamb.h */
typedef struct sherdi_lamb_norms      sherdi_lamb_norms;
typedef struct sherdi_lamb_ratio_args sherdi_lamb_ratio_args;

/* A part of the state as it is stored: kernels/codecs.h */
typedef struct sherdi_encoded sherdi_encoded;

/* An optimizer's sweep over one block: an element-wise update, or LAMB's first sweep. Arrays start
 * at the block's first element and may have any alignment of their element type; grad and param
 * never overlap the rest. A part that is stored in an encoding is the same numbers to an optimizer;
 * what an update writes is rounded at random (step, sherdi_random_bits). A BESIDE master is stored
 * as the other half of `param`, which is bf16 and read too; the signs of another part, F32 or BF16,
 * are its ties. Where a master rounds, param and the fingerprint are made of the rounded one. Where
 * an encoding other than F32 does more than round, spans begin at chunks. */
typedef struct sherdi_update_args {
    const sherdi_span *spans;
    size_t             num_spans;
    const void        *coeffs; /* the update's, indexed by group */
    const void        *grad;
    sherd_dtype        grad_dtype;
    union { /* as many as the update has, the master first; fp32, or as encoded */
        float *parts[SHERDI_UPDATE_MOST_PARTS];
        struct {
            float *master, *m, *v;
        };
    };
    void           *param; /* receives the new value in param_dtype; NULL: it is the master */
    sherd_dtype     param_dtype;
    sherdi_encoding encodings[SHERDI_UPDATE_MOST_PARTS];
    uint64_t        step;      /* the optimizer's, for encodings that round at random */
    int             ties_part; /* of a BESIDE master: the part whose signs are its ties */
    /* The block's share is added to it; see sherdi_mix_element. NULL: nobody asks. lamb_norms does
     * not use it */
    uint64_t          *fingerprint;
    sherdi_lamb_norms *norms; /* lamb_norms alone adds to it; need not be normalised */
    /* By parameter: neg_step_size of the coefficients is multiplied by it; NULL: by nothing */
    const float *ratios;
} sherdi_update_args;

#define SHERDI_DEVICE_WEIGHTS 64

/* One slice of a reduction: for i < count_elems
 *   x = round_to(comm_dtype, (((s0[i] + s1[i]) + s2[i]) + ...) * scale), sums in fp32
 *   with weights: sk[i] * (float)weights[k] in place of sk[i], in fp32
 *   accumulate ? dst[i] = round_to(dst_dtype, dst[i] + x) : dst[i] = x as dst_dtype. */
typedef struct sherdi_reduce_args {
    /* In the order of ranks, at least one, all of src_dtype; srcs[k] may be dst */
    const void *const *srcs;
    int                num_srcs;
    sherd_dtype        src_dtype;
    sherd_dtype        comm_dtype;
    void              *dst;
    sherd_dtype        dst_dtype; /* without accumulate: comm_dtype, or wider */
    size_t             count_elems;
    float              scale;
    int                accumulate;
    /* Of the sources, in memory of the host that is read before the call returns; NULL: all are 1.
     * A device takes SHERDI_DEVICE_WEIGHTS sources with weights at most */
    const double *weights;
    void *const  *more_dsts; /* receive the result too; may be NULL; each may be one of srcs */
    int           num_more_dsts;
} sherdi_reduce_args;

/* kernels/product.h */
typedef struct sherdi_product_args sherdi_product_args;

/* The kernels: pure functions of their arguments, queued on the lane that `backend` is. None fails
 * (a device on which work fails says so when its lane is waited for), and none allocates. Lengths
 * may be 0. What a module alone calls is NULL in a build without the module. */
typedef struct sherdi_kernel_ops {
    size_t      struct_size;
    const char *isa;       /* "scalar", "avx2", "avx512"; unique, static storage */
    size_t      own_bytes; /* CPU: of a lane, for what the kernels themselves learn: `ahead` */

    void (*update)(const sherdi_backend *backend, sherdi_update_id update,
                   const sherdi_update_args *args);
    /* Adds the chunk sums of x[0 .. count_elems) to *acc. The CPU leaves *acc normalised; elsewhere
     * it may be normalised later, after any number of calls with fewer than 2^32 chunks.
     * count_elems is a multiple of SHERD_CHUNK_ELEMS (padding is zero). */
    void (*sumsq)(const sherdi_backend *backend, const void *x, sherd_dtype dtype,
                  size_t count_elems, sherdi_norm_acc *acc);
    void (*reduce)(const sherdi_backend *backend, const sherdi_reduce_args *args);
    /* Casts. To fp32 is exact from both 16-bit types; other casts round to nearest even, and equal
     * types copy. Where the type changes, NaN becomes the quiet NaN of the target with its sign
     * kept (bf16 to fp32 keeps all bits). dst == src only when the types are equal. */
    void (*cast)(const sherdi_backend *backend, void *dst, sherd_dtype dst_dtype, const void *src,
                 sherd_dtype src_dtype, size_t count_elems);
    /* acc = round_to(acc_dtype, acc + x), the sum in fp32. */
    void (*accumulate)(const sherdi_backend *backend, void *acc, sherd_dtype acc_dtype,
                       const void *x, sherd_dtype x_dtype, size_t count_elems);
    /* Copies between any two of device, pinned and plain host memory; with plain host memory, on a
     * device, not asynchronously. */
    void (*copy)(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes);
    void (*zero)(const sherdi_backend *backend, void *dst, size_t len_bytes);
    /* Adds to *sum sherdi_mix_element over the spans of `master` (which starts at the block). */
    void (*fingerprint)(const sherdi_backend *backend, const sherdi_span *spans, size_t num_spans,
                        const float *master, uint64_t *sum);
    /* Of modules; kernels/fixed.h, updates/lamb.h, codecs.h and product.h describe them. */
    void (*reduce_fixed)(const sherdi_backend *backend, const sherdi_reduce_args *args,
                         const sherdi_fixed_sink *sink);
    void (*fixed_to_f32)(const sherdi_backend *backend, float *dst, const int64_t *acc,
                         size_t count_elems);
    void (*lamb_norms)(const sherdi_backend *backend, const sherdi_update_args *args);
    void (*lamb_ratios)(const sherdi_backend *backend, const sherdi_lamb_ratio_args *args);
    void (*decode)(const sherdi_backend *backend, float *dst, const sherdi_encoded *part,
                   size_t first, size_t count_elems);
    void (*encode)(const sherdi_backend *backend, const sherdi_encoded *part, size_t first,
                   const float *src, size_t count_elems);
    /* Do what update and fingerprint do, for a state that has an encoded part, and for a master
     * that is encoded. update calls the first. */
    void (*update_encoded)(const sherdi_backend *backend, sherdi_update_id update,
                           const sherdi_update_args *args);
    void (*fingerprint_encoded)(const sherdi_backend *backend, const sherdi_span *spans,
                                size_t num_spans, const sherdi_encoded *master, uint64_t *sum);
    void (*product)(const sherdi_backend *backend, const sherdi_product_args *args);
    void (*normalize)(const sherdi_backend *backend, float *dst, const float *src,
                      size_t count_elems, const sherdi_norm_acc *sumsq, float eps);
} sherdi_kernel_ops;

struct sherdi_lane_ops;

/* Memory and lanes of a device, which all its lanes share. Calls that can fail and return no status
 * keep the device's error for the next wait. */
typedef struct sherdi_device_ops {
    size_t      struct_size;
    const char *name;
    int is_async; /* 0: device memory is host memory, every call has ended when it returns */
    /* Events, and what else orders lanes (kernels/lanes.h); NULL: there is nothing to order. */
    const struct sherdi_lane_ops *lanes;

    /* Required. Allocates zeroed memory of the device, SHERD_ALIGN_BYTES aligned, and enters it in
     * `mem` under `purpose`. May block. */
    sherd_status (*alloc)(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                          size_t len_bytes, void **out);
    /* Required. Frees memory that no lane uses any more. Accepts NULL. */
    void (*free)(sherdi_backend *lane, void *memory);

    /* Required. Creates another lane of the same device; `name` is for traces, in static storage.
     * `stream` NULL: the lane has a stream of its own; else it uses this stream of the device's
     * kind, which stays the caller's. */
    sherd_status (*lane_create)(sherdi_backend *lane, const char *name, void *stream,
                                sherdi_backend **out);
    /* Required. Waits for the lane's work, then destroys it. Accepts NULL. */
    void (*lane_destroy)(sherdi_backend *lane);
    /* Required. Blocks until the lane has finished all its work. E_DEVICE: work on this device has
     * failed. */
    sherd_status (*lane_wait)(const sherdi_backend *lane);
    /* Required. Fills memory with a byte, on the lane. */
    void (*fill)(const sherdi_backend *lane, void *dst, int byte, size_t len_bytes);
    /* Optional (NULL: the CPU). Returns the bytes of device memory that are free now, and gives all
     * that the device has (total_out may be NULL); 0: unknown. */
    size_t (*free_bytes)(const sherdi_backend *lane, size_t *total_out);
    /* Optional (NULL: the CPU). Gives what DLPack calls this device: its kind and its number in
     * this process. */
    void (*lane_dlpack)(const sherdi_backend *lane, int32_t *type_out, int32_t *id_out);
    /* Optional (NULL: all of it). Returns whether kernels of this device can work on memory that a
     * caller gives. */
    int (*memory_reach)(const sherdi_backend *lane, const void *memory);
} sherdi_device_ops;

struct sherdi_backend {
    const char              *name;    /* "cpu", "cuda" */
    const sherdi_kernel_ops *kernels; /* set at creation, never changes */
    const sherdi_device_ops *device;
    int                      threads; /* CPU: threads of one kernel call */
    sherdi_mem              *mem;     /* account of the handle */
    struct sherdi_team      *team;    /* the other threads; NULL: the caller runs all tasks */
    struct sherdi_ahead     *ahead;   /* CPU: kernels/cpu/ahead.h; NULL: nothing is tried */
    int                      lanes;   /* CPU: handles in use in addition to the first */
};

/* ---- shorthands */

static inline sherd_status sherdi_lane_wait(const sherdi_backend *lane)
{
    return lane->device->lane_wait(lane);
}

/* Most threads of one rank. */
#define SHERDI_MOST_CPU_THREADS 4096

typedef struct sherdi_cpu_params {
    /* of each kernel call, the caller's included; 0: SHERD_THREADS, else by the CPUs */
    int threads;
    int share;  /* number of this rank among the `shares` that may run on the same CPUs */
    int shares; /* at least 1 */
    int rank;   /* for the log; -1: none */
    /* 1: runs next to nothing: no threads are made, the caller runs all tasks */
    int is_idle;
    /* 1: the rank computes on a device, and the CPU updates meanwhile: the threads leave cores to
     * the trainer's thread and the wire's */
    int has_device;
} sherdi_cpu_params;

/**
 *  Creates the CPU backend, with threads of its own.
 *
 *  Environment SHERD_ISA=scalar|avx2|avx512 in place of the machine's best; SHERD_THREADS;
 *              SHERD_CPU_BIND=none|auto|LIST, see kernels/cpu/binding.h. They are read here, once.
 *  Threads     Any number of threads may call kernels at the same time; one of them has the team,
 *              the others work alone. After a fork, the child runs kernels alone, and destroy does
 *              not wait for threads that the child does not have.
 *  Errors      E_INVAL   threads below 0, an unknown word in the environment, CPUs that may not be
 *                        used
 *              E_NOTSUP  the machine or the build lacks SHERD_ISA, or cannot bind threads
 *              E_NOMEM   no memory or no more threads
 */
sherd_status sherdi_backend_cpu_create_with(const sherdi_cpu_params *params, sherdi_mem *mem,
                                            sherdi_backend **out);
/** Destroys the first lane of a device of any kind; no kernel may be running. Accepts NULL. */
void sherdi_backend_destroy(sherdi_backend *backend);

/** Writes how its threads are bound, for people: "2 threads, workers bound to cpu 1"; with a device
 *  "14 threads on cpus 2-15, which leaves cpus 0-1 to the trainer and the wire". */
void sherdi_backend_cpu_describe(const sherdi_backend *backend, char *text, size_t text_bytes);

/* ---- host memory (host.c) */

/** Takes the pages of fresh memory from the system, which begins at a page: each thread of `host`
 *  those of its part. E_NOMEM. */
sherd_status sherdi_host_touch(const sherdi_backend *host, void *memory, size_t len_bytes);
/** Allocates zeroed host memory of len_bytes > 0 on huge pages, as sherdi_alloc_pages, touched by
 *  all threads of `host`. E_NOMEM. */
sherd_status sherdi_host_alloc(const sherdi_backend *host, sherdi_mem *mem,
                               sherdi_mem_purpose purpose, size_t len_bytes, void **out);

/** Returns the table of an instruction set by name; NULL when it is not built in or the machine
 *  cannot run it. For tests and benchmarks. */
const sherdi_kernel_ops *sherdi_kernels_cpu_find(const char *isa);

/** Returns the number of parts of the state that an update reads and writes, the master
 *  included. */
int sherdi_update_parts(sherdi_update_id update);
/** Returns the bytes that an update of one block touches (design, budgets); without `writes`, a
 *  sweep over the update's parts that only reads. */
size_t sherdi_update_bytes(sherdi_update_id update, const sherdi_update_args *args, int writes);

#endif
