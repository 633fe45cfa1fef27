/* Makes the configuration of a run: the user's file or the built-in default.json, overridden by the
 * command line, with values for every "auto". */
#ifndef LLM_SETTINGS_H
#define LLM_SETTINGS_H

#include "options.h"
#include "sherd.h"

/** The caller destroys `*out`. Fails with sherd_last_error(). */
SHERD_MUST_USE sherd_status settings_make(const options *o, sherd_config **out);

#endif
