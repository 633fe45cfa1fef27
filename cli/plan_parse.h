/* Between the two halves of reading the arguments of sherd plan: plan_options.c takes them one by one,
 * plan_request.c puts them together. */
#ifndef SHERD_CLI_PLAN_PARSE_H
#define SHERD_CLI_PLAN_PARSE_H

#include "cli/plan.h"

#include "models/arch.h"

/* What the options say before it is put together. */
typedef struct plan_parse {
    plan_options    *out;
    arch_kind        kind;
    const char      *preset, *path, *count;
    arch             given; /* sizes one by one; max_length is the sequence's too */
    int              has_kind;
    size_t           tokens, batch;
    int              stages[4], num_stages;
    planning_offload offloads[PLANNING_OFFLOADS];
    int              num_offloads;
    int              is_every_stage, is_every_offload;
    const char      *backend;
} plan_parse;

/** Puts `in->out` together. As plan_options_init. */
int plan_request_make(plan_parse *in);
/** The presets of an architecture, to standard output. */
void plan_presets_list(arch_kind kind);

#endif
