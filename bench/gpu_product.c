/* bench-gpu-product: the matrix products of the Muon optimizer on a CUDA device, in fp32, and those
 * of PyTorch with --peer. PyTorch's are cuBLAS's, in fp32 too, and computed whole where ours is
 * symmetric and made by halves. Rows and peers take turns in each round; times are between two
 * events of the device; a ratio is taken inside each round, and the median of the rounds is shown.
 * Exits 77 where there is no device. */
#include "bench/options.h"
#include "bench/peers.h"
#include "bench/products.h"
#include "bench/timing.h"

#include "kernels/devices.h"
#include "kernels/lanes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_SKIP 77

typedef struct bench_options {
    size_t      rows, cols;
    size_t      rounds, repeats;
    int         device;
    const char *python; /* NULL: no peers */
    const char *json;
} bench_options;

typedef struct gpu_run {
    sherdi_backend *lane;
    sherdi_event   *start, *end;
    sherdi_mem      mem;
    float          *x, *small, *dst;
    size_t          rows, cols, repeats;
    bench_peers     peers;
} gpu_run;

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench-gpu-product: %s: %s\n", what, why);
    exit(1);
}

static void check(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        die(what, sherd_last_error());
    }
}

/* On the device, of small numbers; freed with the lane. */
static float *matrix_make(gpu_run *run, size_t elems)
{
    uint32_t state = 12345;
    void    *memory;
    float   *host = malloc(elems * sizeof(*host));

    if (host == NULL) {
        die("memory", strerror(ENOMEM));
    }
    for (size_t i = 0; i < elems; i++) {
        state   = state * 1664525u + 1013904223u;
        host[i] = 1e-3f * (float)((state >> 8) + 1) * 0x1p-24f;
    }
    check(run->lane->device->alloc(run->lane, &run->mem, SHERDI_MEM_STATE, elems * sizeof(*host),
                                   &memory),
          "memory of the device");
    run->lane->kernels->copy(run->lane, memory, host, elems * sizeof(*host));
    check(sherdi_lane_wait(run->lane), "filling a matrix");
    free(host);
    return memory;
}

static void run_init(gpu_run *run, const bench_options *options)
{
    size_t large = options->rows > options->cols ? options->rows : options->cols;

    *run = (gpu_run){.rows = options->rows, .cols = options->cols, .repeats = options->repeats};
    sherdi_mem_init(&run->mem);
    check(sherdi_backend_device_create("cuda", options->device, &run->mem, &run->lane),
          "the device");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->start), "an event");
    check(sherdi_lanes_of(run->lane)->event_create(run->lane, 1, &run->end), "an event");
    run->x     = matrix_make(run, run->rows * run->cols);
    run->small = matrix_make(run, run->rows * run->rows);
    run->dst   = matrix_make(run, run->rows * large);
    if (options->python != NULL) {
        bench_peers_start(&run->peers, options->python, BENCH_PEERS);
    }
    bench_peers_setup(&run->peers, "%zu %zu %d", run->rows, run->cols, options->device);
    if (run->peers.count > BENCH_PRODUCTS) {
        die("the peers' script", "it has more products than there are");
    }
}

static void run_fini(gpu_run *run)
{
    sherdi_lanes_of(run->lane)->event_destroy(run->start);
    sherdi_lanes_of(run->lane)->event_destroy(run->end);
    sherdi_backend_destroy(run->lane); /* and its output */
}

static sherdi_product_args args_of(const gpu_run *run, size_t row)
{
    sherdi_product_args args =
        bench_product_args(&BENCH_PRODUCT_TABLE[row], run->x, run->small, run->rows, run->cols);

    args.dst = run->dst;
    return args;
}

static double product_seconds(gpu_run *run, size_t row)
{
    const sherdi_lane_ops    *device = sherdi_lanes_of(run->lane);
    const sherdi_product_args args   = args_of(run, row);

    check(sherdi_lane_wait(run->lane), BENCH_PRODUCT_TABLE[row].name);
    device->event_record(run->start, run->lane);
    for (size_t i = 0; i < run->repeats; i++) {
        run->lane->kernels->product(run->lane, &args);
    }
    device->event_record(run->end, run->lane);
    check(device->event_wait(run->end), BENCH_PRODUCT_TABLE[row].name);
    return (double)(device->event_ns(run->end) - device->event_ns(run->start)) * 1e-9 /
           (double)run->repeats;
}

/* Ours and theirs of each round, [rounds][2][BENCH_PRODUCTS]; theirs 0 without peers. The first
 * round is thrown away. */
static void rounds_measure(gpu_run *run, size_t rounds, double *seconds)
{
    for (size_t round = 0; round <= rounds; round++) {
        double *ours = seconds + (round == 0 ? 0 : round - 1) * 2 * BENCH_PRODUCTS;

        for (size_t row = 0; row < BENCH_PRODUCTS; row++) {
            ours[row] = product_seconds(run, row);
            if (row < run->peers.count) {
                ours[BENCH_PRODUCTS + row] = bench_peer_seconds(&run->peers, row, run->repeats);
            }
        }
    }
}

static void row_print(gpu_run *run, size_t rounds, const double *seconds, double *scratch,
                      size_t row, FILE *json)
{
    const char               *name = BENCH_PRODUCT_TABLE[row].name;
    const sherdi_product_args args = args_of(run, row);
    bench_stat                rate, of_peer;

    for (size_t i = 0; i < rounds; i++) {
        scratch[i] =
            bench_product_operations(&args) / seconds[i * 2 * BENCH_PRODUCTS + row] * 1e-12;
    }
    rate = bench_stat_of(scratch, rounds);
    (void)printf("%-30s %8.2f (%6.2f..%6.2f)", name, rate.median, rate.min, rate.max);
    if (json != NULL) {
        (void)fprintf(json, "%s\n {\"name\": \"%s\", \"tflop_per_s\": [%.4f, %.4f, %.4f]",
                      row == 0 ? "" : ",", name, rate.median, rate.min, rate.max);
    }
    if (row < run->peers.count) {
        for (size_t i = 0; i < rounds; i++) {
            const double *ours = seconds + i * 2 * BENCH_PRODUCTS;

            scratch[i] = ours[BENCH_PRODUCTS + row] / ours[row];
        }
        of_peer = bench_stat_of(scratch, rounds);
        (void)printf(" %8.3f (%.3f..%.3f)", of_peer.median, of_peer.min, of_peer.max);
        if (json != NULL) {
            (void)fprintf(json, ", \"of_torch\": [%.4f, %.4f, %.4f]", of_peer.median, of_peer.min,
                          of_peer.max);
        }
    }
    (void)printf("\n");
    if (json != NULL) {
        (void)fprintf(json, "}");
    }
}

static FILE *json_open(const char *path)
{
    FILE *json = path == NULL ? NULL : fopen(path, "w");

    if (path != NULL && json == NULL) {
        die(path, strerror(errno));
    }
    return json;
}

static void results_print(gpu_run *run, const bench_options *options, const char *device,
                          const double *seconds, double *scratch)
{
    FILE *json = json_open(options->json);

    if (json != NULL) {
        (void)fprintf(json, "{\"device\": \"%s\", \"rows\": %zu, \"cols\": %zu, \"products\": [",
                      device, options->rows, options->cols);
    }
    (void)printf("\n%zu x %zu, %zu rounds: median (min..max)\n", options->rows, options->cols,
                 options->rounds);
    (void)printf("%-30s %8s %16s %8s\n", "", "TFLOP/s", "",
                 run->peers.count > 0 ? "torch's time / ours" : "");
    for (size_t row = 0; row < BENCH_PRODUCTS; row++) {
        row_print(run, options->rounds, seconds, scratch, row, json);
    }
    if (json != NULL) {
        (void)fprintf(json, "]}\n");
        if (fclose(json) != 0) {
            die(options->json, strerror(errno));
        }
    }
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"rows", "N", "rows of X, no more than it has columns (default 1024)", BENCH_SIZE,
         .value = &o->rows, .least = 1},
        {"cols", "N", "columns of X (default 4096)", BENCH_SIZE, .value = &o->cols, .least = 1},
        {"rounds", "N", "interleaved rounds (default 7)", BENCH_SIZE, .value = &o->rounds,
         .least = 1},
        {"repeats", "N", "repeats of a product in a round (default 8)", BENCH_SIZE,
         .value = &o->repeats, .least = 1},
        {"device", "N", "number of the GPU (default 0)", BENCH_INT, .value = &o->device},
        {"peers", "PYTHON", "also time PyTorch's products in the same rounds", BENCH_TEXT,
         .value = &o->python},
        {"json", "FILE", "write the figures as JSON", BENCH_TEXT, .value = &o->json}};
    const bench_command command = BENCH_COMMAND(
        "gpu-product",
        "Times the matrix products of the Muon optimizer on a GPU, and those of PyTorch. Exits "
        "with 77 where there is no device.",
        rows);

    (void)bench_options_read(&command, argc, argv);
    if (o->rows > o->cols) {
        bench_options_refuse(&command, "--rows %zu is more than --cols %zu", o->rows, o->cols);
    }
}

int main(int argc, char **argv)
{
    bench_options options = {.rows = 1024, .cols = 4096, .rounds = 7, .repeats = 8};
    gpu_run       run;
    double       *seconds;
    char          text[256];

    options_parse(argc, argv, &options);
    if (sherdi_backend_device_count("cuda", text, sizeof(text)) == 0) {
        (void)printf("bench-gpu-product: skipped: %s\n", text);
        return EXIT_SKIP;
    }
    seconds = calloc(options.rounds * (2 * BENCH_PRODUCTS + 1), sizeof(*seconds));
    if (seconds == NULL) {
        die("rounds", strerror(ENOMEM));
    }
    bench_print_machine(argc, argv);
    sherdi_backend_device_describe("cuda", options.device, text, sizeof(text));
    (void)printf("# device   %s\n", text);
    (void)fflush(stdout);
    run_init(&run, &options);
    rounds_measure(&run, options.rounds, seconds);
    results_print(&run, &options, text, seconds, seconds + options.rounds * 2 * BENCH_PRODUCTS);
    run_fini(&run);
    free(seconds);
    return 0;
}
