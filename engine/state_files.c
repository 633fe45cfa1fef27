/* The state files of runs on a drive: finds and removes them for programs and `sherd state`. */
#include "engine/run/state_note.h"
#include "sherd_tools.h"

#include "base/api.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(offsetof(sherdi_state_note, step) == 0, "the step begins the note");

void sherd_state_file_init(sherd_state_file *file)
{
    sherdi_api_init(file, &(sherd_state_file){.struct_size = sizeof(*file), .step = -1});
}

typedef struct state_finder {
    sherd_state_file_fn fn;
    void               *ctx;
} state_finder;

static sherd_status finder_hand_over(void *ctx, const sherdi_state_found *found)
{
    const state_finder *finder = ctx;
    sherd_state_file    file;

    sherd_state_file_init(&file);
    (void)snprintf(file.path, sizeof(file.path), "%s", found->path);
    file.run        = found->id.run;
    file.rank       = found->id.rank;
    file.world_size = found->id.world_size;
    file.generation = found->generation;
    file.is_locked  = found->is_locked;
    file.is_valid   = found->is_valid;
    file.held_bytes = found->held_bytes;
    file.changed_s  = found->changed_s;
    if (found->is_valid && found->generation > 0) {
        memcpy(&file.step, found->note, sizeof(file.step));
    }
    return finder->fn(finder->ctx, &file);
}

sherd_status sherd_state_files_find(const char *folder, sherd_state_file_fn fn, void *ctx)
{
    state_finder finder = {fn, ctx};

    SHERDI_TRY(sherdi_api_need(folder != NULL, "sherd_state_files_find", "folder"));
    SHERDI_TRY(sherdi_api_need(fn != NULL, "sherd_state_files_find", "fn"));
    return sherdi_state_find(folder, finder_hand_over, &finder);
}

sherd_status sherd_state_file_remove(const char *path)
{
    SHERDI_TRY(sherdi_api_need(path != NULL, "sherd_state_file_remove", "path"));
    return sherdi_state_remove(path);
}
