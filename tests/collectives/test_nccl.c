/* Worlds over NCCL on emulated devices, with a stand-in for the library
 * (tests/emulator/fake_nccl.c): what nccl.c does around the library's calls. The suite, how the
 * others learn of a failure, when NCCL is chosen, and a communicator of the program's own. */
#include "collectives/follow.h"
#include "collectives/nccl.h"
#include "collectives/room.h"
#include "collectives/sums.h"
#include "tests/collectives/failures.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/split_suite.h"
#include "tests/collectives/world_suite.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sherd_status world_make(const char *transport, int64_t timeout_ns, sherd_world **out)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.transport  = transport;
    params.timeout_ns = timeout_ns;
    CHECK_INT(0, setenv("SHERD_TIMEOUT", "40", 0)); /* to meet: the limit is one of calls */
    return sherd_world_from_env(&params, out);
}

static sherd_world *world_open(const char *transport, int64_t timeout_ns)
{
    sherd_world *world = NULL;

    CHECK_OK(world_make(transport, timeout_ns, &world));
    return world;
}

static sherd_status world_try(const char *transport, int64_t timeout_ns)
{
    sherd_world *world  = NULL;
    sherd_status status = world_make(transport, timeout_ns, &world);

    CHECK((status == SHERD_OK) == (world != NULL));
    sherd_world_destroy(world);
    return status;
}

/* Ranks with words for the stand-in, which the children inherit. */
static void run_with(const char *words, int world_size, const char *part, int killed)
{
    CHECK_INT(0, setenv("SHERD_FAKE_NCCL", words, 1));
    ranks_run_part(world_size, part, killed);
    CHECK_INT(0, unsetenv("SHERD_FAKE_NCCL"));
}

#define SUITE_AT(size)                                                                             \
    static void nccl_suite_holds_at_##size(void)                                                   \
    {                                                                                              \
        if (size == 7 && !SUITE_IS_SAMPLED(size, size)) {                                          \
            test_need_long();                                                                      \
        }                                                                                          \
        ranks_run_part(size, "part_suite", -1);                                                    \
    }

SUITE_AT(1)
SUITE_AT(2)
SUITE_AT(3)
SUITE_AT(4)
SUITE_AT(7)
SUITE_AT(8)

static void nccl_suite_holds_without_registered_memory(void)
{
    run_with("refuse", 3, "part_suite", -1);
    CHECK_INT(0, setenv("SHERD_NCCL_OPTIONS", "unregistered", 1));
    ranks_run_part(2, "part_suite", -1);
    CHECK_INT(0, unsetenv("SHERD_NCCL_OPTIONS"));
}

/* ------------------------------------------------------------------ options -- */

static void run_optioned(const char *options, int world_size, const char *part)
{
    CHECK_INT(0, setenv("SHERD_NCCL_OPTIONS", options, 1));
    ranks_run_part(world_size, part, -1);
    CHECK_INT(0, unsetenv("SHERD_NCCL_OPTIONS"));
}

/* The sums are ours in whatever way the bytes come: the suite compares their bits. */
static void nccl_suite_holds_with_windows_and_the_librarys_all_to_all(void)
{
    run_optioned("alltoall,windows,policy=zero,ctas=8", 3, "part_suite");
}

static void part_refuses_options(void)
{
    CHECK_STATUS(SHERD_E_INVAL, world_try("nccl", 0));
    CHECK_ERROR_SAYS("SHERD_NCCL_OPTIONS");
}

static void part_refuses_age(void)
{
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("policy=zero needs 2.28 or newer; this is NCCL 2.25.1");
}

static void part_other_options(void)
{
    int is_other = strcmp(getenv("SHERD_RANK"), "1") == 0;

    CHECK_INT(0, setenv("SHERD_NCCL_OPTIONS", is_other ? "ctas=4" : "ctas=8", 1));
    CHECK(world_try("nccl", INT64_C(20000000000)) != SHERD_OK);
    CHECK_ERROR_SAYS("rank 1 ");
}

static void nccl_options_that_cannot_be_are_refused(void)
{
    static const char *const WRONG[] = {"alltoall,widows", "ctas=0",      "ctas=65",
                                        "ctas=many",       "policy=best", "windows,unregistered"};

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        run_optioned(WRONG[i], 2, "part_refuses_options");
    }
    CHECK_INT(0, setenv("SHERD_NCCL_OPTIONS", "policy=zero", 1));
    run_with("version=22501", 2, "part_refuses_age", -1);
    CHECK_INT(0, unsetenv("SHERD_NCCL_OPTIONS"));
    ranks_run_part(2, "part_other_options", -1);
}

/* --------------------------------------------------------------- the choice -- */

static void part_is_nccl(void)
{
    sherd_world *world = world_open(NULL, 0);

    CHECK(strcmp(sherd_world_transport(world), "nccl") == 0);
    CHECK(sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE);
    sherd_world_destroy(world);
    world = world_open("shm", 0);
    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    CHECK(!(sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE));
    sherd_world_destroy(world);
    world = world_open("nccl", 0);
    CHECK(strcmp(sherd_world_transport(world), "nccl") == 0);
    sherd_world_destroy(world);
}

static void nccl_is_chosen_where_every_rank_has_a_device(void)
{
    ranks_run_part(3, "part_is_nccl", -1);
}

static void part_shares_a_device(void)
{
    sherd_world *world = world_open(NULL, 0);

    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    sherd_world_destroy(world);
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("share device");
}

static void run_on_devices(const char *count, int world_size, const char *part)
{
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", count, 1));
    ranks_run_part(world_size, part, -1);
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", "8", 1));
}

static void nccl_is_not_chosen_where_ranks_share_a_device(void)
{
    run_on_devices("2", 3, "part_shares_a_device");
}

/* Both see one device, number 0, and it is not the same. */
static void part_sees_another_device(void)
{
    CHECK_INT(0, setenv("SHERD_EMULATOR_FIRST", ranks_variable("SHERD_RANK") == 0 ? "4" : "7", 1));
    part_is_nccl();
}

/* ... or it is, under another name. */
static void part_sees_the_same_device(void)
{
    CHECK_INT(0,
              setenv("CUDA_VISIBLE_DEVICES", ranks_variable("SHERD_RANK") == 0 ? "4" : "GPU-7", 1));
    part_shares_a_device();
}

static void nccl_tells_devices_apart_by_what_they_are(void)
{
    run_on_devices("1", 2, "part_sees_another_device");
    run_on_devices("1", 2, "part_sees_the_same_device");
}

/* NCCL from 2.30 on allows several ranks on a device when all are configured so. */
static void nccl_holds_several_ranks_on_a_device_when_told(void)
{
    CHECK_INT(0, setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1));
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", "1", 1));
    run_with("version=23007", 2, "part_is_nccl", -1);
    run_with("version=23007", 3, "part_suite", -1);
    run_with("version=22907", 2, "part_shares_a_device", -1);
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", "8", 1));
    CHECK_INT(0, unsetenv("NCCL_MULTI_RANK_GPU_ENABLE"));
}

static void part_is_told_alone(void)
{
    CHECK_INT(
        0, setenv("NCCL_MULTI_RANK_GPU_ENABLE", ranks_variable("SHERD_RANK") == 0 ? "1" : "0", 1));
    part_shares_a_device();
}

static void nccl_shares_no_device_that_one_rank_wants_alone(void)
{
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", "1", 1));
    run_with("version=23007", 2, "part_is_told_alone", -1);
    CHECK_INT(0, setenv("SHERD_EMULATOR_DEVICES", "8", 1));
}

static void part_has_an_old_library(void)
{
    sherd_world *world = world_open(NULL, 0);

    CHECK(strcmp(sherd_world_transport(world), "shm") == 0);
    sherd_world_destroy(world);
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("2.10.3");
}

static void nccl_that_is_too_old_is_not_chosen(void)
{
    run_with("version=21003", 2, "part_has_an_old_library", -1);
}

static void part_has_another_library(void)
{
    if (ranks_variable("SHERD_RANK") == 1) {
        CHECK_INT(0, setenv("SHERD_FAKE_NCCL", "version=22703", 1));
    }
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("rank 1 has 2.27.3");
}

static void nccl_of_two_versions_is_refused(void)
{
    ranks_run_part(2, "part_has_another_library", -1);
}

static void part_has_no_driver(void)
{
    char why[256];

    CHECK(sherdi_nccl_version(why, sizeof(why)) >= 21800);
    CHECK_STATUS(SHERD_E_DEVICE, world_try("nccl", 0));
    CHECK_ERROR_SAYS("NCCL");
    CHECK_ERROR_SAYS("driver");
}

/* NVIDIA's own library, where it is installed and no driver is: as far as one gets without a
 * GPU. */
static void nccl_of_nvidia_says_that_there_is_no_driver(void)
{
    char  stand_in[512];
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        test_skip("%s", dlerror());
    }
    (void)dlclose(library);
    if (access("/dev/nvidiactl", F_OK) == 0) {
        test_skip("there is a driver, and the devices of this test are not its own");
    }
    (void)snprintf(stand_in, sizeof(stand_in), "%s", getenv("SHERD_NCCL_LIBRARY"));
    CHECK_INT(0, unsetenv("SHERD_NCCL_LIBRARY"));
    ranks_run_part(2, "part_has_no_driver", -1);
    CHECK_INT(0, setenv("SHERD_NCCL_LIBRARY", stand_in, 1));
}

static void part_finds_no_library(void)
{
    CHECK_INT(0, setenv("SHERD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1));
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("/nowhere/libnccl.so.2");
}

static void nccl_that_is_not_there_is_told(void)
{
    ranks_run_part(2, "part_finds_no_library", -1);
}

static void part_is_on_the_cpu(void)
{
    CHECK_INT(0, setenv("SHERD_BACKEND", "cpu", 1));
    CHECK_STATUS(SHERD_E_NOTSUP, world_try("nccl", 0));
    CHECK_ERROR_SAYS("the backend is cpu");
}

static void nccl_without_a_device_is_refused(void)
{
    ranks_run_part(2, "part_is_on_the_cpu", -1);
}

/* -------------------------------------------------------------- reductions -- */

static void part_reserves(void)
{
    enum { SLICE = 1000 };

    sherd_world *world = world_open("nccl", 0);
    size_t       size  = (size_t)sherd_world_size(world);
    size_t       bytes = size * SLICE * sizeof(float);
    size_t       before;
    void        *memory = NULL;

    CHECK_OK(sherdi_world_alloc(world, bytes, &memory));

    sherdi_reduction_args args = {.send = memory,
                                  .recv = (float *)memory + (size_t)sherd_world_rank(world) * SLICE,
                                  .slice_elems = SLICE,
                                  .scale       = 1,
                                  .what        = "layer 3"};

    CHECK_STATUS(SHERD_E_NOMEM, sherdi_world_reduce_scatter(world, &args, NULL));
    CHECK_ERROR_SAYS("layer 3");
    CHECK_ERROR_SAYS("sherdi_world_reserve");
    before = sherdi_world_held_of(world)->overhead_bytes;
    CHECK_OK(sherdi_world_reserve(world, bytes));
    CHECK_INT(before + sherdi_world_reserve_bytes(world, bytes),
              sherdi_world_held_of(world)->overhead_bytes);
    CHECK_INT(bytes - bytes / size, sherdi_world_reserve_bytes(world, bytes));
    CHECK_OK(sherdi_world_reserve(world, bytes / 2)); /* less than there is */
    CHECK_OK(sherdi_world_reduce_scatter(world, &args, NULL));
    CHECK_INT(before + bytes - bytes / size, sherdi_world_held_of(world)->overhead_bytes);
    sherdi_world_free(world, memory);
    sherd_world_destroy(world);
}

static void part_takes(void)
{
    sherd_world *world = world_open("nccl", 0);
    size_t       taken;

    CHECK_INT(0, sherdi_world_held_of(world)->taken_bytes);
    CHECK_OK(sherdi_world_warm(world, 0));
    taken = sherdi_world_held_of(world)->taken_bytes;
    CHECK(taken > 0 || getenv("SHERD_EMULATOR_DEVICES") == NULL); /* NVIDIA's may have it already */
    CHECK_OK(sherdi_world_warm(world, 0));                        /* once */
    CHECK_INT(taken, sherdi_world_held_of(world)->taken_bytes);
    CHECK_OK(sherdi_world_warm(world, 1));
    CHECK(sherdi_world_held_of(world)->taken_bytes >= taken);
    sherd_world_destroy(world);
}

static void nccl_takes_of_the_device_what_is_told(void)
{
    ranks_run_part(2, "part_takes", -1);
}

static void nccl_reduction_without_room_is_refused_with_the_numbers(void)
{
    ranks_run_part(3, "part_reserves", -1);
}

/* Whole numbers, which add up in any order. */
static void vendor_once(sherd_world *world, int is_whole, sherd_dtype recv_dtype, int accumulate)
{
    enum { SLICE = 333 };

    size_t                size  = (size_t)sherd_world_size(world);
    int                   rank  = sherd_world_rank(world);
    size_t                count = is_whole ? size * SLICE : SLICE;
    float                *host  = calloc(size * SLICE, sizeof(*host));
    void                 *send  = NULL;
    void                 *recv  = NULL;
    sherdi_reduction_args args  = {.slice_elems = SLICE,
                                   .send_dtype  = SHERD_F32,
                                   .comm_dtype  = SHERD_F32,
                                   .recv_dtype  = recv_dtype,
                                   .scale       = 0.5f,
                                   .accumulate  = accumulate,
                                   .flags       = SHERDI_COLL_VENDOR_SUM};

    CHECK_OK(sherdi_world_alloc(world, size * SLICE * sizeof(float), &send));
    CHECK_OK(sherdi_world_alloc(world, size * SLICE * sizeof(float), &recv));
    CHECK_OK(sherdi_world_reserve(world, size * SLICE * sizeof(float)));
    for (size_t i = 0; i < size * SLICE; i++) {
        host[i] = (float)((int)(i % 100) + 2 * rank);
    }
    suite_put(world, send, host, size * SLICE * sizeof(float));
    args.send = send;
    args.recv = recv;
    CHECK_OK(is_whole ? sherdi_world_all_reduce(world, &args, NULL)
                      : sherdi_world_reduce_scatter(world, &args, NULL));
    suite_get(world, host, recv, count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        size_t at   = is_whole ? i : i + (size_t)rank * SLICE;
        float  want = 0.5f * (float)(size * (at % 100) + size * (size - 1));

        CHECK_INT((long)(want * 2), (long)(host[i] * 2));
    }
    sherdi_world_free(world, recv);
    sherdi_world_free(world, send);
    free(host);
}

static void part_sums_by_vendor(void)
{
    sherd_world          *world = world_open("nccl", 0);
    sherdi_fixed_sink     sink  = {0};
    sherdi_reduction_args args  = {.flags = SHERDI_COLL_VENDOR_SUM, .fixed = &sink};

    vendor_once(world, 0, SHERD_F32, 0);
    vendor_once(world, 0, SHERD_F32, 1);
    vendor_once(world, 1, SHERD_F32, 0);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_reduce_scatter(world, &args, NULL));
    sherd_world_destroy(world);
    world = world_open("shm", 0); /* which has no other sum */
    vendor_once(world, 0, SHERD_F32, 0);
    sherd_world_destroy(world);
}

static void nccl_adds_up_itself_only_when_asked(void)
{
    ranks_run_part(3, "part_sums_by_vendor", -1);
}

static void part_counts_integers(void)
{
    enum { COUNT = 5000 };

    sherd_world *world  = world_open("nccl", 0);
    uint64_t    *values = calloc(COUNT, sizeof(*values));
    uint64_t     size   = (uint64_t)sherd_world_size(world);
    uint64_t     sent[2];
    uint64_t     received[2];

    for (uint64_t i = 0; i < COUNT; i++) {
        values[i] = UINT64_MAX - i + (uint64_t)sherd_world_rank(world);
    }
    sherd_world_traffic(world, &sent[0], &received[0]);
    CHECK_OK(sherdi_world_sum_u64(world, values, COUNT));
    sherd_world_traffic(world, &sent[1], &received[1]);
    for (uint64_t i = 0; i < COUNT; i++) {
        CHECK(values[i] == size * (UINT64_MAX - i) + size * (size - 1) / 2);
    }
    CHECK_INT(sherdi_wire_sum_u64((int)size, COUNT), sent[1] - sent[0]);
    free(values);
    sherd_world_destroy(world);
}

static void nccl_sums_integers_over_the_sockets(void)
{
    ranks_run_part(4, "part_counts_integers", -1);
}

/* ---------------------------------------------------------------- failures -- */

#define FAILURE(name, part, killed)                                                                \
    static void nccl_##name(void)                                                                  \
    {                                                                                              \
        ranks_run_part(3, #part, killed);                                                          \
    }
FAILURES_ANYWHERE(FAILURE)
FAILURES_ALONE(FAILURE)

#define SPLIT_FAILURE(name, part, killed)                                                          \
    static void nccl_split_##name(void)                                                            \
    {                                                                                              \
        ranks_run_part(4, #part, killed);                                                          \
    }
SPLIT_FAILURES(SPLIT_FAILURE)
#define FAILURE_CASE(name, part, killed)       CASE(nccl_##name),
#define SPLIT_FAILURE_CASE(name, part, killed) CASE(nccl_split_##name),

static void nccl_rank_that_leaves_early_is_named(void)
{
    ranks_run_part(3, "part_leaves_early", -1);
    ranks_run_part(3, "part_first_leaves_early", -1);
}

/* The rank in init is alive, and its process as well. */
static void part_waits_for_the_communicator(void)
{
    CHECK_INT(0, setenv("SHERD_TIMEOUT", "5", 1)); /* also for what follows the meeting */
    CHECK_STATUS(SHERD_E_PEER_LOST, world_try("nccl", INT64_C(700000000)));
    CHECK_ERROR_SAYS("the NCCL communicator of 3 ranks");
    CHECK_ERROR_SAYS("time limit");
}

static void nccl_rank_that_hangs_in_init_is_waited_for_with_a_limit(void)
{
    run_with("hang=2", 3, "part_waits_for_the_communicator", -1);
}

/* All-gathers of device memory until one fails, as it must long before the minute that a test
 * has. */
static sherd_status gather_until_it_fails(sherd_world *world)
{
    enum { SLICE = 5000 };

    size_t                 size   = (size_t)sherd_world_size(world);
    unsigned char         *send   = suite_alloc(world, SLICE);
    unsigned char         *recv   = suite_alloc(world, SLICE * size);
    sherd_status           status = SHERD_OK;
    sherdi_ticket          ticket = 0;
    sherdi_all_gather_args args   = {
          .send = send, .recv = recv, .slice_bytes = SLICE, .what = "layer 7"};

    suite_fill(world, send, 1, SLICE);
    for (int i = 0; i < 20 && status == SHERD_OK; i++) {
        status = sherdi_world_all_gather(world, &args, &ticket);
    }
    if (status == SHERD_OK) {
        status = sherdi_world_wait(world, ticket);
    }
    suite_free(world, recv);
    suite_free(world, send);
    return status;
}

static void part_meets_an_error(void)
{
    sherd_world *world = world_open("nccl", 0);

    CHECK_STATUS(SHERD_E_DEVICE, gather_until_it_fails(world));
    CHECK_ERROR_SAYS("rank 1");
    CHECK_ERROR_SAYS("the network is gone");
    CHECK_STATUS(SHERD_E_DEVICE, sherd_world_barrier(world));
    sherd_world_destroy(world);
}

static void nccl_error_of_one_rank_reaches_all_with_its_text(void)
{
    run_with("fail=1:7", 3, "part_meets_an_error", -1);
}

static void part_stands_still(void)
{
    sherd_world *world = world_open("nccl", INT64_C(1200000000));

    CHECK_STATUS(SHERD_E_PEER_LOST, gather_until_it_fails(world));
    CHECK_ERROR_SAYS("time limit");
    CHECK_ERROR_SAYS("all-gather of layer 7");
    sherd_world_destroy(world);
}

static void nccl_call_that_makes_no_progress_ends_with_its_name(void)
{
    run_with("stall=2:5", 3, "part_stands_still", -1);
}

/* Its device calls have been made; the others wait for more of them. */
static void part_leaves_before_a_gather(void)
{
    sherd_world *world = world_open("nccl", 0);

    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) != 2) {
        CHECK_STATUS(SHERD_E_PEER_LOST, gather_until_it_fails(world));
        CHECK_ERROR_SAYS("rank 2 ended its part");
    }
    sherd_world_destroy(world);
}

static void nccl_rank_that_leaves_before_a_device_call_is_named(void)
{
    ranks_run_part(3, "part_leaves_before_a_gather", -1);
}

/* ------------------------------------------- a communicator of the program's -- */

typedef struct handle_case {
    void *library;
    char  id[128];
    int   size;
} handle_case;

typedef int (*set_device_fn)(int device);

/* A communicator that the program makes, and what it does with it: by the types of nccl.h, which
 * tests do not include. */
static void *handle_comm(const handle_case *handle, int rank)
{
    typedef struct unique_id {
        char internal[128];
    } unique_id;

    int (*init)(void **, int, unique_id, int);
    set_device_fn set_device;
    unique_id     id;
    void         *comm = NULL;

    *(void **)&init       = dlsym(handle->library, "ncclCommInitRank");
    *(void **)&set_device = dlsym(RTLD_DEFAULT, "cudaSetDevice");
    CHECK_INT(0, set_device(rank));
    memcpy(&id, handle->id, sizeof(id));
    CHECK_INT(0, init(&comm, handle->size, id, rank));
    return comm;
}

static void comm_end(const handle_case *handle, const char *call, void *comm)
{
    int (*end)(void *);

    *(void **)&end = dlsym(handle->library, call);
    CHECK_INT(0, end(comm));
}

static void handle_rank(int rank, void *raw)
{
    handle_case       *handle = raw;
    void              *comm   = handle_comm(handle, rank);
    sherd_world       *world  = NULL;
    sherd_world_params params;
    int                size = 0;
    int (*count)(void *, int *);

    *(void **)&count = dlsym(handle->library, "ncclCommCount");
    sherd_world_params_init(&params);
    params.transport = "shm";
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_nccl_handle(comm, &params, &world));
    params.transport = NULL;
    params.device    = rank + 1;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_nccl_handle(comm, &params, &world));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_nccl_handle(NULL, NULL, &world));
    CHECK_OK(sherd_world_from_nccl_handle(comm, NULL, &world));
    CHECK_INT(rank, sherd_world_rank(world));
    CHECK_INT(handle->size, sherd_world_size(world));
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        WORLD_SUITE[i].run(world, NULL);
    }
    sherd_world_destroy(world);
    CHECK_INT(0, count(comm, &size)); /* still the program's */
    CHECK_INT(handle->size, size);
    comm_end(handle, "ncclCommDestroy", comm);
}

static void handle_at(int size, void (*run)(int rank, void *handle))
{
    handle_case handle = {.size = size};
    int (*unique)(void *);

    handle.library = dlopen(getenv("SHERD_NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(handle.library != NULL);
    *(void **)&unique = dlsym(handle.library, "ncclGetUniqueId");
    CHECK_INT(0, unique(handle.id));
    test_threads(size, run, &handle);
    (void)dlclose(handle.library);
}

static void nccl_world_stands_on_a_communicator_of_the_programs(void)
{
    handle_at(3, handle_rank);
    if (test_is_long()) {
        handle_at(1, handle_rank);
        handle_at(2, handle_rank);
        handle_at(4, handle_rank);
    }
}

static atomic_int times_told;

static void told_count(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    atomic_fetch_add(&times_told, strstr(line, "call ncclCommAbort before") != NULL);
}

/* The last rank gives up while the others wait for it on the device: sherd cannot end what is
 * there. From then on the program may end its communicator, so nobody may use it any more. */
static void handle_failing_rank(int rank, void *raw)
{
    handle_case   *handle = raw;
    void          *comm   = handle_comm(handle, rank);
    sherd_world   *world  = NULL;
    unsigned char *send;
    unsigned char *recv;
    sherdi_ticket  ticket = 0;
    sherd_status   status;

    CHECK_OK(sherd_world_from_nccl_handle(comm, NULL, &world));
    send = suite_alloc(world, 64);
    recv = suite_alloc(world, (size_t)handle->size * 64);
    CHECK_OK(sherd_world_barrier(world));
    if (rank == handle->size - 1) {
        sherd_world_abort(world, "the data ran out");
        comm_end(handle, "ncclCommAbort", comm);
    } else {
        sherdi_all_gather_args args = {.send = send, .recv = recv, .slice_bytes = 64};

        status = sherdi_world_all_gather(world, &args, &ticket);
        status = status == SHERD_OK ? sherdi_world_wait(world, ticket) : status;
        CHECK_STATUS(SHERD_E_PEER_LOST, status);
        while (atomic_load(&times_told) < handle->size - 1) {
            (void)usleep(1000);
        }
        comm_end(handle, "ncclCommAbort", comm);
    }
    suite_free(world, recv);
    suite_free(world, send);
    sherd_world_destroy(world);
}

static void nccl_failure_asks_the_program_to_abort_its_communicator(void)
{
    atomic_store(&times_told, 0);
    sherd_log_set(told_count, NULL, SHERD_LOG_WARN);
    CHECK_INT(0, setenv("SHERD_FAKE_NCCL", "look=40", 1)); /* most of the time somebody asks */
    handle_at(3, handle_failing_rank);
    CHECK_INT(0, unsetenv("SHERD_FAKE_NCCL"));
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
}

static const test_case CASES[] = {
    FAILURES_ANYWHERE(FAILURE_CASE) FAILURES_ALONE(FAILURE_CASE) SPLIT_FAILURES(SPLIT_FAILURE_CASE)
        CASE(nccl_suite_holds_at_1),
    CASE(nccl_suite_holds_at_2),
    CASE(nccl_suite_holds_at_3),
    CASE(nccl_suite_holds_at_4),
    CASE(nccl_suite_holds_at_7),
    CASE(nccl_suite_holds_at_8),
    CASE(nccl_suite_holds_without_registered_memory),
    CASE(nccl_suite_holds_with_windows_and_the_librarys_all_to_all),
    CASE(nccl_options_that_cannot_be_are_refused),
    CASE(nccl_is_chosen_where_every_rank_has_a_device),
    CASE(nccl_is_not_chosen_where_ranks_share_a_device),
    CASE(nccl_tells_devices_apart_by_what_they_are),
    CASE(nccl_holds_several_ranks_on_a_device_when_told),
    CASE(nccl_shares_no_device_that_one_rank_wants_alone),
    CASE(nccl_that_is_too_old_is_not_chosen),
    CASE(nccl_of_two_versions_is_refused),
    CASE(nccl_that_is_not_there_is_told),
    CASE(nccl_of_nvidia_says_that_there_is_no_driver),
    CASE(nccl_without_a_device_is_refused),
    CASE(nccl_takes_of_the_device_what_is_told),
    CASE(nccl_reduction_without_room_is_refused_with_the_numbers),
    CASE(nccl_adds_up_itself_only_when_asked),
    CASE(nccl_sums_integers_over_the_sockets),
    CASE(nccl_rank_that_leaves_early_is_named),
    CASE(nccl_rank_that_hangs_in_init_is_waited_for_with_a_limit),
    CASE(nccl_error_of_one_rank_reaches_all_with_its_text),
    CASE(nccl_call_that_makes_no_progress_ends_with_its_name),
    CASE(nccl_rank_that_leaves_before_a_device_call_is_named),
    CASE(nccl_world_stands_on_a_communicator_of_the_programs),
    CASE(nccl_failure_asks_the_program_to_abort_its_communicator),
};

static const rank_part PARTS[] = {
    FAILURES_ANYWHERE(FAILURE_PART) FAILURES_ALONE(FAILURE_PART) SPLIT_FAILURES(FAILURE_PART)
        PART(part_suite),
    PART(part_is_nccl),
    PART(part_refuses_options),
    PART(part_refuses_age),
    PART(part_other_options),
    PART(part_shares_a_device),
    PART(part_sees_another_device),
    PART(part_sees_the_same_device),
    PART(part_is_told_alone),
    PART(part_has_an_old_library),
    PART(part_has_another_library),
    PART(part_finds_no_library),
    PART(part_has_no_driver),
    PART(part_is_on_the_cpu),
    PART(part_reserves),
    PART(part_takes),
    PART(part_sums_by_vendor),
    PART(part_counts_integers),
    PART(part_leaves_early),
    PART(part_first_leaves_early),
    PART(part_waits_for_the_communicator),
    PART(part_meets_an_error),
    PART(part_stands_still),
    PART(part_leaves_before_a_gather),
};

RANKS_MAIN(CASES, PARTS)
