#include "offload/window.h"

sherd_status sherdi_window_close(sherdi_window *window)
{
    sherdi_io io = {0};

    if (!window->is_open) {
        return SHERD_OK;
    }
    window->is_open = 0;
    if (!window->is_dirty || window->tier->ops->address != NULL) {
        return SHERD_OK;
    }
    window->is_dirty = 0;
    window->tier->ops->write_start(window->tier, window->extent, window->memory, &io);
    return window->tier->ops->wait(window->tier, &io);
}

static sherd_status extent_read(sherdi_window *window, size_t extent)
{
    sherdi_io io = {0};

    window->tier->ops->read_start(window->tier, extent, window->memory, &io);
    return window->tier->ops->wait(window->tier, &io);
}

sherd_status sherdi_window_open(sherdi_window *window, size_t extent, int is_write,
                                void **memory_out)
{
    if (window->tier->ops->address != NULL) {
        *memory_out = window->tier->ops->address(window->tier, extent);
        return SHERD_OK;
    }
    if (!window->is_open || window->extent != extent) {
        SHERDI_TRY(sherdi_window_close(window));
        SHERDI_TRY(extent_read(window, extent));
        window->extent   = extent;
        window->is_open  = 1;
        window->is_dirty = 0;
    }
    window->is_dirty |= is_write;
    *memory_out = window->memory;
    return SHERD_OK;
}
