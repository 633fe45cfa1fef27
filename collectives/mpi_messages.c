/* Messages of a world over MPI. MPI does not report that a rank died, and its blocking calls then
 * never return. So all waits here test, and look at the world's failure, which the monitor
 * reports. */
#include "collectives/mpi_world.h"

#include "base/clock.h"
#include "collectives/remote.h"

/* Messages of a rank that has disconnected may still be in transit for this time. */
#define LEFT_GRACE_NS INT64_C(2000000000)

static sherd_status mpi_error(sherd_world *world, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int  len                            = 0;

    (void)sherdi_mpi_api.Error_string(code, text, &len);
    return sherdi_world_fail(world, SHERD_E_PEER_LOST, "rank %d: MPI says: %s", world->rank, text);
}

/* Adds the ranks whose messages have not been transferred to a list such as "1, 3". */
static void pending_list(const mpi_world *mpi, const mpi_requests *requests, char *text,
                         size_t len_bytes)
{
    int last = -1;

    for (int i = 0; i < requests->count; i++) {
        int is_done = 0;

        (void)sherdi_mpi_api.Request_get_status(requests->list[i], &is_done, MPI_STATUS_IGNORE);
        if (!is_done && requests->ranks[i] != last) {
            last = requests->ranks[i];
            sherdi_ranks_add(text, len_bytes, sherdi_world_number(&mpi->procs.world, last));
        }
    }
}

/* Cancels requests that will not end, so that nobody writes to their buffers later. */
static void requests_drop(mpi_requests *requests)
{
    for (int i = 0; i < requests->count; i++) {
        if (requests->list[i] != sherdi_mpi_api.request_null) {
            (void)sherdi_mpi_api.Cancel(&requests->list[i]);
            (void)sherdi_mpi_api.Request_free(&requests->list[i]);
        }
    }
    requests->count = 0;
}

sherd_status sherdi_mpi_failed(mpi_world *mpi, sherd_status status)
{
    requests_drop(&mpi->receives);
    requests_drop(&mpi->sends);
    return status;
}

static sherd_status requests_look(mpi_world *mpi, const mpi_requests *requests, int64_t deadline_ns)
{
    sherd_world *world     = &mpi->procs.world;
    int64_t      now_ns    = sherdi_now_ns();
    int64_t      left_ns   = atomic_load(&mpi->procs.first_left_ns);
    char         text[256] = "";

    SHERDI_TRY(sherdi_peers_check(&mpi->procs.peers));
    if (left_ns != 0 && now_ns - left_ns > LEFT_GRACE_NS) {
        return sherdi_world_fail_left(world, atomic_load(&mpi->procs.first_left));
    }
    if (now_ns >= deadline_ns) {
        pending_list(mpi, requests, text, sizeof(text));
        return sherdi_world_fail_late(world, "rank %s", text);
    }
    return SHERD_OK;
}

sherd_status sherdi_mpi_wait(mpi_world *mpi, mpi_requests *requests)
{
    int64_t deadline_ns = sherdi_now_ns() + mpi->procs.world.timeout_ns;

    for (int turn = 0; requests->count > 0; turn++) {
        int is_done = 0;
        int code;

        /* Right before MPI looks: Open MPI 4 ends a process that finds a message to a lost rank. */
        SHERDI_TRY(requests_look(mpi, requests, deadline_ns));
        code =
            sherdi_mpi_api.Testall(requests->count, requests->list, &is_done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) {
            return mpi_error(&mpi->procs.world, code);
        }
        if (is_done) {
            requests->count = 0;
            return SHERD_OK;
        }
        sherdi_nap(turn); /* MPI makes progress only inside its calls */
    }
    return SHERD_OK;
}

sherd_status sherdi_mpi_wait_all(mpi_world *mpi)
{
    SHERDI_TRY(sherdi_mpi_wait(mpi, &mpi->receives));
    return sherdi_mpi_wait(mpi, &mpi->sends);
}

static sherd_status request_add(mpi_world *mpi, mpi_requests *requests, int rank, int code)
{
    if (code != MPI_SUCCESS) {
        return mpi_error(&mpi->procs.world, code);
    }
    requests->ranks[requests->count++] = rank;
    return SHERD_OK;
}

sherd_status sherdi_mpi_send(mpi_world *mpi, int rank, const void *data, size_t len_bytes)
{
    (void)atomic_fetch_add_explicit(&mpi->procs.world.between_bytes, len_bytes,
                                    memory_order_relaxed);
    return request_add(mpi, &mpi->sends, rank,
                       sherdi_mpi_api.Isend(data, (int)len_bytes, sherdi_mpi_api.byte,
                                            sherdi_mpi_channel_rank(mpi, rank), mpi->tag,
                                            mpi->channel->comm,
                                            &mpi->sends.list[mpi->sends.count]));
}

sherd_status sherdi_mpi_receive(mpi_world *mpi, int rank, void *data, size_t len_bytes)
{
    return request_add(mpi, &mpi->receives, rank,
                       sherdi_mpi_api.Irecv(data, (int)len_bytes, sherdi_mpi_api.byte,
                                            sherdi_mpi_channel_rank(mpi, rank), mpi->tag,
                                            mpi->channel->comm,
                                            &mpi->receives.list[mpi->receives.count]));
}

static sherd_status requests_open(mpi_world *mpi, mpi_requests *requests)
{
    sherdi_mem *mem  = &mpi->procs.world.mem;
    size_t      most = (size_t)mpi->procs.world.world_size;

    requests->list  = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, most, sizeof(*requests->list));
    requests->ranks = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, most, sizeof(*requests->ranks));
    return requests->list == NULL || requests->ranks == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

sherd_status sherdi_mpi_messages_open(mpi_world *mpi)
{
    SHERDI_TRY(requests_open(mpi, &mpi->receives));
    return requests_open(mpi, &mpi->sends);
}

void sherdi_mpi_messages_close(mpi_world *mpi)
{
    sherdi_free(mpi->receives.list);
    sherdi_free(mpi->receives.ranks);
    sherdi_free(mpi->sends.list);
    sherdi_free(mpi->sends.ranks);
}
