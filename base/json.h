/* JSON as people write it: with comments and trailing commas. Every value knows the line and column
 * that it came from. The configuration and descriptions on a disk are read with it. */
#ifndef SHERDI_BASE_JSON_H
#define SHERDI_BASE_JSON_H

#include "base/mem.h"

/* Deeper nesting is refused: nobody writes it, and parsers recurse. */
#define SHERDI_JSON_MAX_DEPTH 64

typedef enum sherdi_json_kind {
    SHERDI_JSON_NULL,
    SHERDI_JSON_BOOL,
    SHERDI_JSON_NUMBER,
    SHERDI_JSON_STRING,
    SHERDI_JSON_ARRAY,
    SHERDI_JSON_OBJECT,
} sherdi_json_kind;

/* A value. The nodes of a document are in one array, in the order of the text: a node's first child
 * follows the node, and `end_node` is the node after its last descendant. */
typedef struct sherdi_json_node sherdi_json_node;
struct sherdi_json_node {
    sherdi_json_kind        kind;
    int                     is_true;      /* BOOL */
    double                  number;       /* NUMBER, correctly rounded */
    const char             *string;       /* STRING, unescaped */
    const char             *key;          /* in an object; NULL elsewhere */
    const char             *lexeme;       /* the value as written, but comments are blanks */
    size_t                  lexeme_bytes; /* (the lexeme is not terminated) */
    const sherdi_json_node *parent;       /* NULL: the root */
    const sherdi_json_node *end_node;
    /* of the key, else of the value; from 1, columns in characters */
    uint32_t line, column;
};

typedef struct sherdi_json sherdi_json;

/**
 *  Parses one value (of any kind) with nothing but space and comments around it.
 *
 *  Accepts    //, # and slash-star comments, a comma before a closing bracket, a byte order mark.
 *  Refuses    duplicate keys, NUL, invalid UTF-8, numbers beyond a double, more than
 *             SHERDI_JSON_MAX_DEPTH levels.
 *  Ownership  `text` and `name` (for messages) are copied. The account must outlive the document.
 *  Errors     E_INVAL "name:line:column: what", E_NOMEM.
 */
sherd_status sherdi_json_parse(sherdi_mem *mem, const char *name, const char *text,
                               size_t len_bytes, sherdi_json **out);
/** Frees the document and its nodes. Accepts NULL. */
void sherdi_json_destroy(sherdi_json *document);

const sherdi_json_node *sherdi_json_root(const sherdi_json *document);

/** Returns the first child of an array or object; NULL when it is empty, or `node` is something
 *  else. */
const sherdi_json_node *sherdi_json_first(const sherdi_json_node *node);
/** Returns the next sibling; NULL after the last. */
const sherdi_json_node *sherdi_json_next(const sherdi_json_node *node);
/** Returns member `key` of an object; NULL when there is none, or `node` is something else. */
const sherdi_json_node *sherdi_json_find(const sherdi_json_node *node, const char *key);

typedef enum sherdi_json_fit {
    SHERDI_JSON_FITS = 0,
    SHERDI_JSON_TRUNCATED, /* has a fraction; *out is rounded toward zero */
    SHERDI_JSON_CLAMPED,   /* beyond 64 bits; *out is INT64_MIN or INT64_MAX */
} sherdi_json_fit;

/** Sets *out to the integer that a NUMBER stands for; 5e8 and 2.0 are integers too. It is exact if
 *  only digits are written. */
sherdi_json_fit sherdi_json_integer(const sherdi_json_node *node, int64_t *out);

#endif
