/* The campaign of random moves. Each run is drawn from a seed: settings, sizes, and a list of
 * phases in which ranks leave and come. It is trained with its moves and without any, and both must
 * agree in every bit of every step and of all values at the end; after each move the bytes are held
 * as planned.
 *
 * moves [--seed N] [--count N] [--files 1]
 *
 * Runs the seeds N, N + 1, ... Each is a process of its own, which has a minute. A failure prints
 * what was drawn. With --files 1 data rests on a drive in all of them. */
#include "tests/engine/mover.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_RANKS 6

/* The kinds of places that need stage 3, and those whose state passes to a drive in part. */
enum { PLACE_HOST_PARAMS = 6, PLACE_PART = 9, PLACE_DRIVE_PARAMS = 10 };

static uint64_t seed;
static int      wants_files; /* data rests on a drive in all runs */
static char     zero_keys[2048];
static int      is_device; /* emulated, and slow: the models are small, and steps of few passes */

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
    int          places = is_device ? PLACE_HOST_PARAMS + 1 : (int)(sizeof(ZERO) / sizeof(ZERO[0]));
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
    } else if (top == 1 && options->stage > 0 && zero < 4 && !is_device) {
        options->top = REPLICAS[seed % 3];
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
    uint64_t state = seed * 0x9e3779b9u + 1;

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

static void run_describe(const mover *m, char *text, size_t len_bytes)
{
    int at =
        snprintf(text, len_bytes, "seed %llu: stage %d, %s, %s%s%s%s%s, ranks",
                 (unsigned long long)seed, m->options.stage, sherd_dtype_name(m->options.dtype),
                 m->options.optimizer == NULL ? "AdamW" : m->options.optimizer,
                 m->options.zero == NULL ? "" : m->options.zero, m->options.top,
                 m->is_bound ? ", bound" : "", m->has_atoms ? ", atoms" : "");

    for (int p = 0; p < m->num_phases; p++) {
        at += snprintf(text + at, len_bytes - (size_t)at, " %d", m->phases[p].size);
    }
}

static void drawn_moves_keep_all_bits(void)
{
    mover        m;
    mover_result want = {0};
    mover_result got  = {0};
    char         text[600];

    run_draw(&m);
    run_describe(&m, text, sizeof(text));
    mover_twin(&m, 1 + (int)(seed % (is_device ? 4 : 5)), &want);
    mover_threads(&m, &got);
    mover_compare(text, &want, &got);
}

/* Runs one seed in a process of its own; returns whether it has passed. */
static int seed_run(char *program)
{
    static const test_case CASES[] = {CASE(drawn_moves_keep_all_bits)};
    char                  *argv[]  = {program, NULL};
    mover                  m;
    char                   text[600];
    int                    state = -1;
    pid_t                  child;

    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)alarm(60);
        if (freopen("/dev/null", "w", stdout) == NULL) {
            _exit(2);
        }
        _exit(test_main(1, argv, CASES, 1));
    }
    if (child < 0 || waitpid(child, &state, 0) != child || state != 0) {
        run_draw(&m);
        run_describe(&m, text, sizeof(text));
        printf("FAIL %s (state %d)\n", text, state);
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    uint64_t first  = 1;
    int      count  = 10;
    int      failed = 0;

    is_device = getenv("SHERD_BACKEND") != NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) {
            first = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            count = (int)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--files") == 0) {
            wants_files = (int)strtol(argv[i + 1], NULL, 10);
        }
    }
    for (int n = 0; n < count; n++) {
        seed = first + (uint64_t)n;
        failed += !seed_run(argv[0]);
    }
    printf("%d of %d drawn moves have passed\n", count - failed, count);
    return failed > 0;
}
