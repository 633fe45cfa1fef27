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

static void bars_write(FILE *out, const bench_bars *bars, const char *path)
{
    size_t width = 360 + 130 * bars->num_groups;

    (void)fprintf(out,
                  "set terminal svg size %zu,480 noenhanced background \"white\" font 'sans,12'\n",
                  width < 800 ? 800 : width);
    setting(out, "output", path);
    setting(out, "title", bars->title);
    setting(out, "ylabel", bars->y_label);
    (void)fputs(
        "set style data histogram\nset style histogram clustered gap 1\n"
        "set style fill solid 0.85 noborder\nset yrange [0:*]\nset grid ytics\n"
        "set key outside right top vertical Left reverse\nset xtics scale 0\nset bmargin 5\n"
        "set datafile missing '?'\n$data << END\n",
        out);
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

int bench_plot_bars(const bench_bars *bars, const char *path)
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
    bars_write(gnuplot, bars, path);
    if (pclose(gnuplot) != 0) {
        (void)fprintf(stderr, "bench: gnuplot could not write %s\n", path);
        return 1;
    }
    return 0;
}
