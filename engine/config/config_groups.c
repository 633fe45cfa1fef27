/* "sherd.groups": optimizers and numbers of parameter groups, by the group's name. Members are read
 * like the keys of optimizer.*. engine/groups.c combines them with the program's values of a
 * group. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 128

/* One member of one entry. */
typedef struct member {
    sherdi_config_reader   *reader;
    const sherdi_json_node *node;
    char                    path[PATH_BYTES]; /* "sherd.groups[1].params.lr" */
} member;

static sherd_status member_fail(const member *m, const char *reason)
{
    return sherdi_reader_say(m->reader, m->node, SHERD_E_INVAL, "%s %s", m->path, reason);
}

/* Reads a member like the key `id`. "auto" is refused, since nobody fills it here. */
static sherd_status member_value(const member *m, sherdi_config_id id, sherdi_config_value *out)
{
    int is_auto = 0;

    *out = (sherdi_config_value){0};
    SHERDI_TRY(sherdi_config_value_read(m->reader, &sherdi_config_table[id], m->path, m->node, out,
                                        &is_auto));
    return is_auto ? member_fail(m, "is \"auto\"; leave it out, or give it a value") : SHERD_OK;
}

static sherd_status text_take(const member *m, char *out, size_t room)
{
    if (m->node->kind != SHERDI_JSON_STRING || m->node->string[0] == '\0' ||
        strlen(m->node->string) >= room) {
        return member_fail(m, "is no text, empty, or too long");
    }
    memcpy(out, m->node->string, strlen(m->node->string) + 1);
    return SHERD_OK;
}

/* ---- members ---- */

static sherd_status name_take(const member *m, sherdi_group_settings *out)
{
    SHERDI_TRY(text_take(m, out->name, sizeof(out->name)));
    return strcmp(out->name, "default") == 0
               ? member_fail(m, "is \"default\", whose numbers are those of optimizer.params; "
                                "choose another name")
               : SHERD_OK;
}

static sherd_status type_take(const member *m, sherdi_group_settings *out)
{
    sherdi_config_value value;

    SHERDI_TRY(member_value(m, SHERDI_CONFIG_OPTIMIZER_TYPE, &value));
    out->optimizer = 1 + (int)value.integer;
    return sherdi_optimizer_at((size_t)value.integer)->is_inference
               ? member_fail(m, "is for a whole engine (optimizer.type)")
               : SHERD_OK;
}

/* Packs the patterns, each with its NUL. */
static sherd_status matching_take(const member *m, sherdi_group_settings *out)
{
    int                     is_list = m->node->kind == SHERDI_JSON_ARRAY;
    const sherdi_json_node *node    = is_list ? sherdi_json_first(m->node) : m->node;
    size_t                  at      = 0;

    for (; node != NULL; node = is_list ? sherdi_json_next(node) : NULL) {
        member one = *m;

        one.node = node;
        SHERDI_TRY(text_take(&one, out->matching + at, sizeof(out->matching) - 1 - at));
        at += strlen(out->matching + at) + 1;
    }
    return SHERD_OK;
}

static sherd_status real_take(const member *m, sherdi_config_id id, double *out)
{
    sherdi_config_value value;

    SHERDI_TRY(member_value(m, id, &value));
    *out = value.real;
    return SHERD_OK;
}

static sherd_status lr_take(const member *m, sherdi_group_settings *out)
{
    return real_take(m, SHERDI_CONFIG_LR, &out->lr);
}

static sherd_status betas_take(const member *m, sherdi_group_settings *out)
{
    sherdi_config_value value;

    SHERDI_TRY(member_value(m, SHERDI_CONFIG_BETAS, &value));
    out->beta1 = value.real;
    out->beta2 = value.second;
    return SHERD_OK;
}

static sherd_status eps_take(const member *m, sherdi_group_settings *out)
{
    return real_take(m, SHERDI_CONFIG_EPS, &out->eps);
}

/* A momentum is the group's beta1. */
static sherd_status momentum_take(const member *m, sherdi_group_settings *out)
{
    return real_take(m, SHERDI_CONFIG_MOMENTUM, &out->beta1);
}

static sherd_status decay_take(const member *m, sherdi_group_settings *out)
{
    return real_take(m, SHERDI_CONFIG_WEIGHT_DECAY, &out->weight_decay);
}

static sherd_status exclude_take(const member *m, sherdi_group_settings *out)
{
    sherdi_config_value value;

    SHERDI_TRY(member_value(m, SHERDI_CONFIG_EXCLUDE_1D, &value));
    out->exclude_1d = (int)value.integer;
    return SHERD_OK;
}

static sherd_status params_take(const member *m, sherdi_group_settings *out);

typedef struct taker {
    const char *name;
    sherd_status (*take)(const member *m, sherdi_group_settings *out);
} taker;

static const taker MEMBERS[] = {{"name", name_take},
                                {"type", type_take},
                                {"params", params_take},
                                {"matching", matching_take},
                                {NULL, NULL}};
static const taker PARAMS[]  = {{"lr", lr_take},
                                {"betas", betas_take},
                                {"eps", eps_take},
                                {"momentum", momentum_take},
                                {"weight_decay", decay_take},
                                {"exclude_1d", exclude_take},
                                {NULL, NULL}};

/* Takes all members of a block. */
static sherd_status members_take(const member *block, const taker *takers,
                                 sherdi_group_settings *out)
{
    if (block->node->kind != SHERDI_JSON_OBJECT) {
        return member_fail(block, "must be a block in braces");
    }
    for (const sherdi_json_node *node = sherdi_json_first(block->node); node != NULL;
         node                         = sherdi_json_next(node)) {
        const taker *by  = takers;
        member       one = {.reader = block->reader, .node = node};

        (void)snprintf(one.path, sizeof(one.path), "%.60s.%.60s", block->path, node->key);
        while (by->name != NULL && strcmp(by->name, node->key) != 0) {
            by++;
        }
        if (by->name != NULL) {
            SHERDI_TRY(by->take(&one, out));
        } else if (node->key[0] != '_') {
            return member_fail(&one, "is not known of a group; remove it");
        }
    }
    return SHERD_OK;
}

static sherd_status params_take(const member *m, sherdi_group_settings *out)
{
    return members_take(m, PARAMS, out);
}

/* ---- the list ---- */

static sherd_status entry_take(const member *m, sherdi_group_settings *all, size_t count)
{
    sherdi_group_settings *group = &all[count];

    *group = (sherdi_group_settings){
        .lr = NAN, .beta1 = NAN, .beta2 = NAN, .eps = NAN, .weight_decay = NAN, .exclude_1d = -1};
    SHERDI_TRY(members_take(m, MEMBERS, group));
    if (group->name[0] == '\0') {
        return member_fail(m, "has no name; give the name of the group");
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(all[i].name, group->name) == 0) {
            return member_fail(m, "has the name of an earlier one; keep one of them");
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_config_groups_read(sherdi_config_reader *reader, const char *path,
                                       const sherdi_json_node *node, sherdi_config_value *out)
{
    member                 list = {.reader = reader, .node = node};
    sherdi_group_settings *all;
    size_t                 count  = 0;
    sherd_status           status = SHERD_OK;

    (void)snprintf(list.path, sizeof(list.path), "%.100s", path);
    if (node->kind != SHERDI_JSON_ARRAY) {
        return member_fail(&list, "must be a list of groups");
    }
    all = sherdi_alloc_array(&reader->config->mem, SHERDI_MEM_CONTROL, SHERDI_MAX_GROUPS,
                             sizeof(*all));
    if (all == NULL) {
        return SHERD_E_NOMEM;
    }
    for (const sherdi_json_node *n = sherdi_json_first(node); n != NULL && status == SHERD_OK;
         n                         = sherdi_json_next(n)) {
        member one = {.reader = reader, .node = n};

        (void)snprintf(one.path, sizeof(one.path), "%.60s[%zu]", path, count);
        status = count == SHERDI_MAX_GROUPS
                     ? member_fail(&one, "is one too many; at most 16 are allowed")
                     : entry_take(&one, all, count);
        count++;
    }
    if (status != SHERD_OK) {
        sherdi_free(all);
        return status;
    }
    out->groups  = all;
    out->integer = (int64_t)count;
    return SHERD_OK;
}

static int numbers_are_same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static int groups_are_same(const sherdi_group_settings *a, const sherdi_group_settings *b)
{
    return strcmp(a->name, b->name) == 0 && a->optimizer == b->optimizer &&
           a->exclude_1d == b->exclude_1d && numbers_are_same(a->lr, b->lr) &&
           numbers_are_same(a->beta1, b->beta1) && numbers_are_same(a->beta2, b->beta2) &&
           numbers_are_same(a->eps, b->eps) && numbers_are_same(a->weight_decay, b->weight_decay) &&
           memcmp(a->matching, b->matching, sizeof(a->matching)) == 0;
}

int sherdi_config_groups_same(const sherdi_config_value *a, const sherdi_config_value *b)
{
    for (int64_t i = 0; i < a->integer && a->integer == b->integer; i++) {
        if (!groups_are_same(&a->groups[i], &b->groups[i])) {
            return 0;
        }
    }
    return a->integer == b->integer;
}
