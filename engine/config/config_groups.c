/* "sherd.groups": optimizers and numbers of parameter groups, by the group's name. Members are read
 * like the keys of optimizer.*. engine/groups.c combines them with the program's values of a
 * group. */
#include "engine/config/config_impl.h"
#include "engine/optimizers/optimizer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 128

/* Reads a member like the key `id`. "auto" is refused, since nobody fills it here. */
static sherd_status member_value(const sherdi_config_site *m, sherdi_config_id id,
                                 sherdi_config_value *out)
{
    sherdi_config_site like_key = *m;
    int                is_auto  = 0;

    like_key.key = &sherdi_config_table[id];
    *out         = (sherdi_config_value){0};
    SHERDI_TRY(sherdi_config_value_read(&like_key, out, &is_auto));
    return is_auto
               ? sherdi_site_say(m, SHERD_E_INVAL, "is \"auto\"; leave it out, or give it a value")
               : SHERD_OK;
}

static sherd_status text_take(const sherdi_config_site *m, char *out, size_t room)
{
    if (m->node->kind != SHERDI_JSON_STRING || m->node->string[0] == '\0' ||
        strlen(m->node->string) >= room) {
        return sherdi_site_say(m, SHERD_E_INVAL, "is no text, empty, or too long");
    }
    memcpy(out, m->node->string, strlen(m->node->string) + 1);
    return SHERD_OK;
}

/* ---- members ---- */

static sherd_status name_take(const sherdi_config_site *m, sherdi_group_settings *out)
{
    SHERDI_TRY(text_take(m, out->name, sizeof(out->name)));
    return strcmp(out->name, "default") == 0
               ? sherdi_site_say(m, SHERD_E_INVAL,
                                 "is \"default\", whose numbers are those of optimizer.params; "
                                 "choose another name")
               : SHERD_OK;
}

static sherd_status type_take(const sherdi_config_site *m, sherdi_group_settings *out)
{
    sherdi_config_value value;

    SHERDI_TRY(member_value(m, SHERDI_CONFIG_OPTIMIZER_TYPE, &value));
    out->optimizer = 1 + (int)value.integer;
    return sherdi_optimizer_at((size_t)value.integer)->is_inference
               ? sherdi_site_say(m, SHERD_E_INVAL, "is for a whole engine (optimizer.type)")
               : SHERD_OK;
}

/* Packs the patterns, each with its NUL. */
static sherd_status matching_take(const sherdi_config_site *m, sherdi_group_settings *out)
{
    int                     is_list = m->node->kind == SHERDI_JSON_ARRAY;
    const sherdi_json_node *node    = is_list ? sherdi_json_first(m->node) : m->node;
    size_t                  at      = 0;

    for (; node != NULL; node = is_list ? sherdi_json_next(node) : NULL) {
        sherdi_config_site one = *m;

        one.node = node;
        SHERDI_TRY(text_take(&one, out->matching + at, sizeof(out->matching) - 1 - at));
        at += strlen(out->matching + at) + 1;
    }
    return SHERD_OK;
}

/* The members of params: each is read like its key, and has its name. */
static const struct {
    sherdi_config_id id;
    size_t           offset; /* of its field */
} PARAMS[] = {
    {SHERDI_CONFIG_LR, offsetof(sherdi_group_settings, lr)},
    {SHERDI_CONFIG_BETAS, offsetof(sherdi_group_settings, betas)},
    {SHERDI_CONFIG_EPS, offsetof(sherdi_group_settings, eps)},
    {SHERDI_CONFIG_WEIGHT_DECAY, offsetof(sherdi_group_settings, weight_decay)},
    {SHERDI_CONFIG_EXCLUDE_1D, offsetof(sherdi_group_settings, exclude_1d)},
    {SHERDI_CONFIG_MOMENTUM, offsetof(sherdi_group_settings, betas)}, /* it is the first beta */
};

/* Passes over a comment, and refuses any other member that is not known. */
static sherd_status unknown_take(const sherdi_config_site *m)
{
    return m->node->key[0] == '_'
               ? SHERD_OK
               : sherdi_site_say(m, SHERD_E_INVAL, "is not known of a group; remove it");
}

static sherd_status param_take(const sherdi_config_site *m, sherdi_group_settings *out)
{
    for (size_t i = 0; i < sizeof(PARAMS) / sizeof(PARAMS[0]); i++) {
        const sherdi_config_key *key    = &sherdi_config_table[PARAMS[i].id];
        sherdi_config_effect     effect = {0};

        if (strcmp(sherdi_config_leaf(key->path), m->node->key) == 0) {
            SHERDI_TRY(member_value(m, PARAMS[i].id, &effect.value));
            sherdi_setting_put(key, &effect, (unsigned char *)out + PARAMS[i].offset);
            return SHERD_OK;
        }
    }
    return unknown_take(m);
}

/* Takes all members of a block, each by `take`. */
static sherd_status members_take(const sherdi_config_site *block,
                                 sherd_status (*take)(const sherdi_config_site *,
                                                      sherdi_group_settings *),
                                 sherdi_group_settings *out)
{
    char path[PATH_BYTES];

    if (block->node->kind != SHERDI_JSON_OBJECT) {
        return sherdi_site_say(block, SHERD_E_INVAL, "must be a block in braces");
    }
    for (const sherdi_json_node *node = sherdi_json_first(block->node); node != NULL;
         node                         = sherdi_json_next(node)) {
        sherdi_config_site one = {.reader = block->reader, .path = path, .node = node};

        (void)snprintf(path, sizeof(path), "%.60s.%.60s", block->path, node->key);
        SHERDI_TRY(take(&one, out));
    }
    return SHERD_OK;
}

static sherd_status member_take(const sherdi_config_site *m, sherdi_group_settings *out)
{
    const char *name = m->node->key;

    return strcmp(name, "name") == 0       ? name_take(m, out)
           : strcmp(name, "type") == 0     ? type_take(m, out)
           : strcmp(name, "matching") == 0 ? matching_take(m, out)
           : strcmp(name, "params") == 0   ? members_take(m, param_take, out)
                                           : unknown_take(m);
}

/* ---- the list ---- */

static sherd_status entry_take(const sherdi_config_site *m, sherdi_group_settings *all,
                               size_t count)
{
    sherdi_group_settings *group = &all[count];

    *group = (sherdi_group_settings){
        .lr = NAN, .betas = {NAN, NAN}, .eps = NAN, .weight_decay = NAN, .exclude_1d = -1};
    SHERDI_TRY(members_take(m, member_take, group));
    if (group->name[0] == '\0') {
        return sherdi_site_say(m, SHERD_E_INVAL, "has no name; give the name of the group");
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(all[i].name, group->name) == 0) {
            return sherdi_site_say(m, SHERD_E_INVAL,
                                   "has the name of an earlier one; keep one of them");
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_config_groups_read(const sherdi_config_site *site, sherdi_config_value *out)
{
    sherdi_group_settings *all;
    char                   path[PATH_BYTES];
    size_t                 count  = 0;
    sherd_status           status = SHERD_OK;

    if (site->node->kind != SHERDI_JSON_ARRAY) {
        return sherdi_site_say(site, SHERD_E_INVAL, "must be a list of groups");
    }
    all = sherdi_alloc_array(&site->reader->config->mem, SHERDI_MEM_CONTROL, SHERDI_MAX_GROUPS,
                             sizeof(*all));
    if (all == NULL) {
        return SHERD_E_NOMEM;
    }
    for (const sherdi_json_node *node             = sherdi_json_first(site->node);
         node != NULL && status == SHERD_OK; node = sherdi_json_next(node)) {
        sherdi_config_site one = {.reader = site->reader, .path = path, .node = node};

        (void)snprintf(path, sizeof(path), "%.60s[%zu]", site->path, count);
        status =
            count == SHERDI_MAX_GROUPS
                ? sherdi_site_say(&one, SHERD_E_INVAL, "is one too many; at most 16 are allowed")
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

int sherdi_config_groups_same(const sherdi_config_value *a, const sherdi_config_value *b)
{
    return a->integer == b->integer &&
           (a->integer == 0 ||
            memcmp(a->groups, b->groups, (size_t)a->integer * sizeof(*a->groups)) == 0);
}
