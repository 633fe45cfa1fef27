/* The tier on a drive whose contents have no use after this process: one copy of each extent, in a
 * file without a name. See tier.h; state.h is for what outlives the process. */
#include "offload/tier_impl.h"

#include "base/clock.h"
#include "base/hash.h"
#include "offload/state.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct scratch_tier {
    sherdi_tier    tier;
    sherdi_ioq    *queue;
    sherdi_file   *file;
    const char    *what;
    sherdi_extent *in_file;    /* [num_extents] positions in the file */
    unsigned char *is_written; /* [num_extents]; an extent that was never written reads as zero */
} scratch_tier;

/* ----------------------------------------------------------------- table -- */

static void scratch_close(sherdi_tier *tier)
{
    scratch_tier *self = (scratch_tier *)tier;

    sherdi_file_close(self->file, 0);
    sherdi_free(self->is_written);
    sherdi_free(self->in_file);
    sherdi_free(self);
}

static void scratch_start(scratch_tier *self, size_t extent, void *memory, size_t len_bytes,
                          int is_write, sherdi_io *io)
{
    assert(!io->is_started);
    *io = (sherdi_io){.file         = self->file,
                      .is_write     = is_write,
                      .memory       = memory,
                      .offset_bytes = self->in_file[extent].offset_bytes,
                      .len_bytes    = len_bytes,
                      .what         = self->what,
                      .number       = extent};
    sherdi_io_start(self->queue, io);
}

static void scratch_read_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    scratch_tier *self      = (scratch_tier *)tier;
    size_t        len_bytes = self->in_file[extent].len_bytes;

    if (!self->is_written[extent]) {
        memset(memory, 0, len_bytes);
        len_bytes = 0;
    }
    scratch_start(self, extent, memory, len_bytes, 0, io);
}

static void scratch_write_start(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    scratch_tier *self = (scratch_tier *)tier;

    self->is_written[extent] = 1;
    scratch_start(self, extent, memory, self->in_file[extent].len_bytes, 1, io);
}

static sherd_status scratch_wait(sherdi_tier *tier, sherdi_io *io)
{
    return sherdi_io_wait(((scratch_tier *)tier)->queue, io);
}

static int scratch_is_done(sherdi_tier *tier, const sherdi_io *io)
{
    return sherdi_io_is_done(((scratch_tier *)tier)->queue, io);
}

static const sherdi_tier_ops SCRATCH_OPS = {
    .close       = scratch_close,
    .read_start  = scratch_read_start,
    .write_start = scratch_write_start,
    .wait        = scratch_wait,
    .is_done     = scratch_is_done,
};

/* --------------------------------------------------------------- opening -- */

static sherd_status scratch_open(scratch_tier *self, const sherdi_tier_params *params,
                                 sherdi_mem *mem)
{
    sherdi_file_params file = {.folders      = params->folders,
                               .num_folders  = params->num_folders,
                               .stripe_bytes = SHERDI_STRIPE_BYTES,
                               .flags        = SHERDI_FILE_CREATE | SHERDI_FILE_SCRATCH};
    uint64_t           hash = sherdi_hash_u64((uint64_t)(uintptr_t)self, (uint64_t)getpid());
    char               name[64];

    self->in_file =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params->num_extents, sizeof(*self->in_file));
    self->is_written = sherdi_alloc(mem, SHERDI_MEM_CONTROL, params->num_extents);
    if (self->in_file == NULL || self->is_written == NULL) {
        return SHERD_E_NOMEM;
    }
    SHERDI_TRY(sherdi_extents_lay_out(params->extents, params->num_extents, self->in_file,
                                      &file.capacity_bytes));
    /* The file is unlinked at once; until then its name must differ from that of any other rank. */
    (void)snprintf(name, sizeof(name), "sherd-%016llx.scratch",
                   (unsigned long long)sherdi_hash_u64(hash, (uint64_t)sherdi_now_ns()));
    file.name = name;
    return sherdi_file_open(self->queue, &file, &self->file);
}

static sherd_status nvme_open(const sherdi_tier_params *params, sherdi_mem *mem, sherdi_tier **out)
{
    scratch_tier *self;
    sherd_status  status;

    self = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*self));
    if (self == NULL) {
        return SHERD_E_NOMEM;
    }
    self->tier.ops = &SCRATCH_OPS;
    self->queue    = params->queue;
    self->what     = params->what;
    status         = scratch_open(self, params, mem);
    if (status != SHERD_OK) {
        scratch_close(&self->tier);
        return status;
    }
    *out = &self->tier;
    return SHERD_OK;
}

static size_t nvme_index_bytes(size_t num_extents)
{
    return sherdi_state_index_bytes(num_extents, SHERDI_STATE_NOTE_BYTES);
}

const sherdi_tier_kind sherdi_tier_nvme = {.space       = SHERDI_SPACE_STORAGE,
                                           .has_files   = 1,
                                           .index_bytes = nvme_index_bytes,
                                           .open        = nvme_open};
