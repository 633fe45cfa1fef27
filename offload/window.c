#include "offload/window.h"

sherd_status sherdi_window_init(sherdi_window *window, sherdi_tier *tier, unsigned char *memory,
                                size_t buffer_bytes, size_t ring_bytes, sherdi_mem *mem)
{
    *window = (sherdi_window){.tier = tier, .memory = memory, .buffer_bytes = buffer_bytes};
    if (tier->ops->address != NULL) {
        return SHERD_OK;
    }
    window->slots = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, ring_bytes / buffer_bytes,
                                       sizeof(*window->slots));
    if (window->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    window->count = ring_bytes / buffer_bytes;
    return SHERD_OK;
}

/* What could not be written is not written yet: the next settle or close tries again. */
static sherd_status slot_wait(sherdi_window *window, sherdi_window_slot *slot)
{
    sherd_status status;

    if (!slot->is_writing) {
        return SHERD_OK;
    }
    slot->is_writing = 0;
    status           = window->tier->ops->wait(window->tier, &slot->io);
    slot->is_dirty |= status != SHERD_OK;
    return status;
}

static void *slot_memory(const sherdi_window *window, const sherdi_window_slot *slot)
{
    return window->memory + (size_t)(slot - window->slots) * window->buffer_bytes;
}

static void slot_write(sherdi_window *window, sherdi_window_slot *slot)
{
    slot->io         = (sherdi_io){0};
    slot->is_dirty   = 0;
    slot->is_writing = 1;
    window->tier->ops->write_start(window->tier, slot->extent, slot_memory(window, slot),
                                   &slot->io);
}

/* On the drive as it was left. */
static sherd_status slot_settle(sherdi_window *window, sherdi_window_slot *slot)
{
    SHERDI_TRY(slot_wait(window, slot));
    if (!slot->is_dirty) {
        return SHERD_OK;
    }
    slot_write(window, slot);
    return slot_wait(window, slot);
}

static sherdi_window_slot *slot_find(const sherdi_window *window, size_t extent)
{
    for (size_t i = 0; i < window->count; i++) {
        if (window->slots[i].is_open && window->slots[i].extent == extent) {
            return &window->slots[i];
        }
    }
    return NULL;
}

/* The one to be given up: a free one, then one that is written or not changed, then any; the oldest of those. */
static sherdi_window_slot *slot_choose(const sherdi_window *window)
{
    sherdi_window_slot *best = &window->slots[0];

    for (size_t i = 1; i < window->count; i++) {
        sherdi_window_slot *slot  = &window->slots[i];
        int                 worth = slot->is_open + slot->is_dirty;
        int                 least = best->is_open + best->is_dirty;

        if (worth < least || (worth == least && slot->used < best->used)) {
            best = slot;
        }
    }
    return best;
}

static sherd_status slot_read(sherdi_window *window, sherdi_window_slot *slot, size_t extent)
{
    sherdi_io io = {0};

    SHERDI_TRY(slot_settle(window, slot));
    slot->is_open = 0;
    window->tier->ops->read_start(window->tier, extent, slot_memory(window, slot), &io);
    SHERDI_TRY(window->tier->ops->wait(window->tier, &io));
    slot->extent  = extent;
    slot->is_open = 1;
    return SHERD_OK;
}

sherd_status sherdi_window_open(sherdi_window *window, size_t extent, int is_write,
                                void **memory_out)
{
    sherdi_window_slot *slot;

    if (window->tier->ops->address != NULL) {
        *memory_out = window->tier->ops->address(window->tier, extent);
        return SHERD_OK;
    }
    slot = slot_find(window, extent);
    if (slot == NULL) {
        slot = slot_choose(window);
        SHERDI_TRY(slot_read(window, slot, extent));
    } else if (is_write) {
        SHERDI_TRY(slot_wait(window, slot));
    }
    slot->is_dirty |= is_write;
    slot->used  = ++window->opens;
    *memory_out = slot_memory(window, slot);
    return SHERD_OK;
}

void sherdi_window_put(sherdi_window *window, size_t extent)
{
    sherdi_window_slot *slot = slot_find(window, extent);

    if (slot != NULL && slot->is_dirty) {
        slot_write(window, slot);
    }
}

sherd_status sherdi_window_close(sherdi_window *window)
{
    sherd_status status = SHERD_OK;

    for (size_t i = 0; i < window->count; i++) {
        if (window->slots[i].is_dirty) {
            sherdi_window_put(window, window->slots[i].extent);
        }
    }
    for (size_t i = 0; i < window->count; i++) {
        sherd_status own = slot_wait(window, &window->slots[i]);

        status                   = status == SHERD_OK ? own : status;
        window->slots[i].is_open = window->slots[i].is_dirty;
    }
    return status;
}

void sherdi_window_fini(sherdi_window *window)
{
    for (size_t i = 0; i < window->count; i++) {
        (void)slot_wait(window, &window->slots[i]);
    }
    sherdi_free(window->slots);
    *window = (sherdi_window){0};
}
