/* What steps_per_print, the breakdowns, the monitors and comms_logger show. */
#ifndef SHERDI_ENGINE_RUN_WATCH_H
#define SHERDI_ENGINE_RUN_WATCH_H

#include "base/status.h"

/** Opens the monitors' files on rank 0. E_IO, E_INVAL, E_NOMEM. */
sherd_status sherdi_watch_open(sherd_engine *engine);
/** Logs the memory that is held, if the configuration asks for it. */
void sherdi_watch_sealed(sherd_engine *engine);
/** Call it at the end of a boundary: shows it if its report is complete. Failures are not reported. */
void sherdi_watch_boundary(sherd_engine *engine);
/** Shows the last boundary if that was not done: its report is complete, or will not be. */
void sherdi_watch_told(sherd_engine *engine);
/** Closes the monitors' files; accepts a watch that was never opened. */
void sherdi_watch_close(sherd_engine *engine);

#endif
