/* The schedules, a line each: the name in the code, the "scheduler.type" in a configuration, and
 * the table. schedule.h declares the tables from this list, and schedule.c lists them. A build has
 * the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_SCHEDULES
SHERDI_SCHEDULE(WARMUP, "WarmupLR", sherdi_schedule_warmup)
SHERDI_SCHEDULE(WARMUP_DECAY, "WarmupDecayLR", sherdi_schedule_warmup_decay)
SHERDI_SCHEDULE(WARMUP_COSINE, "WarmupCosineLR", sherdi_schedule_warmup_cosine)
SHERDI_SCHEDULE(ONE_CYCLE, "OneCycle", sherdi_schedule_one_cycle)
SHERDI_SCHEDULE(RANGE_TEST, "LRRangeTest", sherdi_schedule_range_test)
SHERDI_SCHEDULE(FLAT, "constant", sherdi_schedule_flat)
SHERDI_SCHEDULE(FLAT_WARMUP, "constant_with_warmup", sherdi_schedule_flat_warmup)
SHERDI_SCHEDULE(LINEAR, "linear", sherdi_schedule_linear)
SHERDI_SCHEDULE(COSINE, "cosine", sherdi_schedule_cosine)
SHERDI_SCHEDULE(RESTARTS, "cosine_with_restarts", sherdi_schedule_restarts)
SHERDI_SCHEDULE(COSINE_MIN, "cosine_with_min_lr", sherdi_schedule_cosine_min)
SHERDI_SCHEDULE(POLYNOMIAL, "polynomial", sherdi_schedule_polynomial)
SHERDI_SCHEDULE(INVERSE_SQRT, "inverse_sqrt", sherdi_schedule_inverse_sqrt)
SHERDI_SCHEDULE(STABLE_DECAY, "warmup_stable_decay", sherdi_schedule_stable_decay)
#endif
