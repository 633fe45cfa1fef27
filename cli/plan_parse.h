/* Between the two halves of reading the arguments of sherd plan: plan_options.c reads them one by
 * one, and plan_request.c combines them. */
#ifndef SHERD_CLI_PLAN_PARSE_H
#define SHERD_CLI_PLAN_PARSE_H

#include "cli/plan.h"

#include "models/arch.h"

/* The values of the options, before they are combined. */
typedef struct plan_parse {
    plan_options *out;
    arch_kind     kind;
    const char   *preset, *path, *count;
    arch          given; /* sizes set one by one; max_length is also the length of the sequences */
    int           has_kind;
    size_t        tokens, batch;
    int           stages[4], num_stages;
    planning_offload offloads[PLANNING_OFFLOADS];
    int              num_offloads;
    int              is_every_stage, is_every_offload;
    const char      *backend;
} plan_parse;

/** Makes `in->out` from the options. Returns what plan_options_init returns. */
int plan_request_make(plan_parse *in);
/** Prints the presets of an architecture to standard output. */
void plan_presets_list(arch_kind kind);

#endif
