#include "engine/proof/hazard_bytes.h"

#include "base/checked.h"

#include <string.h>

typedef struct sherdi_reader {
    sherdi_toucher who;
    uint32_t       next; /* index of a reader, 0: none */
} sherdi_reader;

/* A cell ends where the next one begins; the last one has no end. */
typedef struct sherdi_cell {
    size_t         begin;
    sherdi_toucher writer;
    uint32_t       readers;
} sherdi_cell;

/* ----------------------------------------------------------------- readers -- */

static sherd_status reader_add(sherdi_readers *readers, uint32_t *list, const sherdi_toucher *who)
{
    uint32_t at = readers->free;

    if (at != 0) {
        readers->free = readers->at[at].next;
    } else {
        SHERDI_TRY(sherdi_grow(readers->mem, SHERDI_MEM_CONTROL, (void **)&readers->at,
                               &readers->capacity, readers->count + 1, sizeof(*readers->at)));
        at = (uint32_t)readers->count++;
    }
    readers->at[at] = (sherdi_reader){*who, *list};
    *list           = at;
    return SHERD_OK;
}

/* Forgets the readers that are over by both clocks. */
static void readers_forget(sherdi_readers *readers, uint32_t *list, const uint32_t *clock,
                           const uint32_t *other)
{
    while (*list != 0) {
        uint32_t       at   = *list;
        sherdi_reader *that = &readers->at[at];

        if (sherdi_toucher_is_before(&that->who, clock) &&
            sherdi_toucher_is_before(&that->who, other)) {
            *list         = that->next;
            that->next    = readers->free;
            readers->free = at;
        } else {
            list = &that->next;
        }
    }
}

static sherd_status readers_copy(sherdi_readers *readers, uint32_t list, uint32_t *out)
{
    *out = 0;
    for (; list != 0; list = readers->at[list].next) {
        sherdi_toucher who = readers->at[list].who;

        SHERDI_TRY(reader_add(readers, out, &who));
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------- cells -- */

static size_t cell_end(const sherdi_cells *cells, size_t i)
{
    return i + 1 < cells->count ? cells->at[i + 1].begin : SIZE_MAX;
}

/* Returns the last cell that begins at or before the offset. */
static size_t cell_find(const sherdi_cells *cells, size_t offset)
{
    size_t low  = 0;
    size_t high = cells->count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (cells->at[middle].begin <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Cuts a cell, so that one begins at the offset; gives its index. */
static sherd_status cell_cut(sherdi_cells *cells, sherdi_readers *readers, size_t offset,
                             size_t *out)
{
    size_t      i = cell_find(cells, offset);
    sherdi_cell second;

    *out = i;
    if (cells->at[i].begin == offset) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_grow(readers->mem, SHERDI_MEM_CONTROL, (void **)&cells->at, &cells->capacity,
                           cells->count + 1, sizeof(*cells->at)));
    second       = cells->at[i];
    second.begin = offset;
    SHERDI_TRY(readers_copy(readers, cells->at[i].readers, &second.readers));
    i++;
    memmove(&cells->at[i + 1], &cells->at[i], (cells->count - i) * sizeof(*cells->at));
    cells->at[i] = second;
    cells->count++;
    *out = i;
    return SHERD_OK;
}

static int is_same_toucher(const sherdi_toucher *a, const sherdi_toucher *b)
{
    return a->number == b->number && (a->number == 0 || a->thread == b->thread);
}

/* Forgets what comes before everything that is still to come, then merges neighbours that say the
 * same. */
static void cells_prune(sherdi_cells *cells, sherdi_readers *readers, const uint32_t *one,
                        const uint32_t *other)
{
    size_t count = 0;

    for (size_t i = 0; i < cells->count; i++) {
        sherdi_cell c = cells->at[i];

        if (sherdi_toucher_is_before(&c.writer, one) &&
            sherdi_toucher_is_before(&c.writer, other)) {
            c.writer = (sherdi_toucher){0};
        }
        readers_forget(readers, &c.readers, one, other);
        if (count == 0 || c.readers != 0 || cells->at[count - 1].readers != 0 ||
            !is_same_toucher(&c.writer, &cells->at[count - 1].writer)) {
            cells->at[count++] = c;
        }
    }
    cells->count = count;
    cells->limit = 2 * count + 64;
}

/* ----------------------------------------------------------------- touches -- */

/* Returns whom the touch does not come after; NULL: it comes after all. */
static const sherdi_toucher *cell_check(const sherdi_cell *cell, const sherdi_readers *readers,
                                        const sherdi_touch *touch, int *was_write)
{
    *was_write = 1;
    if (!sherdi_toucher_is_before(&cell->writer, touch->clock)) {
        return &cell->writer;
    }
    *was_write = 0;
    for (uint32_t r = touch->is_write ? cell->readers : 0; r != 0; r = readers->at[r].next) {
        if (!sherdi_toucher_is_before(&readers->at[r].who, touch->clock)) {
            return &readers->at[r].who;
        }
    }
    return NULL;
}

static int cells_check(const sherdi_cells *cells, size_t first, size_t last,
                       const sherdi_readers *readers, const sherdi_touch *touch,
                       sherdi_conflict *out)
{
    for (size_t i = first; i < last; i++) {
        const sherdi_toucher *earlier = cell_check(&cells->at[i], readers, touch, &out->was_write);

        if (earlier != NULL) {
            out->earlier = *earlier;
            out->begin   = cells->at[i].begin;
            out->end     = cell_end(cells, i);
            return 0;
        }
    }
    return 1;
}

/* Merges the cells, and records the write. */
static void cells_write(sherdi_cells *cells, size_t first, size_t last, sherdi_readers *readers,
                        const sherdi_touch *touch)
{
    for (size_t i = first; i < last; i++) {
        readers_forget(readers, &cells->at[i].readers, touch->clock, touch->clock);
    }
    cells->at[first].writer = touch->who;
    memmove(&cells->at[first + 1], &cells->at[last], (cells->count - last) * sizeof(*cells->at));
    cells->count -= last - first - 1;
}

static sherd_status cells_read(sherdi_cells *cells, size_t first, size_t last,
                               sherdi_readers *readers, const sherdi_touch *touch)
{
    for (size_t i = first; i < last; i++) {
        readers_forget(readers, &cells->at[i].readers, touch->clock, touch->clock);
        SHERDI_TRY(reader_add(readers, &cells->at[i].readers, &touch->who));
    }
    return SHERD_OK;
}

sherd_status sherdi_cells_touch(sherdi_cells *cells, sherdi_readers *readers,
                                const sherdi_touch *touch, sherdi_conflict *out)
{
    size_t first;
    size_t last;

    *out = (sherdi_conflict){0};
    if (cells->count > cells->limit) {
        cells_prune(cells, readers, touch->known[0], touch->known[1]);
    }
    SHERDI_TRY(cell_cut(cells, readers, touch->begin, &first));
    SHERDI_TRY(cell_cut(cells, readers, touch->end, &last));
    if (!cells_check(cells, first, last, readers, touch, out)) {
        return SHERD_OK;
    }
    if (!touch->is_write) {
        return cells_read(cells, first, last, readers, touch);
    }
    cells_write(cells, first, last, readers, touch);
    return SHERD_OK;
}

sherd_status sherdi_cells_open(sherdi_cells *cells, sherdi_readers *readers)
{
    readers->count = sherdi_max_size(readers->count, 1);
    SHERDI_TRY(sherdi_grow(readers->mem, SHERDI_MEM_CONTROL, (void **)&cells->at, &cells->capacity,
                           8, sizeof(*cells->at)));
    cells->count = 1;
    cells->limit = 64;
    return SHERD_OK;
}

void sherdi_cells_close(sherdi_cells *cells)
{
    sherdi_free(cells->at);
    *cells = (sherdi_cells){0};
}
