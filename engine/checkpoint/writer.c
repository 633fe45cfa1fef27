/* See writer.h. */
#include "engine/checkpoint/writer.h"

#include "base/checked.h"
#include "engine/checkpoint/bytes.h"
#include "engine/checkpoint/manifest.h"
#include "offload/checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EXTENT SHERDI_CHECKPOINT_EXTENT_BYTES

static size_t slot_begin(const sherdi_writer *writer, size_t slot)
{
    return slot * writer->params.slot_bytes;
}

static size_t slot_len(const sherdi_writer *writer, size_t slot)
{
    return sherdi_min_size(writer->params.slot_bytes,
                           writer->params.data_bytes - slot_begin(writer, slot));
}

static unsigned char *slot_memory(const sherdi_writer *writer, size_t slot)
{
    return writer->params.memory + slot % writer->params.num_slots * writer->params.slot_bytes;
}

static sherdi_io *slot_io(sherdi_writer *writer, size_t slot)
{
    size_t most = sherdi_min_size(writer->params.num_slots, SHERDI_WRITER_DEPTH);

    return &writer->ios[slot % most];
}

sherd_status sherdi_writer_open(sherdi_writer *writer, const sherdi_writer_params *params)
{
    size_t             granularity = SHERD_ALIGN_BYTES;
    sherdi_file_params file        = {
               .folders        = &params->folder,
               .num_folders    = 1,
               .name           = params->name,
               .capacity_bytes = sherdi_round_up(params->header_bytes + params->data_bytes, granularity),
               .stripe_bytes   = granularity,
               .flags          = SHERDI_FILE_CREATE | SHERDI_FILE_PLAIN,
    };
    sherd_status status;

    memset(writer, 0, sizeof(*writer));
    writer->params = *params;
    writer->checksums =
        sherdi_alloc_array(params->mem, SHERDI_MEM_CONTROL,
                           sherdi_div_up(params->data_bytes, EXTENT) + 1, SHERDI_HEX_DIGITS);
    status = writer->checksums == NULL ? SHERD_E_NOMEM
                                       : sherdi_file_open(params->queue, &file, &writer->file);
    if (status != SHERD_OK) {
        sherdi_free(writer->checksums);
        memset(writer, 0, sizeof(*writer));
    }
    return status;
}

static void checksums_take(sherdi_writer *writer, size_t slot)
{
    const unsigned char *memory = slot_memory(writer, slot);
    size_t               len    = slot_len(writer, slot);
    char                 digits[SHERDI_HEX_DIGITS + 1];

    for (size_t at = 0; at < len; at += EXTENT) {
        size_t number = (slot_begin(writer, slot) + at) / EXTENT;

        (void)snprintf(digits, sizeof(digits), "%016" PRIx64,
                       sherdi_checksum(memory + at, sherdi_min_size(EXTENT, len - at)));
        memcpy(writer->checksums + number * SHERDI_HEX_DIGITS, digits, SHERDI_HEX_DIGITS);
    }
}

/* Waits for the oldest write in flight. */
static void slot_wait(sherdi_writer *writer)
{
    sherd_status status = sherdi_io_wait(writer->params.queue, slot_io(writer, writer->waited));

    if (writer->status == SHERD_OK) {
        writer->status = status;
    }
    if (writer->params.progress != NULL) {
        writer->params.progress(writer->params.progress_ctx, slot_len(writer, writer->waited));
    }
    writer->waited++;
}

/* Starts the write of a slot. The last slot is written to a multiple of SHERD_ALIGN_BYTES, and the
 * file is cut to its length later. */
static void slot_start(sherdi_writer *writer)
{
    size_t         slot   = writer->started;
    unsigned char *memory = slot_memory(writer, slot);
    size_t         len    = slot_len(writer, slot);
    size_t         whole  = sherdi_round_up(len, SHERD_ALIGN_BYTES);
    sherdi_io     *io;

    while (writer->started - writer->waited >=
           sherdi_min_size(writer->params.num_slots, SHERDI_WRITER_DEPTH)) {
        slot_wait(writer);
    }
    checksums_take(writer, slot);
    memset(memory + len, 0, whole - len);
    io  = slot_io(writer, slot);
    *io = (sherdi_io){.file         = writer->file,
                      .is_write     = 1,
                      .memory       = memory,
                      .offset_bytes = writer->params.header_bytes + slot_begin(writer, slot),
                      .len_bytes    = whole,
                      .what         = "extent",
                      .number       = slot};
    sherdi_io_start(writer->params.queue, io);
    writer->started++;
}

sherd_status sherdi_writer_reserve(sherdi_writer *writer, unsigned char **out, size_t *room_out)
{
    size_t slot = writer->taken_bytes / writer->params.slot_bytes;
    size_t at   = writer->taken_bytes % writer->params.slot_bytes;

    while (slot >= writer->waited + writer->params.num_slots) {
        slot_wait(writer);
    }
    *out      = slot_memory(writer, slot) + at;
    *room_out = slot_len(writer, slot) - at;
    return writer->status;
}

void sherdi_writer_advance(sherdi_writer *writer, size_t len_bytes)
{
    writer->taken_bytes += len_bytes;
    if (writer->taken_bytes % writer->params.slot_bytes == 0 ||
        writer->taken_bytes == writer->params.data_bytes) {
        slot_start(writer);
    }
}

/* Writes the header, through the slots' memory, which is aligned and unused now: no write is in
 * flight. */
static sherd_status header_write(sherdi_writer *writer, const char *header)
{
    size_t room = writer->params.num_slots * writer->params.slot_bytes;

    for (size_t at = 0; at < writer->params.header_bytes; at += room) {
        size_t    len = sherdi_min_size(room, writer->params.header_bytes - at);
        sherdi_io io  = {.file         = writer->file,
                         .is_write     = 1,
                         .memory       = writer->params.memory,
                         .offset_bytes = at,
                         .len_bytes    = len,
                         .what         = "header"};

        memcpy(writer->params.memory, header + at, len);
        sherdi_io_start(writer->params.queue, &io);
        SHERDI_TRY(sherdi_io_wait(writer->params.queue, &io));
    }
    return SHERD_OK;
}

sherd_status sherdi_writer_finish(sherdi_writer *writer, const char *header)
{
    while (writer->waited < writer->started) {
        slot_wait(writer);
    }
    SHERDI_TRY(writer->status);
    SHERDI_TRY(header_write(writer, header));
    SHERDI_TRY(
        sherdi_file_trim(writer->file, writer->params.header_bytes + writer->params.data_bytes));
    return sherdi_file_sync(writer->file);
}

void sherdi_writer_close(sherdi_writer *writer)
{
    if (writer->file == NULL) {
        return;
    }
    while (writer->waited < writer->started) {
        slot_wait(writer);
    }
    sherdi_file_close(writer->file, 0);
    sherdi_free(writer->checksums);
    memset(writer, 0, sizeof(*writer));
}
