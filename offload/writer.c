#include "offload/writer.h"

sherd_status sherdi_writer_open(sherdi_writer *writer, sherdi_tier *tier, unsigned char *memory,
                                size_t buffer_bytes, size_t ring_bytes, sherdi_mem *mem)
{
    writer->tier         = tier;
    writer->memory       = memory;
    writer->buffer_bytes = buffer_bytes;
    writer->count        = (int)(ring_bytes / buffer_bytes);
    writer->ios =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)writer->count, sizeof(*writer->ios));
    writer->is_busy = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)writer->count,
                                         sizeof(*writer->is_busy));
    writer->extents = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)writer->count,
                                         sizeof(*writer->extents));
    if (writer->ios == NULL || writer->is_busy == NULL || writer->extents == NULL) {
        return SHERD_E_NOMEM;
    }
    return SHERD_OK;
}

void sherdi_writer_close(sherdi_writer *writer)
{
    if (writer->ios != NULL && writer->is_busy != NULL) {
        (void)sherdi_writer_wait(writer);
    }
    sherdi_free(writer->ios);
    sherdi_free(writer->is_busy);
    sherdi_free(writer->extents);
    *writer = (sherdi_writer){0};
}

static sherd_status writer_wait_one(sherdi_writer *writer, int buffer)
{
    if (!writer->is_busy[buffer]) {
        return SHERD_OK;
    }
    writer->is_busy[buffer] = 0;
    return writer->tier->ops->wait(writer->tier, &writer->ios[buffer]);
}

sherd_status sherdi_writer_begin(sherdi_writer *writer, void **memory_out)
{
    SHERDI_TRY(writer_wait_one(writer, writer->next));
    *memory_out = writer->memory + (size_t)writer->next * writer->buffer_bytes;
    return SHERD_OK;
}

void sherdi_writer_put(sherdi_writer *writer, size_t extent)
{
    int buffer = writer->next;

    writer->ios[buffer]     = (sherdi_io){0};
    writer->is_busy[buffer] = 1;
    writer->extents[buffer] = extent;
    writer->tier->ops->write_start(writer->tier, extent,
                                   writer->memory + (size_t)buffer * writer->buffer_bytes,
                                   &writer->ios[buffer]);
    writer->next = (buffer + 1) % writer->count;
}

sherd_status sherdi_writer_wait(sherdi_writer *writer)
{
    sherd_status status = SHERD_OK;

    for (int i = 0; i < writer->count; i++) {
        sherd_status own = writer_wait_one(writer, (writer->next + i) % writer->count);

        status = status == SHERD_OK ? own : status;
    }
    return status;
}

sherd_status sherdi_writer_wait_for(sherdi_writer *writer, size_t extent)
{
    for (int i = 0; i < writer->count; i++) {
        if (writer->is_busy[i] && writer->extents[i] == extent) {
            SHERDI_TRY(writer_wait_one(writer, i));
        }
    }
    return SHERD_OK;
}
