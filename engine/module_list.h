/* The modules that take part in an engine's life, a line each: the name of the module's table.
 * modules.h declares the tables from this list, and modules.c calls them in this order. A build has
 * the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_STEPS
SHERDI_MODULE(sherdi_module_alone)
#endif
#ifdef SHERDI_MODULE_USES
SHERDI_MODULE(sherdi_module_uses)
#endif
#ifdef SHERDI_MODULE_JSON
SHERDI_MODULE(sherdi_module_groups)
#endif
#ifdef SHERDI_MODULE_SCHEDULES
SHERDI_MODULE(sherdi_module_schedules)
#endif
#ifdef SHERDI_MODULE_PROOF
SHERDI_MODULE(sherdi_module_proof)
#endif
#ifdef SHERDI_MODULE_CHECKPOINTS
SHERDI_MODULE(sherdi_module_checkpoints)
#endif
#ifdef SHERDI_MODULE_OFFLOAD
SHERDI_MODULE(sherdi_module_offload)
SHERDI_MODULE(sherdi_module_rings)
SHERDI_MODULE(sherdi_module_store)
SHERDI_MODULE(sherdi_module_updater)
#endif
#ifdef SHERDI_MODULE_ENCODINGS
SHERDI_MODULE(sherdi_module_encodings)
SHERDI_MODULE(sherdi_module_encoded_values)
#endif
#ifdef SHERDI_MODULE_MEMORY
SHERDI_MODULE(sherdi_module_memory)
#endif
#ifdef SHERDI_MODULE_DETERMINISTIC
SHERDI_MODULE(sherdi_module_deterministic)
#endif
#ifdef SHERDI_MODULE_MUON
SHERDI_MODULE(sherdi_module_muon)
#endif
#ifdef SHERDI_MODULE_ACTIVATIONS
SHERDI_MODULE(sherdi_module_activations)
#endif
#ifdef SHERDI_MODULE_DETERMINISTIC
SHERDI_MODULE(sherdi_module_fixed)
#endif
#ifdef SHERDI_MODULE_LAMB
SHERDI_MODULE(sherdi_module_ratios)
#endif
#ifdef SHERDI_MODULE_LANES
SHERDI_MODULE(sherdi_module_lanes)
#endif
#ifdef SHERDI_MODULE_SCALING
SHERDI_MODULE(sherdi_module_scaling)
#endif
#ifdef SHERDI_MODULE_BLOBS
SHERDI_MODULE(sherdi_module_blobs)
#endif
#ifdef SHERDI_MODULE_TRACE
SHERDI_MODULE(sherdi_module_times)
#endif
#ifdef SHERDI_MODULE_DIFFERENCES
SHERDI_MODULE(sherdi_module_differences)
SHERDI_MODULE(sherdi_module_first_values)
#endif
#ifdef SHERDI_MODULE_LIMITS
SHERDI_MODULE(sherdi_module_limits)
#endif
#ifdef SHERDI_MODULE_DEVICES
SHERDI_MODULE(sherdi_module_devices)
#endif
#ifdef SHERDI_MODULE_HINTS
SHERDI_MODULE(sherdi_module_hints)
#endif
#ifdef SHERDI_MODULE_DEBUG
SHERDI_MODULE(sherdi_module_debug)
#endif
#ifdef SHERDI_MODULE_MONITORS
SHERDI_MODULE(sherdi_module_monitors)
#endif
