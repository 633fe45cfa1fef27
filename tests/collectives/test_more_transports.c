/* A transport that the library has not (relay.c), added by its tables and one line of a list:
 * programs name it, it holds the suite of all transports, and what lists transports knows it. */
#include "collectives/transport.h"
#include "tests/collectives/ranks.h"
#include "tests/collectives/relay.h"
#include "tests/collectives/world_suite.h"

#include <string.h>

static void part_suite_over_relay(void)
{
    sherd_world       *world;
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.transport = "relay";
    CHECK_OK(sherd_world_from_env(&params, &world));
    CHECK(strcmp(sherd_world_transport(world), "relay") == 0);
    for (size_t i = 0; i < WORLD_SUITE_COUNT; i++) {
        WORLD_SUITE[i].run(world, NULL);
    }
    CHECK(relay_gathers() > 0);
    sherd_world_destroy(world);
}

static void added_transport_holds_the_suite(void)
{
    ranks_run_part(3, "part_suite_over_relay", -1);
}

static void added_transport_is_listed(void)
{
    sherd_world_params params;
    sherd_world       *worlds[2];

    sherd_world_params_init(&params);
    params.transport = "carrier pigeon";
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_world_create(0, 2, "tcp://h:1", &params, worlds));
    CHECK_ERROR_SAYS("sim, relay");
    params.transport = "relay"; /* its ranks are no threads */
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads_with(2, &params, worlds));
    CHECK_ERROR_SAYS("cannot use transport relay");
}

/* What a caller of a transport may rely on without a look. */
static void transports_are_whole(void)
{
    const sherdi_transport *transport;

    for (size_t i = 0; (transport = sherdi_transport_at(i)) != NULL; i++) {
        uint32_t holds = transport->holds;

        CHECK(sherdi_transport_find(transport->name) == transport);
        CHECK((transport->create_alone != NULL) == ((holds & SHERDI_TRANSPORT_ALONE) != 0));
        CHECK((transport->create != NULL) == ((holds & SHERDI_TRANSPORT_PROCESSES) != 0));
        CHECK((transport->mover != NULL) == ((holds & SHERDI_TRANSPORT_DEVICES) != 0));
    }
}

static const test_case CASES[] = {
    CASE(added_transport_holds_the_suite),
    CASE(added_transport_is_listed),
    CASE(transports_are_whole),
};

static const rank_part PARTS[] = {PART(part_suite_over_relay)};

RANKS_MAIN(CASES, PARTS)
