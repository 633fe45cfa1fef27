/* The campaign of random moves. Each run is drawn from a seed: settings, sizes, and a list of
 * phases in which ranks leave and come. It is trained with its moves and without any, and both must
 * agree in every bit of every step and of all values at the end; after each move the bytes are held
 * as planned.
 *
 * moves [--seed N] [--count N] [--files 1]
 *
 * Runs the seeds N, N + 1, ... With --files 1 data rests on a drive in all of them. */
#include "tests/engine/mover.h"
#include "tests/lib/check.h"
#include "tests/lib/drawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 6

/* The kinds of places that need stage 3, and those whose state passes to a drive in part. */
enum { PLACE_HOST_PARAMS = 6, PLACE_PART = 9, PLACE_DRIVE_PARAMS = 10 };

static int  wants_files; /* data rests on a drive in all runs */
static char zero_keys[2048];
static int  is_device; /* emulated, and slow: the models are small, and steps of few passes */

static int below(uint64_t *state, int count)
{
    return (int)(test_random(state) % (uint64_t)count);
}

static void options_draw(uint64_t *state, mover *m)
{
    static const char *const OPTIMIZERS[] = {NULL, NULL, "Lamb", "Muon", "Lion", "Adagrad"};
    static const char *const ZERO[]       = {
              NULL,
              ", \"overlap_comm\": true",
              ", \"stage3_param_persistence_threshold\": 200",
              ", \"sub_group_size\": 640",
              ", \"offload_optimizer\": {\"device\": \"cpu\"}",
              ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.4}, "
                    "\"sub_group_size\": 640",
              ", \"offload_param\": {\"device\": \"cpu\"}",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                    "\"buffer_count\": 2, \"gradients\": \"nvme\"}, \"sub_group_size\": 1280",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                    "\"ratio\": 0.4}, \"sub_group_size\": 640",
              ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                    "\"max_in_cpu\": 1500}",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, "
                    "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
                    "\"max_in_cpu\": 0}",
    };
    static const char *const TOP[] = {
        ", \"deterministic\": true",
        ", \"deterministic\": true, \"sherd\": {\"elastic\": [1, 6]}",
        ", \"deterministic\": true, \"sherd\": {\"master_encoding\": \"bf16_beside\"}",
        ", \"deterministic\": true, \"sherd\": {\"moment_encoding\": \"bf16\"}",
        ", \"deterministic\": true, \"sherd\": {\"master_encoding\": \"bf16_beside\", "
        "\"moment_encoding\": \"fp8\"}",
    };
    static const char *const REPLICAS[] = {
        ", \"deterministic\": true, \"sherd\": {\"shard_size\": 1, \"elastic\": [1, 6]}",
        ", \"deterministic\": true, \"sherd\": {\"shard_size\": 2, \"elastic\": [1, 6]}",
        ", \"deterministic\": true, \"sherd\": {\"shard_size\": 3, \"elastic\": [1, 6]}",
    };
    rig_options *options = &m->options;
    int          places  = (int)(sizeof(ZERO) / sizeof(ZERO[0]));
    int zero = wants_files ? PLACE_HOST_PARAMS + 1 + below(state, places - PLACE_HOST_PARAMS - 1)
                           : below(state, places);
    int top  = below(state, (int)(sizeof(TOP) / sizeof(TOP[0])));

    options->stage = wants_files ? 1 + below(state, 3) : below(state, 4);
    options->dtype = (sherd_dtype)below(state, 3);
    options->optimizer =
        OPTIMIZERS[below(state, (int)(sizeof(OPTIMIZERS) / sizeof(OPTIMIZERS[0])))];
    options->has_matrices = options->optimizer != NULL && strcmp(options->optimizer, "Muon") == 0;
    options->clip         = below(state, 2);
    options->wide         = below(state, 3) == 0 ? 5 : 0;
    if (top > 1 &&
        (options->dtype != SHERD_BF16 || options->stage == 0 || options->optimizer != NULL ||
         options->wide != 0 || (zero == PLACE_DRIVE_PARAMS && top != 3))) {
        top = 0; /* encodings are for such engines alone */
    }
    options->top = TOP[top];
    if (wants_files && zero >= PLACE_DRIVE_PARAMS) {
        options->stage = 3;
    }
    if (options->stage == 0 ||
        ((zero == PLACE_HOST_PARAMS || zero >= PLACE_DRIVE_PARAMS) && options->stage < 3)) {
        zero = 0;
    }
    options->zero = ZERO[zero];
    if (zero > PLACE_HOST_PARAMS) {
        (void)snprintf(zero_keys, sizeof(zero_keys), ZERO[zero], test_scratch(), test_scratch());
        options->zero = zero_keys;
    }
    if (top == 1 && options->stage > 0 && !is_device) {
        options->top = REPLICAS[drawn_seed % 3];
    } else if (top == 1 && options->stage == 3 && zero < 4) {
        options->zero = ", \"zero_hpz_partition_size\": 2";
    }
    m->is_bound  = top < 2 && options->stage < 3 && below(state, 4) == 0;
    m->has_atoms = below(state, 4) == 0;
    m->has_blobs = below(state, 2);
}

/* Draws the ranks of a phase: some slots of the one before are gone, or others come behind them. */
static void phase_draw(uint64_t *state, const mover_phase *before, mover_phase *out)
{
    int size = 1 + below(state, MOST_RANKS);

    size = is_device && size == 5 ? 4 : size; /* it divides the micro-batches */
    memset(out, 0, sizeof(*out));
    out->steps      = 1 + below(state, 2);
    out->left_micro = below(state, is_device ? 2 : 3); /* fewer than a window has */
    out->is_torn    = below(state, 3) == 0;
    if (before != NULL && size == before->size) {
        size = size % (is_device ? 4 : MOST_RANKS) + 1;
    }
    for (int i = 0; before != NULL && i < before->size; i++) {
        int left = before->size - i;
        int need = size - out->size;

        if (size > before->size || below(state, left) < need) {
            out->slots[out->size++] = before->slots[i];
        }
    }
    for (int slot = 0; out->size < size; slot++) {
        int is_there = 0;

        for (int r = 0; r < out->size; r++) {
            is_there |= out->slots[r] == slot;
        }
        if (!is_there) {
            out->slots[out->size++] = slot;
        }
    }
}

static void run_draw(mover *m)
{
    uint64_t state = drawn_seed * 0x9e3779b9u + 1;

    memset(m, 0, sizeof(*m));
    options_draw(&state, m);
    m->global     = is_device ? 12 : 60;
    m->num_phases = 2 + below(&state, MOVER_PHASES - 2);
    for (int p = 0; p < m->num_phases; p++) {
        phase_draw(&state, p == 0 ? NULL : &m->phases[p - 1], &m->phases[p]);
    }
    for (int u = 0; u < 3; u++) {
        m->elems[u] = m->has_atoms ? 0 : 1 + (size_t)below(&state, is_device ? 900 : 9000);
    }
}

static void run_describe(char *text, size_t len_bytes)
{
    mover m;
    int   at;

    run_draw(&m);
    at = snprintf(text, len_bytes, "stage %d, %s, %s%s%s%s%s, ranks", m.options.stage,
                  sherd_dtype_name(m.options.dtype),
                  m.options.optimizer == NULL ? "AdamW" : m.options.optimizer,
                  m.options.zero == NULL ? "" : m.options.zero, m.options.top,
                  m.is_bound ? ", bound" : "", m.has_atoms ? ", atoms" : "");
    for (int p = 0; p < m.num_phases; p++) {
        at += snprintf(text + at, len_bytes - (size_t)at, " %d", m.phases[p].size);
    }
}

static void drawn_moves_keep_all_bits(void)
{
    mover        m;
    mover_result want = {0};
    mover_result got  = {0};
    char         text[600];

    run_describe(text, sizeof(text));
    run_draw(&m);
    mover_twin(&m, 1 + (int)(drawn_seed % (is_device ? 4 : 5)), &want);
    mover_threads(&m, &got);
    mover_compare(text, &want, &got);
}

int main(int argc, char **argv)
{
    static const drawn_campaign MOVES = {.what        = "moves",
                                         .seconds     = 60,
                                         .run         = CASE(drawn_moves_keep_all_bits),
                                         .describe    = run_describe,
                                         .wants_files = &wants_files};

    is_device = getenv("SHERD_BACKEND") != NULL;
    return drawn_main(argc, argv, &MOVES);
}
