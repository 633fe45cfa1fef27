/* See names.h. */
#include "engine/proof/names.h"

const char *sherdi_op_kind_name(sherdi_op_kind kind)
{
    static const char *const NAMES[SHERDI_OP_KINDS] = {
        "use",     "zero",   "copy",         "cast",        "accumulate", "encode",   "decode",
        "widen",   "gather", "reduce",       "all-reduce",  "across",     "exchange", "sum",
        "fill",    "take",   "read",         "write",       "commit",     "abandon",  "rollback",
        "norm",    "update", "matrix",       "fingerprint", "save",       "load",     "clear",
        "collect", "poison", "coefficients", "ratios",      "hash",       "post",     "put",
        "get",     "await",
    };

    return NAMES[kind];
}

const char *sherdi_lane_name(sherdi_lane_id lane)
{
    static const char *const NAMES[SHERDI_LANES] = {"compute", "update", "up",    "down",
                                                    "wire",    "group",  "drive", "host"};

    return NAMES[lane];
}

const char *sherdi_access_name(sherdi_access access)
{
    static const char *const NAMES[] = {"", "reads", "writes", "adds"};

    return NAMES[access];
}

const char *sherdi_where_name(const sherdi_plan *plan, int where)
{
    static const char *const NAMES[] = {"trainer's parameters", "trainer's gradients",
                                        "file of state",        "file of state, written",
                                        "file of parameters",   "file of gradients",
                                        "file of activations"};

    return where < SHERDI_BUFFERS ? plan->packing.buffers[where].name
                                  : NAMES[where - SHERDI_BUFFERS];
}

const char *sherdi_segment_name(const sherdi_segment *segment)
{
    static const char *const NAMES[2][SHERDI_SEGMENT_KINDS] = {
        {"trainable", "frozen", "persistent"},
        {"trainable fp32", "frozen fp32", "persistent fp32"}};

    return NAMES[segment->is_wide != 0][segment->kind];
}
