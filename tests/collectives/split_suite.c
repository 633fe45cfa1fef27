#include "tests/collectives/split_suite.h"

#include "base/mem.h"
#include "collectives/ending.h"
#include "collectives/follow.h"
#include "collectives/room.h"
#include "tests/collectives/world_suite.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#define MOST_RANKS  16
#define SLICE_ELEMS 257

/* ---------------------------------------------------------------- what a group is -- */

/* Element i of a rank of the parent: sums of them are exact. */
static float value_of(int parent_rank, size_t i)
{
    return (float)(parent_rank + 1) * (float)(i % 61 + 1);
}

/* A reduction and a gather of what it gave, in memory of the world's own. */
static void sums_check(sherd_world *child, int parent_rank, const int *ranks, int count)
{
    size_t elems = SLICE_ELEMS * (size_t)count;
    float  data[SLICE_ELEMS * MOST_RANKS];
    void  *memory = NULL;
    float *slice;

    for (size_t i = 0; i < elems; i++) {
        data[i] = value_of(parent_rank, i);
    }
    CHECK_OK(sherdi_world_alloc(child, elems * sizeof(float), &memory));
    suite_put(child, memory, data, elems * sizeof(float));
    slice = (float *)memory + (size_t)sherd_world_rank(child) * SLICE_ELEMS;
    CHECK_OK(sherdi_world_reserve(child, elems * sizeof(float)));
    CHECK_OK(sherdi_world_reduce_scatter(
        child,
        &(sherdi_reduction_args){
            .send = memory, .recv = slice, .slice_elems = SLICE_ELEMS, .scale = 1},
        NULL));
    CHECK_OK(sherdi_world_all_gather(
        child,
        &(sherdi_all_gather_args){
            .send = slice, .recv = memory, .slice_bytes = SLICE_ELEMS * sizeof(float)},
        NULL));
    suite_get(child, data, memory, elems * sizeof(float));
    for (size_t i = 0; i < elems; i++) {
        float want = 0;

        for (int r = 0; r < count; r++) {
            want += value_of(ranks[r], i);
        }
        CHECK(data[i] == want);
    }
    sherdi_world_free(child, memory);
}

void split_check(sherd_world *child, int parent_rank, const int *ranks, int count)
{
    int    all[MOST_RANKS];
    int    root  = parent_rank;
    double sum   = 1;
    int    place = 0;

    while (ranks[place] != parent_rank) {
        place++;
    }
    CHECK(child != NULL);
    CHECK_INT(place, sherd_world_rank(child));
    CHECK_INT(count, sherd_world_size(child));
    CHECK(sherd_world_local_rank(child) < sherdi_world_local_size(child));
    CHECK_OK(sherdi_world_exchange(child, &parent_rank, all, sizeof(parent_rank), "ranks"));
    CHECK_BYTES_EQUAL(ranks, all, (size_t)count * sizeof(*all));
    CHECK_OK(sherd_world_broadcast(child, &root, sizeof(root), count - 1));
    CHECK_INT(ranks[count - 1], root);
    CHECK_OK(sherd_world_sum_f64(child, &sum, 1));
    CHECK(sum == count);
    sums_check(child, parent_rank, ranks, count);
    CHECK_OK(sherd_world_barrier(child));
}

/* What a rank asks for, and from that who its group is: every rank knows all. */
typedef void (*wish_fn)(int rank, int world_size, int *color, int *key);

static int group_of(wish_fn wish, int rank, int world_size, int *ranks)
{
    int mine, key;
    int count = 0;

    wish(rank, world_size, &mine, &key);
    for (int r = 0; r < world_size && mine >= 0; r++) {
        int color, at;

        wish(r, world_size, &color, &key);
        if (color != mine) {
            continue;
        }
        for (at = count++; at > 0; at--) { /* after all whose key is not more */
            int before;

            wish(ranks[at - 1], world_size, &color, &before);
            if (before <= key) {
                break;
            }
            ranks[at] = ranks[at - 1];
        }
        ranks[at] = r;
    }
    return count;
}

/* Splits `world`, whose ranks are `ranks` of the suite's; the child is the caller's. */
static sherd_world *split_as(sherd_world *world, wish_fn wish)
{
    sherd_world *child = world; /* to be overwritten */
    int          ranks[MOST_RANKS];
    int          rank  = sherd_world_rank(world);
    int          count = group_of(wish, rank, sherd_world_size(world), ranks);
    int          color, key;

    wish(rank, sherd_world_size(world), &color, &key);
    CHECK_OK(sherd_world_split(world, color, key, &child));
    if (count == 0) {
        CHECK(child == NULL);
        return NULL;
    }
    CHECK(strcmp(sherd_world_transport(world), sherd_world_transport(child)) == 0);
    CHECK(sherdi_world_timeout_ns(world) == sherdi_world_timeout_ns(child));
    CHECK_INT(sherdi_world_host(world)->threads, sherdi_world_host(child)->threads);
    split_check(child, rank, ranks, count);
    return child;
}

static void wish_all(int rank, int world_size, int *color, int *key)
{
    (void)world_size;
    *color = 7;
    *key   = -rank; /* reversed */
}

static void wish_each(int rank, int world_size, int *color, int *key)
{
    *color = world_size - rank;
    *key   = 0;
}

static void wish_interleaved(int rank, int world_size, int *color, int *key)
{
    (void)world_size;
    *color = rank % 2;
    *key   = 5;
}

/* Every third wants none; the others are ordered by parity first. */
static void wish_some(int rank, int world_size, int *color, int *key)
{
    (void)world_size;
    *color = rank % 3 == 2 ? SHERD_SPLIT_NONE : rank / 4;
    *key   = rank % 2 == 0 ? 2147483647 : -2147483647 - 1;
}

static void wish_none(int rank, int world_size, int *color, int *key)
{
    (void)world_size;
    *color = -5 - rank;
    *key   = 0;
}

/* ------------------------------------------------------------------------ cases -- */

void split_groups_have_their_ranks_in_order(sherd_world *world, void *ctx)
{
    static const wish_fn WISHES[] = {wish_all, wish_each, wish_interleaved, wish_some, wish_none};
    double               sum;

    (void)ctx;
    for (size_t i = 0; i < sizeof(WISHES) / sizeof(WISHES[0]); i++) {
        sherd_world *child = split_as(world, WISHES[i]);

        sum = 1; /* the parent continues together with its child */
        CHECK_OK(sherd_world_sum_f64(world, &sum, 1));
        CHECK(sum == sherd_world_size(world));
        sherd_world_destroy(child);
    }
    CHECK_OK(sherd_world_barrier(world));
}

/* Evens and odds, and of these evens and odds again. The one in the middle goes first, or last. */
void split_of_a_split_knows_its_ranks(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (int is_last = 0; is_last < 2; is_last++) {
        sherd_world *half    = split_as(world, wish_interleaved);
        sherd_world *quarter = split_as(half, wish_interleaved);
        sherd_world *twin    = split_as(half, wish_all);
        double       sum     = 1;

        if (!is_last) {
            sherd_world_destroy(half);
        }
        CHECK_OK(sherd_world_sum_f64(quarter, &sum, 1));
        CHECK(sum == sherd_world_size(quarter));
        CHECK_OK(sherd_world_barrier(twin));
        sherd_world_destroy(twin);
        sherd_world_destroy(quarter);
        if (is_last) {
            CHECK_OK(sherd_world_barrier(half));
            sherd_world_destroy(half);
        }
    }
    CHECK_OK(sherd_world_barrier(world));
}

void split_comes_after_calls_that_are_queued(sherd_world *world, void *ctx)
{
    int           size  = sherd_world_size(world);
    sherd_world  *child = NULL;
    unsigned char all[MOST_RANKS];
    unsigned char mine = (unsigned char)(sherd_world_rank(world) + 1);
    void         *data = suite_alloc(world, (size_t)size + 1);
    void         *own  = (unsigned char *)data + size;
    sherdi_ticket ticket;

    (void)ctx;
    CHECK_OK(sherdi_world_overlap(world));
    suite_put(world, own, &mine, 1);
    CHECK_OK(sherdi_world_all_gather(
        world, &(sherdi_all_gather_args){.send = own, .recv = data, .slice_bytes = 1}, &ticket));
    child = split_as(world, wish_interleaved);
    CHECK_OK(sherdi_world_wait(world, ticket));
    suite_get(world, all, data, (size_t)size);
    for (int r = 0; r < size; r++) {
        CHECK_INT(r + 1, all[r]);
    }
    sherd_world_destroy(child);
    suite_free(world, data);
}

/* Ranks that are threads open and close each other's; collective. */
static int is_own_process(sherd_world *world)
{
    int mine = (int)getpid();
    int all[MOST_RANKS];
    int count = 0;

    CHECK_OK(sherdi_world_exchange(world, &mine, all, sizeof(mine), "ranks"));
    for (int r = 0; r < sherd_world_size(world); r++) {
        count += all[r] == mine;
    }
    return count == 1;
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int  count  = 0;

    CHECK(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    (void)closedir(folder);
    return count;
}

/* Each allocation of one rank in turn. Nobody has a world then, all know why, and the parent is
 * whole. A device allocates by its own means too, and so each other row will do there. */
void split_that_fails_on_one_rank_fails_on_all(sherd_world *world, void *ctx)
{
    /* a driver, and what uses it, open descriptors when they like */
    int          is_counted = is_own_process(world) && access("/dev/nvidiactl", F_OK) != 0;
    int          last       = sherd_world_size(world) - 1;
    int          before     = is_counted ? descriptors() : 0;
    sherd_status status     = SHERD_E_NOMEM;
    sherd_world *child      = NULL;

    (void)ctx;
    for (size_t n = 1; status != SHERD_OK; n += suite_is_on_device(world) ? 7 : 1) {
        if (sherd_world_rank(world) == last) {
            (void)sherdi_mem_fail_nth(n);
        }
        status = sherd_world_split(world, sherd_world_rank(world) / 3, 0, &child);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK(child == NULL);
            CHECK(last == 0 || strstr(sherd_last_error(), "sherd_world_split: rank ") != NULL);
        }
        CHECK_OK(sherd_world_barrier(world));
        CHECK(n < 200);
    }
    CHECK_OK(sherd_world_barrier(child));
    sherd_world_destroy(child);
    if (is_counted) {
        CHECK_INT(before, descriptors());
    }
    CHECK_OK(sherd_world_barrier(world)); /* whose connections end when it is destroyed */
}

void split_abort_reaches_the_groups(sherd_world *world, void *ctx)
{
    sherd_world *child = NULL;
    sherd_world *grand = NULL;

    (void)ctx;
    CHECK_OK(sherd_world_split(world, sherd_world_rank(world) % 2, 0, &child));
    CHECK_OK(sherd_world_split(child, 0, 0, &grand));
    (void)!sherd_world_barrier(
        world); /* all have come; the news of the end may overtake its last words */
    if (sherd_world_rank(world) == 1) {
        sherd_world_abort(world, "no more data");
    } /* who is of rank 1's group waits for it; no other rank would be notified by its own */
    while (sherdi_world_status(world) == SHERD_OK && sherd_world_barrier(grand) == SHERD_OK) {
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(child));
    CHECK_ERROR_SAYS("rank 1 gave up: no more data");
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(grand));
    CHECK_ERROR_SAYS("rank 1 gave up: no more data");
    sherd_world_destroy(grand);
    sherd_world_destroy(child);
}
