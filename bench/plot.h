/* Charts of benchmarks, drawn by gnuplot where that is installed. Paper stays white whatever
 * surrounds it, so that they can be read in light and in dark. */
#ifndef BENCH_PLOT_H
#define BENCH_PLOT_H

#include <stddef.h>

/* Groups of bars, one bar of each series in every group: side by side, or one upon the other. */
typedef struct bench_bars {
    const char        *title;
    const char        *y_label;
    const char *const *groups; /* [num_groups] labels under the axis; "\n" breaks a line */
    size_t             num_groups;
    const char *const *series; /* [num_series] names */
    size_t             num_series;
    const double      *values; /* [num_groups * num_series], group by group; below 0: no bar */
    int                is_stacked;
} bench_bars;

/** Writes an SVG file. Without gnuplot says so on standard error and returns 0; 1: gnuplot
 *  failed. */
int bench_plot_bars(const bench_bars *bars, const char *path);

/* Lines through marked points, one of each series; both axes logarithmic, x to base 2. */
typedef struct bench_lines {
    const char        *title;
    const char        *x_label, *y_label;
    const double      *x; /* [num_points], above 0 */
    size_t             num_points;
    const char *const *series; /* [num_series] names */
    size_t             num_series;
    const double *values;  /* [num_points * num_series], point by point; 0 and below: no point */
    const int    *looks;   /* [num_series] of bench_look; NULL: BENCH_LOOK_LINE */
    const int    *colours; /* [num_series] from 0 on, where several share one; NULL: each its own */
} bench_lines;

typedef enum bench_look {
    BENCH_LOOK_LINE = 0, /* with points */
    BENCH_LOOK_DASHES,   /* without */
    BENCH_LOOK_POINTS,   /* alone */
} bench_look;

/** As bench_plot_bars. */
int bench_plot_lines(const bench_lines *lines, const char *path);

#endif
