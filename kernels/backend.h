/* What one kind of device offers: memory, lanes, events and the numeric kernels. The engine and
 * the transports see only this: `cpu` (kernels/cpu), `cuda` (kernels/cuda).
 *
 * Lanes. A backend handle is a lane: what is called on it runs in the order of the calls. A device's
 * lane is a stream: calls return at once, lanes run beside each other and wait for each other by
 * sherdi_lane_follow and events, the host waits by sherdi_lane_wait and an event's wait. The CPU has
 * one lane, the calling thread: every call has ended when it returns, and following and waiting are
 * nothing. So the same engine code drives both.
 *
 * Every kernel gives the same bits on every backend, instruction set and thread
 * count: the arithmetic stands once in formulas.h, and no result depends on how
 * the elements were split. */
#ifndef SHERDI_KERNELS_BACKEND_H
#define SHERDI_KERNELS_BACKEND_H

#include "base/mem.h"
#include "kernels/encoding.h"
#include "kernels/formulas.h"
#include "sherd.h"

typedef struct sherdi_backend sherdi_backend;

/* A range of one parameter's elements inside a block of a slice. An array of them is in ascending order of
 * offset_elems and none overlap; between them lies padding, which no update touches: it is zero and stays zero. */
typedef struct sherdi_span {
    size_t   offset_elems; /* from the start of the block; a multiple of SHERD_CHUNK_ELEMS,
                              or further where a cut (atom, slice) starts inside a parameter */
    size_t   count_elems;
    uint64_t first_index; /* global element index of the first: elements of all earlier
                             parameters plus row-major index */
    int32_t  param;
    int32_t  group;
} sherdi_span;

/* Memory of kernels. Whatever an args struct points at by data (arrays, spans, coefficients, norms,
 * ratios, counts, sums) is memory of the backend's device, borrowed until the lane has passed the call;
 * the args struct itself, and the array of pointers `srcs`, are read before the call returns. Pinned host
 * memory may stand for device memory. What is "added to" is added by integers, so lanes may share it. */

/* The element-wise updates: SHERDI_UPDATE_adam and so on; kernels/updates/ has their formulas. */
typedef enum sherdi_update_id {
#define SHERDI_UPDATE(name, num_parts) SHERDI_UPDATE_##name,
#include "kernels/updates/rows.h"
    SHERDI_UPDATE_IDS,
} sherdi_update_id;

enum { SHERDI_UPDATE_MOST_PARTS = 4 };

/* kernels/updates/lamb.h */
typedef struct sherdi_lamb_coeffs sherdi_lamb_coeffs;

/* The norms of one parameter tensor that LAMB divides: of its weights before the update and of the
 * update's direction. Sums of integers: shares of blocks and ranks add up in any order. */
typedef struct sherdi_lamb_norms {
    sherdi_norm_acc param, update;
} sherdi_lamb_norms;

/* A part of the state as it is stored, from the block's start; kernels/encoding.h has what the words mean. */
typedef struct sherdi_encoded {
    sherdi_encoding encoding;
    void           *data;
    int has_ties; /* F32, BF16: its signs are the ties of a master that is BESIDE. They are masked when it
                                 is read and kept when it is written */
    uint16_t *
        param; /* of a master that is BESIDE or BESIDE_PLANE: the bf16 parameter, read and written */
    void           *ties;          /* ... of BESIDE: the part whose signs are its ties, */
    sherdi_encoding ties_encoding; /* ... F32 or BF16 */
} sherdi_encoded;

/* Its element `first`. */
static inline void *sherdi_encoded_at(const void *data, sherdi_encoding encoding, size_t first)
{
    return (unsigned char *)data +
           first / SHERD_CHUNK_ELEMS * sherdi_encoding_chunk_bytes(encoding) +
           first % SHERD_CHUNK_ELEMS * sherdi_encoding_elem_bytes(encoding);
}

/** Elements [first, first + count_elems) of a part in host memory as fp32, without a backend: on the calling thread, plainly. */
void sherdi_encoded_read(float *dst, const sherdi_encoded *part, size_t first, size_t count_elems);

/* An optimizer's sweep over one block. Arrays start at the block's first element and may
 * have any alignment of their element type; grad and param never overlap the rest.
 *   update      an element-wise update
 *   lamb_norms  LAMB's first sweep only reads: it adds to norms[span.param] what sherdi_lamb_direction gives for
 *               each span, a chunk of 64 elements counted from the span's start at a time (sherdi_norm_chunk,
 *               the last one filled up with zeros)
 * A part that is stored in an encoding is the same numbers to an optimizer; what an update writes is rounded at random
 * (step, sherdi_random_bits). A master that is BESIDE is beside `param`, which is bf16 and read too; the signs of another
 * part, F32 or BF16, are its ties. A master that rounds is what param and the fingerprint are made of. Spans begin at chunks
 * where an encoding other than F32 does more than round. */
typedef struct sherdi_update_args {
    const sherdi_span *spans;
    size_t             num_spans;
    const void        *coeffs; /* the update's, indexed by group */
    const void        *grad;
    sherd_dtype        grad_dtype;
    union { /* as many as the update has: the master first; fp32, or as encoded */
        float *parts[SHERDI_UPDATE_MOST_PARTS];
        struct {
            float *master, *m, *v;
        };
    };
    void           *param; /* receives the new value in param_dtype; NULL: master is it */
    sherd_dtype     param_dtype;
    sherdi_encoding encodings[SHERDI_UPDATE_MOST_PARTS];
    uint64_t        step;      /* of the optimizer, for encodings that round at random */
    int             ties_part; /* of a master that is BESIDE: the part whose signs are its ties */
    uint64_t                *
        fingerprint; /* the block's share is added; see sherdi_mix_element. NULL: nobody asks. Not by lamb_norms */
    sherdi_lamb_norms *norms; /* added to, by lamb_norms alone; need not be normalised */
    const float *
        ratios; /* by parameter: neg_step_size of the coefficients is multiplied by it; NULL: by nothing */
} sherdi_update_args;

/* Trust ratios of all parameters: ratios[i] = sherdi_lamb_ratio(...) of norms[i], of any form. */
typedef struct sherdi_lamb_ratio_args {
    const sherdi_lamb_norms  *norms;
    const int32_t            *groups; /* of parameter i; below 0: the ratio is 1 */
    const sherdi_lamb_coeffs *coeffs; /* indexed by group */
    float                    *ratios;
    size_t                    num_params;
} sherdi_lamb_ratio_args;

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

/* dst[i, j] = sherdi_product_element of sherdi_product_sum over left[i, 0 .. inner) and right[0 .. inner, j]. Matrices are
 * row-major; left[i, k] is left[i * left_row_stride + k * left_inner_stride] and right[k, j] is
 * right[k * right_inner_stride + j * right_col_stride], so a transposed matrix needs no copy. One stride of each pair is
 * 1. dst overlaps nothing else; left and right may be one array. */
typedef struct sherdi_product_args {
    float       *dst; /* [rows, cols], dense */
    const float *left;
    size_t       left_row_stride, left_inner_stride;
    const float *right;
    size_t       right_inner_stride, right_col_stride;
    size_t       rows, cols, inner;
    float        scale;
    const float *addend; /* [rows, cols], dense; NULL: none */
    float        addend_scale;
    int is_symmetric; /* rows == cols, and only dst[i, j] with i <= j is computed; dst[j, i] is a copy */
} sherdi_product_args;

/* Pure functions of their arguments, queued on the lane that `backend` is. None fails (a device that
 * does says so when its lane is waited for), none allocates. Lengths may be 0. */
typedef struct sherdi_kernel_ops {
    size_t      struct_size;
    const char *isa; /* "scalar", "avx2", "avx512"; unique, static storage */

    void (*update)(const sherdi_backend *backend, sherdi_update_id update,
                   const sherdi_update_args *args);
    /* Adds the chunk sums of x[0 .. count_elems) to *acc, which on the CPU is normalised after, and
     * elsewhere may be after any number of calls below 2^32 chunks; count_elems a multiple of SHERD_CHUNK_ELEMS (padding is zero). */
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
    /* Between any two of device, pinned and, on a device not asynchronously, plain host memory. */
    void (*copy)(const sherdi_backend *backend, void *dst, const void *src, size_t len_bytes);
    void (*zero)(const sherdi_backend *backend, void *dst, size_t len_bytes);
    /* Adds to *sum sherdi_mix_element over the spans of `master` (which starts at the block). */
    void (*fingerprint)(const sherdi_backend *backend, const sherdi_span *spans, size_t num_spans,
                        const float *master, uint64_t *sum);
    void (*reduce_fixed)(const sherdi_backend *backend, const sherdi_fixed_args *args);
    /* dst[i] = sherdi_fixed_f32(acc[i]); not overlapping. */
    void (*fixed_to_f32)(const sherdi_backend *backend, float *dst, const int64_t *acc,
                         size_t count_elems);
    void (*lamb_norms)(const sherdi_backend *backend, const sherdi_update_args *args);
    void (*lamb_ratios)(const sherdi_backend *backend, const sherdi_lamb_ratio_args *args);
    /* Elements [first, first + count_elems) of a part as fp32, and back, rounded to nearest. Where a chunk
     * has a plane or a scale, all of it has to be there, and what else it has stays; NaN becomes 0x7fc00000 where bits
     * are lost or gained. A part whose chunks have a plane starts at a multiple of 8 bytes, one with scales of 4. */
    void (*decode)(const sherdi_backend *backend, float *dst, const sherdi_encoded *part,
                   size_t first, size_t count_elems);
    void (*encode)(const sherdi_backend *backend, const sherdi_encoded *part, size_t first,
                   const float *src, size_t count_elems);
    /* As fingerprint, of a master that is encoded. */
    void (*fingerprint_encoded)(const sherdi_backend *backend, const sherdi_span *spans,
                                size_t num_spans, const sherdi_encoded *master, uint64_t *sum);
    void (*product)(const sherdi_backend *backend, const sherdi_product_args *args);
    /* dst[i] = sherdi_normalize_element(src[i], sherdi_normalize_factor(sumsq, eps)), where *sumsq is of any form; eps
     * above 0. dst may be src. */
    void (*normalize)(const sherdi_backend *backend, float *dst, const float *src,
                      size_t count_elems, const sherdi_norm_acc *sumsq, float eps);
} sherdi_kernel_ops;

typedef enum sherdi_memory_kind {
    SHERDI_MEMORY_DEVICE = 0, /* what kernels work on */
    SHERDI_MEMORY_PINNED,     /* host memory that lanes copy to and from without waiting */
} sherdi_memory_kind;

/* A point in the work of a lane. */
typedef struct sherdi_event sherdi_event;

/* Memory, lanes and events of a device. Every lane of one device shares them. Calls that can fail and
 * have no status of their own keep the device's error for the next wait. */
typedef struct sherdi_device_ops {
    size_t      struct_size;
    const char *name;
    int is_async; /* 0: device memory is host memory, every call has ended when it returns */

    /* Required. Zeroed, SHERD_ALIGN_BYTES aligned, entered in `mem` under `purpose`. May block. */
    sherd_status (*alloc)(sherdi_backend *lane, sherdi_mem *mem, sherdi_mem_purpose purpose,
                          sherdi_memory_kind kind, size_t len_bytes, void **out);
    /* Required. No lane uses it any more. Accepts NULL. */
    void (*free)(sherdi_backend *lane, void *memory);

    /* What lane_create takes for the vendor's default stream, whose own handle may be 0; NULL: there are no streams. */
    void *default_stream;

    /* Required. Another lane of the same device; `name` for traces, static storage. `stream` NULL: one
     * of its own; else a stream of the device's kind that stays the caller's. */
    sherd_status (*lane_create)(sherdi_backend *lane, const char *name, void *stream,
                                sherdi_backend **out);
    /* Required. Waits for its work. Accepts NULL. */
    void (*lane_destroy)(sherdi_backend *lane);
    /* Required. Later work on `lane` comes after all that `other` was given up to now. Never blocks. */
    void (*lane_follow)(const sherdi_backend *lane, const sherdi_backend *other);
    /* Required. Blocks until the lane has done all. E_DEVICE: work on this device has failed. */
    sherd_status (*lane_wait)(const sherdi_backend *lane);

    /* Required. `is_timed`: for event_ns too; others are for order alone, which costs a device less. */
    sherd_status (*event_create)(sherdi_backend *lane, int is_timed, sherdi_event **out);
    void (*event_destroy)(sherdi_event *event); /* accepts NULL */
    /* Required. Never block. An event that was never recorded is done. */
    void (*event_record)(sherdi_event *event, const sherdi_backend *lane);
    void (*lane_follow_event)(const sherdi_backend *lane, const sherdi_event *event);
    int (*event_is_done)(const sherdi_event *event);
    /* Required. Blocks until the work before it is done. E_DEVICE. */
    sherd_status (*event_wait)(const sherdi_event *event);
    /* Required. Nanoseconds on the clock of sherdi_now_ns() at which a timed event that is done was
     * passed, as well as the device can tell; 0 where it cannot. For traces. */
    int64_t (*event_ns)(const sherdi_event *event);

    /* Required. Fills with a byte, on the lane. */
    void (*fill)(const sherdi_backend *lane, void *dst, int byte, size_t len_bytes);
    /* Required. The device's own stream, as void *; NULL where there is none. */
    void *(*lane_stream)(const sherdi_backend *lane);
    /* Optional (NULL: the CPU). What DLPack calls this device: its kind and its number in this process. */
    void (*lane_dlpack)(const sherdi_backend *lane, int32_t *type_out, int32_t *id_out);
    /* Required. Device memory that is free now; 0: it cannot tell, or it is the host's. */
    size_t (*free_bytes)(const sherdi_backend *lane);

    /* Optional. Lets copies on lanes of this device reach memory of the other's directly from now on. 0: they cannot, and
     * go through the host as before; 1: they do, or it is the same device. */
    int (*device_reach)(const sherdi_backend *lane, const sherdi_backend *other);

    /* Optional. Once, by a thread that the library made, before it asks anything of this lane's device: nothing that it
     * asks then spoils what the program's threads do meanwhile (a graph that one of them captures). */
    void (*thread_begin)(const sherdi_backend *lane);

    /* Optional, both or none: a range of the host's time by name, for the vendor's profiler. May overlap. */
    uint64_t (*range_begin)(const char *name);
    void (*range_end)(uint64_t range);
} sherdi_device_ops;

struct sherdi_backend {
    const char              *name;    /* "cpu", "cuda" */
    const sherdi_kernel_ops *kernels; /* filled at creation, never changes */
    const sherdi_device_ops *device;
    int                      threads; /* of one kernel call, on the CPU */
    sherdi_mem              *mem;     /* account of the handle */
    struct sherdi_team      *team;    /* the other threads; NULL: the caller runs all tasks */
    struct sherdi_ahead     *ahead;   /* CPU: kernels/cpu/ahead.h; NULL: nothing is tried */
    int                      lanes;   /* CPU: handles given out beside the first */
};

/* ---- shorthands */

static inline void sherdi_lane_follow(const sherdi_backend *lane, const sherdi_backend *other)
{
    if (lane != other) {
        lane->device->lane_follow(lane, other);
    }
}

static inline sherd_status sherdi_lane_wait(const sherdi_backend *lane)
{
    return lane->device->lane_wait(lane);
}

/** What a process has of a kind of device ("cuda"): 0 without a driver or in a build without it; `why`
 *  (may be NULL) receives one sentence then. */
int sherdi_backend_device_count(const char *kind, char *why, size_t why_bytes);
/** The first lane of a device. Errors: E_INVAL (no such kind or number), E_NOTSUP (not in this build, no
 *  driver, a device older than the kernels), E_NOMEM. sherdi_backend_destroy when no other lane is left. */
sherd_status sherdi_backend_device_create(const char *kind, int index, sherdi_mem *mem,
                                          sherdi_backend **out);
/** What tells a device of this host from the others, under whatever number a process sees it; 0: there is none. */
uint64_t sherdi_backend_device_identity(const char *kind, int index);
/** "NVIDIA H200, 143771 MiB, compute capability 9.0"; "" where there is none. */
void sherdi_backend_device_describe(const char *kind, int index, char *text, size_t text_bytes);

typedef struct sherdi_cpu_params {
    int threads; /* of each kernel call, the caller's among them; at least 1 */
    int share;   /* this rank among the `shares` that may run on the same CPUs */
    int shares;  /* at least 1 */
    int rank;    /* for the log; -1: none */
    int is_idle; /* will run next to nothing: no threads are made, the caller runs all tasks */
} sherdi_cpu_params;

/**
 * The CPU backend, with threads of its own.
 *
 * Environment SHERD_ISA=scalar|avx2|avx512 in place of the machine's best; SHERD_CPU_BIND=none|auto|LIST,
 *            see kernels/cpu/binding.h. Read here, once.
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
/** The first lane of a device of any kind; no kernel is running. Accepts NULL. */
void sherdi_backend_destroy(sherdi_backend *backend);

/** How its threads are bound, for people: "2 threads, workers bound to cpu 1". */
void sherdi_backend_cpu_describe(const sherdi_backend *backend, char *text, size_t text_bytes);
/** Whether it is known (by hwloc, in the build and on the machine) which CPUs are one core, which cores are neighbours. */
int sherdi_backend_cpu_knows_cores(void);

/** The table of an instruction set by name; NULL when it is not built in or the
 *  machine cannot run it. For tests and benchmarks. */
const sherdi_kernel_ops *sherdi_kernels_cpu_find(const char *isa);

/** Parts of the state that an update reads and writes, the master among them. */
int sherdi_update_parts(sherdi_update_id update);
/** Bytes that an update of one block touches (design, budgets). */
size_t sherdi_update_traffic_bytes(sherdi_update_id update, const sherdi_update_args *args);
/** The same of LAMB's first sweep, which only reads. */
size_t sherdi_lamb_norms_traffic_bytes(const sherdi_update_args *args);

#endif
