/* JSON with positions. One walk over the text finds where each value begins and makes the nodes. It
 * has strings, numbers and words decoded by jansson, one at a time; brackets, commas and comments
 * it reads itself. */
#include "base/json.h"

#include "base/checked.h"
#include "base/json_text.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sherdi_json {
    /* an array of what jansson has decoded and nodes point to, and of the keys of objects */
    json_t           *kept;
    char             *name;
    char             *text; /* with blanks for comments and trailing commas; a NUL ends it */
    size_t            len_bytes;
    sherdi_json_node *nodes;
    size_t            node_count;
};

/* A walk over the text. */
typedef struct walk {
    sherdi_json *document;
    char        *at;
    uint32_t     line, column; /* of `at` */
    int          depth;
    const char  *key; /* the last key, as written */
    int          key_bytes;
} walk;

/* Moves forward to `to`. A column is a character: continuation bytes of UTF-8 do not count. */
static void walk_advance(walk *w, const char *to)
{
    for (; w->at < to; w->at++) {
        if (*w->at == '\n') {
            w->line++;
            w->column = 1;
        } else if (((unsigned char)*w->at & 0xc0) != 0x80) {
            w->column++;
        }
    }
}

/* Fails at the place that the walk has come to. */
static sherd_status walk_fail(const walk *w, const char *fmt, ...) SHERDI_PRINTF(2, 3);
static sherd_status walk_fail(const walk *w, const char *fmt, ...)
{
    char    what[SHERDI_ERROR_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: %s", w->document->name, w->line, w->column, what);
}

static sherd_status walk_fail_memory(const walk *w)
{
    return sherdi_fail(SHERD_E_NOMEM, "no memory to parse %s", w->document->name);
}

/* ---- bytes ---- */

/* Checks the text up to its end, and counts the nodes that it can have: each but the first follows
 * a bracket or a comma. */
static sherd_status bytes_check(walk w, size_t *nodes_out)
{
    const char *end = w.at + w.document->len_bytes;

    for (*nodes_out = 1; w.at < end;) {
        size_t bytes = sherdi_utf8_bytes((const unsigned char *)w.at, (size_t)(end - w.at));

        if (bytes == 0) {
            return walk_fail(&w, "not UTF-8 text");
        }
        if (*w.at == '\0') {
            return walk_fail(&w, "a NUL byte stands in the text");
        }
        *nodes_out += strchr("[{,", *w.at) != NULL;
        walk_advance(&w, w.at + bytes);
    }
    return SHERD_OK;
}

/* Moves to the next byte that is neither space nor in a comment. Comments become blanks. */
static sherd_status space_skip(walk *w)
{
    for (;;) {
        const char *end = NULL;

        walk_advance(w, w->at + strspn(w->at, " \t\r\n"));
        if (*w->at == '#' || strncmp(w->at, "//", 2) == 0) {
            end = w->at + strcspn(w->at, "\n");
        } else if (strncmp(w->at, "/*", 2) == 0) {
            end = strstr(w->at + 2, "*/");
            if (end == NULL) {
                return walk_fail(w, "this comment has no end");
            }
            end += 2;
        } else {
            return SHERD_OK;
        }
        while (w->at < end) {
            walk_advance(w, w->at + 1);
            w->at[-1] = strchr("\r\n", w->at[-1]) == NULL ? ' ' : w->at[-1];
        }
    }
}

/* ---- failures ---- */

/* Words that Python writes where JSON has others, or none. */
static const struct {
    const char *word, *remedy;
} PYTHON_WORDS[] = {
    {"True", "JSON writes true"},
    {"False", "JSON writes false"},
    {"None", "JSON writes null"},
    {"NaN", "JSON has no such number; leave the key out, or give another number"},
    {"Infinity", "JSON has no such number; leave the key out, or give another number"},
    {"-Infinity", "JSON has no such number; leave the key out, or give another number"},
};

/* Returns the advice for a word of Python's; NULL: it is no word of Python's. */
static const char *python_remedy(const char *word, size_t len_bytes)
{
    for (size_t i = 0; i < sizeof(PYTHON_WORDS) / sizeof(PYTHON_WORDS[0]); i++) {
        if (strlen(PYTHON_WORDS[i].word) == len_bytes &&
            memcmp(PYTHON_WORDS[i].word, word, len_bytes) == 0) {
            return PYTHON_WORDS[i].remedy;
        }
    }
    return NULL;
}

/* Returns the length of the quoted token: the string, the bracket, or the sequence of other
 * characters at this position. */
static int token_bytes(const char *at)
{
    size_t len_bytes = sherdi_max_size(strcspn(at, " \t\r\n[]{}:,\"#"), *at != '\0');

    if (*at == '"') {
        len_bytes += strcspn(at + 1, "\"\n");
        len_bytes += at[len_bytes] == '"';
    }
    return (int)sherdi_min_size(len_bytes, 60);
}

/* Makes the message and quotes the token at this position. Jansson's own quotation, if there is
 * one, goes from `text`. */
static sherd_status syntax_fail(const walk *w, const char *text)
{
    const char *quote  = strstr(text, " near ");
    int         kept   = (int)(quote == NULL ? strlen(text) : (size_t)(quote - text));
    int         bytes  = token_bytes(w->at);
    const char *remedy = python_remedy(w->at, (size_t)bytes);

    if (bytes == 0) {
        return walk_fail(w, "not JSON: %.*s at the end", kept, text);
    }
    if (remedy != NULL) {
        return walk_fail(w, "not JSON: %.*s%s%.*s: %s", bytes, w->at,
                         w->key_bytes > 0 ? " at the key " : "", w->key_bytes, w->key, remedy);
    }
    return walk_fail(w, "not JSON: %.*s near %.*s", kept, text, bytes, w->at);
}

/* ---- values ---- */

/* Lets jansson decode the string, number or word at this position, and moves past it. Integers are
 * decoded as reals, because those beyond 64 bits are no error here; their digits are read from the
 * text again. */
static sherd_status scalar_take(walk *w, json_t **out)
{
    size_t       left = (size_t)(w->document->text + w->document->len_bytes - w->at);
    json_error_t error;

    *out = json_loadb(w->at, left,
                      JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_DISABLE_EOF_CHECK, &error);
    if (*out == NULL) {
        return json_error_code(&error) == json_error_out_of_memory ? walk_fail_memory(w)
                                                                   : syntax_fail(w, error.text);
    }
    walk_advance(w, w->at + error.position);
    return SHERD_OK;
}

static sherd_status scalar_read(walk *w, sherdi_json_node *node)
{
    json_t *value;

    SHERDI_TRY(scalar_take(w, &value));
    node->kind    = json_is_string(value)   ? SHERDI_JSON_STRING
                    : json_is_number(value) ? SHERDI_JSON_NUMBER
                    : json_is_null(value)   ? SHERDI_JSON_NULL
                                            : SHERDI_JSON_BOOL;
    node->string  = json_string_value(value);
    node->number  = json_number_value(value);
    node->is_true = json_is_true(value);
    if (node->kind != SHERDI_JSON_STRING) {
        json_decref(value);
        return SHERD_OK;
    }
    return json_array_append_new(w->document->kept, value) == 0 ? SHERD_OK : walk_fail_memory(w);
}

/* Reads the key of a node and the colon. `keys` is a set, which has and owns the keys of the object
 * so far. */
static sherd_status key_read(walk *w, json_t *keys, sherdi_json_node *node)
{
    const walk   start = *w;
    json_t      *key;
    sherd_status status = SHERD_OK;

    if (*w->at != '"') {
        return syntax_fail(w, "string or '}' expected");
    }
    SHERDI_TRY(scalar_take(w, &key));
    w->key       = start.at;
    w->key_bytes = (int)sherdi_min_size((size_t)(w->at - start.at), 60);
    if (json_object_get(keys, json_string_value(key)) != NULL) {
        status = walk_fail(&start, "key %.*s stands here for the second time",
                           (int)(w->at - start.at), start.at);
    } else if (json_object_set_new(keys, json_string_value(key), json_null()) != 0) {
        status = walk_fail_memory(w);
    } else {
        node->key = json_object_iter_key(json_object_iter_at(keys, json_string_value(key)));
    }
    json_decref(key);
    SHERDI_TRY(status);
    SHERDI_TRY(space_skip(w));
    if (*w->at != ':') {
        return syntax_fail(w, "':' expected");
    }
    walk_advance(w, w->at + 1);
    return space_skip(w);
}

static sherd_status children_read(walk *w, sherdi_json_node *node);

/* Reads the value that is here, with its key if it is in an object: `keys` is that object's, NULL
 * elsewhere. */
static sherd_status node_read(walk *w, const sherdi_json_node *parent, json_t *keys)
{
    sherdi_json      *document = w->document;
    sherdi_json_node *node     = &document->nodes[document->node_count++];

    node->parent = parent;
    node->line   = w->line;
    node->column = w->column;
    SHERDI_TRY(keys == NULL ? SHERD_OK : key_read(w, keys, node));
    node->lexeme = w->at;
    SHERDI_TRY(*w->at == '{' || *w->at == '[' ? children_read(w, node) : scalar_read(w, node));
    node->lexeme_bytes = (size_t)(w->at - node->lexeme);
    node->end_node     = &document->nodes[document->node_count];
    return SHERD_OK;
}

/* Reads an array or object from its opening bracket on. A comma before the closing bracket becomes
 * a blank. SHERDI_JSON_MAX_DEPTH bounds the recursion. */
static sherd_status children_read(walk *w, sherdi_json_node *node)
{
    const int  is_object = *w->at == '{';
    const char close     = is_object ? '}' : ']';
    json_t    *keys      = is_object ? json_object() : NULL;

    node->kind = is_object ? SHERDI_JSON_OBJECT : SHERDI_JSON_ARRAY;
    if (is_object && json_array_append_new(w->document->kept, keys) != 0) {
        return walk_fail_memory(w);
    }
    if (++w->depth > SHERDI_JSON_MAX_DEPTH) {
        return walk_fail(w, "nested too deeply");
    }
    do {
        char *before = w->at; /* the opening bracket, or a comma */

        walk_advance(w, w->at + 1);
        SHERDI_TRY(space_skip(w));
        if (*w->at == close) {
            *before = *before == ',' ? ' ' : *before;
            break;
        }
        SHERDI_TRY(node_read(w, node, keys));
        SHERDI_TRY(space_skip(w));
    } while (*w->at == ',');
    if (*w->at != close) {
        return syntax_fail(w, is_object ? "'}' expected" : "']' expected");
    }
    walk_advance(w, w->at + 1);
    w->depth--;
    return SHERD_OK;
}

/* ---- document ---- */

static sherd_status document_read(sherdi_mem *mem, sherdi_json *document)
{
    walk   w = {.document = document, .at = document->text, .line = 1, .column = 1};
    size_t most;

    SHERDI_TRY(bytes_check(w, &most));
    document->nodes = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, most, sizeof(*document->nodes));
    document->kept  = json_array();
    if (document->nodes == NULL || document->kept == NULL) {
        return walk_fail_memory(&w);
    }
    SHERDI_TRY(space_skip(&w));
    SHERDI_TRY(node_read(&w, NULL, NULL));
    SHERDI_TRY(space_skip(&w));
    return *w.at == '\0' ? SHERD_OK : syntax_fail(&w, "end of file expected");
}

sherd_status sherdi_json_parse(sherdi_mem *mem, const char *name, const char *text,
                               size_t len_bytes, sherdi_json **out)
{
    sherdi_json *document = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*document));
    sherd_status status   = SHERD_E_NOMEM;

    if (document == NULL) {
        return SHERD_E_NOMEM;
    }
    if (len_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3; /* a byte order mark takes no column */
        len_bytes -= 3;
    }
    document->name      = sherdi_strdup(mem, name);
    document->text      = sherdi_alloc(mem, SHERDI_MEM_CONTROL, len_bytes + 1);
    document->len_bytes = len_bytes;
    if (document->name != NULL && document->text != NULL) {
        if (len_bytes > 0) {
            memcpy(document->text, text, len_bytes);
        }
        status = document_read(mem, document);
    }
    if (status != SHERD_OK) {
        sherdi_json_destroy(document);
        return status;
    }
    *out = document;
    return SHERD_OK;
}

void sherdi_json_destroy(sherdi_json *document)
{
    if (document == NULL) {
        return;
    }
    json_decref(document->kept);
    sherdi_free(document->nodes);
    sherdi_free(document->text);
    sherdi_free(document->name);
    sherdi_free(document);
}

/* ---- access ---- */

const sherdi_json_node *sherdi_json_root(const sherdi_json *document)
{
    return &document->nodes[0];
}

const sherdi_json_node *sherdi_json_first(const sherdi_json_node *node)
{
    return node->end_node == node + 1 ? NULL : node + 1;
}

const sherdi_json_node *sherdi_json_next(const sherdi_json_node *node)
{
    int is_last = node->parent == NULL || node->end_node == node->parent->end_node;

    return is_last ? NULL : node->end_node;
}

const sherdi_json_node *sherdi_json_find(const sherdi_json_node *node, const char *key)
{
    if (node->kind != SHERDI_JSON_OBJECT) {
        return NULL;
    }
    for (node = sherdi_json_first(node); node != NULL; node = sherdi_json_next(node)) {
        if (strcmp(node->key, key) == 0) {
            return node;
        }
    }
    return NULL;
}

/* 2^63 is a double; INT64_MAX is not. */
static const double TWO_TO_63 = 9223372036854775808.0;

sherdi_json_fit sherdi_json_integer(const sherdi_json_node *node, int64_t *out)
{
    char      digits[32];
    long long value;

    /* More than 19 digits do not fit into 64 bits, and for those a double is exact enough to say
     * so. */
    if (node->lexeme_bytes < sizeof(digits)) {
        memcpy(digits, node->lexeme, node->lexeme_bytes);
        digits[node->lexeme_bytes] = '\0';
        if (strpbrk(digits, ".eE") == NULL) {
            errno = 0;
            value = strtoll(digits, NULL, 10);
            *out  = value;
            return errno == ERANGE ? SHERDI_JSON_CLAMPED : SHERDI_JSON_FITS;
        }
    }
    if (node->number >= TWO_TO_63 || node->number < -TWO_TO_63) {
        *out = node->number > 0 ? INT64_MAX : INT64_MIN;
        return SHERDI_JSON_CLAMPED;
    }
    *out = (int64_t)node->number;
    return node->number == trunc(node->number) ? SHERDI_JSON_FITS : SHERDI_JSON_TRUNCATED;
}
