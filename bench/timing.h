/* Shared by timing programs: the line that names the machine, interleaved rounds, medians. Machines
 * drift by tens of percent within minutes, so only ratios that were taken in the same round are
 * compared. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stddef.h>

/** Machine, build and command, as comment lines on standard output. */
void bench_print_machine(int argc, char **argv);
/** The same as members of a JSON object (without its braces). */
void bench_print_machine_json(int argc, char **argv);

typedef struct bench_stat {
    double median;
    double min;
    double max;
} bench_stat;

/** Of `count` > 0 values, whose order changes. */
bench_stat bench_stat_of(double *values, size_t count);

/** Seconds of each row in each round: seconds[round * num_rows + row]. A first round is made and
 *  discarded. */
typedef void (*bench_row_fn)(void *ctx, size_t row);
void bench_rounds(size_t rounds, size_t num_rows, bench_row_fn run, void *ctx, double *seconds);

#endif
