/* Random layouts on the ranks that a launcher has started, on one host or several: launched FOLDER
 * SEED COUNT. The layouts of `count` seeds that have as many ranks as there are, are trained, and
 * compared with their twins on every rank. FOLDER is shared by the ranks. */
#include "tests/campaign/layout.h"
#include "collectives/world.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static sherd_world *world;
static layout       what;

static void layout_agrees(void)
{
    layout_result want = {0};
    layout_result got  = {0};

    layout_train(world, &what, &got);
    layout_twin(&what, &want);
    for (int w = 0; w < what.num_windows; w++) {
        const layout_outcome *a = &want.windows[w], *b = &got.windows[w];

        if (a->fingerprint != b->fingerprint && !b->is_unseen) {
            test_fail(__FILE__, __LINE__,
                      "window %d: fingerprint %016llx, norm %.17g; the plain training has %016llx, "
                      "%.17g",
                      w, (unsigned long long)b->fingerprint, b->norm,
                      (unsigned long long)a->fingerprint, a->norm);
        }
        CHECK(memcmp(&a->norm, &b->norm, sizeof(a->norm)) == 0);
        CHECK_INT(a->has_overflow, b->has_overflow);
        CHECK(fabs(a->loss_scale - b->loss_scale) <= 0);
        CHECK_INT(want.undone[w], got.undone[w]);
        CHECK_INT(want.resumed[w], got.resumed[w]);
    }
}

static const test_case CASES[] = {CASE(layout_agrees)};

/* Finds the ranks of each host, which follow one another. */
static void hosts_find(void)
{
    int ranks = sherd_world_size(world);

    what.num_hosts = 0;
    for (int r = 0; r < ranks; r += what.hosts[what.num_hosts++]) {
        double local = r == sherd_world_rank(world) ? sherdi_world_local_size(world) : 0;

        CHECK_OK(sherd_world_sum_f64(world, &local, 1));
        what.hosts[what.num_hosts] = (int)local;
    }
}

/* Whether a host has only some of the ranks that share a copy, which is refused. */
static int is_refused(void)
{
    double odd = (what.copy_ranks > 1 && sherdi_world_local_size(world) % what.copy_ranks != 0) ||
                 sherdi_world_local_size(world) % what.shard_size != 0;

    CHECK_OK(sherd_world_sum_f64(world, &odd, 1));
    return odd > 0;
}

/* Trains one layout. Returns 1 if it failed. */
static int layout_try(uint64_t seed, const char *folder)
{
    uint64_t without = (uint64_t)1 << LAYOUT_atoms;
    int      result;

    /* atoms are refused for some numbers of ranks, and a case that ends so leaves its engine */
    layout_draw(seed, without, folder, 0, &what);
    if (what.world_size != sherd_world_size(world)) {
        return 0;
    }
    if (is_refused()) {
        layout_draw(seed, without | (uint64_t)1 << LAYOUT_replicas | (uint64_t)1 << LAYOUT_copies,
                    folder, 0, &what);
    }
    hosts_find();
    what.is_alike = 1; /* between hosts gathers meet */
    (void)mkdir(folder, 0700);
    (void)setenv("SHERD_DEBUG", what.is_debug ? "1" : "0", 1);
    result = test_main(0, NULL, CASES, 1);
    if (result != 0 && result != 77) {
        char text[6000];

        layout_describe(&what, text, sizeof(text));
        (void)printf("FAIL seed %llu: %s\n", (unsigned long long)seed, text);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    int      failed;
    char     folder[256];

    if (argc < 2 || sherd_world_from_env(NULL, &world) != SHERD_OK) {
        (void)printf("no world: %s\n", sherd_last_error());
        return 1;
    }
    failed = 0;
    for (uint64_t i = 0; i < count && !failed; i++) {
        (void)snprintf(folder, sizeof(folder), "%s/%llu", argv[1], (unsigned long long)i);
        failed = layout_try(first + i, folder);
    }
    if (failed) {
        sherd_world_abort(world, "a layout differs from its twin");
    }
    (void)printf("rank %d of %d: layouts agree with their twins: %s\n", sherd_world_rank(world),
                 sherd_world_size(world), failed ? "no" : "yes");
    sherd_world_destroy(world);
    return failed;
}
