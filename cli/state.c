/* sherd state: lists the state files on drives, by run: which runs can be resumed, and which only
 * take space. It also removes them, except those that a process has open. */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char COMMAND[] = "state";

static const char HELP[] =
    "usage: sherd state list DIR... [--json]\n"
    "       sherd state remove DIR... (--run HEX | --all) [--yes]\n\n"
    "Lists or removes the state files that runs left in folders\n"
    "(offload_optimizer.nvme_path). The list shows for each run one of these words:\n\n"
    "  resumable       the files of all ranks are there and whole, and no process uses them\n"
    "  in use          a process has one of the files open\n"
    "  incomplete      files of ranks are missing; they may lie in a folder that was not given\n"
    "  apart           the ranks are more than one commit apart\n"
    "  empty           nothing was committed yet\n"
    "  damaged         the index of a file cannot be read\n\n"
    "Commands:\n\n"
    "  list            print a line for each run, and under it a line for each rank's file\n"
    "  remove          ask, then remove the files of runs that no process uses\n\n"
    "Options:\n\n"
    "  --run HEX       remove this run only; HEX is the run as list shows it\n"
    "  --all           remove all runs\n"
    "  --yes           remove without asking; needed if there is no terminal to ask on\n"
    "  --json          print the list as one JSON object\n";

/* ---- files ---- */

typedef struct file_list {
    sherd_state_file *files;
    size_t            count, capacity;
} file_list;

static sherd_status list_add(void *ctx, const sherd_state_file *file)
{
    file_list *list = ctx;

    if (list->count == list->capacity) {
        size_t            capacity = list->capacity * 2 + 16;
        sherd_state_file *files    = realloc(list->files, capacity * sizeof(*files));

        if (files == NULL) {
            (void)fprintf(stderr, "sherd: no memory for %zu files\n", capacity);
            exit(1);
        }
        list->files    = files;
        list->capacity = capacity;
    }
    list->files[list->count++] = *file;
    return SHERD_OK;
}

/* Orders files by run, and the files of a run by rank. */
static int file_compare(const void *a, const void *b)
{
    const sherd_state_file *one = a;
    const sherd_state_file *two = b;

    if (one->run != two->run) {
        return one->run < two->run ? -1 : 1;
    }
    if (one->world_size != two->world_size) {
        return one->world_size < two->world_size ? -1 : 1;
    }
    if (one->rank != two->rank) {
        return one->rank < two->rank ? -1 : 1;
    }
    return strcmp(one->path, two->path);
}

static const char *file_state(const sherd_state_file *file)
{
    return file->is_locked         ? "in use"
           : !file->is_valid       ? "damaged"
           : file->generation == 0 ? "empty"
                                   : "whole";
}

/* ---- runs ---- */

typedef struct run_view {
    const sherd_state_file *files;
    size_t                  count;
} run_view;

/* Returns the run that begins at files[first]. */
static run_view run_at(const file_list *list, size_t first)
{
    run_view run = {&list->files[first], 1};

    while (first + run.count < list->count && run.files[run.count].run == run.files[0].run &&
           run.files[run.count].world_size == run.files[0].world_size) {
        run.count++;
    }
    return run;
}

static int run_has_state(const run_view *run, const char *state)
{
    for (size_t i = 0; i < run->count; i++) {
        if (strcmp(file_state(&run->files[i]), state) == 0) {
            return 1;
        }
    }
    return 0;
}

static int run_has_rank(const run_view *run, int rank)
{
    for (size_t i = 0; i < run->count; i++) {
        if (run->files[i].rank == rank) {
            return 1;
        }
    }
    return 0;
}

static int run_num_ranks(const run_view *run)
{
    int ranks = 0;

    for (size_t i = 0; i < run->count; i++) {
        ranks += i == 0 || run->files[i].rank != run->files[i - 1].rank;
    }
    return ranks;
}

/* When a run is killed, its ranks are at most one commit apart, and it can continue from the older
 * commit. */
static int run_is_apart(const run_view *run)
{
    uint64_t least = run->files[0].generation;
    uint64_t most  = least;

    for (size_t i = 1; i < run->count; i++) {
        least = run->files[i].generation < least ? run->files[i].generation : least;
        most  = run->files[i].generation > most ? run->files[i].generation : most;
    }
    return most - least > 1;
}

/* Returns the worst state of its files; if all are whole, whether they belong together. */
static const char *run_state(const run_view *run)
{
    static const char *const WORST[] = {"in use", "damaged", "empty"};

    for (size_t i = 0; i < sizeof(WORST) / sizeof(WORST[0]); i++) {
        if (run_has_state(run, WORST[i])) {
            return WORST[i];
        }
    }
    return run_num_ranks(run) < run->files[0].world_size ? "incomplete"
           : run_is_apart(run)                           ? "apart"
                                                         : "resumable";
}

static uint64_t run_bytes(const run_view *run)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < run->count; i++) {
        bytes += run->files[i].held_bytes;
    }
    return bytes;
}

/* ---- the table ---- */

static const char *step_text(int64_t step, char text[CLI_WORD_BYTES])
{
    (void)snprintf(text, CLI_WORD_BYTES, "%" PRId64, step);
    return step < 0 ? "-" : text;
}

/* Prints the first few ranks that have no file. */
static void missing_print(const run_view *run)
{
    int missing = run->files[0].world_size - run_num_ranks(run);
    int named   = 0;

    for (int rank = 0; named < missing && named < 8; rank++) {
        if (!run_has_rank(run, rank)) {
            (void)printf("%s %d", named == 0 ? "; no file of rank" : ",", rank);
            named++;
        }
    }
    if (missing > named) {
        (void)printf(" and %d more", missing - named);
    }
}

static void run_print(const run_view *run)
{
    char word[3][CLI_WORD_BYTES];

    (void)printf("run %016" PRIx64 ": %s, %d of %d ranks, %s", run->files[0].run, run_state(run),
                 run_num_ranks(run), run->files[0].world_size,
                 cli_bytes_text(run_bytes(run), word[0]));
    missing_print(run);
    (void)printf("\n%8s %12s %14s %10s  %-8s %s\n", "rank", "step", "size", "age", "state", "file");
    for (size_t i = 0; i < run->count; i++) {
        const sherd_state_file *file = &run->files[i];

        (void)printf("%8d %12s %14s %10s  %-8s %s\n", file->rank, step_text(file->step, word[0]),
                     cli_bytes_text(file->held_bytes, word[1]),
                     cli_age_text(file->changed_s, word[2]), file_state(file), file->path);
    }
}

/* ---- JSON ---- */

static void run_print_json(const run_view *run)
{
    (void)printf("{\"run\": \"%016" PRIx64 "\", \"state\": \"%s\", \"world_size\": %d, "
                 "\"ranks\": %d, \"held_bytes\": %" PRIu64 ", \"files\": [",
                 run->files[0].run, run_state(run), run->files[0].world_size, run_num_ranks(run),
                 run_bytes(run));
    for (size_t i = 0; i < run->count; i++) {
        const sherd_state_file *file = &run->files[i];

        (void)printf("%s\n    {\"rank\": %d, \"path\": ", i == 0 ? "" : ",", file->rank);
        cli_json_text_print(file->path);
        (void)printf(", \"state\": \"%s\", \"step\": %" PRId64 ", \"generation\": %" PRIu64
                     ", \"held_bytes\": %" PRIu64 ", \"changed_s\": %" PRId64 "}",
                     file_state(file), file->step, file->generation, file->held_bytes,
                     file->changed_s);
    }
    (void)printf("]}");
}

/* ---- the commands ---- */

typedef struct state_arguments {
    char   **folders;
    int      num_folders;
    uint64_t run; /* 0: not set */
    int      is_all, is_yes, is_json;
} state_arguments;

/* Whether an earlier argument is the same folder. A folder that is listed twice counts once. */
static int folder_is_seen(const state_arguments *arguments, int index)
{
    char *path   = realpath(arguments->folders[index], NULL);
    int   is_one = 0;

    for (int i = 0; i < index && path != NULL && !is_one; i++) {
        char *other = realpath(arguments->folders[i], NULL);

        is_one = other != NULL && strcmp(path, other) == 0;
        free(other);
    }
    free(path);
    return is_one;
}

static int list_read(const state_arguments *arguments, file_list *out)
{
    for (int i = 0; i < arguments->num_folders; i++) {
        if (!folder_is_seen(arguments, i) &&
            sherd_state_files_find(arguments->folders[i], list_add, out) != SHERD_OK) {
            return cli_fail();
        }
    }
    if (out->count > 0) {
        qsort(out->files, out->count, sizeof(*out->files), file_compare);
    }
    return 0;
}

static int state_list(const state_arguments *arguments, const file_list *list)
{
    run_view run;

    if (arguments->is_json) {
        (void)printf("{\"runs\": [");
    } else if (list->count == 0) {
        (void)printf("no state files\n");
    }
    for (size_t first = 0; first < list->count; first += run.count) {
        run = run_at(list, first);
        if (arguments->is_json) {
            (void)printf(first == 0 ? "\n  " : ",\n  ");
            run_print_json(&run);
        } else {
            (void)printf(first == 0 ? "" : "\n");
            run_print(&run);
        }
    }
    if (arguments->is_json) {
        (void)printf("]}\n");
    }
    return 0;
}

/* Moves the files to remove to the front of the list. *left_out: how many runs are not removed
 * because they are in use. */
static void removable_select(const state_arguments *arguments, file_list *list, int *left_out)
{
    size_t   kept = 0;
    run_view run;

    *left_out = 0;
    for (size_t first = 0; first < list->count; first += run.count) {
        run = run_at(list, first);
        if (!arguments->is_all && run.files[0].run != arguments->run) {
            continue;
        }
        if (run_has_state(&run, "in use")) {
            (void)fprintf(stderr, "sherd: run %016" PRIx64 " is in use and stays\n",
                          run.files[0].run);
            (*left_out)++;
            continue;
        }
        memmove(&list->files[kept], run.files, run.count * sizeof(*run.files));
        kept += run.count;
    }
    list->count = kept;
}

static int files_remove(const file_list *list)
{
    char     word[CLI_WORD_BYTES];
    uint64_t bytes   = 0;
    size_t   removed = 0;

    for (size_t i = 0; i < list->count; i++) {
        if (sherd_state_file_remove(list->files[i].path) != SHERD_OK) {
            (void)cli_fail();
        } else {
            removed++;
            bytes += list->files[i].held_bytes;
        }
    }
    (void)printf("removed %zu file%s, %s\n", removed, removed == 1 ? "" : "s",
                 cli_bytes_text(bytes, word));
    return removed == list->count ? 0 : 1;
}

static int state_remove(const state_arguments *arguments, file_list *list)
{
    char     word[CLI_WORD_BYTES];
    char     question[2 * CLI_WORD_BYTES];
    uint64_t bytes = 0;
    int      left_out;

    removable_select(arguments, list, &left_out);
    if (list->count == 0) {
        if (left_out == 0 && !arguments->is_all) {
            (void)fprintf(stderr, "sherd: no state files of run %016" PRIx64 "\n", arguments->run);
            return 1;
        }
        if (left_out == 0) {
            (void)printf("no state files\n");
        }
        return left_out == 0 ? 0 : 1;
    }
    (void)state_list(arguments, list);
    for (size_t i = 0; i < list->count; i++) {
        bytes += list->files[i].held_bytes;
    }
    if (!arguments->is_yes) {
        if (!isatty(STDIN_FILENO)) {
            (void)fprintf(stderr, "sherd: nothing is removed; without a terminal it takes --yes\n");
            return 2;
        }
        (void)snprintf(question, sizeof(question), "remove %zu file%s, %s?", list->count,
                       list->count == 1 ? "" : "s", cli_bytes_text(bytes, word));
        if (!cli_confirm(question)) {
            (void)printf("nothing is removed\n");
            return 1;
        }
    }
    return files_remove(list) != 0 || left_out > 0;
}

/* ---- arguments ---- */

static int run_take(const cli_option *option, const char *text, void *field)
{
    uint64_t *out = field;
    char     *end;

    (void)option;
    errno = 0;
    *out  = strtoull(text, &end, 16);
    return errno == 0 && *end == '\0' && isxdigit((unsigned char)text[0]) && *out > 0;
}

/* Refuses options that belong to the other command. */
static int arguments_check(const state_arguments *arguments, const char *verb)
{
    int is_list = strcmp(verb, "list") == 0;

    if (!is_list && strcmp(verb, "remove") != 0) {
        return cli_bad(COMMAND, "'%s' is neither list nor remove", verb);
    }
    if (arguments->num_folders == 0) {
        return cli_bad(COMMAND, "%s wants a folder", verb);
    }
    if (is_list && (arguments->run != 0 || arguments->is_all || arguments->is_yes)) {
        return cli_bad(COMMAND, "%s takes no option but --json", verb);
    }
    if (!is_list && (arguments->is_json || (arguments->run != 0) == arguments->is_all)) {
        return cli_bad(COMMAND, "%s wants either --run HEX or --all, and no --json", verb);
    }
    return 0;
}

int cli_state(int argc, char **argv)
{
    static const cli_option LIST[] = {
        CLI_READ("run", 'r', state_arguments, run, run_take, "wants a run as list shows it"),
        CLI_FLAG("all", 'a', state_arguments, is_all),
        CLI_FLAG("yes", 'y', state_arguments, is_yes),
        CLI_FLAG("json", 'j', state_arguments, is_json),
        {0}};
    static const cli_options OPTIONS   = {COMMAND, HELP, LIST, 0};
    state_arguments          arguments = {0};
    file_list                list      = {0};
    int                      failed    = cli_options_read(&OPTIONS, argc, argv, &arguments);

    if (failed >= 0) {
        return failed;
    }
    if (optind == argc) {
        (void)fputs(HELP, stderr);
        return 2;
    }
    arguments.folders     = argv + optind + 1;
    arguments.num_folders = argc - optind - 1;
    failed                = arguments_check(&arguments, argv[optind]);
    if (failed == 0) {
        failed = list_read(&arguments, &list);
    }
    if (failed == 0) {
        failed = strcmp(argv[optind], "list") == 0 ? state_list(&arguments, &list)
                                                   : state_remove(&arguments, &list);
    }
    free(list.files);
    return failed;
}
