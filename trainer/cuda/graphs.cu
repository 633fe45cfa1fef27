/* Graphs of the passes of a model, captured when a pass comes for the second time. See graphs.h. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

/* Number of cached variants of a pass: stages that gather parameters use a few places in memory in
 * turn. Further variants are queued without a graph. */
#define MOST_VARIANTS 8

typedef struct variant {
    struct variant *next;
    size_t          pass, key_bytes;
    cudaGraphExec_t exec; /* NULL: the variant came only once so far */
    unsigned char   key[];
} variant;

struct graphs {
    cudaStream_t stream;
    variant     *first;
    variant     *captured; /* the variant whose capture is under way; NULL: none */
    size_t       count;
    cudaError_t  error;
};

graphs *graphs_create(cudaStream_t stream)
{
    graphs *g = (graphs *)calloc(1, sizeof(*g));

    if (g != NULL) {
        g->stream = stream;
    }
    return g;
}

void graphs_destroy(graphs *g)
{
    if (g == NULL) {
        return;
    }
    while (g->first != NULL) {
        variant *next = g->first->next;

        if (g->first->exec != NULL) {
            (void)cudaGraphExecDestroy(g->first->exec);
        }
        free(g->first);
        g->first = next;
    }
    free(g);
}

static void failed(graphs *g, cudaError_t error)
{
    if (g->error == cudaSuccess) {
        g->error = error;
    }
}

/* Finds a variant by its key. Returns NULL if there is none, and counts the other variants of the
 * pass. */
static variant *variant_find(graphs *g, size_t pass, const void *key, size_t key_bytes, size_t *others_out)
{
    *others_out = 0;
    for (variant *v = g->first; v != NULL; v = v->next) {
        if (v->pass != pass) {
            continue;
        }
        if (v->key_bytes == key_bytes && memcmp(v->key, key, key_bytes) == 0) {
            return v;
        }
        (*others_out)++;
    }
    return NULL;
}

/* Notes a variant. If memory is out, it is not noted, so the next time it is queued without a graph
 * again. */
static void variant_add(graphs *g, size_t pass, const void *key, size_t key_bytes)
{
    variant *v = (variant *)calloc(1, sizeof(*v) + key_bytes);

    if (v != NULL) {
        v->pass      = pass;
        v->key_bytes = key_bytes;
        memcpy(v->key, key, key_bytes);
        v->next  = g->first;
        g->first = v;
    }
}

int graphs_begin(graphs *g, size_t pass, const void *key, size_t key_bytes)
{
    cudaError_t error;
    size_t      others;
    variant    *v = g->error == cudaSuccess ? variant_find(g, pass, key, key_bytes, &others) : NULL;

    if (g->error != cudaSuccess) {
        return 0;
    }
    if (v == NULL) {
        if (others < MOST_VARIANTS) {
            variant_add(g, pass, key, key_bytes);
        }
        return 0;
    }
    if (v->exec != NULL) {
        error = cudaGraphLaunch(v->exec, g->stream);
        if (error != cudaSuccess) {
            failed(g, error);
        }
        return 1;
    }
    /* The capture holds for this thread only: other threads, such as those of the engine, may call
     * CUDA meanwhile. */
    error = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) {
        failed(g, error);
        return 0;
    }
    g->captured = v;
    return 0;
}

void graphs_end(graphs *g)
{
    variant    *v     = g->captured;
    cudaGraph_t graph = NULL;
    cudaError_t error;

    if (v == NULL) {
        return;
    }
    g->captured = NULL;
    error       = cudaStreamEndCapture(g->stream, &graph);
    if (error == cudaSuccess) {
        error = cudaGraphInstantiateWithFlags(&v->exec, graph, 0);
        (void)cudaGraphDestroy(graph);
    }
    if (error == cudaSuccess) {
        g->count++;
        /* a capture records the work and does not execute it */
        error = cudaGraphLaunch(v->exec, g->stream);
    }
    if (error != cudaSuccess) {
        failed(g, error);
    }
}

cudaError_t graphs_error(const graphs *g)
{
    return g->error;
}

size_t graphs_count(const graphs *g)
{
    return g->count;
}
