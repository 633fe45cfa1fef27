/* The optional parts of an engine, which are members of it: the header with the table of each, and
 * the module that has it. A build has the tables of its modules (modules.txt). */
#ifndef SHERDI_ENGINE_RUN_PARTS_LIST_H
#define SHERDI_ENGINE_RUN_PARTS_LIST_H

#include "sherd_build.h"

#define SHERDI_IN_storage(...)     SHERDI_IN_OFFLOAD(__VA_ARGS__)
#define SHERDI_IN_updater(...)     SHERDI_IN_OFFLOAD(__VA_ARGS__)
#define SHERDI_IN_times(...)       SHERDI_IN_TRACE(__VA_ARGS__)
#define SHERDI_IN_lanes(...)       SHERDI_IN_LANES(__VA_ARGS__)
#define SHERDI_IN_queue(...)       SHERDI_IN_QUEUED(__VA_ARGS__)
#define SHERDI_IN_kernel_data(...) SHERDI_IN_DEVICES(__VA_ARGS__)
#define SHERDI_IN_sums(...)        SHERDI_IN_FINGERPRINTS(__VA_ARGS__)

#ifdef SHERDI_MODULE_OFFLOAD
#include "engine/run/offload_ops.h"
#include "engine/run/rings.h"
#endif
#ifdef SHERDI_MODULE_REPORTS
#include "engine/report.h"
#endif
#ifdef SHERDI_MODULE_TRACE
#include "engine/run/times.h"
#endif
#ifdef SHERDI_MODULE_LANES
#include "engine/run/lanes_ops.h"
#endif
#ifdef SHERDI_MODULE_QUEUED
#include "engine/run/queue.h"
#endif
#ifdef SHERDI_MODULE_DEVICES
#include "engine/run/scalars_device.h"
#endif
#ifdef SHERDI_MODULE_FINGERPRINTS
#include "engine/run/unit_sums.h"
#endif

/* Members of an engine that are a module's alone. */
#define SHERDI_OWN_MEMBERS                                                                         \
    SHERDI_IN_REPORTS(sherdi_reports reports;)                                                     \
    SHERDI_IN_OFFLOAD(sherdi_block_call block_call;)                                               \
    SHERDI_IN_ELASTIC(struct sherdi_elastic *elastic;)                                             \
    SHERDI_IN_FINGERPRINTS(sherdi_sums sums;)

/* Calls a function of rings.h. In a build without rings the value is `otherwise`. */
#define SHERDI_RINGS(call, otherwise) (SHERDI_IN_OFFLOAD(1 ? (call) :)(otherwise))

/* Calls a function of a part of `engine`. If the build or the engine does not have the part, or the
 * part the function, the value is `otherwise`. */
#define SHERDI_IF(part, name, arguments, otherwise)                                                \
    (SHERDI_IN_##part(engine->part.ops != NULL && engine->part.ops->name != NULL                   \
                          ? engine->part.ops->name arguments                                       \
                          :)(otherwise))
/* Do so with a function that returns a status, and with one that returns nothing. */
#define SHERDI_ASK(part, name, ...)  SHERDI_IF(part, name, (__VA_ARGS__), SHERD_OK)
#define SHERDI_TELL(part, name, ...) SHERDI_IF(part, name, (__VA_ARGS__), (void)0)

#endif
