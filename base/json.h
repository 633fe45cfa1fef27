/* JSON as people write it: comments and trailing commas allowed, and every value knows the
 * line and column it came from. Read by engine/config/config_read.c; jansson stays behind json.c. */
#ifndef SHERDI_BASE_JSON_H
#define SHERDI_BASE_JSON_H

#include "base/mem.h"

/* Deeper nesting than this is refused: nobody writes it, and parsers recurse. */
#define SHERDI_JSON_MAX_DEPTH 64

typedef enum sherdi_json_kind {
    SHERDI_JSON_NULL,
    SHERDI_JSON_BOOL,
    SHERDI_JSON_NUMBER,
    SHERDI_JSON_STRING,
    SHERDI_JSON_ARRAY,
    SHERDI_JSON_OBJECT,
} sherdi_json_kind;

/* A value. The nodes of a document lie in one array in the order of the text, so a node's
 * first child follows it and `end_node` is the one after its last descendant. */
typedef struct sherdi_json_node sherdi_json_node;
struct sherdi_json_node {
    sherdi_json_kind        kind;
    int                     is_true;      /* BOOL */
    double                  number;       /* NUMBER, correctly rounded */
    const char             *string;       /* STRING, unescaped */
    const char             *key;          /* in an object; NULL elsewhere */
    const char             *lexeme;       /* the value as written, without its comments */
    size_t                  lexeme_bytes; /* (not terminated) */
    const sherdi_json_node *parent;       /* NULL: the root */
    const sherdi_json_node *end_node;
    uint32_t                line, column; /* of the key, or of the value where there is none; from
                                             1, columns in characters */
};

typedef struct sherdi_json sherdi_json;

/**
 * Parses one value (of any kind) with nothing but space and comments around it.
 *
 * Accepts    //, # and slash-star comments, a comma before a closing bracket, a byte order mark.
 * Refuses    duplicate keys, NUL, invalid UTF-8, numbers beyond a double, SHERDI_JSON_MAX_DEPTH.
 * Ownership  `text` is copied; `name` (for messages) too. The account must outlive the document.
 * Errors     E_INVAL "name:line:column: what", E_NOMEM.
 */
sherd_status sherdi_json_parse(sherdi_mem *mem, const char *name, const char *text,
                               size_t len_bytes, sherdi_json **out);
/** 1 when the bytes are well-formed UTF-8. */
int sherdi_json_is_utf8(const char *text, size_t len_bytes);
/** Accepts NULL. Nodes go with it. */
void sherdi_json_destroy(sherdi_json *document);

const sherdi_json_node *sherdi_json_root(const sherdi_json *document);

/** First child of an array or object; NULL when it is empty or something else. */
const sherdi_json_node *sherdi_json_first(const sherdi_json_node *node);
/** Next sibling; NULL after the last. */
const sherdi_json_node *sherdi_json_next(const sherdi_json_node *node);
/** Member `key` of an object; NULL when there is none or `node` is something else. */
const sherdi_json_node *sherdi_json_find(const sherdi_json_node *node, const char *key);

typedef enum sherdi_json_fit {
    SHERDI_JSON_FITS = 0,
    SHERDI_JSON_TRUNCATED, /* had a fraction; *out is rounded toward zero */
    SHERDI_JSON_CLAMPED,   /* beyond 64 bits; *out is INT64_MIN or INT64_MAX */
} sherdi_json_fit;

/** The integer that a NUMBER spells, 5e8 and 2.0 included; exact where the digits are. */
sherdi_json_fit sherdi_json_integer(const sherdi_json_node *node, int64_t *out);

#endif
