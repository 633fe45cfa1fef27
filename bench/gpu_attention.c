/* bench-gpu-attention: causal attention of the trainer on a GPU in bf16, forward and backward, by
 * each of its choices of kernels: own, by products of warpgroups, and cuDNN's. All compute the same
 * numbers, and how far each is from the first is printed next to its times. Choices take turns in
 * each round; times are between two events of the device; the median of the rounds is shown. Exits
 * 77 where there is no device. */
#include "bench/options.h"
#include "bench/timing.h"

#include "trainer/compute.h"
#include "kernels/devices.h"
#include "kernels/lanes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_SKIP 77

typedef struct bench_options {
    size_t      batch, length, heads, kv_heads, width;
    size_t      rounds, repeats;
    int         device;
    const char *json;
} bench_options;

typedef enum direction { FORWARD, BACKWARD, DIRECTIONS } direction;

/* The implementations of attention. */
typedef struct choice {
    compute_attention attention;
    const char       *name; /* the trainer's word */
    compute          *c;
    double            apart[DIRECTIONS]; /* most difference to the first choice over its most */
} choice;

typedef struct attention_run {
    bench_options   o;
    sherdi_backend *lane;
    sherdi_event   *start, *end;
    sherdi_mem      mem;
    heads_args      shape;
    size_t          qkv_elems, out_elems; /* of all rows */
    void           *qkv, *dqkv, *out, *dout;
    float          *log_sums;
    /* on the host: the result of the first choice, and of another */
    uint16_t *first[DIRECTIONS], *now;
    choice    choices[ATTENTION_CHOICES];
    size_t    num_choices;
} attention_run;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-gpu-attention: %s: %s\n", what, why);
    exit(1);
}

static void check(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        die(what, sherd_last_error());
    }
}

static void *host_make(size_t elems)
{
    void *memory = malloc(elems * sizeof(uint16_t));

    if (memory == NULL) {
        die("memory", strerror(ENOMEM));
    }
    return memory;
}

/* On the device; freed with the lane. */
static void *device_make(attention_run *run, size_t bytes)
{
    void *memory;

    check(run->lane->device->alloc(run->lane, &run->mem, SHERDI_MEM_STATE, bytes, &memory),
          "memory of the device");
    return memory;
}

/* Of numbers in bf16 between -1 and 1. */
static void *numbers_make(attention_run *run, size_t elems, uint32_t seed)
{
    uint16_t *host   = host_make(elems);
    void     *memory = device_make(run, elems * sizeof(*host));

    for (size_t i = 0; i < elems; i++) {
        float    number;
        uint32_t bits;

        seed   = seed * 1664525u + 1013904223u;
        number = (float)(seed >> 8) * 0x1p-23f - 1.0f;
        memcpy(&bits, &number, sizeof(bits));
        host[i] = (uint16_t)(bits >> 16);
    }
    run->lane->kernels->copy(run->lane, memory, host, elems * sizeof(*host));
    check(sherdi_lane_wait(run->lane), "filling memory");
    free(host);
    return memory;
}

static double number_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float    number;

    memcpy(&number, &bits, sizeof(number));
    return (double)number;
}

/* q, k and v are columns of one matrix, as GPT-2 has them. */
static void run_init(attention_run *run, const bench_options *o)
{
    size_t rows = o->batch * o->length, row = (o->heads + 2 * o->kv_heads) * o->width;

    *run =
        (attention_run){.o = *o, .qkv_elems = rows * row, .out_elems = rows * o->heads * o->width};
    sherdi_mem_init(&run->mem);
    check(sherdi_backend_device_create("cuda", o->device, &run->mem, &run->lane), "the device");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->start), "an event");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->end), "an event");
    run->qkv             = numbers_make(run, run->qkv_elems, 1);
    run->dqkv            = device_make(run, run->qkv_elems * sizeof(uint16_t));
    run->out             = device_make(run, run->out_elems * sizeof(uint16_t));
    run->dout            = numbers_make(run, run->out_elems, 2);
    run->log_sums        = device_make(run, rows * o->heads * sizeof(float));
    run->now             = host_make(run->qkv_elems);
    run->first[FORWARD]  = host_make(run->out_elems);
    run->first[BACKWARD] = host_make(run->qkv_elems);
    run->shape           = (heads_args){.batch     = o->batch,
                                        .length    = o->length,
                                        .heads     = o->heads,
                                        .kv_heads  = o->kv_heads,
                                        .width     = o->width,
                                        .q_stride  = row,
                                        .kv_stride = row,
                                        .q         = run->qkv,
                                        .k         = (uint16_t *)run->qkv + o->heads * o->width,
                                        .v = (uint16_t *)run->qkv + (o->heads + o->kv_heads) * o->width};
}

static void run_fini(attention_run *run)
{
    for (size_t i = 0; i < run->num_choices; i++) {
        compute_destroy(run->choices[i].c);
    }
    free(run->first[FORWARD]);
    free(run->first[BACKWARD]);
    free(run->now);
    sherdi_lanes_of(run->lane)->event_destroy(run->start);
    sherdi_lanes_of(run->lane)->event_destroy(run->end);
    sherdi_backend_destroy(run->lane); /* and its output */
}

/* --------------------------------------------------------------- choices -- */

static void attention_queue(attention_run *run, const choice *by, direction which)
{
    const heads_args *s = &run->shape;
    uint16_t *dq = run->dqkv, *dk = dq + s->heads * s->width, *dv = dk + s->kv_heads * s->width;

    if (which == FORWARD) {
        by->c->ops->attention(by->c, s, run->out, run->log_sums);
    } else {
        by->c->ops->attention_back(by->c, s, run->out, run->dout, run->log_sums, dq, dk, dv);
    }
}

/* Seconds of one call, over `repeats`. */
static double attention_seconds(attention_run *run, const choice *by, direction which,
                                size_t repeats)
{
    const sherdi_lane_ops *device = sherdi_lanes_of(run->lane);

    check(sherdi_lane_wait(run->lane), by->name);
    device->event_record(run->start, run->lane);
    for (size_t i = 0; i < repeats; i++) {
        attention_queue(run, by, which);
    }
    device->event_record(run->end, run->lane);
    check(device->event_wait(run->end), by->name);
    if (by->c->why[0] != '\0') {
        die(by->name, by->c->why);
    }
    return (double)(device->event_ns(run->end) - device->event_ns(run->start)) * 1e-9 /
           (double)repeats;
}

/* Reads the result of a direction, and returns its distance from the result of the first choice. */
static double result_compare(attention_run *run, int is_first, direction which)
{
    size_t      elems = which == FORWARD ? run->out_elems : run->qkv_elems;
    const void *from  = which == FORWARD ? run->out : run->dqkv;
    uint16_t   *to    = is_first ? run->first[which] : run->now;
    double      apart = 0.0, most = 0.0;

    run->lane->kernels->copy(run->lane, to, from, elems * sizeof(*to));
    check(sherdi_lane_wait(run->lane), "reading results");
    for (size_t i = 0; i < elems; i++) {
        double want = number_of(run->first[which][i]), difference = fabs(number_of(to[i]) - want);

        most  = fmax(most, fabs(want));
        apart = isnan(apart) || difference <= apart ? apart : difference; /* a NaN stays */
    }
    return apart / most;
}

/* Adds a choice whose kernels are there for this shape, and prints the reason for one that has
 * none. */
static void choice_add(attention_run *run, const char *name)
{
    const bench_options *o      = &run->o;
    choice              *by     = &run->choices[run->num_choices];
    compute_params       params = {.limits  = {.dtype  = SHERD_BF16,
                                               .batch  = o->batch,
                                               .length = o->length,
                                               .hidden = o->heads * o->width,
                                               .inner  = 16,
                                               .heads  = o->heads,
                                               .vocab  = 16},
                                   .backend = "cuda",
                                   .stream  = sherdi_lanes_of(run->lane)->lane_stream(run->lane)};
    char                 why[256];
    int                  is_other;

    *by = (choice){.name = name};
    (void)compute_attention_find(name, &by->attention);
    params.choices.attention = by->attention;
    by->c                    = compute_create(&params, why, sizeof(why));
    if (by->c == NULL) {
        die(name, why);
    }
    for (direction which = FORWARD; which < DIRECTIONS; which++) {
        (void)attention_seconds(run, by, which, 1);
        by->apart[which] = result_compare(run, run->num_choices == 0, which);
    }
    is_other = by->c->attention != by->attention;
    (void)printf("# %-9s %s\n", name,
                 by->c->note[0] != '\0' ? by->c->note : "attention by kernels of its own");
    if (is_other) {
        compute_destroy(by->c);
    } else {
        run->num_choices++;
    }
}

/* ---------------------------------------------------------------- report -- */

/* Of the products that attention needs: two in forward and five in backward, of the scores that
 * queries see. */
static double operations_of(const bench_options *o, direction which)
{
    double scores =
        0.5 * (double)o->length * ((double)o->length + 1.0) * (double)o->batch * (double)o->heads;

    return (which == FORWARD ? 2.0 : 5.0) * 2.0 * scores * (double)o->width;
}

/* Seconds are [rounds][choices][DIRECTIONS]. */
static void choice_print(attention_run *run, const double *seconds, double *scratch, size_t index,
                         FILE *json)
{
    static const char *const NAMES[] = {[FORWARD] = "forward", [BACKWARD] = "backward"};
    const bench_options     *o       = &run->o;
    const choice            *by      = &run->choices[index];

    for (direction which = FORWARD; which < DIRECTIONS; which++) {
        bench_stat time, rate;

        for (size_t i = 0; i < o->rounds; i++) {
            scratch[i] = seconds[(i * run->num_choices + index) * DIRECTIONS + which] * 1e6;
        }
        time = bench_stat_of(scratch, o->rounds);
        for (size_t i = 0; i < o->rounds; i++) {
            scratch[i] = operations_of(o, which) / (scratch[i] * 1e-6) * 1e-12;
        }
        rate = bench_stat_of(scratch, o->rounds);
        (void)printf("%-9s %-8s %9.1f us  (%.1f to %.1f)  %6.1f TFLOP/s", by->name, NAMES[which],
                     time.median, time.min, time.max, rate.median);
        if (index > 0) {
            (void)printf("  %.2g from %s", by->apart[which], run->choices[0].name);
        }
        (void)printf("\n");
        if (json != NULL) {
            double apart = isnan(by->apart[which]) ? 1e9 : by->apart[which]; /* JSON has no NaN */

            (void)fprintf(json, "{\"name\": \"%s %s\", \"us\": [%.3f, %.3f, %.3f], ", by->name,
                          NAMES[which], time.median, time.min, time.max);
            (void)fprintf(json,
                          "\"tflop_per_s\": [%.2f, %.2f, %.2f], \"apart\": [%.6f, %.6f, %.6f]}\n",
                          rate.median, rate.min, rate.max, apart, apart, apart);
        }
    }
}

static void rounds_measure(attention_run *run, double *seconds)
{
    for (size_t round = 0; round < run->o.rounds; round++) {
        for (size_t i = 0; i < run->num_choices; i++) {
            for (direction which = FORWARD; which < DIRECTIONS; which++) {
                *seconds++ = attention_seconds(run, &run->choices[i], which, run->o.repeats);
            }
        }
    }
}

static void measure(attention_run *run)
{
    const bench_options *o = &run->o;
    double *seconds = calloc(o->rounds * (run->num_choices * DIRECTIONS + 1), sizeof(*seconds));
    FILE   *json    = o->json == NULL ? NULL : fopen(o->json, "w");

    if (seconds == NULL) {
        die("rounds", strerror(ENOMEM));
    }
    if (o->json != NULL && json == NULL) {
        die(o->json, strerror(errno));
    }
    rounds_measure(run, seconds);
    for (size_t i = 0; i < run->num_choices; i++) {
        choice_print(run, seconds, seconds + o->rounds * run->num_choices * DIRECTIONS, i, json);
    }
    if (json != NULL && fclose(json) != 0) {
        die(o->json, strerror(errno));
    }
    free(seconds);
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"batch", "N", "sequences (default 32)", BENCH_SIZE, .value = &o->batch, .least = 1},
        {"length", "N", "tokens of a sequence (default 1024)", BENCH_SIZE, .value = &o->length,
         .least = 1},
        {"heads", "N", "heads (default 12)", BENCH_SIZE, .value = &o->heads, .least = 1},
        {"kv-heads", "N", "heads of keys and values (default: as many)", BENCH_SIZE,
         .value = &o->kv_heads, .least = 1},
        {"width", "N", "elements of a head (default 64)", BENCH_SIZE, .value = &o->width,
         .least = 1, .most = 256},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"repeats", "N", "repeats of a call in a round (default 8)", BENCH_SIZE,
         .value = &o->repeats, .least = 1},
        {"device", "N", "number of the GPU (default 0)", BENCH_INT, .value = &o->device},
        {"json", "FILE", "write the figures as JSON, a line each", BENCH_TEXT, .value = &o->json}};
    const bench_command command =
        BENCH_COMMAND("gpu-attention",
                      "Times causal attention of the trainer on a GPU in bf16 by each choice of "
                      "kernels, and compares what they give. "
                      "Exits with 77 where there is no device.",
                      rows);

    (void)bench_options_read(&command, argc, argv);
    o->kv_heads = o->kv_heads == 0 ? o->heads : o->kv_heads;
    if (o->heads % o->kv_heads != 0) {
        bench_options_refuse(&command, "--heads %zu is no multiple of --kv-heads %zu", o->heads,
                             o->kv_heads);
    }
}

int main(int argc, char **argv)
{
    bench_options o = {
        .batch = 32, .length = 1024, .heads = 12, .width = 64, .rounds = 7, .repeats = 8};
    attention_run run;
    char          text[256];

    options_parse(argc, argv, &o);
    if (sherdi_backend_device_count("cuda", text, sizeof(text)) == 0) {
        (void)printf("bench-gpu-attention: skipped: %s\n", text);
        return EXIT_SKIP;
    }
    bench_print_machine(argc, argv);
    sherdi_backend_device_describe("cuda", o.device, text, sizeof(text));
    (void)printf("# device   %s\n", text);
    run_init(&run, &o);
    choice_add(&run, "own");
    choice_add(&run, "warpgroup");
    choice_add(&run, "cudnn");
    (void)fflush(stdout);
    measure(&run);
    run_fini(&run);
    return 0;
}
