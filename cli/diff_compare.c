/* Compares the fingerprints of two runs, step by step. */
#include "cli/diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- layouts -- */

static uint64_t unit_elems(const diff_layout *layout, size_t unit)
{
    uint64_t elems = 0;

    for (int r = 0; r < layout->owners; r++) {
        const diff_owned *owned = &layout->units[unit].owned[r];

        for (size_t i = 0; i < owned->count; i++) {
            elems += owned->ranges[i].end - owned->ranges[i].first;
        }
    }
    return elems;
}

/* Whether the models are the same. Parts of the state may differ: then those are not compared. */
static int models_check(const diff_run *a, const diff_run *b)
{
    const diff_layout *x = a->lines[0].layout;
    const diff_layout *y = b->lines[0].layout;

    if (x->elems != y->elems || x->num_units != y->num_units) {
        (void)fprintf(stderr,
                      "sherd: %s and %s are of different models: %" PRIu64
                      " elements in %zu units, and %" PRIu64 " in %zu\n",
                      a->path, b->path, x->elems, x->num_units, y->elems, y->num_units);
        return 2;
    }
    for (size_t u = 0; u < x->num_units; u++) {
        if (strcmp(x->units[u].name, y->units[u].name) != 0 ||
            unit_elems(x, u) != unit_elems(y, u)) {
            (void)fprintf(stderr,
                          "sherd: %s and %s are of different models: unit %zu is %s, with %" PRIu64
                          " elements to train, and %s, with %" PRIu64 "\n",
                          a->path, b->path, u, x->units[u].name, unit_elems(x, u), y->units[u].name,
                          unit_elems(y, u));
            return 2;
        }
    }
    return 0;
}

static int owned_match(const diff_owned *a, const diff_owned *b)
{
    return a->count == b->count && memcmp(a->ranges, b->ranges, a->count * sizeof(*a->ranges)) == 0;
}

/* Whether each rank has the same elements in both. */
static int layouts_match(const diff_layout *a, const diff_layout *b)
{
    if (a->ranks != b->ranks || a->copies != b->copies || a->owners != b->owners ||
        a->slices_gradients != b->slices_gradients) {
        return 0;
    }
    for (size_t u = 0; u < a->num_units; u++) {
        for (int r = 0; r < a->owners; r++) {
            if (!owned_match(&a->units[u].owned[r], &b->units[u].owned[r])) {
                return 0;
            }
        }
    }
    return 1;
}

/* Returns the same kind of another layout; its number of kinds: it has none. */
static size_t kind_in(const diff_layout *from, size_t kind, const diff_layout *to)
{
    if (kind < DIFF_PARTS) {
        return kind;
    }
    if (kind == diff_weights(from)) {
        return diff_weights(to);
    }
    for (size_t p = 0; p < to->num_parts; p++) {
        if (strcmp(from->parts[kind - DIFF_PARTS], to->parts[p]) == 0) {
            return DIFF_PARTS + p;
        }
    }
    return diff_kinds(to);
}

/* --------------------------------------------------------------------- steps -- */

/* The words of a unit of a kind in both; returns 0 where one of them has none. */
static int words_get(const diff_found *f, size_t unit, size_t kind, const uint64_t **x,
                     const uint64_t **y)
{
    size_t other = kind_in(f->a->layout, kind, f->b->layout);

    if (other == diff_kinds(f->b->layout) || !f->a->has[diff_at(f->a->layout, unit, kind)] ||
        !f->b->has[diff_at(f->b->layout, unit, other)]) {
        return 0;
    }
    *x = diff_words(f->a, unit, kind);
    *y = diff_words(f->b, unit, other);
    return 1;
}

static int unit_differs(const diff_found *f, size_t unit, size_t kind)
{
    size_t          count = f->has_ranks ? 1 + (size_t)f->a->layout->ranks : 1;
    const uint64_t *x, *y;

    return words_get(f, unit, kind, &x, &y) && memcmp(x, y, count * sizeof(*x)) != 0;
}

static void ranks_find(diff_found *f)
{
    const uint64_t *x, *y;

    f->rank      = -1;
    f->num_ranks = 0;
    for (int r = f->a->layout->ranks - 1; f->has_ranks && r >= 0; r--) {
        if (words_get(f, f->unit, f->kind, &x, &y) && x[1 + r] != y[1 + r]) {
            f->rank = r;
            f->num_ranks++;
        }
    }
}

/* Finds the first kind in which the lines differ, and its units. */
static int lines_differ(diff_found *f)
{
    const diff_layout *layout = f->a->layout;

    for (size_t kind = 0; kind < diff_kinds(layout); kind++) {
        f->num_units = 0;
        for (size_t u = layout->num_units; u-- > 0;) {
            if (unit_differs(f, u, kind)) {
                f->unit = u;
                f->num_units++;
            }
        }
        if (f->num_units > 0) {
            f->kind = kind;
            ranks_find(f);
            return 1;
        }
    }
    f->is_frozen = f->a->fingerprint != f->b->fingerprint;
    return f->is_frozen;
}

/* --------------------------------------------------------------------- copies -- */

/* Returns a rank whose words differ from those of the first copy; -1: none. */
static int copy_torn(const diff_line *line, size_t unit, size_t kind)
{
    const diff_layout *layout = line->layout;
    const uint64_t    *words  = diff_words(line, unit, kind);
    int is_sliced = kind == DIFF_GRADIENT ? layout->slices_gradients : layout->is_sliced;
    int each      = is_sliced ? layout->ranks / layout->copies : 1;

    for (int r = 0; line->has[diff_at(layout, unit, kind)] && r < layout->ranks; r++) {
        if (words[1 + r] != words[1 + r % each]) {
            return r;
        }
    }
    return -1;
}

static int line_is_torn(const diff_run *run, const diff_line *line, diff_found *f)
{
    for (size_t kind = 0; kind < diff_kinds(line->layout); kind++) {
        for (size_t u = 0; u < line->layout->num_units; u++) {
            f->rank = copy_torn(line, u, kind);
            if (f->rank >= 0) {
                f->kind      = kind;
                f->unit      = u;
                f->num_units = 1;
                f->num_ranks = 1;
                f->torn      = run;
                f->a         = line;
                return 1;
            }
        }
    }
    return 0;
}

/* -------------------------------------------------------------------- damage -- */

static int owns(const diff_owned *owned, uint64_t elem)
{
    for (size_t i = 0; i < owned->count; i++) {
        if (elem >= owned->ranges[i].first && elem < owned->ranges[i].end) {
            return 1;
        }
    }
    return 0;
}

/* A checkpoint whose fingerprints are right is damaged elsewhere: in what the log has not counted,
 * or in what is no values. */
static int is_damaged(const diff_run *run, const diff_line *line, diff_found *f)
{
    const diff_layout *layout = line->layout;

    if (!run->is_damaged) {
        return 0;
    }
    f->damaged = run;
    f->a       = line;
    f->rank    = -1;
    for (size_t u = 0; u < layout->num_units; u++) {
        for (int r = 0; r < layout->owners; r++) {
            if (run->tensor[0] != '\0' && owns(&layout->units[u].owned[r], run->damaged_elem)) {
                f->unit      = u;
                f->num_units = 1;
                f->rank      = layout->is_sliced ? r : -1;
                f->num_ranks = f->rank >= 0;
            }
        }
    }
    return 1;
}

/* ----------------------------------------------------------------------- runs -- */

/* Finds when the unit's kind was last compared, and equal. */
static void equal_find(const diff_run *a, const diff_run *b, size_t i, size_t k, diff_found *f)
{
    diff_found      before = *f;
    const uint64_t *x, *y;

    f->equal_step = -1;
    while (i > 0 && k > 0 && f->equal_step < 0) {
        before.a = &a->lines[i - 1];
        before.b = &b->lines[k - 1];
        if (before.a->number == before.b->number &&
            kind_in(f->a->layout, f->kind, before.a->layout) == f->kind &&
            words_get(&before, f->unit, f->kind, &x, &y)) {
            f->equal_step = before.a->step;
        }
        i -= (size_t)(before.a->number >= before.b->number);
        k -= (size_t)(before.b->number >= before.a->number);
    }
}

static int step_compare(const diff_run *a, const diff_run *b, size_t i, size_t k, diff_found *f)
{
    f->a         = &a->lines[i];
    f->b         = &b->lines[k];
    f->has_ranks = layouts_match(f->a->layout, f->b->layout);
    f->common++;
    if (lines_differ(f)) {
        if (!f->is_frozen) {
            equal_find(a, b, i, k, f);
        }
        return 1;
    }
    return line_is_torn(a, f->a, f) || line_is_torn(b, &b->lines[k], f) ||
           is_damaged(a, &a->lines[i], f) || is_damaged(b, &b->lines[k], f);
}

int diff_compare(const diff_run *a, const diff_run *b, diff_found *out)
{
    size_t i = 0, k = 0;

    *out = (diff_found){.rank = -1, .equal_step = -1};
    if (models_check(a, b) != 0) {
        return 2;
    }
    while (i < a->count && k < b->count && !out->has_parted) {
        int64_t order = a->lines[i].number - b->lines[k].number;

        if (order == 0) {
            out->has_parted = step_compare(a, b, i, k, out);
            out->step       = a->lines[i].step;
            if (!out->has_parted) {
                out->first_step = out->common == 1 ? out->step : out->first_step;
                out->last_step  = out->step;
            }
        }
        i += (size_t)(order <= 0);
        k += (size_t)(order >= 0);
    }
    if (out->common == 0) {
        (void)fprintf(stderr,
                      "sherd: %s and %s have no step in common: steps %" PRId64 " to %" PRId64
                      ", and %" PRId64 " to %" PRId64 "\n",
                      a->path, b->path, a->lines[0].step, a->lines[a->count - 1].step,
                      b->lines[0].step, b->lines[b->count - 1].step);
        return 2;
    }
    return 0;
}
