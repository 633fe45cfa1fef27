/* bench memory --touch: the cost of allocating host memory in the engine's way, compared with the
 * plain way and the machine's limit. */
#include "bench/memory.h"
#include "bench/timing.h"

#include "base/clock.h"
#include "kernels/devices.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 3

enum { ROW_FIRST = 0, ROW_ENGINE, ROW_PLAIN, ROW_WARM, ROWS };

typedef struct touch_bench {
    size_t          len_bytes;
    sherdi_mem      mem;
    sherdi_backend *host;
    sherdi_backend *device; /* NULL: the memory is not locked */
    double          seconds[ROWS][ROUNDS];
} touch_bench;

static const char *const NAMES[ROWS] = {
    "the engine's buffer, at first", "the engine's buffer, again",
    "memset, one thread, 4 KiB pages", "memset, all threads, warm"};

static double seconds_since(int64_t start_ns)
{
    return (double)(sherdi_now_ns() - start_ns) * 1e-9;
}

static int plain_touch(const touch_bench *t, double *seconds)
{
    int64_t start_ns = sherdi_now_ns();
    void   *memory =
        mmap(NULL, t->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        return -1;
    }
    (void)madvise(memory, t->len_bytes, MADV_NOHUGEPAGE);
    memset(memory, 0, t->len_bytes);
    *seconds = seconds_since(start_ns);
    return munmap(memory, t->len_bytes);
}

static int engine_touch(touch_bench *t, double *seconds, void **out)
{
    int64_t      start_ns = sherdi_now_ns();
    sherd_status status =
        sherdi_pinned_alloc(t->host, t->device, &t->mem, SHERDI_MEM_HOST_STATE, t->len_bytes, out);

    *seconds = seconds_since(start_ns);
    return status == SHERD_OK ? 0 : -1;
}

/* A virtual machine may have to get the pages from its host first; those that were freed a moment
 * before it still has. So the first row shows the cost of a start, and the others compare. */
static int round_run(touch_bench *t, int round)
{
    void   *memory = NULL;
    int64_t start_ns;

    if (engine_touch(t, &t->seconds[ROW_FIRST][round], &memory) != 0) {
        return -1;
    }
    sherdi_pinned_free(t->device, memory);
    if (engine_touch(t, &t->seconds[ROW_ENGINE][round], &memory) != 0) {
        return -1;
    }
    start_ns = sherdi_now_ns();
    t->host->kernels->zero(t->host, memory, t->len_bytes);
    t->seconds[ROW_WARM][round] = seconds_since(start_ns);
    sherdi_pinned_free(t->device, memory);
    return plain_touch(t, &t->seconds[ROW_PLAIN][round]);
}

static void rows_print(touch_bench *t)
{
    double bytes = (double)t->len_bytes;

    (void)printf("%-32s %7s %8s %8s %8s  %s\n", "", "threads", "s", "GB/s", "a core", "spread");
    for (int row = 0; row < ROWS; row++) {
        int        threads = row == ROW_PLAIN ? 1 : t->host->threads;
        bench_stat stat    = bench_stat_of(t->seconds[row], ROUNDS);

        (void)printf("%-32s %7d %8.3f %8.2f %8.2f  %.2f-%.2f\n", NAMES[row], threads, stat.median,
                     bytes / stat.median * 1e-9, bytes / stat.median * 1e-9 / threads,
                     bytes / stat.max * 1e-9, bytes / stat.min * 1e-9);
    }
}

int memory_touch_run(size_t len_bytes, const char *backend)
{
    touch_bench t      = {.len_bytes = len_bytes};
    int         status = 0;

    sherdi_mem_init(&t.mem);
    if (sherdi_backend_cpu_create_with(
            &(sherdi_cpu_params){
                .threads = (int)sysconf(_SC_NPROCESSORS_ONLN), .shares = 1, .rank = -1},
            &t.mem, &t.host) != SHERD_OK) {
        status = -1;
    }
    if (status == 0 && strcmp(backend, "cpu") != 0 &&
        sherdi_backend_device_create(backend, 0, &t.mem, &t.device) != SHERD_OK) {
        status = -1;
    }
    (void)printf("# %.2f GiB, %s\n", (double)len_bytes * 0x1p-30,
                 t.device == NULL ? "not locked" : "locked for the device");
    for (int round = 0; round < ROUNDS && status == 0; round++) {
        status = round_run(&t, round);
    }
    if (status == 0) {
        rows_print(&t);
    } else {
        (void)fprintf(stderr, "bench-memory: %s\n", sherd_last_error());
    }
    sherdi_backend_destroy(t.device);
    sherdi_backend_destroy(t.host);
    return status == 0 ? 0 : 1;
}
