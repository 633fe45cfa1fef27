/* See meeting_point.h. The ranks meet at an abstract unix socket if they are all on one host, else
 * at a TCP port of rank 0's host. */
#include "collectives/meeting_point.h"

#include "base/random.h"
#include "collectives/split.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The message of rank 0. The other ranks' messages are ignored. */
typedef struct point_message {
    uint64_t key[2];
    char     address[sizeof(((meeting_point *)NULL)->address)]; /* "": rank 0 has none */
} point_message;

/* Lists every address of this host that another host may reach, in the form of
 * rendezvous_params. */
static void addresses_list(int port, char *list, size_t len_bytes)
{
    struct ifaddrs *all = NULL;
    size_t          at  = 0;

    list[0] = '\0';
    if (getifaddrs(&all) != 0) {
        return;
    }
    for (struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
        int       family = one->ifa_addr == NULL ? AF_UNSPEC : one->ifa_addr->sa_family;
        socklen_t size =
            family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        char host[NI_MAXHOST];
        char entry[NI_MAXHOST + 32];

        if ((family != AF_INET && family != AF_INET6) || !(one->ifa_flags & IFF_UP) ||
            (one->ifa_flags & IFF_LOOPBACK) ||
            getnameinfo(one->ifa_addr, size, host, sizeof(host), NULL, 0, NI_NUMERICHOST) != 0) {
            continue;
        }
        (void)snprintf(entry, sizeof(entry), family == AF_INET ? "tcp://%s:%d" : "tcp://[%s]:%d",
                       host, port);
        if (at + strlen(entry) + 2 < len_bytes) {
            at += (size_t)snprintf(list + at, len_bytes - at, "%s%s", at > 0 ? " " : "", entry);
        }
    }
    freeifaddrs(all);
}

/* Rank 0: opens a socket that the other ranks can reach, and writes its addresses. */
static sherd_status listener_open(int is_one_host, int *listener, char *address,
                                  size_t address_bytes)
{
    if (is_one_host) {
        (void)snprintf(address, address_bytes, "abstract:sherd-meet-%016llx",
                       (unsigned long long)sherdi_random_u64());
        return sherdi_net_listen(address, listener, NULL);
    }
    if (sherdi_net_listen("tcp://[::]:0", listener, NULL) != SHERD_OK) {
        SHERDI_TRY(sherdi_net_listen("tcp://0.0.0.0:0", listener, NULL));
    }
    addresses_list(sherdi_net_port(*listener), address, address_bytes);
    return SHERD_OK;
}

static sherd_status hosts_compare(const procs_params *procs, meeting_exchange_fn exchange,
                                  void *ctx, uint64_t *hosts, int *is_one_host_out)
{
    const uint64_t mine = sherdi_rendezvous_host();

    SHERDI_TRY(exchange(ctx, &mine, hosts, sizeof(mine)));
    *is_one_host_out = 1;
    for (int r = 0; r < procs->world_size; r++) {
        *is_one_host_out &= hosts[r] == mine;
    }
    return SHERD_OK;
}

/* `all` [world_size] is first the scratch for the numbers of the hosts. */
static sherd_status message_agree(procs_params *procs, meeting_exchange_fn exchange, void *ctx,
                                  point_message *all)
{
    point_message mine        = {.address = ""};
    int           is_one_host = 0;
    sherd_status  status      = SHERD_OK;

    SHERDI_TRY(hosts_compare(procs, exchange, ctx, (uint64_t *)(void *)all, &is_one_host));
    if (procs->rank == 0) {
        mine.key[0] = sherdi_random_u64();
        mine.key[1] = sherdi_random_u64();
        status = listener_open(is_one_host, &procs->listener, mine.address, sizeof(mine.address));
        if (status != SHERD_OK) {
            mine.address[0] = '\0';
        }
    }
    if (exchange(ctx, &mine, all, sizeof(mine)) != SHERD_OK) {
        sherdi_net_close(&procs->listener);
        return SHERD_E_PEER_LOST;
    }
    SHERDI_TRY(status);
    if (all[0].address[0] == '\0') { /* rank 0's own may be open, and this host have no address */
        sherdi_net_close(&procs->listener);
        return sherdi_fail(SHERD_E_IO, "rank 0 could not open a socket for the ranks to meet at");
    }
    return SHERD_OK;
}

sherd_status sherdi_meeting_point_agree(procs_params *procs, meeting_exchange_fn exchange,
                                        void *ctx, const char *source, meeting_point *point)
{
    point_message *all = calloc((size_t)procs->world_size, sizeof(*all));
    sherd_status   status;

    if (all == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for a meeting of %d ranks", procs->world_size);
    }
    status     = message_agree(procs, exchange, ctx, all);
    point->key = (job_key){.words = {all[0].key[0], all[0].key[1]}, .source = source};
    memcpy(point->address, all[0].address, sizeof(point->address));
    point->address[sizeof(point->address) - 1] = '\0';
    procs->key                                 = &point->key;
    procs->address                             = point->address;
    free(all);
    return status;
}

/* ------------------------------------------------------------ of a split -- */

_Static_assert(sizeof(meeting_point) <= SPLIT_TOLD_BYTES, "one rank can tell it the others");

static int group_has_one_host(const sherdi_split *split)
{
    const rendezvous_card *cards = ((const sherdi_procs *)split->parent)->meeting.cards;
    int                    is    = 1;

    for (int r = 1; r < split->world_size; r++) {
        is &= cards[split->ranks[r]].host == cards[split->ranks[0]].host;
    }
    return is;
}

static sherd_status point_open(const sherdi_split *split, int *listener, meeting_point *point)
{
    point->key.words[0] = sherdi_random_u64();
    point->key.words[1] = sherdi_random_u64();
    return listener_open(group_has_one_host(split), listener, point->address,
                         sizeof(point->address));
}

sherd_status sherdi_meeting_point_split(sherdi_split *split, sherd_status here, procs_params *procs,
                                        meeting_point *point)
{
    memset(point, 0, sizeof(*point)); /* it is sent as a whole */
    *procs = (procs_params){.world      = &split->params,
                            .rank       = split->rank,
                            .world_size = split->world_size,
                            .address    = point->address,
                            .listener   = -1,
                            .key        = &point->key,
                            .split      = split};
    if (here == SHERD_OK) {
        here = sherdi_meeting_limit(&split->params, &procs->limit_ns);
    }
    if (here == SHERD_OK && split->rank == 0 && split->world_size > 1) {
        here = point_open(split, &procs->listener, point);
    }
    here = sherdi_split_tell(split, here, point, sizeof(*point));
    if (here != SHERD_OK) {
        sherdi_net_close(&procs->listener);
    }
    point->key.source = "sherd_world_split";
    return here;
}
