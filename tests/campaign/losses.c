/* The campaign of lost ranks. Each run is drawn from a seed: settings, ranks, and processes that are
 * killed (-9) at moments of every phase, also in the move that another loss has caused, and two at
 * once. Before each loss the model of the test says whether the state survives. If so, the values at
 * the end are those of a run that nobody has disturbed; else all survivors get the refusal, and go on
 * from the checkpoint, to the same values.
 *
 * losses [--seed N] [--count N] [--files 1]
 *
 * Runs the seeds N, N + 1, ... With --files all state rests on a drive, and survives every loss; no
 * file of it may be left at the end. The end says how many ranks were killed, and what became of it. */
#include "tests/engine/loser.h"
#include "tests/lib/check.h"
#include "tests/lib/drawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int           wants_files;
static char          zero_keys[1024];
static loser_result *sums; /* of all runs; shared with the processes that run them */

static int below(uint64_t *state, int count)
{
    return (int)(test_random(state) % (uint64_t)count);
}

/* Whether the device is an emulated one: memory that no other process sees. */
static int has_device(void)
{
    const char *backend = getenv("SHERD_BACKEND");

    return backend != NULL && strcmp(backend, "cpu") != 0;
}

/* Puts the state on a drive, and perhaps gradients or parameters. */
static void files_draw(uint64_t *state, loser *l, const char *encodings, char *top,
                       size_t top_bytes)
{
    static const char *const MORE[] = {
        "}",
        ", \"buffer_count\": 2}, \"sub_group_size\": 6400",
        ", \"gradients\": \"nvme\"}",
        "}, \"offload_param\": {\"device\": \"cpu\"}",
        "}, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", "
        "\"max_in_cpu\": 0}",
        "}, \"zero_hpz_partition_size\": 2"};
    char more[512];
    int  which = below(state, l->options.stage == 3 ? 6 : 3);

    (void)snprintf(more, sizeof(more), MORE[which], test_scratch());
    (void)snprintf(zero_keys, sizeof(zero_keys),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"%s",
                   test_scratch(), more);
    (void)snprintf(top, top_bytes, ", \"deterministic\": true, \"sherd\": {\"elastic\": [1, 7]%s}",
                   encodings);
    l->options.zero   = zero_keys;
    l->is_all_trained = l->options.stage == 3; /* frozen slices are in no file */
    l->model          = LOSER_ALWAYS;
}

/* Of a device, "host" keeps what has its masters in host memory. Returns which encoding of
 * the state it has: split masters only where the parameters rest with them. */
static int host_of_device_draw(uint64_t *state, loser *l, int state_kind)
{
    static const char *const ZERO[] = {
        ", \"offload_optimizer\": {\"device\": \"cpu\"}",
        ", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}, "
        "\"sub_group_size\": 6400",
        ", \"offload_optimizer\": {\"device\": \"cpu\"}, \"offload_param\": {\"device\": "
        "\"cpu\"}, \"stage3_param_persistence_threshold\": 0",
    };
    int which = below(state, l->options.stage == 3 ? 3 : 2);

    l->options.zero   = ZERO[which];
    l->is_all_trained = l->options.stage == 3 && which < 2; /* frozen slices have no master */
    return which < 2 && state_kind == 1 ? 0 : state_kind;
}

static void options_draw(uint64_t *state, loser *l, char *top, size_t top_bytes)
{
    static const char *const OPTIMIZERS[] = {NULL, NULL, "Lamb", "Lion", "Adagrad", "Muon"};
    static const char *const ZERO[]       = {
              NULL,
              ", \"stage3_param_persistence_threshold\": 200",
              ", \"sub_group_size\": 6400",
              ", \"offload_optimizer\": {\"device\": \"cpu\"}",
              ", \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.4}, "
                    "\"sub_group_size\": 6400",
              ", \"offload_param\": {\"device\": \"cpu\"}",
    };
    static const char *const STATE[]    = {"", ", \"master_encoding\": \"bf16_beside\"",
                                           ", \"moment_encoding\": \"bf16\"",
                                           ", \"moment_encoding\": \"fp8\""};
    static const loser_model MODELS[]   = {LOSER_NEVER, LOSER_ALWAYS, LOSER_ALWAYS, LOSER_ALWAYS,
                                           LOSER_PEERS, LOSER_PEERS,  LOSER_PEERS};
    int                      way        = below(state, 7);
    int                      state_kind = below(state, 4);

    l->options.stage     = 1 + below(state, 3);
    l->options.dtype     = (sherd_dtype)below(state, 3);
    l->options.optimizer = OPTIMIZERS[below(state, 6)];
    l->options.clip      = below(state, 2);
    l->options.zero      = ZERO[below(state, 6)];
    l->model             = MODELS[way];
    if (l->options.optimizer != NULL && strcmp(l->options.optimizer, "Muon") == 0) {
        l->options.has_matrices = 1;
        l->model                = l->model == LOSER_PEERS ? LOSER_ALWAYS : l->model;
    }
    if (l->options.zero != NULL && strstr(l->options.zero, "offload_param") != NULL &&
        l->options.stage < 3) {
        l->options.zero = NULL;
    }
    if (has_device() && l->model == LOSER_ALWAYS && !wants_files) {
        state_kind = host_of_device_draw(state, l, state_kind);
    } else if (l->options.zero != NULL) {
        state_kind = 0;
    }
    if (l->options.dtype != SHERD_BF16 || l->options.optimizer != NULL) {
        state_kind = 0;
    }
    (void)snprintf(top, top_bytes,
                   ", \"deterministic\": true, \"sherd\": {\"redundancy\": \"%s\"%s%s}",
                   l->model == LOSER_NEVER   ? "none"
                   : l->model == LOSER_PEERS ? "peer"
                                             : "host",
                   STATE[state_kind],
                   l->model != LOSER_ALWAYS || below(state, 4) == 0 ? ", \"elastic\": [1, 7]" : "");
    l->options.top = top;
    if (wants_files) {
        files_draw(state, l, STATE[state_kind], top, top_bytes);
    }
}

/* Some runs have replicas in place of a redundancy, or besides their files. */
static void replicas_draw(uint64_t *state, loser *l, char *top, size_t top_bytes)
{
    l->model  = wants_files ? LOSER_ALWAYS : LOSER_REPLICAS;
    l->shards = 1 + below(state, 3);
    l->ranks  = l->shards * (7 / l->shards);
    (void)snprintf(
        top, top_bytes,
        ", \"deterministic\": true, \"sherd\": {\"shard_size\": %d, \"elastic\": [1, 7]}",
        l->shards);
}

static int is_second_copy(const loser *l)
{
    return l->options.zero != NULL && strstr(l->options.zero, "zero_hpz") != NULL;
}

static void run_draw(loser *l, char *top, size_t top_bytes)
{
    uint64_t state = drawn_seed * 0x9e3779b9u + 1;
    int      most  = 0;

    memset(l, 0, sizeof(*l));
    options_draw(&state, l, top, top_bytes);
    l->ranks = 4 + below(&state, 4);
    if (drawn_seed % 6 == 5 && !has_device() && !is_second_copy(l) && !l->options.has_matrices) {
        replicas_draw(&state, l, top, top_bytes);
    }
    l->options.accumulation = 1 + below(&state, 2);
    l->is_queued            = below(&state, 4) == 0;
    l->is_sparse            = below(&state, 3) > 0;
    for (int u = 0; u < 3; u++) {
        l->elems[u] = 1 + (size_t)below(&state, l->is_sparse ? 900000 : 40000);
        if (l->options.has_matrices && has_device()) { /* its products take seconds there */
            l->elems[u] = 1 + l->elems[u] % 2000;
        }
    }
    l->num_kills = 1 + below(&state, 3);
    if (l->model == LOSER_REPLICAS && l->options.optimizer != NULL &&
        strcmp(l->options.optimizer, "Lamb") == 0) {
        l->num_kills = 1; /* two replicas that lose a rank each may be at two updates */
    }
    if (l->shards > 0 && l->num_kills == 1) {
        l->is_all_trained = 0; /* another replica has frozen slices */
    }
    if (l->model ==
        LOSER_NEVER) { /* the model of the test is simple: one loss, and all begin again */
        l->num_kills = 1;
    }
    most = has_device() ? 200000 : l->is_sparse ? 30000 : 20000;
    for (int k = 0; k < l->num_kills; k++) {
        int is_with = k > 0 && below(&state, 2);

        l->kills[k] =
            (loser_kill){.rank     = (k * 2 + below(&state, 2)) % l->ranks,
                         .step     = is_with                     ? l->kills[k - 1].step
                                     : k > 0 && below(&state, 2) ? -1
                                                                 : 1 + below(&state, LOSER_STEPS - 1),
                         .delay_us = below(&state, most)};
        if (is_with && below(&state, 2)) {
            l->kills[k].delay_us = l->kills[k - 1].delay_us;
        }
    }
    l->folder = "";
}

static void run_describe(char *text, size_t len_bytes)
{
    loser l;
    char  top[256];
    int   at;

    run_draw(&l, top, sizeof(top));
    at = snprintf(text, len_bytes, "stage %d, %s, %s%s%s%s, %d ranks, kills", l.options.stage,
                  sherd_dtype_name(l.options.dtype),
                  l.options.optimizer == NULL ? "AdamW" : l.options.optimizer,
                  l.options.zero == NULL ? "" : l.options.zero, l.options.top,
                  l.is_queued ? ", queued" : "", l.ranks);
    for (int k = 0; k < l.num_kills; k++) {
        at += snprintf(text + at, len_bytes - (size_t)at, " %d@%d+%d", l.kills[k].rank,
                       l.kills[k].step, l.kills[k].delay_us);
    }
}

static void drawn_losses_are_survived(void)
{
    loser        l;
    loser_result result;
    char         top[256], folder[300];

    run_draw(&l, top, sizeof(top));
    (void)snprintf(folder, sizeof(folder), "%s/state", test_scratch());
    l.folder = l.model == LOSER_ALWAYS ? "" : folder;
    loser_run(&l, &result);
    CHECK_INT(0, wants_files ? test_files_count(test_scratch(), "") : 0);
    sums->killed += result.killed;
    sums->moves += result.moves;
    sums->refused += result.refused;
    sums->again   = result.again > sums->again ? result.again : sums->again;
    sums->seconds = result.seconds > sums->seconds ? result.seconds : sums->seconds;
    sums->survived += result.survived;
}

static const rank_part PARTS[] = {LOSER_PART};

int main(int argc, char **argv)
{
    static const drawn_campaign LOSSES = {.what        = "runs",
                                          .seconds     = 150,
                                          .run         = CASE(drawn_losses_are_survived),
                                          .describe    = run_describe,
                                          .wants_files = &wants_files};
    int                         status;

    if (argc == 3 && strcmp(argv[1], "--part") == 0) {
        return ranks_main(argc, argv, NULL, 0, PARTS, 1);
    }
    sums = mmap(NULL, sizeof(*sums), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sums == MAP_FAILED) {
        return 2;
    }
    status = drawn_main(argc, argv, &LOSSES);
    printf("%d ranks killed, of which the state of %d has survived; %d refusals; at most %d steps "
           "again; the longest move %.3f s\n",
           sums->killed, sums->survived, sums->refused, sums->again, sums->seconds);
    return status;
}
