/* sherd diff: the first step, unit and rank where two runs part that should be equal, from logs of
 * fingerprints or from checkpoints. */
#include "cli/diff.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char COMMAND[] = "diff";

static const char HELP[] =
    "usage: sherd diff A B [--json]\n\n"
    "Compares two runs that should be equal, and names the first step, unit and rank where they\n"
    "part. A and B are logs of fingerprints, which a run writes with the key\n"
    "sherd.fingerprints.file, or checkpoints: DIR/TAG, or DIR for the one that DIR/latest "
    "names.\n\n"
    "Two logs are compared in all steps that both have. A log and a checkpoint are compared in "
    "the\n"
    "step of the checkpoint: its weights, and the state that the log has of that step. Two\n"
    "checkpoints of one step are compared parameter by parameter. Ranks are named where both runs\n"
    "have the same elements on the same ranks.\n\n"
    "  --json    print one JSON object\n\n"
    "Exit status: 0 if they are equal; 1 if they part; 2 if they cannot be compared, or the\n"
    "arguments are wrong.\n";

/* --------------------------------------------------------------------- words -- */

static const char *unit_word(const diff_run *a, const diff_run *b)
{
    return a->is_checkpoint && b->is_checkpoint ? "parameter" : "unit";
}

static const char *kind_word(const diff_found *f)
{
    return f->damaged != NULL ? "bytes do not match their checksums"
                              : diff_kind_name(f->a->layout, f->kind);
}

static void ranks_print(const diff_found *f)
{
    const diff_layout *layout = f->a->layout;

    if (layout->ranks == 1 || f->num_units == 0) {
        return;
    }
    if (f->rank < 0) {
        (void)fputs(f->damaged != NULL || f->has_ranks ? ""
                                                       : " (no rank is named: the layouts differ)",
                    stdout);
    } else if (f->num_ranks == layout->ranks) {
        (void)printf(", all ranks");
    } else {
        (void)printf(", rank %d", f->rank);
        if (f->num_ranks > 1) {
            (void)printf(" and %d more", f->num_ranks - 1);
        }
    }
}

/* Prints "step 12: unit layer 3, rank 2: gradient". */
static void place_print(const diff_run *a, const diff_run *b, const diff_found *f)
{
    if (f->is_frozen) {
        (void)printf("step %" PRId64 ": frozen parameters\n", f->step);
        return;
    }
    (void)printf("step %" PRId64 ": ", f->step);
    if (f->num_units > 0) {
        (void)printf("%s ", unit_word(a, b));
        cli_plain_print(f->a->layout->units[f->unit].name);
        ranks_print(f);
        (void)printf(": ");
    }
    (void)printf("%s\n", kind_word(f));
    if (f->num_units > 1) {
        (void)printf("%s %zu of %zu %ss differ in it\n",
                     f->num_units == f->a->layout->num_units ? "all" : "in all", f->num_units,
                     f->a->layout->num_units, unit_word(a, b));
    }
}

static void layout_print(const diff_layout *layout, const char *path)
{
    (void)printf("  stage %d on %d rank%s", layout->stage, layout->ranks,
                 layout->ranks == 1 ? "" : "s");
    if (layout->copies > 1) {
        (void)printf(", %d copies", layout->copies);
    }
    (void)printf(": ");
    cli_plain_print(path);
    (void)printf("\n");
}

static void more_print(const diff_run *a, const diff_run *b, const diff_found *f)
{
    const diff_run *damaged = a->is_damaged ? a : b;

    if (f->torn != NULL) {
        (void)printf("the copies of one run differ: ");
        cli_plain_print(f->torn->path);
        (void)printf("\n");
    }
    if (damaged->is_damaged) {
        (void)printf("damaged: ");
        cli_plain_print(damaged->damage);
        (void)printf("\n");
    }
    if (f->equal_step >= 0 && f->kind != diff_weights(f->a->layout) && f->kind != DIFF_GRADIENT &&
        f->torn == NULL && f->damaged == NULL) {
        (void)printf("this was last compared, and equal, in step %" PRId64 "\n", f->equal_step);
    }
    if (f->torn == NULL && f->damaged == NULL && !a->is_checkpoint && !b->is_checkpoint &&
        !f->has_ranks) {
        (void)printf("the layouts differ\n");
        layout_print(f->a->layout, a->path);
        layout_print(f->b->layout, b->path);
    }
}

static void outcome_print(const diff_run *a, const diff_run *b, const diff_found *f)
{
    size_t equal = f->common - (size_t)f->has_parted;

    if (equal > 0) {
        (void)printf("equal in %zu step%s, from %" PRId64 " to %" PRId64 "\n", equal,
                     equal == 1 ? "" : "s", f->first_step, f->last_step);
    }
    if (f->has_parted) {
        place_print(a, b, f);
        more_print(a, b, f);
    }
}

/* ---------------------------------------------------------------------- JSON -- */

static void place_print_json(const diff_found *f)
{
    (void)printf(", \"step\": %" PRId64 ", \"kind\": ", f->step);
    cli_json_text_print(f->is_frozen ? "frozen parameters" : kind_word(f));
    (void)printf(", \"unit\": ");
    if (f->num_units > 0) {
        cli_json_text_print(f->a->layout->units[f->unit].name);
    } else {
        (void)printf("null");
    }
    (void)printf(", \"units\": %zu, \"rank\": ", f->num_units);
    if (f->rank >= 0) {
        (void)printf("%d", f->rank);
    } else {
        (void)printf("null");
    }
    (void)printf(", \"ranks\": %d, \"last_equal\": ", f->num_ranks);
    if (f->equal_step >= 0) {
        (void)printf("%" PRId64, f->equal_step);
    } else {
        (void)printf("null");
    }
    (void)printf(", \"torn\": ");
    if (f->torn != NULL) {
        cli_json_text_print(f->torn->path);
    } else {
        (void)printf("null");
    }
}

static void outcome_print_json(const diff_run *a, const diff_run *b, const diff_found *f)
{
    const diff_run *damaged = a->is_damaged ? a : b;

    (void)printf("{\"is_equal\": %s, \"equal_steps\": %zu", f->has_parted ? "false" : "true",
                 f->common - (size_t)f->has_parted);
    if (f->has_parted) {
        place_print_json(f);
    }
    if (damaged->is_damaged) {
        (void)printf(", \"damage\": ");
        cli_json_text_print(damaged->damage);
    }
    (void)printf("}\n");
}

int diff_print(const diff_run *a, const diff_run *b, const diff_found *found, int is_json)
{
    (is_json ? outcome_print_json : outcome_print)(a, b, found);
    return found->has_parted;
}

/* --------------------------------------------------------------- the command -- */

typedef struct diff_arguments {
    int is_json;
} diff_arguments;

/* A log is a file, but for DIR/latest, which names a checkpoint. */
static int is_log(const char *path)
{
    const char *name = strrchr(path, '/');
    struct stat file;

    return stat(path, &file) != 0 ||
           (!S_ISDIR(file.st_mode) && strcmp(name == NULL ? path : name + 1, "latest") != 0);
}

static int run_read(const char *path, const diff_run *other, diff_run *out)
{
    return is_log(path) ? diff_log_read(path, out) : diff_checkpoint_read(path, other, out);
}

/* Two checkpoints are of one step. */
static int steps_check(const diff_run *a, const diff_run *b)
{
    if (!a->is_checkpoint || !b->is_checkpoint || a->lines[0].step == b->lines[0].step) {
        return 0;
    }
    (void)fprintf(stderr, "sherd: %s is of step %" PRId64 ", and %s of step %" PRId64 "\n", a->path,
                  a->lines[0].step, b->path, b->lines[0].step);
    return 2;
}

static int runs_compare(const diff_run *a, const diff_run *b, int is_json)
{
    diff_found found;

    return steps_check(a, b) != 0 || diff_compare(a, b, &found) != 0
               ? 2
               : diff_print(a, b, &found, is_json);
}

/* A log is read before the checkpoint that is compared with it. */
static int paths_compare(const char *paths[2], int is_json)
{
    int      first   = is_log(paths[0]) ? 0 : 1;
    int      has_log = is_log(paths[first]);
    diff_run runs[2];
    int      status;

    first = has_log ? first : 0;
    if (run_read(paths[first], NULL, &runs[first]) != 0) {
        return 2;
    }
    if (run_read(paths[1 - first], has_log ? &runs[first] : NULL, &runs[1 - first]) != 0) {
        diff_run_close(&runs[first]);
        return 2;
    }
    status = runs_compare(&runs[0], &runs[1], is_json);
    diff_run_close(&runs[1 - first]);
    diff_run_close(&runs[first]);
    return status;
}

int cli_diff(int argc, char **argv)
{
    static const cli_option  LIST[]    = {CLI_FLAG("json", 'j', diff_arguments, is_json), {0}};
    static const cli_options OPTIONS   = {COMMAND, HELP, LIST, 0};
    diff_arguments           arguments = {0};
    int                      status    = cli_options_read(&OPTIONS, argc, argv, &arguments);

    if (status >= 0) {
        return status;
    }
    if (argc - optind != 2) {
        return cli_bad(COMMAND, "it compares two runs, and %d %s given", argc - optind,
                       argc - optind == 1 ? "is" : "are");
    }
    return paths_compare((const char *[2]){argv[optind], argv[optind + 1]}, arguments.is_json);
}
