/* The configuration of a run: the file, or the built-in default.json, with what the command line
 * says over it and with "auto" filled. */
#ifndef LLM_SETTINGS_H
#define LLM_SETTINGS_H

#include "options.h"
#include "sherd.h"

/** `stage` over all else, -1: as asked for. Fails with sherd_last_error(). */
SHERD_MUST_USE sherd_status settings_make(const options *o, int stage, sherd_config **out);

#endif
