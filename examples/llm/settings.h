/* Makes the configuration of a run: the user's file or the built-in default.json, overridden by the command line, with values for
 * every "auto". */
#ifndef LLM_SETTINGS_H
#define LLM_SETTINGS_H

#include "options.h"
#include "sherd.h"

/** `stage` overrides file and command line; -1: it does not. The caller destroys `*out`. Fails with sherd_last_error(). */
SHERD_MUST_USE sherd_status settings_make(const options *o, int stage, sherd_config **out);

/** Returns whether settings_make runs in this thread. Every rank makes its own, and rank 0 prints what there is to warn of. */
int settings_are_being_made(void);

#endif
