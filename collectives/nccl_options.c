/* Options of NCCL for a world: SHERD_NCCL_OPTIONS, words separated by commas. The communicator is
 * made with the world, before there is a configuration, so these cannot be keys. Which of them pays
 * depends on machine and library, and is measured (docs/gpu.md). Without the variable NCCL works
 * with its defaults.
 *
 *   alltoall      ncclAlltoAll instead of a group of sends and receives (library of 2.28 or newer)
 *   windows       the world's memory is allocated by NCCL and registered as symmetric windows; the
 *                 library then copies directly, also by copy engines (2.27 or newer)
 *   policy=P      CTA policy of the communicator: default, efficiency, or zero, which leaves copies
 *                 to the copy engines
 *   ctas=N        at most N thread blocks per collective
 *   unregistered  the world's memory is not registered with NCCL; by default it is, where the
 *                 library can
 *
 * An option that the library lacks is an error, which says what version it needs. */
#include "collectives/nccl_impl.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE  "SHERD_NCCL_OPTIONS"
#define MOST_CTAS 64

static const char *const POLICIES[] = {"default", "efficiency", "zero"};

static sherd_status lacks(const char *word, const char *needed)
{
    int version = sherdi_nccl_api.version;

    return sherdi_fail(SHERD_E_NOTSUP, VARIABLE ": %s needs %s; this is NCCL %d.%d.%d", word,
                       needed, version / 10000, version / 100 % 100, version % 100);
}

static sherd_status policy_read(const char *value, sherdi_nccl_options *out)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, POLICIES[i]) == 0) {
            out->policy = i;
            return SHERD_OK;
        }
    }
    return sherdi_fail(SHERD_E_INVAL, VARIABLE ": policy is default, efficiency or zero, not %s",
                       value);
}

static sherd_status ctas_read(const char *value, sherdi_nccl_options *out)
{
    char *end;
    long  count = strtol(value, &end, 10);

    if (*value == '\0' || *end != '\0' || count < 1 || count > MOST_CTAS) {
        return sherdi_fail(SHERD_E_INVAL, VARIABLE ": ctas is a number from 1 to %d, not %s",
                           MOST_CTAS, value);
    }
    out->most_ctas = (int)count;
    return SHERD_OK;
}

static sherd_status word_read(const char *word, sherdi_nccl_options *out)
{
    if (strcmp(word, "alltoall") == 0) {
        out->has_all_to_all = 1;
        return sherdi_nccl_api.AlltoAll != NULL ? SHERD_OK : lacks(word, "2.28 or newer");
    }
    if (strcmp(word, "windows") == 0) {
        out->has_windows = 1;
        return sherdi_nccl_api.CommWindowRegister != NULL &&
                       sherdi_nccl_api.CommWindowDeregister != NULL &&
                       sherdi_nccl_api.MemAlloc != NULL && sherdi_nccl_api.MemFree != NULL
                   ? SHERD_OK
                   : lacks(word, "2.27 or newer");
    }
    if (strncmp(word, "policy=", 7) == 0) {
        SHERDI_TRY(policy_read(word + 7, out));
#ifdef NCCL_CTA_POLICY_ZERO
        return out->policy == 0 || sherdi_nccl_api.version >= 22800 ? SHERD_OK
                                                                    : lacks(word, "2.28 or newer");
#else
        return out->policy == 0 ? SHERD_OK
                                : lacks(word, "a sherd built with the header of 2.28 or newer");
#endif
    }
    if (strncmp(word, "ctas=", 5) == 0) {
        return ctas_read(word + 5, out);
    }
    if (strcmp(word, "unregistered") == 0) {
        out->is_unregistered = 1;
        return SHERD_OK;
    }
    return sherdi_fail(SHERD_E_INVAL,
                       VARIABLE " has \"%s\"; its words are alltoall, windows, policy=P, ctas=N "
                                "and unregistered",
                       word);
}

sherd_status sherdi_nccl_options_read(sherdi_nccl_options *out)
{
    const char *text = getenv(VARIABLE);
    char        words[128];
    char       *rest = words;

    *out = (sherdi_nccl_options){.most_ctas = 0};
    if (text == NULL) {
        return SHERD_OK;
    }
    if (strlen(text) >= sizeof(words)) {
        return sherdi_fail(SHERD_E_INVAL, VARIABLE " is longer than %zu characters",
                           sizeof(words) - 1);
    }
    memcpy(words, text, strlen(text) + 1);
    for (char *word; (word = strsep(&rest, ",")) != NULL;) {
        if (*word != '\0') {
            SHERDI_TRY(word_read(word, out));
        }
    }
    if (out->has_windows && out->is_unregistered) {
        return sherdi_fail(
            SHERD_E_INVAL,
            VARIABLE ": give windows or unregistered, not both: memory in windows is registered");
    }
    return SHERD_OK;
}

void sherdi_nccl_options_apply(const sherdi_nccl_options *options, ncclConfig_t *config)
{
    if (options->most_ctas > 0) {
        config->maxCTAs = options->most_ctas;
    }
#ifdef NCCL_CTA_POLICY_ZERO
    if (options->policy > 0) {
        config->CTAPolicy =
            options->policy == 2 ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
    }
#endif
}

void sherdi_nccl_options_log(const sherdi_nccl_options *options, int rank)
{
    int  version  = sherdi_nccl_api.version;
    char ctas[32] = "as many blocks as it likes";

    if (options->most_ctas > 0) {
        (void)snprintf(ctas, sizeof(ctas), "at most %d blocks", options->most_ctas);
    }
    sherdi_log(SHERD_LOG_INFO, rank, "NCCL %d.%d.%d: all-to-all by %s, memory %s, policy %s, %s",
               version / 10000, version / 100 % 100, version % 100,
               options->has_all_to_all ? "ncclAlltoAll" : "sends and receives",
               options->has_windows       ? "in symmetric windows"
               : options->is_unregistered ? "unregistered"
                                          : "as the device gives it",
               POLICIES[options->policy], ctas);
}
