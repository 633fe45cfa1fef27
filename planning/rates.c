/* Rates: assumed, read from a file, or set by an option. See rates.h. */
#include "planning/rates.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rate outside this range is a mistake, and would give times that are no numbers. */
#define LEAST_RATE 1e-3
#define MOST_RATE  1e24

static const char *const NAMES[PLANNING_RATES] = {
    [PLANNING_RATE_FLOPS]      = "flops",
    [PLANNING_RATE_WIRE]       = "wire",
    [PLANNING_RATE_BETWEEN]    = "between",
    [PLANNING_RATE_DOWN]       = "down",
    [PLANNING_RATE_UP]         = "up",
    [PLANNING_RATE_NVME_READ]  = "nvme_read",
    [PLANNING_RATE_NVME_WRITE] = "nvme_write",
    [PLANNING_RATE_DEVICE]     = "device",
    [PLANNING_RATE_HOST]       = "host",
    [PLANNING_RATE_PRODUCTS]   = "products",
};

/* A rank on a host with eight GPUs like the H100: 40 % of 989 teraflops, 80 % of the 450 GB/s of
 * NVLink 4, a 400 Gb/s port, PCIe 5 x16, two drives per host, 3.35 TB/s of device memory at 90 %, an
 * eighth of 400 GB/s of host memory, and half of 67 teraflops in fp32. */
static const double CUDA[PLANNING_RATES] = {
    [PLANNING_RATE_FLOPS] = 4e14,     [PLANNING_RATE_WIRE] = 3.6e11,
    [PLANNING_RATE_BETWEEN] = 4e10,   [PLANNING_RATE_DOWN] = 5e10,
    [PLANNING_RATE_UP] = 5e10,        [PLANNING_RATE_NVME_READ] = 1e10,
    [PLANNING_RATE_NVME_WRITE] = 6e9, [PLANNING_RATE_DEVICE] = 3e12,
    [PLANNING_RATE_HOST] = 5e10,      [PLANNING_RATE_PRODUCTS] = 3e13,
};

/* One of two ranks on two cores of a server with a virtual disk and half of a port of 10 Gb/s. */
static const double CPU[PLANNING_RATES] = {
    [PLANNING_RATE_FLOPS] = 1e11,       [PLANNING_RATE_WIRE] = 8e9,
    [PLANNING_RATE_BETWEEN] = 6e8,      [PLANNING_RATE_DOWN] = 1e10,
    [PLANNING_RATE_UP] = 1e10,          [PLANNING_RATE_NVME_READ] = 1.7e9,
    [PLANNING_RATE_NVME_WRITE] = 2.5e9, [PLANNING_RATE_DEVICE] = 2.5e10,
    [PLANNING_RATE_HOST] = 2.5e10,      [PLANNING_RATE_PRODUCTS] = 1e11,
};

const char *planning_rate_name(planning_rate rate)
{
    return NAMES[rate];
}

const char *planning_origin_name(planning_origin origin)
{
    static const char *const ORIGINS[] = {"assumed", "measured", "given"};

    return ORIGINS[origin];
}

const char *planning_assumed_machine(const char *backend)
{
    return strcmp(backend, "cuda") == 0
               ? "hosts with eight H100s, NVLink, 400 Gb/s each and two drives"
               : "hosts with two cores and 10 Gb/s";
}

void planning_rates_assume(const char *backend, planning_rates *out)
{
    const double *values = strcmp(backend, "cuda") == 0 ? CUDA : CPU;

    for (int i = 0; i < PLANNING_RATES; i++) {
        out->values[i]  = values[i];
        out->origins[i] = PLANNING_ASSUMED;
    }
}

static int rate_find(const char *name, size_t len)
{
    for (int i = 0; i < PLANNING_RATES; i++) {
        if (strlen(NAMES[i]) == len && strncmp(NAMES[i], name, len) == 0) {
            return i;
        }
    }
    return -1;
}

#define NAMES_BYTES 128

/* Writes the names of the rates, "flops, wire, ...". Returns `out`. */
static const char *names_list(char out[NAMES_BYTES])
{
    size_t used = 0;

    out[0] = '\0';
    for (int i = 0; i < PLANNING_RATES && used < NAMES_BYTES; i++) {
        used +=
            (size_t)snprintf(out + used, NAMES_BYTES - used, "%s%s", i == 0 ? "" : ", ", NAMES[i]);
    }
    return out;
}

static int rates_take(const char *path, const char *backend, const json_t *root,
                      planning_rates *rates, char *why, size_t why_bytes)
{
    const json_t *measured = json_object_get(root, "backend");
    int           found    = 0;
    char          names[NAMES_BYTES];

    if (json_is_string(measured) && strcmp(json_string_value(measured), backend) != 0) {
        (void)snprintf(why, why_bytes, "%s has rates of the backend %s, and this plan is for %s",
                       path, json_string_value(measured), backend);
        return -1;
    }

    for (int i = 0; i < PLANNING_RATES; i++) {
        const json_t *value = json_object_get(root, NAMES[i]);

        if (value == NULL || json_is_null(value)) {
            continue;
        }
        if (!json_is_number(value) || !(json_number_value(value) >= LEAST_RATE) ||
            json_number_value(value) > MOST_RATE) {
            (void)snprintf(why, why_bytes,
                           "%s: \"%s\" has to be a rate per second, a number from 1e-3 to 1e24",
                           path, NAMES[i]);
            return -1;
        }
        rates->values[i]  = json_number_value(value);
        rates->origins[i] = PLANNING_MEASURED;
        found             = 1;
    }
    if (!found) {
        (void)snprintf(why, why_bytes,
                       "%s has none of the rates %s; sherd bench --out FILE writes such a file",
                       path, names_list(names));
        return -1;
    }
    return 0;
}

int planning_rates_load(const char *path, const char *backend, planning_rates *rates, char *why,
                        size_t why_bytes)
{
    json_error_t error;
    json_t      *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    int          result;

    if (root == NULL) {
        if (error.line < 1) { /* nothing was read */
            (void)snprintf(why, why_bytes, "%s: %s", path, error.text);
        } else {
            (void)snprintf(why, why_bytes, "%s:%d:%d: %s", path, error.line, error.column,
                           error.text);
        }
        return -1;
    }
    result = rates_take(path, backend, root, rates, why, why_bytes);
    json_decref(root);
    return result;
}

/* Reads "25e9" or "25G"; suffixes are powers of 1000, as usual for rates. Returns 0 for other
 * texts. */
static double number_parse(const char *text, size_t len)
{
    static const char SUFFIXES[] = "KMGTP";
    char              copy[64];
    char             *end;
    const char       *suffix;
    double            value;

    if (len == 0 || len >= sizeof(copy)) {
        return 0;
    }
    memcpy(copy, text, len);
    copy[len] = '\0';
    value     = strtod(copy, &end);
    if (end == copy || !isfinite(value) || value <= 0) {
        return 0;
    }
    if (*end == '\0') {
        return value >= LEAST_RATE && value <= MOST_RATE ? value : 0;
    }
    suffix = strchr(SUFFIXES, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
    if (suffix == NULL || end[1] != '\0') {
        return 0;
    }
    value *= pow(1000, (double)(suffix - SUFFIXES + 1));
    return value >= LEAST_RATE && value <= MOST_RATE ? value : 0;
}

int planning_rates_set(const char *text, planning_rates *rates, char *why, size_t why_bytes)
{
    char names[NAMES_BYTES];

    while (*text != '\0') {
        size_t      len    = strcspn(text, ",");
        const char *equals = memchr(text, '=', len);
        int         rate   = equals == NULL ? -1 : rate_find(text, (size_t)(equals - text));
        double      value =
            equals == NULL ? 0 : number_parse(equals + 1, len - (size_t)(equals + 1 - text));

        if (rate < 0 || value == 0) {
            (void)snprintf(why, why_bytes,
                           "'%.*s' is not a rate; give NAME=VALUE, a value per second, where NAME "
                           "is one of %s, "
                           "for example wire=50e9,up=25G",
                           (int)len, text, names_list(names));
            return -1;
        }
        rates->values[rate]  = value;
        rates->origins[rate] = PLANNING_GIVEN;
        text += len + (text[len] == ',');
    }
    return 0;
}
