/* bench-activations: a step of the C trainer whose activations are moved during its passes. In
 * every round, one after the other, and in every other round the other way about:
 *
 *   kept    steps whose activations stay on the device
 *   moved   the same with activations elsewhere
 *   alone   the transfers of a micro-batch's activations alone
 *
 * The limit is the longer of kept and alone: moves that overlap with the passes cost nothing until
 * the drive is busy all the time. On the CPU only; state and parameters are in memory. */
#include "bench/offload_rank.h"
#include "bench/options.h"
#include "bench/timing.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROW_KEPT, ROW_MOVED, ROW_ALONE, NUM_ROWS };

typedef struct bench_options {
    offload_setup setup;
    const char   *places, *arch, *preset;
    size_t        rounds, steps;
} bench_options;

typedef struct round_turns {
    offload_turn rows[NUM_ROWS];
} round_turns;

static offload_turn ask(const offload_rank *rank, offload_ask what, size_t count, size_t length)
{
    offload_rank_ask(rank, what, count, length);
    return offload_rank_answer(rank);
}

static void round_run(const bench_options *o, const offload_rank ranks[2], size_t number,
                      round_turns *round)
{
    for (int i = 0; i < NUM_ROWS; i++) {
        int row = number % 2 == 0 ? i : NUM_ROWS - 1 - i;

        round->rows[row] = row == ROW_ALONE
                               ? ask(&ranks[1], OFFLOAD_DRIVE, 0, 0)
                               : ask(&ranks[row == ROW_MOVED], OFFLOAD_QUEUED, o->steps, 0);
    }
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double seconds_of(const round_turns *round, int row)
{
    return row == ROW_ALONE ? round->rows[row].alone_s : round->rows[row].step_s;
}

static double ratio_of(const round_turns *round)
{
    return seconds_of(round, ROW_MOVED) /
           larger(seconds_of(round, ROW_KEPT), seconds_of(round, ROW_ALONE));
}

static void results_print(const bench_options *o, const round_turns *rounds)
{
    static const char *const NAMES[NUM_ROWS] = {"kept", "moved", "alone"};
    double                  *values          = calloc(o->rounds, sizeof(*values));
    double                   bytes           = (double)rounds[0].rows[ROW_ALONE].drive_bytes;
    bench_stat               stat;

    if (values == NULL) {
        (void)fprintf(stderr, "bench-activations: out of memory\n");
        exit(1);
    }
    for (int row = 0; row < NUM_ROWS; row++) {
        for (size_t i = 0; i < o->rounds; i++) {
            values[i] = seconds_of(&rounds[i], row);
        }
        stat = bench_stat_of(values, o->rounds);
        (void)printf("%-6s %8.3f s (%.3f to %.3f)", NAMES[row], stat.median, stat.min, stat.max);
        if (row == ROW_ALONE) {
            (void)printf("  %.1f MiB read and written, %.2f GB/s", bytes / 0x1p20,
                         bytes / 1e9 / stat.median);
        }
        (void)printf("\n");
    }
    for (size_t i = 0; i < o->rounds; i++) {
        values[i] = ratio_of(&rounds[i]);
    }
    stat = bench_stat_of(values, o->rounds);
    (void)printf("moved / max(kept, alone): %.3f (%.3f to %.3f)\n", stat.median, stat.min,
                 stat.max);
    free(values);
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"dir", "DIR", "folder on the drive (default: the current one)", BENCH_TEXT,
         .value = &o->setup.drive.folder},
        {"activations", "LIST", "where they wait, as the trainer's option (default: nvme)",
         BENCH_TEXT, .value = &o->places},
        {"buffer-count", "N", "places on the device (default: the engine's)", BENCH_INT,
         .value = &o->setup.activation_buffers, .least = 1, .most = 1024},
        {"batch", "N", "sequences of a micro-batch (default: 4)", BENCH_SIZE,
         .value = &o->setup.batch, .least = 1},
        {"tokens", "N", "tokens of a sequence (default: 128)", BENCH_SIZE,
         .value = &o->setup.length, .least = 1},
        {"dtype", "TYPE", "fp32 (default) or bf16", BENCH_TEXT, .value = &o->setup.precision,
         .choices = "fp32|bf16"},
        {"arch", "NAME", ARCH_KIND_NAMES " (default: gpt2)", BENCH_TEXT, .value = &o->arch},
        {"preset", "NAME", "sizes of the model (default: 124m)", BENCH_TEXT, .value = &o->preset},
        {"threads", "N", "threads (default: 2)", BENCH_INT, .value = &o->setup.threads, .least = 1,
         .most = 256},
        {"queue-depth", "N", "requests in flight (default: the engine's)", BENCH_INT,
         .value = &o->setup.drive.depth, .least = 1, .most = 4096},
        {"rounds", "N", "rounds (default: 5)", BENCH_SIZE, .value = &o->rounds, .least = 1},
        {"steps", "N", "steps of a turn (default: 2)", BENCH_SIZE, .value = &o->steps, .least = 1}};
    const bench_command command =
        BENCH_COMMAND("activations",
                      "Times steps of the C trainer whose activations go to a drive and come back, "
                      "compared with steps that keep them, and with the transfers alone.",
                      rows);
    arch_kind kind;

    (void)bench_options_read(&command, argc, argv);
    if (arch_kind_find(o->arch, &kind) != 0 || arch_preset(kind, o->preset, &o->setup.sizes) != 0) {
        bench_options_refuse(&command, "there is no preset %s of %s", o->preset, o->arch);
    }
}

int main(int argc, char **argv)
{
    bench_options o = {.setup  = {.backend   = "cpu",
                                  .place     = "none",
                                  .precision = "fp32",
                                  .drive     = {.folder = ".", .engine = "auto"},
                                  .batch     = 4,
                                  .length    = 128,
                                  .threads   = 2},
                       .places = "nvme",
                       .arch   = "gpt2",
                       .preset = "124m",
                       .rounds = 5,
                       .steps  = 2};
    offload_rank  ranks[2];
    offload_setup setups[2];
    round_turns  *rounds;

    options_parse(argc, argv, &o);
    rounds = calloc(o.rounds, sizeof(*rounds));
    if (rounds == NULL) {
        (void)fprintf(stderr, "bench-activations: out of memory\n");
        return 1;
    }
    setups[0] = setups[1] = o.setup;
    setups[1].activations = o.places;
    for (int r = 0; r < 2; r++) {
        offload_rank_start(&setups[r], &ranks[r]);
        (void)ask(&ranks[r], OFFLOAD_SHAPE, o.setup.batch, o.setup.length);
    }
    bench_print_machine(argc, argv);
    for (size_t i = 0; i < o.rounds; i++) {
        round_run(&o, ranks, i, &rounds[i]);
    }
    results_print(&o, rounds);
    for (int r = 1; r >= 0; r--) { /* a later process holds what ends an earlier one */
        offload_rank_stop(&ranks[r]);
    }
    free(rounds);
    return 0;
}
