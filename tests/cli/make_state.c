/* Makes one state file as a rank's engine would, for test_state.sh:
 *   make_state FOLDER RUN RANK WORLD_SIZE COMMITS [hold]
 * With `hold` it keeps the file open until its standard input ends, as a running trainer does. */
#include "engine/run/state_note.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char block[SHERD_ALIGN_BYTES] __attribute__((aligned(SHERD_ALIGN_BYTES)));

static sherd_status step_commit(sherdi_state *state, int64_t step)
{
    unsigned char     note[SHERDI_STATE_NOTE_FRONT] = {0};
    sherdi_state_note filled                        = {.step = step};
    sherdi_io         io                            = {0};

    memcpy(note, &filled, sizeof(filled));
    memset(block, (int)step, sizeof(block));
    sherdi_state_extents(state)->ops->write_start(sherdi_state_extents(state), 0, block, &io);
    SHERDI_TRY(sherdi_state_extents(state)->ops->wait(sherdi_state_extents(state), &io));
    return sherdi_state_commit(state, note, sizeof(note));
}

static void stand_still(void)
{
    (void)puts("held");
    (void)fflush(stdout);
    while (getchar() != EOF) {
    }
}

static sherd_status state_make(char **argv, int is_held, sherdi_mem *mem)
{
    const char *const folders[] = {argv[1]};
    sherdi_extent     extents[] = {{0, sizeof(block)}};
    sherdi_ioq_params queueing  = {
         .kind = SHERDI_IOQ_THREADS, .request_bytes = sizeof(block), .depth = 1};
    sherdi_state_params params = {
        .folders     = folders,
        .num_folders = 1,
        .id          = {.run        = strtoull(argv[2], NULL, 16),
                        .rank       = atoi(argv[3]),
                        .world_size = atoi(argv[4])},
        .extents     = extents,
        .num_extents = 1,
        .note_bytes  = SHERDI_STATE_NOTE_FRONT,
    };
    sherdi_ioq   *queue = NULL;
    sherdi_state *state = NULL;
    sherd_status  status;

    SHERDI_TRY(sherdi_ioq_create(&queueing, mem, &queue));
    status = sherdi_state_create(queue, &params, mem, &state);
    for (int step = 1; step <= atoi(argv[5]) && status == SHERD_OK; step++) {
        status = step_commit(state, step);
    }
    if (status == SHERD_OK && is_held) {
        stand_still();
    }
    if (state != NULL) {
        sherdi_state_close(state, 1);
    }
    sherdi_ioq_destroy(queue);
    return status;
}

int main(int argc, char **argv)
{
    sherdi_mem mem;

    if (argc < 6) {
        return 2;
    }
    sherdi_mem_init(&mem);
    if (state_make(argv, argc > 6, &mem) != SHERD_OK) {
        (void)fprintf(stderr, "make_state: %s\n", sherd_last_error());
        return 1;
    }
    return 0;
}
