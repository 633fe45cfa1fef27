#include "engine/program/order.h"

#include "base/assert.h"

static int overlaps(const sherdi_remembered *access, const sherdi_range *range)
{
    return access->begin < range->offset + range->bytes && range->offset < access->end;
}

static void follow_add(sherdi_follows *out, sherdi_lane_id lane, uint64_t number)
{
    if (lane != SHERDI_LANE_DRIVE) {
        out->last[lane] = number > out->last[lane] ? number : out->last[lane];
        return;
    }
    for (size_t i = 0; i < out->num_drives; i++) {
        if (out->drives[i] == number) {
            return;
        }
    }
    if (out->num_drives == SHERDI_ORDER_DRIVES) {
        out->is_all_drives = 1;
        return;
    }
    out->drives[out->num_drives++] = number;
}

static void floors_follow(const sherdi_op *op, const uint64_t floors[SHERDI_LANES],
                          sherdi_follows *out)
{
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (floors[lane] != 0 && lane == SHERDI_LANE_DRIVE) {
            out->is_all_drives = 1;
        } else if (floors[lane] != 0 && lane != (int)op->lane) {
            follow_add(out, (sherdi_lane_id)lane, floors[lane]);
        }
    }
}

static void range_follows(const sherdi_order_buffer *buffer, const sherdi_op *op,
                          const sherdi_range *range, sherdi_follows *out)
{
    for (size_t i = 0; i < buffer->count; i++) {
        const sherdi_remembered *access = &buffer->accesses[i];

        if ((access->is_write || range->access != SHERDI_READS) && overlaps(access, range) &&
            (access->lane != op->lane || op->lane == SHERDI_LANE_DRIVE)) {
            follow_add(out, access->lane, access->number);
        }
    }
    floors_follow(op, buffer->write_floor, out);
    if (range->access != SHERDI_READS) {
        floors_follow(op, buffer->read_floor, out);
    }
}

void sherdi_order_follows(const sherdi_order *order, const sherdi_op *op, sherdi_follows *out)
{
    *out = (sherdi_follows){0};
    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range *range = &op->uses[role];

        if (range->where != SHERDI_AT_NOWHERE && range->bytes > 0) {
            range_follows(&order->buffers[range->where], op, range, out);
        }
    }
}

/* Forgets accesses that the new one covers and has followed: an operation that follows the new one
 * follows them too. */
static void covered_forget(sherdi_order_buffer *buffer, const sherdi_op *op,
                           const sherdi_range *range)
{
    int    is_write = range->access != SHERDI_READS;
    size_t kept     = 0;

    for (size_t i = 0; i < buffer->count; i++) {
        const sherdi_remembered *access = &buffer->accesses[i];
        int                      is_inside =
            access->begin >= range->offset && access->end <= range->offset + range->bytes;
        int is_older_of_lane = access->lane == op->lane && access->lane != SHERDI_LANE_DRIVE;

        if (!is_inside || !(is_write || (is_older_of_lane && !access->is_write))) {
            buffer->accesses[kept++] = *access;
        }
    }
    buffer->count = kept;
}

/* Invariant: accesses of a lane lie in the order of their numbers. So the first access of a lane
 * that ends in order is its oldest. */
static int is_in_order(const sherdi_order_buffer *buffer)
{
    uint64_t last[SHERDI_LANES] = {0};

    for (size_t i = 0; i < buffer->count; i++) {
        const sherdi_remembered *access = &buffer->accesses[i];

        if (access->number < last[access->lane] || access->begin >= access->end) {
            return 0;
        }
        last[access->lane] = access->number;
    }
    return 1;
}

/* Forgets the oldest access; one of the drive only if there is no other, because transfers do not
 * end in order. */
static void oldest_forget(sherdi_order_buffer *buffer)
{
    const sherdi_remembered *oldest;
    uint64_t                *floors;
    size_t                   at = 0;

    SHERDI_SLOW_ASSERT(is_in_order(buffer));
    while (at < buffer->count && buffer->accesses[at].lane == SHERDI_LANE_DRIVE) {
        at++;
    }
    at     = at == buffer->count ? 0 : at;
    oldest = &buffer->accesses[at];
    floors = oldest->is_write ? buffer->write_floor : buffer->read_floor;
    if (oldest->number > floors[oldest->lane]) {
        floors[oldest->lane] = oldest->number;
    }
    buffer->count--;
    for (; at < buffer->count; at++) {
        buffer->accesses[at] = buffer->accesses[at + 1];
    }
}

void sherdi_order_enter(sherdi_order *order, const sherdi_op *op, uint64_t number)
{
    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range  *range = &op->uses[role];
        sherdi_order_buffer *buffer;

        if (range->where == SHERDI_AT_NOWHERE || range->bytes == 0) {
            continue;
        }
        buffer = &order->buffers[range->where];
        covered_forget(buffer, op, range);
        if (buffer->count == SHERDI_ORDER_ACCESSES) {
            oldest_forget(buffer);
        }
        buffer->accesses[buffer->count++] = (sherdi_remembered){
            .begin    = range->offset,
            .end      = range->offset + range->bytes,
            .number   = number,
            .lane     = op->lane,
            .is_write = range->access != SHERDI_READS,
        };
    }
}

static int is_over(const sherdi_remembered *access, sherdi_lane_id lane, uint64_t number)
{
    return access->lane == lane && (number == 0 || access->number == number ||
                                    (lane != SHERDI_LANE_DRIVE && access->number < number));
}

static void floor_forget(uint64_t *floor, sherdi_lane_id lane, uint64_t number)
{
    if (number == 0 || (lane != SHERDI_LANE_DRIVE && *floor <= number)) {
        *floor = 0;
    }
}

void sherdi_order_forget(sherdi_order *order, sherdi_lane_id lane, uint64_t number)
{
    for (int at = 0; at < SHERDI_BUFFERS_AND_FILES; at++) {
        sherdi_order_buffer *buffer = &order->buffers[at];
        size_t               kept   = 0;

        for (size_t i = 0; i < buffer->count; i++) {
            if (!is_over(&buffer->accesses[i], lane, number)) {
                buffer->accesses[kept++] = buffer->accesses[i];
            }
        }
        buffer->count = kept;
        floor_forget(&buffer->read_floor[lane], lane, number);
        floor_forget(&buffer->write_floor[lane], lane, number);
    }
}
