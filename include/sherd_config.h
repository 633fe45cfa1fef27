/* Configurations as JSON with DeepSpeed's keys: calls of the module "json". sherd.h includes this
 * header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_CONFIG_H)
#define SHERD_CONFIG_H

/** Receives text in pieces. A return other than SHERD_OK stops the writer. */
typedef sherd_status (*sherd_write_fn)(void *ctx, const char *text, size_t len_bytes);

/** Reads a DeepSpeed-style JSON file; comments and trailing commas are allowed.
 *  docs/configuration.md lists the keys. Warnings go to the log, and sherd_config_warning() returns
 *  them. Errors: E_IO, E_INVAL with file:line:column. */
SHERD_CALL sherd_config_load(const char *path, sherd_config **out);
SHERD_CALL sherd_config_parse(const char *json, size_t len_bytes, sherd_config **out);
/** Sets one key, for example "optimizer.params.lr" to "1e-3"; the value is JSON. It replaces a
 *  value that is "auto" in the file. If the file has another explicit value, the call fails
 *  (E_INVAL, naming both values). A key that starts with '!' overrides the file. */
SHERD_CALL sherd_config_set(sherd_config *config, const char *dotted_key, const char *json_value);
/** Returns 1 when the key has a value from the file, from the program or by default. Returns 0 when
 *  it is "auto" or has no value, so that the program should set one, and for an unknown key. */
SHERD_API int sherd_config_has(const sherd_config *config, const char *dotted_key);
/** Writes the resolved configuration as JSON: each key with its value and origin. */
SHERD_CALL       sherd_config_dump(const sherd_config *config, sherd_write_fn write, void *ctx);
SHERD_API size_t sherd_config_warning_count(const sherd_config *config);
SHERD_API const char *sherd_config_warning(const sherd_config *config, size_t index);

#endif
