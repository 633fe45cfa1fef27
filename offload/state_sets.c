/* Creates, opens and drops the files of the sets. See state_sets.h. */
#include "offload/state_sets.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ----------------------------------------------------------- the handle -- */

/* Copies the absolute path: it is used again later, when the program may have changed its working
 * folder. */
static sherd_status folder_copy(sherdi_state_sets *sets, const char *folder, char **out)
{
    char        path[PATH_MAX];
    const char *from = realpath(folder, path) == NULL ? folder : path; /* opening will report it */
    size_t      len  = strlen(from) + 1;

    *out = sherdi_alloc(sets->mem, SHERDI_MEM_CONTROL, len);
    if (*out == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(*out, from, len);
    return SHERD_OK;
}

sherd_status sherdi_state_sets_init(sherdi_state_sets *sets, sherdi_ioq *queue,
                                    const sherdi_state_params *params, sherdi_mem *mem)
{
    sets->queue   = queue;
    sets->mem     = mem;
    sets->id      = params->id;
    sets->folders = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)params->num_folders,
                                       sizeof(*sets->folders));
    if (sets->folders == NULL) {
        return SHERD_E_NOMEM;
    }
    sets->num_folders = params->num_folders;
    for (int i = 0; i < params->num_folders; i++) {
        SHERDI_TRY(folder_copy(sets, params->folders[i], &sets->folders[i]));
    }
    return SHERD_OK;
}

void sherdi_state_sets_fini(sherdi_state_sets *sets, int is_kept)
{
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        sherdi_file_close(sets->sets[s].file,
                          !is_kept || sets->sets[s].role == SHERDI_SET_RESERVED);
    }
    for (int i = 0; i < sets->num_folders; i++) {
        sherdi_free(sets->folders[i]);
    }
    sherdi_free(sets->folders);
}

/* ------------------------------------------------------------------ roles -- */

int sherdi_state_sets_count(const sherdi_state_sets *sets, sherdi_set_role role)
{
    int count = 0;

    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        count += sets->sets[s].role == role;
    }
    return count;
}

void sherdi_state_set_assign(sherdi_state_sets *sets, int set, sherdi_set_role role)
{
    sets->sets[set].role = role;
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        uint32_t to = 0;

        while (to < SHERDI_STATE_SETS &&
               ((int)to == s || sets->sets[to].role != SHERDI_SET_WRITABLE)) {
            to++;
        }
        sets->spare[s] = to;
    }
}

int sherdi_state_sets_find(const sherdi_state_sets *sets, const sherdi_file *file)
{
    int set = 0;

    while (sets->sets[set].file != file) {
        set++;
        assert(set < SHERDI_STATE_SETS);
    }
    return set;
}

/* ------------------------------------------------------------------ files -- */

static sherd_status set_file_open(sherdi_state_sets *sets, int set, uint32_t flags)
{
    char               name[SHERDI_STATE_NAME_BYTES];
    sherdi_file_params file = {.folders        = (const char *const *)sets->folders,
                               .num_folders    = sets->num_folders,
                               .name           = name,
                               .capacity_bytes = sets->set_bytes,
                               .stripe_bytes   = SHERDI_STRIPE_BYTES,
                               .flags          = flags};

    sherdi_state_set_name(&sets->id, set, name);
    return sherdi_file_open(sets->queue, &file, &sets->sets[set].file);
}

/* Removes the names of a set that a killed process had just made, or was just removing. No
 * generation lies in it, and it may be incomplete. */
static void names_remove(const sherdi_state_sets *sets, int set)
{
    char name[SHERDI_STATE_NAME_BYTES];
    char path[PATH_MAX];
    char buffer[128];

    sherdi_state_set_name(&sets->id, set, name);
    for (int i = sets->num_folders - 1; i >= 0; i--) {
        if (i == 0) {
            (void)snprintf(path, sizeof(path), "%s/%s", sets->folders[0], name);
        } else {
            (void)snprintf(path, sizeof(path), "%s/%s.%d", sets->folders[i], name, i);
        }
        if (unlink(path) != 0 && errno != ENOENT) {
            sherdi_log(SHERD_LOG_WARN, sets->id.rank, "cannot remove %s: %s", path,
                       strerror_r(errno, buffer, sizeof(buffer)));
        }
    }
}

void sherdi_state_set_drop(sherdi_state_sets *sets, int set)
{
    if (sets->sets[set].file != NULL) {
        sherdi_file_close(sets->sets[set].file, 1);
        sets->sets[set].file = NULL;
    } else {
        names_remove(sets, set);
    }
    sets->sets[set].is_dirty = 0;
    sherdi_state_set_assign(sets, set, SHERDI_SET_NONE);
}

/* Finds a free number. */
static sherd_status number_find(const sherdi_state_sets *sets, int *set_out)
{
    int set = 0;

    while (set < SHERDI_STATE_SETS && sets->sets[set].role != SHERDI_SET_NONE) {
        set++;
    }
    if (set == SHERDI_STATE_SETS) {
        return sherdi_fail(SHERD_E_STATE,
                           "the state of run %016llx in %s has no free set of slots: links from "
                           "elsewhere, such as checkpoints that keep state, hold all %d; remove "
                           "some of these links, or replace them by copies",
                           (unsigned long long)sets->id.run, sets->folders[0], SHERDI_STATE_SETS);
    }
    *set_out = set;
    return SHERD_OK;
}

sherd_status sherdi_state_set_create(sherdi_state_sets *sets, sherdi_set_role role, int *set_out)
{
    int set = 0;

    SHERDI_TRY(number_find(sets, &set));
    SHERDI_TRY(set_file_open(sets, set, SHERDI_FILE_CREATE));
    sherdi_state_set_assign(sets, set, role);
    *set_out = set;
    return SHERD_OK;
}

sherd_status sherdi_state_set_open(sherdi_state_sets *sets, int set)
{
    SHERDI_TRY(set_file_open(sets, set, SHERDI_FILE_READ));
    if (sherdi_file_is_shared(sets->sets[set].file)) {
        sherdi_state_set_assign(sets, set, SHERDI_SET_KEPT);
        return SHERD_OK;
    }
    sherdi_file_close(sets->sets[set].file, 0);
    sets->sets[set].file = NULL;
    SHERDI_TRY(set_file_open(sets, set, 0));
    sherdi_state_set_assign(sets, set, SHERDI_SET_WRITABLE);
    return SHERD_OK;
}

sherd_status sherdi_state_sets_make_two(sherdi_state_sets *sets)
{
    int set;

    while (sherdi_state_sets_count(sets, SHERDI_SET_WRITABLE) < 2) {
        SHERDI_TRY(sherdi_state_set_create(sets, SHERDI_SET_WRITABLE, &set));
    }
    return SHERD_OK;
}

sherd_status sherdi_state_sets_sync(sherdi_state_sets *sets)
{
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (sets->sets[s].is_dirty) {
            SHERDI_TRY(sherdi_file_sync(sets->sets[s].file));
            sets->sets[s].is_dirty = 0;
        }
    }
    return SHERD_OK;
}

int sherdi_state_sets_are_linked(const sherdi_state_sets *sets)
{
    for (int s = 0; s < SHERDI_STATE_SETS; s++) {
        if (sets->sets[s].file != NULL && !sherdi_file_is_linked(sets->sets[s].file)) {
            return 0;
        }
    }
    return 1;
}
