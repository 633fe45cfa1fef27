/* The events of a device on which every call has ended when it returns: all are done, and following
 * does nothing. See lanes.h. */
#include "kernels/lanes.h"

/* Its address stands for every event. */
static char always_done;

static void none_lane_follow(const sherdi_backend *lane, const sherdi_backend *other)
{
    (void)lane;
    (void)other;
}

static sherd_status none_event_create(sherdi_backend *lane, int is_timed, sherdi_event **out)
{
    (void)lane;
    (void)is_timed;
    *out = (sherdi_event *)&always_done;
    return SHERD_OK;
}

static void none_event_destroy(sherdi_event *event)
{
    (void)event;
}

static void none_event_record(sherdi_event *event, const sherdi_backend *lane)
{
    (void)event;
    (void)lane;
}

static void none_lane_follow_event(const sherdi_backend *lane, const sherdi_event *event)
{
    (void)lane;
    (void)event;
}

static int none_event_is_done(const sherdi_event *event)
{
    (void)event;
    return 1;
}

static sherd_status none_event_wait(const sherdi_event *event)
{
    (void)event;
    return SHERD_OK;
}

static int64_t none_event_ns(const sherdi_event *event)
{
    (void)event;
    return 0;
}

static void *none_lane_stream(const sherdi_backend *lane)
{
    (void)lane;
    return NULL;
}

const sherdi_lane_ops sherdi_lanes_none = {
    .lane_follow       = none_lane_follow,
    .event_create      = none_event_create,
    .event_destroy     = none_event_destroy,
    .event_record      = none_event_record,
    .lane_follow_event = none_lane_follow_event,
    .event_is_done     = none_event_is_done,
    .event_wait        = none_event_wait,
    .event_ns          = none_event_ns,
    .lane_stream       = none_lane_stream,
};
