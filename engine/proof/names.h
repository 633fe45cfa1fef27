/* What operations, lanes and places are called where people read of them. */
#ifndef SHERDI_ENGINE_PROOF_NAMES_H
#define SHERDI_ENGINE_PROOF_NAMES_H

#include "engine/program/program.h"

/** Returns "trainable" and so on, of wide segments "trainable fp32" and so on. */
const char *sherdi_segment_name(const sherdi_segment *segment);
const char *sherdi_op_kind_name(sherdi_op_kind kind);
const char *sherdi_lane_name(sherdi_lane_id lane);
/** Returns "reads", "writes" or "adds". */
const char *sherdi_access_name(sherdi_access access);
/** Returns "gathered units", ..., "file of state". */
const char *sherdi_where_name(const sherdi_plan *plan, int where);

#endif
