/* The inside of a configuration, which the config_*.c files share. Read config_keys.h and
 * config_unused.h first.
 *
 *   config.c         creates configurations, reads files, sherd_config_set, warnings
 *   config_table.c   the table as data: finds keys, suggests names for unknown ones
 *   config_value.c   reads one JSON value as the type of its key
 *   config_read.c    reads a document into entries, with warnings and refusals
 *   config_groups.c  reads sherd.groups, whose entries have members of their own
 *   config_effect.c  the effective value of a key: set, "auto", derived or default
 *   config_schedule.c  the same for the parameters of schedules
 *   config_resolve.c sherdi_config_resolve: checks across keys, makes sherdi_settings
 *   config_offload.c does the same for offload
 *   config_text.c    writes the dump and the reference page */
#ifndef SHERDI_ENGINE_CONFIG_CONFIG_IMPL_H
#define SHERDI_ENGINE_CONFIG_CONFIG_IMPL_H

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/config/config.h"

#include <limits.h>
#include <math.h>

/* ---- the table ---- */

/* A name for a key that needs none: the line of its row. */
#define SHERDI_CONFIG_PASTE(line)   SHERDI_CONFIG_LINE_##line
#define SHERDI_CONFIG_LINE_OF(line) SHERDI_CONFIG_PASTE(line)

typedef enum sherdi_config_id {
#define KEY(id, ...) SHERDI_CONFIG_##id,
#define PLAIN(...)   SHERDI_CONFIG_LINE_OF(__LINE__),
#include "engine/config/config_keys.h"
    SHERDI_CONFIG_HONOURED, /* the first key without effect; those have no names */
    SHERDI_CONFIG_IDS = SHERDI_CONFIG_HONOURED
#define SAME(...)    +1
#define HINT(...)    +1
#define REFUSED(...) +1
#include "engine/config/config_unused.h"
} sherdi_config_id;

typedef enum sherdi_config_type {
    SHERDI_TYPE_BLOCK,
    SHERDI_TYPE_OPAQUE, /* a block whose members are not read */
    SHERDI_TYPE_BOOL,
    SHERDI_TYPE_TEXT,
    SHERDI_TYPE_INT,
    SHERDI_TYPE_SIZE,    /* INT64_MAX and more: unlimited */
    SHERDI_TYPE_REAL,    /* this, and the two before and after, are numbers with a range */
    SHERDI_TYPE_PAIR,    /* of reals */
    SHERDI_TYPE_REALS,   /* a real for all parameter groups, or a list with one for each */
    SHERDI_TYPE_FOLDERS, /* a name, or a list of names */
    SHERDI_TYPE_GROUPS,  /* a list of blocks: config_groups.c */
    SHERDI_TYPE_ANY,     /* is not read */
} sherdi_config_type;

/* Whether a key has an effect, or why it has none. */
typedef enum sherdi_config_use {
    SHERDI_USE_HONOURED = 0,
    SHERDI_USE_SAME,    /* any value gives the same result */
    SHERDI_USE_HINT,    /* ignored, with a warning unless the value is the default */
    SHERDI_USE_REFUSED, /* an error, unless the value is the default or the block is off */
} sherdi_config_use;

typedef struct sherdi_config_range {
    double      least, most; /* inclusive; `most` 0: all that the type has */
    int         is_below;    /* `most` is exclusive */
    const char *choices;     /* "a|b|c"; NULL: any text, or a number */
} sherdi_config_range;

/* A value. Its entry owns what it points to, except the text of a default, which is in static
 * storage. */
typedef struct sherdi_config_value {
    int64_t integer; /* BOOL, INT, SIZE; TEXT with choices: number of the choice */
    double  real;    /* REAL; first of PAIR */
    double  second;
    char   *text;  /* TEXT without choices; FOLDERS: each with its NUL, an empty one ends them */
    size_t  count; /* REALS: numbers in `list`; 0: `real` is for all groups */
    double *list;
    sherdi_group_settings *groups; /* GROUPS: `integer` of them */
} sherdi_config_value;

/* How a value is written to its field of sherdi_settings. */
typedef enum sherdi_setting_kind {
    SHERDI_SETTING_NONE = 0, /* the key has no field */
    /* at most INT_MAX; a choice that may be absent counts from 1, absent is 0 */
    SHERDI_SETTING_INT,
    SHERDI_SETTING_INT64,
    SHERDI_SETTING_SIZE, /* unlimited is SIZE_MAX */
    SHERDI_SETTING_REAL,
    SHERDI_SETTING_PAIR,
    SHERDI_SETTING_RATES,
    SHERDI_SETTING_DTYPE,
    SHERDI_SETTING_OPTIMIZER,
    SHERDI_SETTING_TIER,
    SHERDI_SETTING_GROUPS,
} sherdi_setting_kind;

typedef struct sherdi_config_setting {
    size_t              offset, bytes; /* in sherdi_settings */
    sherdi_setting_kind kind;
    int                 is_derived; /* a rule writes the field */
} sherdi_config_setting;

/* The value in force of a key. */
typedef struct sherdi_config_effect {
    const sherd_config *config;
    sherdi_config_id    id;
    int                 world_size; /* 0: not known yet */
    int                 is_auto;    /* the key is "auto"; 0: it is absent */
    sherdi_config_value value;
    int                 is_null;    /* no value is set, and none is needed */
    int                 is_missing; /* no value is set, but one is needed: `origin` says so */
    char                origin[SHERDI_ERROR_BYTES];
} sherdi_config_effect;

/* Gives the value of a key that is absent or "auto". The effect has the default and says so. */
typedef void sherdi_effect_fn(sherdi_config_effect *effect);

typedef struct sherdi_config_key {
    const char           *path;
    sherdi_config_type    type;
    sherdi_config_use     use;
    const char           *fallback; /* the default as JSON; with is_rule, a sentence; NULL: none */
    int                   is_rule;
    sherdi_config_value   standard; /* the value of `fallback`; zero where there is none */
    sherdi_config_range   range;
    sherdi_config_setting setting;
    sherdi_effect_fn     *effect; /* NULL: the default */
    const char           *fix;    /* what to do where a value is needed and none is set */
    const char           *auto_rule;
    const char           *meaning;
    const char           *zero_word; /* a word that means 0; NULL: none */

    unsigned is_nullable : 1;       /* null means absent */
    unsigned is_local : 1;          /* ranks may differ in it, as their hosts do */
    unsigned has_any_case : 1;      /* choices may be written in any case */
    unsigned is_truthy : 1;         /* text that is no boolean is true, as in Python */
    unsigned is_soft : 1;           /* an unknown choice warns and means the default */
    unsigned is_truncated : 1;      /* fractions are cut off */
    unsigned one_is_off : 1;        /* 1 means the same as the default */
    unsigned zero_is_default : 1;   /* 0 means the default */
    unsigned is_schedules : 1;      /* a parameter of at least one schedule */
    unsigned is_closed : 1;         /* block: an unknown member is an error */
    unsigned auto_is_absent : 1;    /* block: "auto" means absent */
    unsigned has_bool_form : 1;     /* block: may be a bool, the old form of zero_optimization */
    unsigned is_active_present : 1; /* block: on without "enabled" */
    unsigned is_active_nested : 1;  /* block: on if an "enabled" deeper inside is true */
} sherdi_config_key;

typedef enum sherdi_alias_kind {
    SHERDI_ALIAS_SAME,         /* means the same as the name in the table */
    SHERDI_ALIAS_OLD,          /* means the same, and warns */
    SHERDI_ALIAS_INVERTED,     /* a bool that means the opposite; warns */
    SHERDI_ALIAS_CPU_SWITCH,   /* true means "cpu", false "none"; warns */
    SHERDI_ALIAS_PROGRAM_ONLY, /* a short name for sherd_config_set */
} sherdi_alias_kind;

typedef struct sherdi_config_alias {
    const char       *path, *meant;
    sherdi_alias_kind kind;
} sherdi_config_alias;

extern const sherdi_config_key   sherdi_config_table[SHERDI_CONFIG_IDS];
extern const sherdi_config_alias sherdi_config_aliases[];
extern const size_t              sherdi_config_alias_count;

/** Find a key and an alias by path; SHERDI_CONFIG_IDS and NULL: there is none. */
sherdi_config_id           sherdi_config_find(const char *path);
const sherdi_config_alias *sherdi_config_alias_find(const char *path);
/** Finds a key by its path or another spelling of it. */
sherdi_config_id sherdi_config_meant(const char *path);
/** Returns the part of a path after its last dot. */
const char *sherdi_config_leaf(const char *path);
/** Returns the path of the known key that an unknown one may have meant; NULL: no known key is
 *  similar. */
const char *sherdi_config_suggest(const char *path);
/** Returns whether `text` is a boolean in quotes: true, yes, on, 1 and their opposites, in any
 *  case. *out is then 0 or 1. */
int sherdi_config_boolean(const char *text, int *out);
/** Returns choice `index` of "a|b|c", without a NUL at its end; *bytes_out is its length. */
const char *sherdi_config_choice_at(const char *choices, size_t index, size_t *bytes_out);

/* Numbers of choices in the table. */
enum { SHERDI_CHOICE_FP32 = 0, SHERDI_CHOICE_FP16 = 1, SHERDI_CHOICE_BF16 = 2 };

/** Returns the default of a key, as JSON or a sentence; NULL: there is none. */
static inline const char *sherdi_config_fallback(const sherdi_config_key *key)
{
    return key->fallback == NULL && key->type == SHERDI_TYPE_BOOL ? "false" : key->fallback;
}

/** Returns the largest number that a key may have. */
static inline double sherdi_config_most(const sherdi_config_key *key)
{
    return key->range.most != 0           ? key->range.most
           : key->type == SHERDI_TYPE_INT ? INT_MAX
                                          : INFINITY;
}

/* ---- values ---- */

typedef enum sherdi_config_origin {
    SHERDI_ORIGIN_DEFAULT = 0, /* not set */
    SHERDI_ORIGIN_FILE,
    SHERDI_ORIGIN_PROGRAM,
} sherdi_config_origin;

typedef struct sherdi_config_entry {
    sherdi_config_value        value;
    sherdi_config_origin       origin;
    int                        is_auto;
    uint32_t                   line, column; /* FILE */
    char                      *written;      /* the text of the value; owned */
    const sherdi_config_alias *alias;        /* the name in the file; NULL: its own */
} sherdi_config_entry;

struct sherd_config {
    const sherdi_config_kind *kind;
    sherdi_mem                mem; /* made first, destroyed last: it counts everything else */
    char                     *name;
    sherdi_config_entry       entries[SHERDI_CONFIG_IDS];
    char                    **warnings;
    size_t                    warning_count, warning_capacity;
};

int sherdi_config_same(const sherdi_config_key *key, const sherdi_config_value *a,
                       const sherdi_config_value *b);

extern const sherdi_config_kind sherdi_config_json;

/** Returns whether a configuration was read from JSON. */
static inline int sherdi_config_is_json(const sherd_config *config)
{
    return config->kind == &sherdi_config_json;
}

/** Returns E_STATE for a configuration of the other kind, which has no keys. */
sherd_status sherdi_config_json_need(const sherd_config *config, const char *call);

/** Returns the name of a key, for messages: the name in the file, else its own. */
const char *sherdi_config_name(const sherd_config *config, sherdi_config_id id);
/** Writes where the value of `id` was set, for messages: "ds.json:3:5", "the program". */
#define SHERDI_LOCATION_BYTES 320
const char *sherdi_config_location(const sherd_config *config, sherdi_config_id id,
                                   char location[SHERDI_LOCATION_BYTES]);

/* The kind's calls. */
sherd_status sherdi_config_json_resolve(const sherd_config *config, int world_size,
                                        sherdi_settings *out);

/* ---- reading ---- */

/* A pass over one document. */
typedef struct sherdi_config_reader {
    sherd_config        *config;
    sherdi_config_origin origin;
    int                  is_override; /* the program overrides the file ('!') */
    int                  is_lenient;
} sherdi_config_reader;

/* The value that is being read. */
typedef struct sherdi_config_site {
    sherdi_config_reader    *reader;
    const sherdi_config_key *key;
    const char              *path; /* as written, for messages */
    const sherdi_json_node  *node;
} sherdi_config_site;

/** Reads a value by the type of its key. Sets *is_auto_out or *out. null counts as "auto" here;
 *  callers that need the difference ask the node. Fails with location, path and reason. */
sherd_status sherdi_config_value_read(const sherdi_config_site *site, sherdi_config_value *out,
                                      int *is_auto_out);
/** Reads sherd.groups. E_INVAL, E_NOTSUP (an optimizer that does not exist), E_NOMEM; *out is
 *  unchanged then. */
sherd_status sherdi_config_groups_read(const sherdi_config_site *site, sherdi_config_value *out);
int          sherdi_config_groups_same(const sherdi_config_value *a, const sherdi_config_value *b);
/** Frees the memory of a value. */
void sherdi_config_value_free(sherdi_config_value *value);
/** Reads a whole document. */
sherd_status sherdi_config_read(sherdi_config_reader *reader, const sherdi_json_node *root);
/** Reads one key that the program sets. */
sherd_status sherdi_config_read_key(sherdi_config_reader *reader, const char *path,
                                    const sherdi_json_node *node);

/* The effect of sherdi_site_say on a sentence about the input; any other value is a status with
 * which it fails. */
enum {
    SHERDI_SAY_WARNING = -1, /* a warning: fails only without memory; strict mode checks later */
    SHERDI_SAY_INFO    = -2, /* to the log; does not fail */
};

/** Says a sentence about a value: "file:line:column: " (or who set it), the path, then this. */
sherd_status sherdi_site_say(const sherdi_config_site *site, int how, const char *fmt, ...)
    SHERDI_PRINTF(3, 4);
/** Adds a warning with this text. */
sherd_status sherdi_config_warn(sherd_config *config, const char *text);
/** Checks for contradictions between keys that show without a world. `is_complete` 0: the program
 *  may still fill keys that are "auto". */
sherd_status sherdi_config_check(const sherd_config *config, int is_complete);
/** Warns of combinations of keys. Call it once, after a file was read. */
sherd_status sherdi_config_remark(sherd_config *config);

/* ---- values in force ---- */

/** Gives the value in force of a key. `world_size` 0: it is not known yet, and the batch sizes may
 *  be missing. */
void sherdi_config_effective(const sherd_config *config, int world_size, sherdi_config_id id,
                             sherdi_config_effect *out);
/* The rules that rows of the table name. */
sherdi_effect_fn sherdi_effect_batch, sherdi_effect_clipping, sherdi_effect_accumulate_place,
    sherdi_effect_dtype, sherdi_effect_lr, sherdi_effect_betas, sherdi_effect_eps,
    sherdi_effect_momentum, sherdi_effect_nesterov, sherdi_effect_decay, sherdi_effect_overlap,
    sherdi_effect_prefetch, sherdi_effect_persistence, sherdi_effect_schedule, sherdi_effect_max_lr,
    sherdi_effect_warmup_steps, sherdi_effect_warmup_type, sherdi_effect_num_cycles,
    sherdi_effect_second, sherdi_effect_timescale, sherdi_effect_stable_steps;
/** Writes where a value comes from. */
void sherdi_effect_say(sherdi_config_effect *effect, const char *fmt, ...) SHERDI_PRINTF(2, 3);
/** Says that no value is set and that one is needed; `fix` is the end of the sentence. */
void sherdi_effect_missing(sherdi_config_effect *effect, const char *fix);

/** Returns the optimizer that the configuration names; where it names none, one without defaults
 *  and keys. */
const sherdi_optimizer *sherdi_config_optimizer(const sherd_config *config);
/** Returns the schedule that the configuration names; NULL: none. */
const sherdi_schedule *sherdi_config_schedule(const sherd_config *config);
/** Returns whether a key is in a schedule's list. */
int sherdi_config_is_among(const int *keys, size_t count, sherdi_config_id id);
/** Return the value in force without its origin, for keys that always have a value. */
int64_t sherdi_config_integer(const sherd_config *config, sherdi_config_id id);
/** Returns the text in force of a key without choices; "": there is none. */
const char *sherdi_config_text(const sherd_config *config, sherdi_config_id id);
double      sherdi_config_real(const sherd_config *config, sherdi_config_id id);
/** Returns the compute type that the blocks fp16 and bf16 give: SHERDI_CHOICE_FP32 and so on. */
int64_t sherdi_config_compute_choice(const sherd_config *config);

static inline int sherdi_config_is_on(const sherd_config *config, sherdi_config_id id)
{
    return sherdi_config_integer(config, id) != 0;
}

/** Fail with E_INVAL, and warn. The message is location and key, followed by the sentence. */
sherd_status sherdi_config_key_fail(const sherd_config *config, sherdi_config_id id,
                                    const char *fmt, ...) SHERDI_PRINTF(3, 4);
sherd_status sherdi_config_key_warn(sherd_config *config, sherdi_config_id id, const char *fmt, ...)
    SHERDI_PRINTF(3, 4);

/* ---- what rests elsewhere (config_offload.c) ---- */

sherd_status sherdi_config_offload_check(const sherd_config *config, int is_complete);
sherd_status sherdi_config_offload_remark(sherd_config *config);
/** Applies the rules of offload to fields that hold their keys' values. */
void sherdi_config_offload_resolve(const sherd_config *config, sherdi_settings *out);

/* ---- settings ---- */

/** Writes a value to a field of the kind that the key's own setting has. */
void sherdi_setting_put(const sherdi_config_key *key, const sherdi_config_effect *effect,
                        void *field);

/* ---- batch ---- */

sherd_status sherdi_config_batch_solve(const sherd_config *config, int world_size,
                                       sherdi_config_batch *out);

static inline int sherdi_config_is_given(const sherd_config *config, sherdi_config_id id)
{
    return config->entries[id].origin != SHERDI_ORIGIN_DEFAULT && !config->entries[id].is_auto;
}

#endif
