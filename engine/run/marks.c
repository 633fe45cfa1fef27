/* See marks.h. Marks on a device take slots of a ring in order, and are read in that order, oldest
 * first. */
#include "engine/run/marks.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind_info {
    const char       *name;
    sherdi_trace_lane lane;
} kind_info;

static const kind_info KINDS[SHERDI_MARK_KINDS] = {
    [SHERDI_MARK_FORWARD]         = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_BACKWARD]        = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_EVAL]            = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_WAIT_GATHER]     = {"wait for parameters", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_REDUCE]     = {"wait for gradients", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_ACTIVATION] = {"wait for an activation", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_UPDATE]     = {"wait for the update", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_GATHER]          = {"gather", SHERDI_TRACE_GATHER},
    [SHERDI_MARK_REDUCE]          = {"reduce", SHERDI_TRACE_REDUCE},
    [SHERDI_MARK_DOWN]            = {"down", SHERDI_TRACE_DOWN},
    [SHERDI_MARK_UP]              = {"up", SHERDI_TRACE_UP},
    [SHERDI_MARK_NORM]            = {"norm", SHERDI_TRACE_UPDATE},
    [SHERDI_MARK_UPDATE]          = {"update", SHERDI_TRACE_UPDATE},
    [SHERDI_MARK_STEP]            = {"step", SHERDI_TRACE_STEP},
};

static sherd_status slots_open(sherdi_marks *marks, sherdi_backend *lane, sherdi_mem *mem)
{
    marks->slots =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, SHERDI_MARK_SLOTS, sizeof(*marks->slots));
    if (marks->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < SHERDI_MARK_SLOTS; i++) {
        SHERDI_TRY(lane->device->event_create(lane, 1, &marks->slots[i].start));
        SHERDI_TRY(lane->device->event_create(lane, 1, &marks->slots[i].end));
    }
    return SHERD_OK;
}

sherd_status sherdi_marks_open(sherdi_marks *marks, sherdi_backend *lane, int is_timed, int rank,
                               int world_size, sherdi_mem *mem)
{
    const char *path = getenv("SHERD_TRACE");

    marks->device = lane->device;
    (void)pthread_mutex_init(&marks->lock, NULL);
    if (path != NULL && path[0] != '\0') {
        SHERDI_TRY(sherdi_trace_open(path, rank, world_size, mem, &marks->trace));
        is_timed = 1;
    }
    return is_timed && lane->device->is_async ? slots_open(marks, lane, mem) : SHERD_OK;
}

void sherdi_marks_close(sherdi_marks *marks, sherdi_backend *lane)
{
    if (marks->slots != NULL) {
        sherdi_marks_resolve(marks, lane);
        for (int i = 0; i < SHERDI_MARK_SLOTS; i++) {
            lane->device->event_destroy(marks->slots[i].start);
            lane->device->event_destroy(marks->slots[i].end);
        }
    }
    sherdi_free(marks->slots);
    sherdi_trace_close(marks->trace);
    memset(marks, 0, sizeof(*marks));
}

static void sum_add(sherdi_mark_sum *sum, uint64_t bytes, int64_t ns)
{
    (void)atomic_fetch_add_explicit(&sum->count, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&sum->bytes, bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&sum->ns, ns, memory_order_relaxed);
}

/* Logs a transfer; only rank 0 has logs_transfers set. */
static void transfer_log(sherdi_mark_kind kind, const char *what, uint64_t bytes, int64_t ns)
{
    if (kind == SHERDI_MARK_GATHER || kind == SHERDI_MARK_REDUCE) {
        sherdi_log(SHERD_LOG_INFO, 0,
                   "comm op: %s %s | time (ms): %.2f | msg size: %.2f MB | Gbps: %.2f",
                   kind == SHERDI_MARK_GATHER ? "all_gather" : "reduce_scatter",
                   what == NULL ? "" : what, (double)ns * 1e-6, (double)bytes / 0x1p20,
                   ns == 0 ? 0 : 8 * (double)bytes / (double)ns);
    }
}

/* Whether this thread is an updater. */
static _Thread_local int is_beside_here;

static void interval_add(sherdi_marks *marks, const sherdi_mark *mark, int64_t start_ns,
                         int64_t end_ns)
{
    sherdi_mark_kind kind = mark->kind;

    (void)atomic_fetch_add_explicit(&marks->spent_ns[mark->is_beside][kind], end_ns - start_ns,
                                    memory_order_relaxed);
    sum_add(&marks->sums[kind], mark->bytes, end_ns - start_ns);
    if (marks->logs_transfers) {
        transfer_log(kind, mark->what, mark->bytes, end_ns - start_ns);
    }
    sherdi_trace_interval(marks->trace, KINDS[kind].lane, KINDS[kind].name, mark->what, mark->bytes,
                          start_ns, end_ns);
}

void sherdi_mark_add(sherdi_marks *marks, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                     int64_t start_ns, int64_t end_ns)
{
    const sherdi_mark mark = {
        .kind = kind, .what = what, .bytes = bytes, .is_beside = is_beside_here};

    interval_add(marks, &mark, start_ns, end_ns);
}

/* Returns the oldest mark that was not read; NULL: there is none, or it has not ended. */
static sherdi_mark_slot *oldest(const sherdi_marks *marks)
{
    sherdi_mark_slot *slot = &marks->slots[marks->resolved % SHERDI_MARK_SLOTS];

    return marks->resolved < marks->begun && slot->mark.slot >= 0 ? slot : NULL;
}

/* Adds the time of a mark that the device has passed. */
static void slot_resolve(sherdi_marks *marks, const sherdi_backend *lane,
                         const sherdi_mark_slot *slot)
{
    interval_add(marks, &slot->mark, lane->device->event_ns(slot->start),
                 lane->device->event_ns(slot->end));
    marks->resolved++;
}

static void oldest_resolve(sherdi_marks *marks, const sherdi_backend *lane)
{
    const sherdi_mark_slot *slot;

    while ((slot = oldest(marks)) != NULL && lane->device->event_is_done(slot->end)) {
        slot_resolve(marks, lane, slot);
    }
}

void sherdi_marks_resolve(sherdi_marks *marks, const sherdi_backend *lane)
{
    if (marks->slots != NULL) {
        (void)pthread_mutex_lock(&marks->lock);
        oldest_resolve(marks, lane);
        (void)pthread_mutex_unlock(&marks->lock);
    }
}

/* Returns the end of the oldest mark before `until` that was not read; NULL: there is none, or it
 * has not ended. */
static sherdi_event *oldest_end(sherdi_marks *marks, uint64_t until)
{
    const sherdi_mark_slot *slot;

    (void)pthread_mutex_lock(&marks->lock);
    slot = marks->resolved < until ? oldest(marks) : NULL;
    (void)pthread_mutex_unlock(&marks->lock);
    return slot == NULL ? NULL : slot->end;
}

sherd_status sherdi_marks_wait(sherdi_marks *marks, const sherdi_backend *lane, uint64_t until)
{
    sherdi_event *end;

    while (marks->slots != NULL && (end = oldest_end(marks, until)) != NULL) {
        SHERDI_TRY(lane->device->event_wait(end));
        sherdi_marks_resolve(marks, lane);
    }
    return SHERD_OK;
}

sherdi_mark sherdi_mark_begin(sherdi_marks *marks, sherdi_mark_kind kind,
                              const sherdi_backend *lane, const char *what, uint64_t bytes)
{
    sherdi_mark mark = {
        .kind = kind, .what = what, .bytes = bytes, .slot = -1, .is_beside = is_beside_here};

    if (marks->device->range_begin != NULL) {
        mark.range = marks->device->range_begin(what == NULL ? KINDS[kind].name : what);
    }
    if (lane == NULL || !lane->device->is_async) {
        mark.start_ns = sherdi_now_ns();
        return mark;
    }
    if (marks->slots == NULL) {
        return mark;
    }
    (void)pthread_mutex_lock(&marks->lock);
    if (marks->begun - marks->resolved == SHERDI_MARK_SLOTS) {
        oldest_resolve(marks, lane);
    }
    if (marks->begun - marks->resolved < SHERDI_MARK_SLOTS) { /* else this one is not timed */
        sherdi_mark_slot *slot = &marks->slots[marks->begun % SHERDI_MARK_SLOTS];

        slot->mark.slot = -1; /* until it ends */
        mark.slot       = (int)(marks->begun++ % SHERDI_MARK_SLOTS);
        lane->device->event_record(slot->start, lane);
    }
    (void)pthread_mutex_unlock(&marks->lock);
    return mark;
}

void sherdi_mark_end(sherdi_marks *marks, const sherdi_backend *lane, const sherdi_mark *mark)
{
    if (mark->range != 0) {
        marks->device->range_end(mark->range);
    }
    if (mark->slot >= 0) {
        (void)pthread_mutex_lock(&marks->lock);
        lane->device->event_record(marks->slots[mark->slot].end, lane);
        marks->slots[mark->slot].mark = *mark;
        (void)pthread_mutex_unlock(&marks->lock);
    } else if (mark->start_ns != 0) {
        interval_add(marks, mark, mark->start_ns, sherdi_now_ns());
    }
}

static double spent_take(sherdi_marks *marks, int is_beside, sherdi_mark_kind kind)
{
    return (double)atomic_exchange_explicit(&marks->spent_ns[is_beside][kind], 0,
                                            memory_order_relaxed) *
           1e-9;
}

double sherdi_marks_take(sherdi_marks *marks, sherdi_mark_kind kind)
{
    return spent_take(marks, 0, kind);
}

double sherdi_marks_take_beside(sherdi_marks *marks, sherdi_mark_kind kind)
{
    return spent_take(marks, 1, kind);
}

void sherdi_marks_beside(void)
{
    is_beside_here = 1;
}
