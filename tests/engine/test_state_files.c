/* State files as programs see them. What the command makes of them: tests/cli/test_state.sh. */
#include "engine/run/state_note.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <string.h>

enum { NUM_RUNS = 3 };

static unsigned char block[SHERD_ALIGN_BYTES] __attribute__((aligned(SHERD_ALIGN_BYTES)));

typedef struct found_files {
    sherd_state_file files[NUM_RUNS];
    int              count, most; /* `most` files are taken, the next one is an error */
} found_files;

static sherd_status found_add(void *ctx, const sherd_state_file *file)
{
    found_files *found = ctx;

    if (found->count == found->most) {
        return SHERD_E_AGAIN;
    }
    found->files[found->count++] = *file;
    return SHERD_OK;
}

typedef struct state_maker {
    sherdi_mem  mem;
    sherdi_ioq *queue;
} state_maker;

/* Skips the case in a build without checksums, which has no state files. */
static void maker_open(state_maker *maker)
{
    sherdi_ioq_params params = {
        .kind = SHERDI_IOQ_THREADS, .request_bytes = sizeof(block), .depth = 1};
    found_files none = {.most = 0};

    if (sherd_state_files_find(test_scratch(), found_add, &none) == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    sherdi_mem_init(&maker->mem);
    CHECK_OK(sherdi_ioq_create(&params, &maker->mem, &maker->queue));
}

static void maker_close(state_maker *maker)
{
    sherdi_ioq_destroy(maker->queue);
    CHECK_INT(0, sherdi_mem_held_all(&maker->mem));
}

/* Open still; committed once with `step` unless that is negative. */
static sherdi_state *state_make(state_maker *maker, uint64_t run, int64_t step)
{
    const char         *folders[]                     = {test_scratch()};
    sherdi_extent       extents[]                     = {{0, sizeof(block)}};
    sherdi_state_params params                        = {.folders     = folders,
                                                         .num_folders = 1,
                                                         .extents     = extents,
                                                         .num_extents = 1,
                                                         .note_bytes  = SHERDI_STATE_NOTE_FRONT};
    unsigned char       note[SHERDI_STATE_NOTE_FRONT] = {0};
    sherdi_state_note   filled                        = {.step = step};
    sherdi_io           io                            = {0};
    sherdi_state       *state;

    params.id = (sherdi_state_id){.run = run, .rank = 1, .world_size = 3};
    CHECK_OK(sherdi_state_create(maker->queue, &params, &maker->mem, &state));
    if (step >= 0) {
        memcpy(note, &filled, sizeof(filled));
        sherdi_state_extents(state)->ops->write_start(sherdi_state_extents(state), 0, block, &io);
        CHECK_OK(sherdi_state_extents(state)->ops->wait(sherdi_state_extents(state), &io));
        CHECK_OK(sherdi_state_commit(state, note, sizeof(note)));
    }
    return state;
}

static void state_files_are_found_and_removed(void)
{
    found_files   found = {.most = NUM_RUNS};
    state_maker   maker;
    sherdi_state *held, *whole, *empty;

    maker_open(&maker);
    held  = state_make(&maker, 0xa, 7);
    whole = state_make(&maker, 0xb, 0);
    empty = state_make(&maker, 0xc, -1);
    sherdi_state_close(whole, 1);
    sherdi_state_close(empty, 1);
    CHECK_OK(sherd_state_files_find(test_scratch(), found_add, &found));
    CHECK_INT(3, found.count);
    for (int i = 0; i < NUM_RUNS; i++) {
        const sherd_state_file *file = &found.files[i];

        CHECK_INT(sizeof(*file), file->struct_size);
        CHECK_INT(0xa + i, file->run);
        CHECK_INT(1, file->rank);
        CHECK_INT(3, file->world_size);
        CHECK_INT(i == 0, file->is_locked);
        CHECK_INT(1, file->is_valid);
        CHECK_INT(i < 2, file->generation);
        CHECK_INT(i == 0 ? 7 : i == 1 ? 0 : -1, file->step);
        CHECK(file->held_bytes >= sizeof(block));
        CHECK(file->changed_s > 1700000000);
        CHECK(strncmp(file->path, test_scratch(), strlen(test_scratch())) == 0);
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_state_file_remove(found.files[0].path));
    CHECK_ERROR_SAYS(found.files[0].path);
    CHECK_OK(sherd_state_file_remove(found.files[1].path));
    CHECK_OK(sherd_state_file_remove(found.files[2].path));
    CHECK_STATUS(SHERD_E_IO, sherd_state_file_remove(found.files[2].path));
    sherdi_state_close(held, 0);
    found.count = 0;
    CHECK_OK(sherd_state_files_find(test_scratch(), found_add, &found));
    CHECK_INT(0, found.count);
    maker_close(&maker);
}

static void state_files_search_ends_when_told(void)
{
    found_files   found = {.most = 1};
    state_maker   maker;
    sherdi_state *one, *two;

    maker_open(&maker);
    CHECK_STATUS(SHERD_E_IO, sherd_state_files_find("/no/such/folder", found_add, &found));
    CHECK_ERROR_SAYS("/no/such/folder");
    one = state_make(&maker, 0xa, 1);
    two = state_make(&maker, 0xb, 1);
    CHECK_STATUS(SHERD_E_AGAIN, sherd_state_files_find(test_scratch(), found_add, &found));
    CHECK_INT(1, found.count);
    sherdi_state_close(one, 0);
    sherdi_state_close(two, 0);
    maker_close(&maker);
}

static void state_files_calls_check_arguments(void)
{
    sherd_state_file file;

    CHECK_STATUS(SHERD_E_INVAL, sherd_state_files_find(NULL, found_add, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_state_files_find(test_scratch(), NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_state_file_remove(NULL));
    sherd_state_file_init(&file);
    CHECK_INT(sizeof(file), file.struct_size);
}

static const test_case CASES[] = {
    CASE(state_files_are_found_and_removed),
    CASE(state_files_search_ends_when_told),
    CASE(state_files_calls_check_arguments),
};

RUN_MAIN(CASES)
