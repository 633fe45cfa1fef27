/* bench-collectives: reduce-scatter, all-gather and all-reduce of one large vector per rank,
 * against what memory allows and, under mpirun, against MPI's own collectives. All ranks run the
 * rows of a round in turn, each ended by a barrier; a ratio is taken inside each round, and the
 * median of the rounds is shown.
 *
 * The limit is a copy around the caches that all ranks make at once: bytes that a collective must
 * read and write, at the rate of that copy. The program starts itself once per rank, for mpi under
 * mpirun. */
#include "bench/options.h"
#include "bench/timing.h"
#include "bench/traffic.h"
#include "collectives/world.h"
#include "kernels/cpu/parallel.h"
#include "sherd_build.h"

#if defined(SHERDI_HAVE_MPI)
#include <mpi.h>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct bench_options {
    size_t      bytes; /* of the whole vector */
    size_t      rounds;
    int         ranks;
    const char *transport; /* threads, shm, mpi or all */
    int         is_json;
    int         is_rank; /* started by this program as one rank */
} bench_options;

enum {
    ROW_COPY,
    ROW_REDUCE_SCATTER,
    ROW_ALL_GATHER,
    ROW_ALL_REDUCE,
    ROW_MPI_REDUCE_SCATTER,
    ROW_MPI_ALL_GATHER,
    ROW_MPI_ALL_REDUCE,
    NUM_ROWS
};

static const char *const ROW_NAMES[NUM_ROWS] = {
    "copy-nt (limit)",    "reduce-scatter", "all-gather",     "all-reduce",
    "MPI reduce-scatter", "MPI all-gather", "MPI all-reduce",
};

/* The state of one rank. */
typedef struct bench_rank {
    const bench_options *options;
    sherd_world         *world;
    size_t               num_rows; /* without MPI: up to ROW_ALL_REDUCE */
    size_t               slice_elems;
    float               *send; /* world memory, the whole vector */
    float               *recv;
    float               *slice;      /* world memory, one slice */
    float               *plain_send; /* ordinary memory for the copy and for MPI */
    float               *plain_recv;
    const traffic_loops *traffic;
    double              *seconds;
} bench_rank;

static void give_up(const char *what)
{
    (void)fprintf(stderr, "bench-collectives: %s: %s\n", what, sherd_last_error());
    exit(1);
}

static void must(sherd_status status, const char *what)
{
    if (status != SHERD_OK) {
        give_up(what);
    }
}

/* ----------------------------------------------------------------- rows -- */

static void copy_part(void *ctx, int part, int parts)
{
    const bench_rank *rank  = ctx;
    size_t            each  = rank->options->bytes / (size_t)parts / 4096 * 4096;
    size_t            first = each * (size_t)part;

    rank->traffic->copy((char *)rank->plain_recv + first, (char *)rank->plain_send + first, each);
}

static void row_copy(bench_rank *rank)
{
    const sherdi_backend *backend = sherdi_world_backend(rank->world);

    sherdi_parallel_run(backend, (sherdi_split){backend->threads, rank->options->bytes}, copy_part,
                        rank);
}

static sherdi_reduction_args reduction_of(const bench_rank *rank, void *recv)
{
    return (sherdi_reduction_args){
        .send = rank->send, .recv = recv, .slice_elems = rank->slice_elems, .scale = 0.5f};
}

static void row_reduce_scatter(bench_rank *rank)
{
    sherdi_reduction_args args = reduction_of(rank, rank->slice);

    must(sherdi_world_reduce_scatter(rank->world, &args, NULL), "reduce-scatter");
}

static void row_all_gather(bench_rank *rank)
{
    sherdi_all_gather_args args = {
        .send = rank->slice, .recv = rank->recv, .slice_bytes = rank->slice_elems * sizeof(float)};

    must(sherdi_world_all_gather(rank->world, &args, NULL), "all-gather");
}

static void row_all_reduce(bench_rank *rank)
{
    sherdi_reduction_args args = reduction_of(rank, rank->recv);

    must(sherdi_world_all_reduce(rank->world, &args, NULL), "all-reduce");
}

#if defined(SHERDI_HAVE_MPI)
static void row_mpi(bench_rank *rank, size_t row)
{
    int slice = (int)rank->slice_elems;
    int whole = slice * sherd_world_size(rank->world);

    if (row == ROW_MPI_REDUCE_SCATTER) {
        (void)MPI_Reduce_scatter_block(rank->plain_send, rank->plain_recv, slice, MPI_FLOAT,
                                       MPI_SUM, MPI_COMM_WORLD);
    } else if (row == ROW_MPI_ALL_GATHER) {
        (void)MPI_Allgather(rank->plain_send, slice, MPI_FLOAT, rank->plain_recv, slice, MPI_FLOAT,
                            MPI_COMM_WORLD);
    } else {
        (void)MPI_Allreduce(rank->plain_send, rank->plain_recv, whole, MPI_FLOAT, MPI_SUM,
                            MPI_COMM_WORLD);
    }
}
#else
static void row_mpi(bench_rank *rank, size_t row)
{
    (void)rank;
    (void)row;
}
#endif

static void row_run(void *ctx, size_t row)
{
    bench_rank *rank = ctx;

    switch (row) {
    case ROW_COPY:
        row_copy(rank);
        break;
    case ROW_REDUCE_SCATTER:
        row_reduce_scatter(rank);
        break;
    case ROW_ALL_GATHER:
        row_all_gather(rank);
        break;
    case ROW_ALL_REDUCE:
        row_all_reduce(rank);
        break;
    default:
        row_mpi(rank, row);
        break;
    }
    must(sherd_world_barrier(rank->world), "barrier");
}

/* --------------------------------------------------------------- tables -- */

/* The bytes that all ranks together must read and write. */
static double row_bytes(const bench_rank *rank, size_t row)
{
    double bytes = (double)rank->options->bytes;
    double size  = sherd_world_size(rank->world);

    switch (row) {
    case ROW_REDUCE_SCATTER:
    case ROW_MPI_REDUCE_SCATTER:
        return (size + 1) * bytes;
    default: /* every rank reads and writes a whole vector */
        return 2 * size * bytes;
    }
}

static bench_stat rate_stat(const bench_rank *rank, size_t row, double *scratch)
{
    size_t rounds = rank->options->rounds;

    for (size_t i = 0; i < rounds; i++) {
        scratch[i] = row_bytes(rank, row) / rank->seconds[i * rank->num_rows + row] * 1e-9;
    }
    return bench_stat_of(scratch, rounds);
}

static bench_stat limit_stat(const bench_rank *rank, size_t row, double *scratch)
{
    size_t rounds = rank->options->rounds;

    for (size_t i = 0; i < rounds; i++) {
        const double *round = rank->seconds + i * rank->num_rows;

        scratch[i] =
            row_bytes(rank, row) / round[row] / (row_bytes(rank, ROW_COPY) / round[ROW_COPY]);
    }
    return bench_stat_of(scratch, rounds);
}

/* Seconds of MPI's row over ours. */
static bench_stat mpi_stat(const bench_rank *rank, size_t row, double *scratch)
{
    size_t rounds = rank->options->rounds;

    for (size_t i = 0; i < rounds; i++) {
        const double *round = rank->seconds + i * rank->num_rows;

        scratch[i] = round[row + ROW_MPI_REDUCE_SCATTER - ROW_REDUCE_SCATTER] / round[row];
    }
    return bench_stat_of(scratch, rounds);
}

static void row_print(const bench_rank *rank, size_t row, double *scratch)
{
    bench_stat rate    = rate_stat(rank, row, scratch);
    bench_stat limit   = limit_stat(rank, row, scratch);
    int        has_mpi = rank->num_rows > ROW_MPI_REDUCE_SCATTER && row != ROW_COPY;
    bench_stat mpi     = has_mpi ? mpi_stat(rank, row, scratch) : (bench_stat){0};
    double     ms      = row_bytes(rank, row) / rate.median * 1e-6;

    if (rank->options->is_json) {
        (void)printf("%s{\"name\": \"%s\", \"ms\": %.3f, \"gb_per_s\": [%.3f, %.3f, %.3f], "
                     "\"of_limit\": [%.4f, %.4f, %.4f]",
                     row == 0 ? "" : ",\n", ROW_NAMES[row], ms, rate.median, rate.min, rate.max,
                     limit.median, limit.min, limit.max);
        if (has_mpi) {
            (void)printf(", \"mpi_over_this\": [%.3f, %.3f, %.3f]", mpi.median, mpi.min, mpi.max);
        }
        (void)printf("}");
        return;
    }
    (void)printf("%-18s %9.2f %7.1f (%5.1f..%5.1f)   %5.3f (%.3f..%.3f)", ROW_NAMES[row], ms,
                 rate.median, rate.min, rate.max, limit.median, limit.min, limit.max);
    if (has_mpi) {
        (void)printf("   %6.2f (%.2f..%.2f)", mpi.median, mpi.min, mpi.max);
    }
    (void)printf("\n");
}

static void table_print(const bench_rank *rank)
{
    const bench_options *options = rank->options;
    double              *scratch = calloc(options->rounds, sizeof(*scratch));

    if (scratch == NULL) {
        give_up("no memory");
    }
    if (options->is_json) {
        (void)printf("{\"transport\": \"%s\", \"ranks\": %d, \"threads\": %d, \"bytes\": %zu, "
                     "\"rounds\": %zu, \"isa\": \"%s\", \"rows\": [\n",
                     sherd_world_transport(rank->world), sherd_world_size(rank->world),
                     sherdi_world_backend(rank->world)->threads, options->bytes, options->rounds,
                     sherdi_world_backend(rank->world)->kernels->isa);
    } else {
        (void)printf("\n%s, %d ranks of %d thread(s), %s, %zu bytes of fp32 per rank, %zu rounds: "
                     "median (min..max)\n%-18s %9s %7s %14s   %s%s\n",
                     sherd_world_transport(rank->world), sherd_world_size(rank->world),
                     sherdi_world_backend(rank->world)->threads,
                     sherdi_world_backend(rank->world)->kernels->isa, options->bytes,
                     options->rounds, "", "ms", "GB/s", "", "/ limit, paired       ",
                     rank->num_rows > ROW_MPI_REDUCE_SCATTER ? "   MPI's time / this" : "");
    }
    for (size_t row = 0; row <= ROW_ALL_REDUCE; row++) {
        row_print(rank, row, scratch);
    }
    if (options->is_json) {
        (void)printf("]}");
    }
    (void)fflush(stdout);
    free(scratch);
}

/* -------------------------------------------------------------- one rank -- */

static float *plain_map(size_t len_bytes)
{
    void *pages =
        mmap(NULL, len_bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED) {
        give_up("no memory");
    }
    return pages;
}

static float *world_map(sherd_world *world, size_t len_bytes)
{
    void *memory = NULL;

    must(sherdi_world_alloc(world, len_bytes, &memory), "world memory");
    return memory;
}

static void rank_run(const bench_options *options, sherd_world *world, int has_mpi)
{
    size_t     size   = (size_t)sherd_world_size(world);
    size_t     floats = options->bytes / sizeof(float);
    bench_rank rank   = {.options  = options,
                         .world    = world,
                         .num_rows = has_mpi ? NUM_ROWS : ROW_MPI_REDUCE_SCATTER};

    rank.slice_elems = floats / size;
    rank.traffic     = traffic_loops_find(sherdi_world_backend(world)->kernels->isa);
    rank.send        = world_map(world, options->bytes);
    rank.recv        = world_map(world, options->bytes);
    rank.slice       = world_map(world, rank.slice_elems * sizeof(float));
    rank.plain_send  = plain_map(options->bytes + 37 * (size_t)4096);
    rank.plain_recv  = plain_map(options->bytes);
    rank.seconds     = calloc(options->rounds * rank.num_rows, sizeof(double));
    if (rank.seconds == NULL) {
        give_up("no memory");
    }
    for (size_t i = 0; i < floats; i++) {
        rank.send[i] = rank.plain_send[i] = (float)(i % 1000) * 0.5f;
    }
    memset(rank.plain_recv, 0, options->bytes);
    must(sherd_world_barrier(world), "barrier");
    bench_rounds(options->rounds, rank.num_rows, row_run, &rank, rank.seconds);
    if (sherd_world_rank(world) == 0) {
        table_print(&rank);
    }
    must(sherd_world_barrier(world), "barrier");
    free(rank.seconds);
    (void)munmap(rank.plain_send, options->bytes + 38 * (size_t)4096);
    (void)munmap(rank.plain_recv, options->bytes + 4096);
    sherd_world_destroy(world);
}

typedef struct rank_thread {
    pthread_t            thread;
    const bench_options *options;
    sherd_world         *world;
} rank_thread;

static void *thread_main(void *raw)
{
    rank_thread *self = raw;

    rank_run(self->options, self->world, 0);
    return NULL;
}

static void threads_run(const bench_options *options)
{
    rank_thread   threads[256];
    sherd_world **worlds = calloc((size_t)options->ranks, sizeof(*worlds));

    if (worlds == NULL) {
        give_up("no memory");
    }
    must(sherd_world_threads(options->ranks, worlds), "threads");
    for (int r = 0; r < options->ranks; r++) {
        threads[r] = (rank_thread){.options = options, .world = worlds[r]};
        if (pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]) != 0) {
            give_up("no thread");
        }
    }
    for (int r = 0; r < options->ranks; r++) {
        (void)pthread_join(threads[r].thread, NULL);
    }
    free(worlds);
}

/* ------------------------------------------------------------- processes -- */

/* The options of a rank, as text for exec. */
typedef struct rank_words {
    char  bytes[32];
    char  rounds[32];
    char  ranks[16];
    char *argv[24];
    int   count;
} rank_words;

static void words_add(rank_words *words, const char *word)
{
    words->argv[words->count++] = (char *)(uintptr_t)word;
    words->argv[words->count]   = NULL;
}

static void words_fill(rank_words *words, const bench_options *options, const char *self)
{
    (void)snprintf(words->bytes, sizeof(words->bytes), "%zu", options->bytes);
    (void)snprintf(words->rounds, sizeof(words->rounds), "%zu", options->rounds);
    words_add(words, self);
    words_add(words, "--rank");
    words_add(words, "--bytes");
    words_add(words, words->bytes);
    words_add(words, "--rounds");
    words_add(words, words->rounds);
    if (options->is_json) {
        words_add(words, "--json");
    }
}

static void self_find(char *path, size_t len_bytes)
{
    ssize_t len = readlink("/proc/self/exe", path, len_bytes - 1);

    path[len > 0 ? len : 0] = '\0';
}

static int child_wait(pid_t child)
{
    int raw = 0;

    return child > 0 && waitpid(child, &raw, 0) == child && WIFEXITED(raw) ? WEXITSTATUS(raw) : 1;
}

static int shm_run(const bench_options *options)
{
    char  folder[] = "/tmp/sherd-bench-XXXXXX";
    char  self[512];
    char  value[600];
    pid_t children[256];
    int   worst = 0;

    self_find(self, sizeof(self));
    if (mkdtemp(folder) == NULL) {
        give_up("no folder in /tmp");
    }
    for (int r = 0; r < options->ranks; r++) {
        (void)fflush(NULL);
        children[r] = fork();
        if (children[r] == 0) {
            rank_words words = {.count = 0};

            words_fill(&words, options, self);
            (void)snprintf(value, sizeof(value), "%d", r);
            (void)setenv("SHERD_RANK", value, 1);
            (void)snprintf(value, sizeof(value), "%d", options->ranks);
            (void)setenv("SHERD_WORLD_SIZE", value, 1);
            (void)snprintf(value, sizeof(value), "unix://%s/meet", folder);
            (void)setenv("SHERD_RENDEZVOUS", value, 1);
            (void)execv(self, words.argv);
            _exit(127);
        }
    }
    for (int r = 0; r < options->ranks; r++) {
        worst |= child_wait(children[r]);
    }
    (void)rmdir(folder);
    return worst;
}

/* Exit code of mpirun; 77 when there is none, or no MPI in this build. */
static int mpi_run(const bench_options *options)
{
    char       self[512];
    rank_words words = {.count = 0};
    pid_t      child;

#if !defined(SHERDI_HAVE_MPI)
    return 77;
#endif
    self_find(self, sizeof(self));
    (void)snprintf(words.ranks, sizeof(words.ranks), "%d", options->ranks);
    words_add(&words, "mpirun");
    words_add(&words, "--oversubscribe");
    words_add(&words, "-n");
    words_add(&words, words.ranks);
    words_fill(&words, options, self);
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)unsetenv("SHERD_RANK");
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
        (void)execvp("mpirun", words.argv);
        _exit(77);
    }
    return child_wait(child);
}

static int rank_main(const bench_options *options)
{
    sherd_world *world = NULL;

    must(sherd_world_from_env(NULL, &world), "world");
    rank_run(options, world, strcmp(sherd_world_transport(world), "mpi") == 0);
    return 0;
}

/* -------------------------------------------------------------- command -- */

static int is_wanted(const bench_options *options, const char *transport)
{
    return strcmp(options->transport, "all") == 0 || strcmp(options->transport, transport) == 0;
}

static int all_run(const bench_options *options)
{
    const char *const names[] = {"threads", "shm", "mpi"};
    int               worst   = 0;
    int               is_next = 0;

    for (int i = 0; i < 3; i++) {
        int code = 0;

        if (!is_wanted(options, names[i])) {
            continue;
        }
        if (options->is_json && is_next) {
            (void)printf(",\n");
        }
        (void)fflush(stdout);
        is_next = 1;
        if (i == 0) {
            threads_run(options);
        } else {
            code = i == 1 ? shm_run(options) : mpi_run(options);
        }
        if (code == 77 && options->is_json) {
            (void)printf("null");
        } else if (code == 77) {
            (void)printf("\nmpi: no mpirun, or sherd built without MPI\n");
        } else {
            worst |= code;
        }
    }
    return worst;
}

static void options_parse(int argc, char **argv, bench_options *o)
{
    const bench_option rows[] = {
        {"bytes", "N", "the whole vector of a rank, fp32 (default 256M)", BENCH_SIZE,
         .value = &o->bytes, .least = 65536, .most = 0x1p33},
        {"rounds", "N", "interleaved rounds (default 9)", BENCH_SIZE, .value = &o->rounds,
         .least = 1, .most = 100000},
        {"ranks", "N", "ranks on this host (default 2)", BENCH_INT, .value = &o->ranks, .least = 1,
         .most = 256},
        {"transport", "NAME",
         "threads, shm, mpi (with MPI's own collectives beside), or all (default)", BENCH_TEXT,
         .value = &o->transport, .choices = "threads|shm|mpi|all"},
        {"json", NULL, "print one JSON object", BENCH_SWITCH, .value = &o->is_json},
        {"rank", NULL, NULL, BENCH_SWITCH, .value = &o->is_rank}};
    const bench_command command = BENCH_COMMAND(
        "collectives", "Times collectives of each transport and the memory limit.", rows);

    (void)bench_options_read(&command, argc, argv);
}

int main(int argc, char **argv)
{
    bench_options options = {
        .bytes = (size_t)256 << 20, .rounds = 9, .ranks = 2, .transport = "all"};
    int code;

    options_parse(argc, argv, &options);
    if (options.is_rank) {
        return rank_main(&options);
    }
    if (options.is_json) {
        (void)printf("{");
        bench_print_machine_json(argc, argv);
        (void)printf(", \"tables\": [\n");
    } else {
        bench_print_machine(argc, argv);
    }
    code = all_run(&options);
    (void)printf(options.is_json ? "]}\n" : "\n");
    return code;
}
