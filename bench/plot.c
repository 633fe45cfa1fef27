#include "bench/plot.h"

#include <stdio.h>
#include <stdlib.h>

/* Text between double quotes of gnuplot; "\n" passes. */
static void quoted(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            (void)fputs("\\n", out);
        } else if (*text != '"' && *text != '\\') {
            (void)fputc(*text, out);
        }
    }
    (void)fputc('"', out);
}

static void setting(FILE *out, const char *name, const char *text)
{
    (void)fprintf(out, "set %s ", name);
    quoted(out, text);
    (void)fputc('\n', out);
}

/* Paper, title, key; the points of all charts stand in $data, "?" where there is none. */
static void head_write(FILE *out, size_t width, const char *title, const char *y_label,
                       const char *path)
{
    (void)fprintf(out,
                  "set terminal svg size %zu,480 noenhanced background \"white\" font 'sans,12'\n",
                  width < 800 ? 800 : width);
    setting(out, "output", path);
    setting(out, "title", title);
    setting(out, "ylabel", y_label);
    (void)fputs("set key outside right top vertical Left reverse\nset datafile missing '?'\n", out);
}

static void bars_write(FILE *out, const void *chart, const char *path)
{
    const bench_bars *bars = chart;
    size_t            each = bars->is_stacked ? 100 : 130;

    head_write(out, 360 + each * bars->num_groups, bars->title, bars->y_label, path);
    (void)fprintf(out,
                  "set style data histogram\nset style histogram %s\n"
                  "set style fill solid 0.85 noborder\nset yrange [0:*]\nset grid ytics\n"
                  "set xtics scale 0\nset bmargin 5\n%s$data << END\n",
                  bars->is_stacked ? "rowstacked" : "clustered gap 1",
                  bars->is_stacked ? "set boxwidth 0.7\n" : "");
    for (size_t g = 0; g < bars->num_groups; g++) {
        quoted(out, bars->groups[g]);
        for (size_t s = 0; s < bars->num_series; s++) {
            double value = bars->values[g * bars->num_series + s];

            (void)(value < 0 ? fputs(" ?", out) : fprintf(out, " %.6g", value));
        }
        (void)fputc('\n', out);
    }
    (void)fputs("END\nplot ", out);
    for (size_t s = 0; s < bars->num_series; s++) {
        (void)fprintf(out, "%s$data using %zu%s title ", s > 0 ? ", " : "", s + 2,
                      s == 0 ? ":xtic(1)" : "");
        quoted(out, bars->series[s]);
    }
    (void)fputc('\n', out);
}

/* Dark enough for white paper, and apart for those who see no red or no green. */
static const char *const COLOURS[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#a17f00", "#3f3f3f", "#56b4e9", "#7b3294",
                                      "#8c510a", "#01665e", "#b2182b", "#5e7fc0"};

#define NUM_COLOURS (sizeof(COLOURS) / sizeof(COLOURS[0]))

static void line_write(FILE *out, const bench_lines *lines, size_t s)
{
    int    look   = lines->looks == NULL ? BENCH_LOOK_LINE : lines->looks[s];
    size_t colour = lines->colours == NULL ? s : (size_t)lines->colours[s];

    (void)fprintf(out, "%s$data using 1:%zu with ", s > 0 ? ", " : "", s + 2);
    (void)fprintf(out,
                  look == BENCH_LOOK_LINE     ? "linespoints lw 2 pt %zu ps 0.8"
                  : look == BENCH_LOOK_DASHES ? "lines lw 1.5 dt 2"
                                              : "points pt %zu ps 1.4 lw 2",
                  look == BENCH_LOOK_POINTS ? (size_t)6 : s % NUM_COLOURS + 4);
    (void)fprintf(out, " lc rgb '%s' title ", COLOURS[colour % NUM_COLOURS]);
    quoted(out, lines->series[s]);
}

static void lines_write(FILE *out, const void *chart, const char *path)
{
    const bench_lines *lines = chart;

    head_write(out, 1000, lines->title, lines->y_label, path);
    setting(out, "xlabel", lines->x_label);
    (void)fputs("set logscale x 2\nset logscale y 10\nset grid xtics ytics mytics\n"
                "set xtics 2\n$data << END\n",
                out);
    for (size_t i = 0; i < lines->num_points; i++) {
        (void)fprintf(out, "%.6g", lines->x[i]);
        for (size_t s = 0; s < lines->num_series; s++) {
            double value = lines->values[i * lines->num_series + s];

            (void)(value <= 0 ? fputs(" ?", out) : fprintf(out, " %.6g", value));
        }
        (void)fputc('\n', out);
    }
    (void)fputs("END\nplot ", out);
    for (size_t s = 0; s < lines->num_series; s++) {
        line_write(out, lines, s);
    }
    (void)fputc('\n', out);
}

static int chart_draw(void (*write)(FILE *out, const void *chart, const char *path),
                      const void *chart, const char *path)
{
    FILE *gnuplot;

    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        (void)fprintf(stderr, "bench: no plot %s: gnuplot is not installed\n", path);
        return 0;
    }
    gnuplot = popen("gnuplot", "w");
    if (gnuplot == NULL) {
        perror("bench: gnuplot");
        return 1;
    }
    write(gnuplot, chart, path);
    if (pclose(gnuplot) != 0) {
        (void)fprintf(stderr, "bench: gnuplot could not write %s\n", path);
        return 1;
    }
    return 0;
}

int bench_plot_bars(const bench_bars *bars, const char *path)
{
    return chart_draw(bars_write, bars, path);
}

int bench_plot_lines(const bench_lines *lines, const char *path)
{
    return chart_draw(lines_write, lines, path);
}
