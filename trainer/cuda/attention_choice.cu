#include "attention_choice.h"
#include "sdpa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct attention_kernels {
    attention_params  params;
    int               is_chosen;
    sdpa             *library; /* NULL: cuDNN's were not chosen */
    compute_attention used;
    char              note[256];
};

attention_kernels *attention_kernels_create(const attention_params *params, char *why, size_t why_bytes)
{
    attention_kernels *k = (attention_kernels *)calloc(1, sizeof(*k));
    cudaError_t        error;

    if (k == NULL) {
        (void)snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    k->params = *params;
    k->params.has_warpgroups &= attention_warpgroup_fits(params->memory);
    error = attention_prepare(params->memory);
    if (error == cudaSuccess && k->params.has_warpgroups) {
        error = attention_warpgroup_prepare();
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)snprintf(why, why_bytes, "the GPU gives a block %zu bytes of shared memory, too little for attention (%s)",
                       params->memory.block_bytes, cudaGetErrorString(error));
        free(k);
        return NULL;
    }
    return k;
}

void attention_kernels_destroy(attention_kernels *k)
{
    if (k != NULL) {
        sdpa_destroy(k->library);
        free(k);
    }
}

static sdpa_shape library_shape(const attention_launch *a)
{
    const heads_args *s = &a->shape;
    sdpa_shape        shape;

    memset(&shape, 0, sizeof(shape));
    shape.dtype     = a->dtype;
    shape.batch     = s->batch;
    shape.length    = s->length;
    shape.heads     = s->heads;
    shape.kv_heads  = s->kv_heads;
    shape.width     = s->width;
    shape.q_stride  = s->q_stride;
    shape.kv_stride = s->kv_stride;
    return shape;
}

/* Opens cuDNN's kernels for the first shape, unless they give other bits every time and nobody
 * asked for them by name. */
static void library_choose(attention_kernels *k, const attention_launch *a)
{
    sdpa_shape shape = library_shape(a);
    char       why[200] = "";

    k->library = sdpa_create(&shape, why, sizeof(why));
    if (k->library != NULL && k->params.choice == ATTENTION_AUTO && !sdpa_describe(k->library).is_deterministic) {
        sdpa_destroy(k->library);
        k->library = NULL;
        (void)snprintf(why, sizeof(why), "cuDNN's backward gives other bits every time");
    }
    if (k->library == NULL) {
        (void)snprintf(k->note, sizeof(k->note), "attention by kernels of its own: %s", why);
    } else {
        sdpa_info info = sdpa_describe(k->library);

        (void)snprintf(k->note, sizeof(k->note), "attention by cuDNN %zu, %s", info.version,
                       info.is_deterministic ? "the same bits every time" : "backward in an order of chance");
    }
}

/* Chooses by the request and by the first shape, and writes the choice to the note. */
static void choose(attention_kernels *k, const attention_launch *a)
{
    bool is_wanted = k->params.choice == ATTENTION_WARPGROUP, has_them = k->params.has_warpgroups && attention_warpgroup_takes(a);

    k->is_chosen = 1;
    if (has_them && (is_wanted || k->params.choice == ATTENTION_AUTO)) {
        k->params.choice = ATTENTION_WARPGROUP;
        (void)snprintf(k->note, sizeof(k->note), "attention by warpgroups' products");
    } else if (is_wanted) {
        (void)snprintf(k->note, sizeof(k->note), "attention without warpgroups' products: they need %s",
                       k->params.has_warpgroups ? "heads of 64 or 128 elements of 16 bits" : "compute capability 9.0");
        k->params.choice = ATTENTION_OWN;
    } else if (k->params.choice != ATTENTION_OWN) {
        library_choose(k, a);
    }
}

static int library_queue(sdpa *library, const attention_launch *a, cudaStream_t stream, char *why, size_t why_bytes)
{
    sdpa_back_args back = {a->out, a->dout, a->log_sums, a->deltas, a->dq, a->dk, a->dv};

    return a->dout == NULL ? sdpa_forward(library, &a->shape, a->out, a->log_sums, stream, why, why_bytes)
                           : sdpa_backward(library, &a->shape, &back, stream, why, why_bytes);
}

int attention_kernels_queue(attention_kernels *k, attention_launch args, cudaStream_t stream, char *why, size_t why_bytes)
{
    if (!k->is_chosen) {
        choose(k, &args);
    }
    if (k->library != NULL) {
        sdpa_shape shape = library_shape(&args);

        if (sdpa_is_of(k->library, &shape)) {
            k->used = ATTENTION_CUDNN;
            return library_queue(k->library, &args, stream, why, why_bytes);
        }
    }
    args.memory     = k->params.memory;
    args.processors = k->params.processors;
    if (k->params.choice == ATTENTION_WARPGROUP && attention_warpgroup_takes(&args)) {
        k->used = ATTENTION_WARPGROUP;
        attention_warpgroup_queue(&args, stream);
    } else {
        k->used = ATTENTION_OWN;
        attention_queue(&args, stream);
    }
    return 0;
}

bool attention_kernels_sum_columns(const attention_kernels *k, const attention_launch *args)
{
    return k->params.choice == ATTENTION_WARPGROUP && attention_warpgroup_sums_columns(args);
}

size_t attention_kernels_bytes(const attention_kernels *k)
{
    return k->library == NULL ? 0 : sdpa_describe(k->library).workspace_bytes;
}

const char *attention_kernels_note(const attention_kernels *k)
{
    return k->note;
}

compute_attention attention_kernels_used(const attention_kernels *k)
{
    return k->used;
}
