/* Bar charts of benchmarks, drawn by gnuplot where that is installed. */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include <stddef.h>

/* Groups of bars side by side, one bar of each series in every group. */
typedef struct bench_bars {
    const char        *title;
    const char        *y_label;
    const char *const *groups; /* [num_groups] labels under the axis; "\n" breaks a line */
    size_t             num_groups;
    const char *const *series; /* [num_series] names */
    size_t             num_series;
    const double      *values; /* [num_groups * num_series], group by group; below 0: no bar */
} bench_bars;

/** Writes an SVG file. Without gnuplot says so on standard error and returns 0; 1: gnuplot failed. */
int bench_plot_bars(const bench_bars *bars, const char *path);

#endif
