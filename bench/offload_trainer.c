/* See offload_trainer.h. In every round, one after the other, and in every other round the other
 * way about:
 *
 *   queued    steps as the trainer makes them: sherd_step_queue, whose update overlaps with the
 *             next forward
 *   waited    the same on the same engine with sherd_step; their parts are timed: forward,
 *             backward, and the update's own time, which is its kernels and the norm
 *   none      queued steps of an engine without offload (only on the CPU; another process, as GPUs
 *             and drives are for one)
 *   drive     the transfers of a step to and from the drive alone
 *   link      those between host and device alone
 *   DeepSpeed with its state on the same drive, at stage 3 where it takes one
 *
 * The limit is backward and the longest of forward, update and transfers. On the CPU the kernels of
 * forward and update take turns on the same cores, so it is backward + max(forward + update, what
 * backward did not hide of the drive's time). On a GPU the host updates while the device computes:
 * backward + max(forward, update, link, the same of the drive's time). Backward hid the bytes that
 * were moved while it ran, of a waited or a queued step, whichever are more. The wait for the first
 * unit is a part of the queued step that nothing can hide: it is shown separately, and so is the
 * ratio of the step without it. */
#include "bench/offload_trainer.h"

#include "bench/offload_peer.h"
#include "bench/timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_QUEUED, ROW_WAITED, ROW_NONE, ROW_DRIVE, ROW_LINK, ROW_PEER, NUM_ROWS };

enum {
    FIGURE_QUEUED,
    FIGURE_WAITED,
    FIGURE_NONE,
    FIGURE_FORWARD,
    FIGURE_BACKWARD,
    FIGURE_UPDATE,
    FIGURE_DRIVE,
    FIGURE_LEFT,
    FIGURE_LINK,
    FIGURE_LIMIT,
    FIGURE_RATIO,
    FIGURE_FIRST,
    FIGURE_REST,
    FIGURE_WAIT,
    FIGURE_READ,
    FIGURE_WRITE,
    FIGURE_PEER,
    FIGURE_PEER_RATIO,
    NUM_FIGURES
};

/* The name of a column, its key in the JSON, and the row that it needs. */
static const struct {
    const char *name, *key;
    int         row;
} FIGURES[NUM_FIGURES] = {
    [FIGURE_QUEUED]     = {"queued", "queued_s", ROW_QUEUED},
    [FIGURE_WAITED]     = {"waited", "waited_s", ROW_WAITED},
    [FIGURE_NONE]       = {"none", "none_s", ROW_NONE},
    [FIGURE_FORWARD]    = {"forward", "forward_s", ROW_WAITED},
    [FIGURE_BACKWARD]   = {"backward", "backward_s", ROW_WAITED},
    [FIGURE_UPDATE]     = {"update", "update_s", ROW_WAITED},
    [FIGURE_DRIVE]      = {"drive", "drive_s", ROW_DRIVE},
    [FIGURE_LEFT]       = {"left", "drive_left_s", ROW_DRIVE},
    [FIGURE_LINK]       = {"link", "link_s", ROW_LINK},
    [FIGURE_LIMIT]      = {"limit", "limit_s", ROW_WAITED},
    [FIGURE_RATIO]      = {"ratio", "ratio", ROW_QUEUED},
    [FIGURE_FIRST]      = {"first", "first_wait_s", ROW_QUEUED},
    [FIGURE_REST]       = {"but first", "rest_ratio", ROW_QUEUED},
    [FIGURE_WAIT]       = {"waits", "wait_s", ROW_QUEUED},
    [FIGURE_READ]       = {"read", "read_s", ROW_DRIVE},
    [FIGURE_WRITE]      = {"write", "write_s", ROW_DRIVE},
    [FIGURE_PEER]       = {"DeepSpeed", "deepspeed_s", ROW_PEER},
    [FIGURE_PEER_RATIO] = {"of ours", "deepspeed_of_ours", ROW_PEER},
};

typedef struct round_turns {
    offload_turn rows[NUM_ROWS];
} round_turns;

typedef struct contest {
    const offload_trainer_params *p;
    int                           is_gpu;
    offload_rank                  ours, memory; /* memory: without offload */
    offload_peer                  peer;
    int                           has_row[NUM_ROWS];
    round_turns                  *rounds; /* [p->rounds] */
    size_t                        peak_bytes, peer_peak_bytes;
    FILE                         *json;
    int                           num_cells; /* printed so far */
} contest;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---------------------------------------------------------------- figures -- */

/* Of the drive's time, what backward did not hide. On a GPU the host is done with a queued step's
 * backward before the device is. */
static double drive_left(const round_turns *round)
{
    const offload_turn *waited = &round->rows[ROW_WAITED], *queued = &round->rows[ROW_QUEUED];
    double              hidden = larger((double)waited->hidden_bytes, (double)queued->hidden_bytes);

    if (waited->drive_bytes == 0) {
        return 0.0;
    }
    return round->rows[ROW_DRIVE].alone_s * (1.0 - hidden / (double)waited->drive_bytes);
}

static double limit_of(const contest *c, const round_turns *round)
{
    const offload_turn *step   = &round->rows[ROW_WAITED];
    double              update = step->update_s + step->norm_s;
    double              beside = c->is_gpu
                                     ? larger(larger(step->forward_s, update), round->rows[ROW_LINK].alone_s)
                                     : step->forward_s + update;

    return step->backward_s + larger(beside, drive_left(round));
}

static double figure_of(const contest *c, const round_turns *round, int figure)
{
    const offload_turn *queued = &round->rows[ROW_QUEUED], *waited = &round->rows[ROW_WAITED];

    switch (figure) {
    case FIGURE_QUEUED:
        return queued->step_s;
    case FIGURE_WAITED:
        return waited->step_s;
    case FIGURE_NONE:
        return round->rows[ROW_NONE].step_s;
    case FIGURE_FORWARD:
        return waited->forward_s;
    case FIGURE_BACKWARD:
        return waited->backward_s;
    case FIGURE_UPDATE:
        return waited->update_s + waited->norm_s;
    case FIGURE_DRIVE:
        return round->rows[ROW_DRIVE].alone_s;
    case FIGURE_LEFT:
        return drive_left(round);
    case FIGURE_LINK:
        return round->rows[ROW_LINK].alone_s;
    case FIGURE_LIMIT:
        return limit_of(c, round);
    case FIGURE_RATIO:
        return queued->step_s / limit_of(c, round);
    case FIGURE_FIRST:
        return queued->first_wait_s;
    case FIGURE_REST:
        return (queued->step_s - queued->first_wait_s) / limit_of(c, round);
    case FIGURE_WAIT:
        return queued->wait_s;
    case FIGURE_READ:
        return queued->read_s;
    case FIGURE_WRITE:
        return queued->write_s;
    case FIGURE_PEER:
        return round->rows[ROW_PEER].step_s;
    default:
        return round->rows[ROW_PEER].step_s / queued->step_s;
    }
}

static bench_stat stat_of(const contest *c, int figure)
{
    size_t     rounds = c->p->rounds;
    double    *values = calloc(rounds, sizeof(*values));
    bench_stat stat;

    if (values == NULL) {
        (void)fprintf(stderr, "bench-offload: out of memory\n");
        exit(1);
    }
    for (size_t r = 0; r < rounds; r++) {
        values[r] = figure_of(c, &c->rounds[r], figure);
    }
    stat = bench_stat_of(values, rounds);
    free(values);
    return stat;
}

/* ----------------------------------------------------------------- rounds -- */

static offload_turn row_run(contest *c, int row)
{
    static const offload_ask ASKS[] = {[ROW_QUEUED] = OFFLOAD_QUEUED,
                                       [ROW_WAITED] = OFFLOAD_WAITED,
                                       [ROW_NONE]   = OFFLOAD_QUEUED,
                                       [ROW_DRIVE]  = OFFLOAD_DRIVE,
                                       [ROW_LINK]   = OFFLOAD_LINK};
    const offload_rank      *rank   = row == ROW_NONE ? &c->memory : &c->ours;

    if (row == ROW_PEER) {
        return (offload_turn){.step_s = offload_peer_turn(&c->peer, c->p->steps, NULL)};
    }
    offload_rank_ask(rank, ASKS[row], c->p->steps, 0);
    return offload_rank_answer(rank);
}

/* A peer that ends in the middle is omitted from the whole cell. */
static void rounds_run(contest *c, const char *what)
{
    size_t rounds = c->p->rounds;

    for (size_t round = 0; round < rounds; round++) {
        (void)fprintf(stderr, "\r%s: round %zu of %zu ", what, round + 1, rounds);
        for (int i = 0; i < NUM_ROWS; i++) {
            int row = round % 2 == 0 ? i : NUM_ROWS - 1 - i;

            if (c->has_row[row]) {
                c->rounds[round].rows[row] = row_run(c, row);
                c->has_row[row]            = c->rounds[round].rows[row].step_s >= 0.0;
            }
        }
    }
    (void)fprintf(stderr, "\n");
}

/* Of one more step, looked at from outside in the same way. */
static void peaks_take(contest *c)
{
    offload_rank_ask(&c->ours, OFFLOAD_QUEUED, 1, 0);
    (void)offload_peak_watch(c->ours.process, c->ours.from, 1e9, NULL, &c->peak_bytes);
    (void)offload_rank_answer(&c->ours);
    if (c->has_row[ROW_PEER]) {
        (void)offload_peer_turn(&c->peer, 1, &c->peer_peak_bytes);
    }
}

/* ---------------------------------------------------------------- results -- */

static int has_figure(const contest *c, int figure)
{
    return c->has_row[FIGURES[figure].row];
}

static void heading_print(const contest *c)
{
    (void)printf("%-9s %-5s", "shape", "type");
    for (int figure = 0; figure < NUM_FIGURES; figure++) {
        if (has_figure(c, figure)) {
            (void)printf(" %9s%s", FIGURES[figure].name,
                         figure == FIGURE_RATIO ? "    of rounds" : "");
        }
    }
    (void)printf(" %9s%s\n", "peak MiB", c->has_row[ROW_PEER] ? " DeepSpeed's" : "");
}

static void cell_print(const contest *c, const offload_shape *shape, const char *precision)
{
    char   name[48];
    double tokens = (double)(shape->batch * shape->length);

    (void)snprintf(name, sizeof(name), "%zux%zu", shape->batch, shape->length);
    (void)printf("%-9s %-5s", name, precision);
    for (int figure = 0; figure < NUM_FIGURES; figure++) {
        bench_stat stat = stat_of(c, figure);

        if (has_figure(c, figure)) {
            (void)printf(" %9.3f", stat.median);
        }
        if (figure == FIGURE_RATIO) {
            (void)printf(" %5.2f to %4.2f", stat.min, stat.max);
        }
    }
    (void)printf(" %9.0f", (double)c->peak_bytes / 0x1p20);
    if (c->has_row[ROW_PEER]) {
        (void)printf(" %12.0f", (double)c->peer_peak_bytes / 0x1p20);
    }
    (void)printf("\n# tokens/s: %.0f queued, %.0f waited, %.0f without an update\n",
                 tokens / stat_of(c, FIGURE_QUEUED).median,
                 tokens / stat_of(c, FIGURE_WAITED).median,
                 tokens / (stat_of(c, FIGURE_FORWARD).median + stat_of(c, FIGURE_BACKWARD).median));
    (void)fflush(stdout);
}

static void cell_json(contest *c, const offload_shape *shape, const char *precision)
{
    if (c->json == NULL) {
        return;
    }
    (void)fprintf(c->json, "%s\n{\"name\": \"%zux%zu %s\", \"tokens\": %zu, \"peak_bytes\": %zu",
                  c->num_cells > 0 ? "," : "", shape->batch, shape->length, precision,
                  shape->batch * shape->length, c->peak_bytes);
    if (c->has_row[ROW_PEER]) {
        (void)fprintf(c->json, ", \"deepspeed_peak_bytes\": %zu", c->peer_peak_bytes);
    }
    for (int figure = 0; figure < NUM_FIGURES; figure++) {
        if (has_figure(c, figure)) {
            bench_stat stat = stat_of(c, figure);

            (void)fprintf(c->json, ", \"%s\": [%.6f, %.6f, %.6f]", FIGURES[figure].key, stat.median,
                          stat.min, stat.max);
        }
    }
    (void)fprintf(c->json, "}");
}

/* ------------------------------------------------------------------ cells -- */

static int peer_start(contest *c, const offload_shape *shape, const char *precision)
{
    const offload_setup      *o      = &c->p->setup;
    const offload_peer_params params = {.python    = c->p->peers,
                                        .folder    = o->drive.folder,
                                        .precision = precision,
                                        .sizes     = o->sizes,
                                        .batch     = shape->batch,
                                        .length    = shape->length,
                                        .threads   = o->threads,
                                        .limit_s   = c->p->peers_limit_s};

    return c->p->peers != NULL && offload_peer_start(&params, &c->peer) == 0;
}

static void cell_run(contest *c, const offload_shape *shape, const char *precision)
{
    const char *place = c->p->setup.place;
    int         has_peer;
    char        what[64];

    (void)snprintf(what, sizeof(what), "%zux%zu %s", shape->batch, shape->length, precision);
    offload_rank_ask(&c->ours, OFFLOAD_SHAPE, shape->batch, shape->length);
    (void)offload_rank_answer(&c->ours);
    if (!c->is_gpu) {
        offload_rank_ask(&c->memory, OFFLOAD_SHAPE, shape->batch, shape->length);
        (void)offload_rank_answer(&c->memory);
    }
    has_peer               = peer_start(c, shape, precision);
    c->has_row[ROW_QUEUED] = c->has_row[ROW_WAITED] = 1;
    c->has_row[ROW_NONE]                            = !c->is_gpu;
    c->has_row[ROW_DRIVE]                           = strcmp(place, "nvme") == 0;
    c->has_row[ROW_LINK]                            = c->is_gpu;
    c->has_row[ROW_PEER]                            = has_peer;
    memset(c->rounds, 0, c->p->rounds * sizeof(*c->rounds));
    rounds_run(c, what);
    peaks_take(c);
    if (has_peer) {
        offload_peer_stop(&c->peer);
    }
    if (c->num_cells == 0) {
        heading_print(c);
    }
    cell_print(c, shape, precision);
    cell_json(c, shape, precision);
    c->num_cells++;
}

static void precision_run(contest *c, const char *precision)
{
    offload_setup ours = c->p->setup, memory = c->p->setup;

    ours.precision   = precision;
    memory.precision = precision;
    memory.place     = "none";
    (void)fprintf(stderr, "%s: first weights\n", precision);
    offload_rank_start(&ours, &c->ours);
    if (!c->is_gpu) {
        offload_rank_start(&memory, &c->memory);
    }
    for (size_t i = 0; i < c->p->shapes.count; i++) {
        cell_run(c, &c->p->shapes.values[i], precision);
    }
    if (!c->is_gpu) {
        offload_rank_stop(
            &c->memory); /* the younger one first: it has the older one's pipe open, too */
    }
    offload_rank_stop(&c->ours);
}

/* ---------------------------------------------------------------- command -- */

int offload_shapes_read(const char *text, void *out)
{
    offload_shapes *shapes = out;

    for (shapes->count = 0; shapes->count < OFFLOAD_MOST_SHAPES; text++) {
        offload_shape *shape = &shapes->values[shapes->count++];
        char          *end;

        shape->batch = strtoull(text, &end, 10);
        if (*end != 'x' || shape->batch == 0) {
            return -1;
        }
        shape->length = strtoull(end + 1, &end, 10);
        if (shape->length == 0 || (*end != ',' && *end != '\0')) {
            return -1;
        }
        if (*end == '\0') {
            return 0;
        }
        text = end;
    }
    return -1;
}

static void setup_print(const offload_trainer_params *p)
{
    const offload_setup *o = &p->setup;

    (void)printf(
        "# %s of %.1f million parameters, %s, state on %s, stage %d, %d threads, %zu rounds of "
        "%zu steps; seconds are medians\n",
        arch_kind_name(o->sizes.kind), (double)arch_elems(&o->sizes) * 1e-6, o->backend, o->place,
        o->stage, o->threads, p->rounds, p->steps);
    (void)fflush(stdout);
}

static FILE *json_begin(const char *path, int argc, char **argv)
{
    FILE *file = path == NULL ? NULL : fopen(path, "we");

    if (path != NULL && file == NULL) {
        perror(path);
        exit(1);
    }
    if (file != NULL) {
        (void)fprintf(file, "{\"command\": \"%s", argv[0]);
        for (int i = 1; i < argc; i++) {
            (void)fprintf(file, " %s", argv[i]);
        }
        (void)fprintf(file, "\", \"cells\": [");
    }
    return file;
}

int offload_trainer_run(const offload_trainer_params *params, int argc, char **argv)
{
    contest c = {.p = params, .is_gpu = strcmp(params->setup.backend, "cuda") == 0};

    bench_print_machine(argc, argv);
    setup_print(params);
    c.rounds = calloc(params->rounds, sizeof(*c.rounds));
    c.json   = json_begin(params->json, argc, argv);
    if (c.rounds == NULL) {
        (void)fprintf(stderr, "bench-offload: out of memory\n");
        return 1;
    }
    if (strstr(params->precisions, "fp32") != NULL) {
        precision_run(&c, "fp32");
    }
    if (strstr(params->precisions, "bf16") != NULL) {
        precision_run(&c, "bf16");
    }
    free(c.rounds);
    if (c.json != NULL && (fprintf(c.json, "\n]}\n") < 0 || fclose(c.json) != 0)) {
        perror(params->json);
        return 1;
    }
    return 0;
}
