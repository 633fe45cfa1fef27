/* Inside of a configuration, shared by the config_*.c files. Read config_keys.h and config_unused.h first.
 *
 *   config.c         life, files, sherd_config_set, warnings
 *   config_table.c   the table as data: finding keys, suggestions for unknown ones
 *   config_value.c   one JSON value as the type of its key
 *   config_read.c    a document into entries, with warnings and refusals
 *   config_groups.c  sherd.groups, whose entries have members of their own
 *   config_effect.c  the value in force of a key: given, "auto", derived or default
 *   config_resolve.c sherdi_config_resolve: checks across keys, sherdi_settings
 *   config_offload.c the same for what rests elsewhere
 *   config_text.c    the dump and the reference page */
#ifndef SHERDI_ENGINE_CONFIG_CONFIG_IMPL_H
#define SHERDI_ENGINE_CONFIG_CONFIG_IMPL_H

#include "base/json.h"
#include "base/mem.h"
#include "engine/config/config.h"
#include "engine/config/config_keys.h"
#include "engine/config/config_unused.h"

/* ---- the table ---- */

typedef enum sherdi_config_id {
#define SHERDI_CONFIG_ID(id, ...) SHERDI_CONFIG_##id,
    SHERDI_CONFIG_KEYS(SHERDI_CONFIG_ID) SHERDI_CONFIG_UNUSED(SHERDI_CONFIG_ID)
#undef SHERDI_CONFIG_ID
        SHERDI_CONFIG_IDS,
} sherdi_config_id;

typedef enum sherdi_config_type {
    SHERDI_TYPE_BLOCK,
    SHERDI_TYPE_BOOL,
    SHERDI_TYPE_INT,
    SHERDI_TYPE_SIZE, /* INT64_MAX and more: unlimited */
    SHERDI_TYPE_REAL,
    SHERDI_TYPE_TEXT,
    SHERDI_TYPE_PAIR,    /* of reals */
    SHERDI_TYPE_REALS,   /* a real for all parameter groups, or a list with one for each */
    SHERDI_TYPE_FOLDERS, /* a name, or a list of names */
    SHERDI_TYPE_GROUPS,  /* a list of blocks: config_groups.c */
    SHERDI_TYPE_ANY,     /* not looked at */
} sherdi_config_type;

/* Whether a key has an effect, or why it has none. */
typedef enum sherdi_config_use {
    SHERDI_USE_HONOURED = 0,
    SHERDI_USE_SAME,    /* any value gives the same result */
    SHERDI_USE_HINT,    /* not taken: with a warning, unless the value is the default */
    SHERDI_USE_REFUSED, /* unless the value is the default, or the block is switched off */
} sherdi_config_use;

typedef struct sherdi_config_range {
    double      least, most; /* inclusive; both 0: any number */
    int         is_below;    /* `most` is exclusive */
    const char *choices;     /* "a|b|c"; NULL: numbers, or anything */
} sherdi_config_range;

/* What it points to belongs to the entry, but for the text of a default, which is in static storage. */
typedef struct sherdi_config_value {
    int64_t integer; /* BOOL, INT, SIZE; TEXT with choices: which one */
    double  real;    /* REAL; first of PAIR */
    double  second;
    char  *text; /* TEXT without choices; FOLDERS: each with its end, an empty one after the last */
    size_t count; /* REALS: in `list`; 0: `real` is the one for all */
    double                *list;
    sherdi_group_settings *groups; /* GROUPS; `integer` of them */
} sherdi_config_value;

/* How a field of sherdi_settings is written from a value. */
typedef enum sherdi_setting_kind {
    SHERDI_SETTING_NONE = 0, /* the key has no field */
    SHERDI_SETTING_INT, /* cut at INT_MAX; a choice that may be absent: 0 absent, else from 1 */
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
    int                 is_derived; /* a rule writes it */
} sherdi_config_setting;

typedef struct sherdi_config_key {
    const char           *path;
    sherdi_config_type    type;
    sherdi_config_use     use;
    const char           *fallback; /* as JSON, or with is_rule a sentence; NULL: none */
    int                   is_rule;
    sherdi_config_value   standard; /* what `fallback` says in JSON; all zero where there is none */
    sherdi_config_range   range;
    sherdi_config_setting setting;
    const char           *auto_rule;
    const char           *meaning;

    unsigned is_nullable : 1;       /* null means absent */
    unsigned is_local : 1;          /* ranks may differ in it: their hosts do */
    unsigned has_any_case : 1;      /* choices in any case */
    unsigned is_soft : 1;           /* another choice warns and means the default */
    unsigned is_truncated : 1;      /* fractions are cut off */
    unsigned one_is_off : 1;        /* 1 means the same as the default */
    unsigned is_closed : 1;         /* block: an unknown member is an error */
    unsigned is_opaque : 1;         /* block: members are not looked at */
    unsigned auto_is_absent : 1;    /* block: "auto" means absent */
    unsigned has_bool_form : 1;     /* block: the old one of zero_optimization */
    unsigned is_active_present : 1; /* block: on without "enabled" */
    unsigned is_active_nested : 1;  /* block: on where an "enabled" deeper inside is true */
} sherdi_config_key;

typedef enum sherdi_alias_kind {
    SHERDI_ALIAS_SAME,         /* as good as the name in the table */
    SHERDI_ALIAS_OLD,          /* warns */
    SHERDI_ALIAS_INVERTED,     /* warns; a bool that means the opposite */
    SHERDI_ALIAS_CPU_SWITCH,   /* warns; true is "cpu", false "none" */
    SHERDI_ALIAS_PROGRAM_ONLY, /* short name for sherd_config_set */
} sherdi_alias_kind;

typedef struct sherdi_config_alias {
    const char       *path;
    sherdi_config_id  id;
    sherdi_alias_kind kind;
} sherdi_config_alias;

extern const sherdi_config_key   sherdi_config_table[SHERDI_CONFIG_IDS];
extern const sherdi_config_alias sherdi_config_aliases[];
extern const size_t              sherdi_config_alias_count;

/** SHERDI_CONFIG_IDS when there is none. */
sherdi_config_id           sherdi_config_find(const char *path);
const sherdi_config_alias *sherdi_config_alias_find(const char *path);
/** Part of the path after the last dot. */
const char *sherdi_config_leaf(const char *path);
/** The known key that an unknown one may have meant, as a path; NULL: none comes to mind. */
const char *sherdi_config_suggest(const char *path);
/** Whether `text` is one of "a|b|c"; *out is set to its number, from 0. */
int sherdi_config_choice(const char *choices, const char *text, int is_any_case, size_t *out);
/** Choice `index` of "a|b|c" and its length in *bytes_out. */
const char *sherdi_config_choice_at(const char *choices, size_t index, size_t *bytes_out);

/* Positions in the choices of the table. */
enum { SHERDI_CHOICE_FP32 = 0, SHERDI_CHOICE_FP16 = 1, SHERDI_CHOICE_BF16 = 2 };
enum { SHERDI_CHOICE_GRADIENTS_CPU = 0, SHERDI_CHOICE_GRADIENTS_NVME = 1 };
enum { SHERDI_CHOICE_LAMB_DEEPSPEED = 0, SHERDI_CHOICE_LAMB_PAPER = 1 };

/* ---- values ---- */

typedef enum sherdi_config_origin {
    SHERDI_ORIGIN_DEFAULT = 0, /* nothing was given */
    SHERDI_ORIGIN_FILE,
    SHERDI_ORIGIN_PROGRAM,
} sherdi_config_origin;

typedef struct sherdi_config_entry {
    sherdi_config_value        value;
    sherdi_config_origin       origin;
    int                        is_auto;
    uint32_t                   line, column; /* FILE */
    char                      *written;      /* the value as it was written, owned */
    const sherdi_config_alias *alias;        /* under another name; NULL: its own */
} sherdi_config_entry;

struct sherd_config {
    sherdi_mem          mem; /* first made, last gone: all else is counted here */
    char               *name;
    sherdi_config_entry entries[SHERDI_CONFIG_IDS];
    char              **warnings;
    size_t              warning_count, warning_capacity;
};

int sherdi_config_same(const sherdi_config_key *key, const sherdi_config_value *a,
                       const sherdi_config_value *b);

/** Where the value of `id` was given, for messages: "ds.json:3:5", "the program". */
#define SHERDI_LOCATION_BYTES 320
const char *sherdi_config_location(const sherd_config *config, sherdi_config_id id,
                                   char location[SHERDI_LOCATION_BYTES]);

/* ---- reading ---- */

/* One pass over one document. */
typedef struct sherdi_config_reader {
    sherd_config        *config;
    sherdi_config_origin origin;
    int                  is_override; /* the program insists ('!') */
    int                  is_lenient;
} sherdi_config_reader;

/** Typed reading; fails with location, path and reason. `path` is the key as written. Sets
 *  *is_auto_out or *out; null counts as "auto" here and the caller asks the node. */
sherd_status sherdi_config_value_read(sherdi_config_reader *reader, const sherdi_config_key *key,
                                      const char *path, const sherdi_json_node *node,
                                      sherdi_config_value *out, int *is_auto_out);
/** sherd.groups. E_INVAL, E_NOTSUP (an optimizer that does not exist), E_NOMEM; *out is left alone then. */
sherd_status sherdi_config_groups_read(sherdi_config_reader *reader, const char *path,
                                       const sherdi_json_node *node, sherdi_config_value *out);
int          sherdi_config_groups_same(const sherdi_config_value *a, const sherdi_config_value *b);
/** What a value owns. */
void sherdi_config_value_free(sherdi_config_value *value);
/** A whole document. */
sherd_status sherdi_config_read(sherdi_config_reader *reader, const sherdi_json_node *root);
/** One key of the program's. */
sherd_status sherdi_config_read_key(sherdi_config_reader *reader, const char *path,
                                    const sherdi_json_node *node);

/* How a sentence about the input is said, unless it is a status to fail with. */
enum {
    SHERDI_SAY_WARNING = -1, /* fails on lack of memory only; strict mode looks at it afterwards */
    SHERDI_SAY_INFO    = -2, /* to the log; does not fail */
};

/** Puts "file:line:column: " (or who set it) before the sentence. */
sherd_status sherdi_reader_say(const sherdi_config_reader *reader, const sherdi_json_node *node,
                               int how, const char *fmt, ...) SHERDI_PRINTF(4, 5);
/** Adds a warning as it stands. */
sherd_status sherdi_config_warn(sherd_config *config, const char *text);
/** Contradictions between keys that need no world to be seen. `is_complete` 0: the program may
 *  still fill what is "auto". */
sherd_status sherdi_config_check(const sherd_config *config, int is_complete);
/** Combinations that deserve a warning; once, after a file is read. */
sherd_status sherdi_config_remark(sherd_config *config);

/* ---- values in force ---- */

typedef struct sherdi_config_effect {
    sherdi_config_value value;
    int                 is_null;    /* none is given, and none is needed */
    int                 is_missing; /* none is given, and one is needed: `origin` says so */
    char                origin[SHERDI_ERROR_BYTES];
} sherdi_config_effect;

/** `world_size` 0: not known yet; the batch sizes may be missing then. */
void sherdi_config_effective(const sherd_config *config, int world_size, sherdi_config_id id,
                             sherdi_config_effect *out);
/** A parameter of schedules, of one of them at least. */
static inline int sherdi_config_is_schedules(sherdi_config_id id)
{
    return id > SHERDI_CONFIG_SCHEDULER_PARAMS && id <= SHERDI_CONFIG_MIN_LR_RATIO;
}
/** The schedule that the configuration names; NULL: none. */
const sherdi_schedule *sherdi_config_schedule(const sherd_config *config);
/** Without an origin, for keys that always have a value. */
int64_t sherdi_config_integer(const sherd_config *config, sherdi_config_id id);
/** Of a key without choices; "" where none is in force. */
const char *sherdi_config_text(const sherd_config *config, sherdi_config_id id);
double      sherdi_config_real(const sherd_config *config, sherdi_config_id id);
/** What fp16 and bf16 say: one of SHERDI_CHOICE_FP32 and so on. */
int64_t sherdi_config_compute_choice(const sherd_config *config);

static inline int sherdi_config_is_on(const sherd_config *config, sherdi_config_id id)
{
    return sherdi_config_integer(config, id) != 0;
}

/** The sentence goes on after location and key; E_INVAL. */
sherd_status sherdi_config_key_fail(const sherd_config *config, sherdi_config_id id,
                                    const char *sentence);
sherd_status sherdi_config_key_warn(sherd_config *config, sherdi_config_id id,
                                    const char *sentence);

/* ---- what rests elsewhere (config_offload.c) ---- */

sherd_status sherdi_config_offload_check(const sherd_config *config, int is_complete);
sherd_status sherdi_config_offload_remark(sherd_config *config);
/** What the rules of offload make of fields that hold their keys' values. */
void sherdi_config_offload_resolve(const sherd_config *config, sherdi_settings *out);

/* ---- batch ---- */

typedef struct sherdi_config_batch {
    int64_t train, micro, accumulation;
} sherdi_config_batch;
sherd_status sherdi_config_batch_solve(const sherd_config *config, int world_size,
                                       sherdi_config_batch *out);

static inline int sherdi_config_is_given(const sherd_config *config, sherdi_config_id id)
{
    return config->entries[id].origin != SHERDI_ORIGIN_DEFAULT && !config->entries[id].is_auto;
}

#endif
