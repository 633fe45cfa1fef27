/* JSON with positions. First, comments and trailing commas are overwritten with spaces, so that offsets stay the same. Then
 * jansson checks and decodes the text. Finally a walk over the tokens, beside jansson's tree (which keeps the order of the
 * text), gives each value its location. The tokens also locate jansson's errors. */
#include "base/json.h"

#include "base/assert.h"
#include "base/checked.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sherdi_json {
    json_t           *tree;
    char             *name;
    const char       *source; /* the caller's, while parsing; columns are counted in it */
    char             *text;   /* a copy of the same length, with blanks */
    size_t            len_bytes;
    sherdi_json_node *nodes;
    size_t            node_count;
};

typedef struct token {
    size_t at, end; /* at == end: end of the text */
} token;

typedef struct location {
    size_t   at;
    uint32_t line, column;
} location;

/* Moves `where` forward to offset `at`. A column is a character: continuation bytes of UTF-8 do not count. */
static void location_advance(location *where, const char *text, size_t at)
{
    for (; where->at < at; where->at++) {
        if (text[where->at] == '\n') {
            where->line++;
            where->column = 1;
        } else if (((unsigned char)text[where->at] & 0xc0) != 0x80) {
            where->column++;
        }
    }
}

static location location_of(const sherdi_json *document, size_t at)
{
    location where = {0, 1, 1};

    location_advance(&where, document->source, sherdi_min_size(at, document->len_bytes));
    return where;
}

static sherd_status document_fail(const sherdi_json *document, size_t at, const char *what)
{
    location where = location_of(document, at);

    return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: %s", document->name, where.line, where.column,
                       what);
}

/* ---- bytes ---- */

/* Returns the length of the well-formed UTF-8 sequence at `text` (Unicode 15, table 3-7); 0: it is malformed. */
static size_t utf8_sequence_bytes(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    unsigned char low   = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high  = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    size_t        bytes = first < 0x80                    ? 1
                          : first >= 0xc2 && first < 0xe0 ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;

    if (bytes == 0 || bytes > left) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if (text[i] < (i == 1 ? low : 0x80) || text[i] > (i == 1 ? high : 0xbf)) {
            return 0;
        }
    }
    return bytes;
}

int sherdi_json_is_utf8(const char *text, size_t len_bytes)
{
    size_t bytes;

    for (size_t at = 0; at < len_bytes; at += bytes) {
        bytes = utf8_sequence_bytes((const unsigned char *)text + at, len_bytes - at);
        if (bytes == 0) {
            return 0;
        }
    }
    return 1;
}

static sherd_status bytes_check(const sherdi_json *document)
{
    size_t bytes;

    for (size_t at = 0; at < document->len_bytes; at += bytes) {
        bytes = utf8_sequence_bytes((const unsigned char *)document->text + at,
                                    document->len_bytes - at);
        if (bytes == 0) {
            return document_fail(document, at, "not UTF-8 text");
        }
        if (document->text[at] == '\0') {
            return document_fail(document, at, "a NUL byte stands in the text");
        }
    }
    return SHERD_OK;
}

/* ---- tokens ---- */

/* Returns the offset after the string that starts at `at`. The end of the line also ends it, so that a missing quote does not
 * take in the rest. */
static size_t string_end(const sherdi_json *document, size_t at)
{
    for (at++; at < document->len_bytes && document->text[at] != '\n'; at++) {
        if (document->text[at] == '"') {
            return at + 1;
        }
        if (document->text[at] == '\\' && at + 1 < document->len_bytes &&
            document->text[at + 1] != '\n') {
            at++;
        }
    }
    return at;
}

static int char_is_in(char c, const char *set)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* Returns the token at or after `at`: a string, one of []{}:, or a run of other characters. */
static token token_next(const sherdi_json *document, size_t at)
{
    const char *text = document->text;
    token       found;

    while (at < document->len_bytes && char_is_in(text[at], " \t\r\n")) {
        at++;
    }
    found = (token){at, at};
    if (at == document->len_bytes) {
        return found;
    }
    if (text[at] == '"') {
        found.end = string_end(document, at);
    } else if (char_is_in(text[at], "[]{}:,")) {
        found.end = at + 1;
    } else {
        while (found.end < document->len_bytes && !char_is_in(text[found.end], " \t\r\n[]{}:,\"")) {
            found.end++;
        }
    }
    return found;
}

/* ---- blanking ---- */

/* Returns the offset after the comment that starts at `at`; `at` itself when there is no comment; SIZE_MAX when it has no end. */
static size_t comment_end(const sherdi_json *document, size_t at)
{
    const char *text = document->text;
    size_t      left = document->len_bytes - at;
    const char *end;

    if (left >= 2 && text[at] == '/' && text[at + 1] == '*') {
        end = memmem(text + at + 2, left - 2, "*/", 2);
        return end == NULL ? SIZE_MAX : (size_t)(end - text) + 2;
    }
    if (text[at] == '#' || (left >= 2 && text[at] == '/' && text[at + 1] == '/')) {
        end = memchr(text + at, '\n', left);
        return end == NULL ? document->len_bytes : (size_t)(end - text);
    }
    return at;
}

static void blank_range(sherdi_json *document, size_t at, size_t end)
{
    for (; at < end; at++) {
        if (!char_is_in(document->text[at], "\r\n")) {
            document->text[at] = ' ';
        }
    }
}

static sherd_status comments_blank(sherdi_json *document)
{
    size_t at = 0;
    size_t end;

    while (at < document->len_bytes) {
        if (document->text[at] == '"') {
            at = string_end(document, at);
            continue;
        }
        end = comment_end(document, at);
        if (end == SIZE_MAX) {
            return document_fail(document, at, "this comment has no end");
        }
        blank_range(document, at, end);
        at = sherdi_max_size(end, at + 1);
    }
    return SHERD_OK;
}

/* Blanks a comma that follows a value and precedes a closing bracket; checks the depth. */
static sherd_status commas_blank(sherdi_json *document)
{
    size_t depth    = 0;
    char   previous = ',';
    char   kind;

    for (token here = token_next(document, 0), next; here.at < here.end; here = next) {
        next = token_next(document, here.end);
        kind = document->text[here.at];
        if (kind == ',' && !char_is_in(previous, ",:[{") && next.at < next.end &&
            char_is_in(document->text[next.at], "]}")) {
            document->text[here.at] = ' ';
            continue;
        }
        if (char_is_in(kind, "[{") && ++depth > SHERDI_JSON_MAX_DEPTH) {
            return document_fail(document, here.at, "nested too deeply");
        }
        depth -= char_is_in(kind, "]}") && depth > 0;
        previous = kind;
    }
    return SHERD_OK;
}

/* ---- jansson ---- */

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

/* Returns what to do about a word of Python's; NULL: the token is no such word. */
static const char *python_remedy(const sherdi_json *document, token word)
{
    for (size_t i = 0; i < sizeof(PYTHON_WORDS) / sizeof(PYTHON_WORDS[0]); i++) {
        if (strlen(PYTHON_WORDS[i].word) == word.end - word.at &&
            memcmp(PYTHON_WORDS[i].word, document->text + word.at, word.end - word.at) == 0) {
            return PYTHON_WORDS[i].remedy;
        }
    }
    return NULL;
}

/* Jansson points behind the part that it rejects, and quotes that part. This finds and quotes the whole token instead. */
static sherd_status syntax_fail(const sherdi_json *document, const json_error_t *error)
{
    const char *quote    = strstr(error->text, " near ");
    int         is_end   = quote != NULL && strcmp(quote, " near end of file") == 0;
    size_t      position = is_end ? SIZE_MAX : (size_t)error->position;
    int         kept = (int)(quote == NULL ? strlen(error->text) : (size_t)(quote - error->text));
    token       here = token_next(document, 0);
    token       last = here;
    token       key  = {0, 0};
    location    where;
    const char *remedy;

    while (here.at < here.end && here.end < position) {
        last = here;
        here = token_next(document, here.end);
        key  = here.at < here.end && document->text[here.at] == ':' ? last : key;
    }
    where  = location_of(document, here.at);
    remedy = python_remedy(document, here);
    if (json_error_code(error) == json_error_out_of_memory) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory to parse %s", document->name);
    }
    if (json_error_code(error) == json_error_duplicate_key) {
        return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: key %.*s stands here for the second time",
                           document->name, where.line, where.column, (int)(here.end - here.at),
                           document->text + here.at);
    }
    if (here.at == here.end) {
        return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: not JSON: %.*s at the end", document->name,
                           where.line, where.column, kept, error->text);
    }
    if (remedy != NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: not JSON: %.*s%s%.*s: %s", document->name,
                           where.line, where.column, (int)(here.end - here.at),
                           document->text + here.at, key.at < key.end ? " at the key " : "",
                           (int)sherdi_min_size(key.end - key.at, 60), document->text + key.at,
                           remedy);
    }
    return sherdi_fail(SHERD_E_INVAL, "%s:%u:%u: not JSON: %.*s near %.*s", document->name,
                       where.line, where.column, kept, error->text,
                       (int)sherdi_min_size(here.end - here.at, 60), document->text + here.at);
}

/* JSON_DECODE_INT_AS_REAL, because integers beyond 64 bits are no error here; the digits are read from the text again. */
static sherd_status tree_load(sherdi_json *document)
{
    json_error_t error;

    document->tree =
        json_loadb(document->text, document->len_bytes,
                   JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &error);
    return document->tree == NULL ? syntax_fail(document, &error) : SHERD_OK;
}

/* ---- nodes ---- */

/* Returns an upper bound of the number of values: each begins with a token, and so does each key. */
static size_t values_most(const sherdi_json *document)
{
    size_t count = 0;

    for (token t = token_next(document, 0); t.at < t.end; t = token_next(document, t.end)) {
        count += !char_is_in(document->text[t.at], ",:]}");
    }
    return count;
}

typedef struct node_builder {
    sherdi_json *document;
    token        here;  /* the next token */
    location     where; /* moves along with `here` */
} node_builder;

static token builder_take(node_builder *builder)
{
    token taken = builder->here;

    builder->here = token_next(builder->document, taken.end);
    return taken;
}

static void node_set_value(sherdi_json_node *node, json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        node->kind = SHERDI_JSON_OBJECT;
        break;
    case JSON_ARRAY:
        node->kind = SHERDI_JSON_ARRAY;
        break;
    case JSON_STRING:
        node->kind   = SHERDI_JSON_STRING;
        node->string = json_string_value(value);
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        node->kind   = SHERDI_JSON_NUMBER;
        node->number = json_number_value(value);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        node->kind    = SHERDI_JSON_BOOL;
        node->is_true = json_is_true(value);
        break;
    case JSON_NULL:
        node->kind = SHERDI_JSON_NULL;
        break;
    }
}

/* `here` must be the key or, without a key, the value. SHERDI_JSON_MAX_DEPTH bounds the recursion; commas_blank has checked
 * it. */
static void node_build(node_builder *builder, json_t *value, const char *key,
                       const sherdi_json_node *parent)
{
    sherdi_json      *document = builder->document;
    sherdi_json_node *node     = &document->nodes[document->node_count++];
    token             last;
    size_t            i;
    json_t           *child;

    location_advance(&builder->where, document->source, builder->here.at);
    node->line   = builder->where.line;
    node->column = builder->where.column;
    node->key    = key;
    node->parent = parent;
    node_set_value(node, value);
    if (key != NULL) {
        (void)builder_take(builder);
        (void)builder_take(builder); /* the colon */
    }
    last         = builder_take(builder);
    node->lexeme = document->text + last.at;
    if (json_is_object(value)) {
        json_object_foreach(value, key, child)
        {
            node_build(builder, child, key, node);
            last = builder_take(builder); /* a comma, or the closing bracket */
        }
    } else {
        json_array_foreach(value, i, child)
        {
            node_build(builder, child, NULL, node);
            last = builder_take(builder);
        }
    }
    if ((node->kind == SHERDI_JSON_OBJECT || node->kind == SHERDI_JSON_ARRAY) &&
        document->node_count == (size_t)(node - document->nodes) + 1) {
        last = builder_take(builder); /* empty: the closing bracket was not taken yet */
    }
    node->lexeme_bytes = (size_t)(document->text + last.end - node->lexeme);
    node->end_node     = &document->nodes[document->node_count];
}

/* Checks that nodes are in the order of the text, each before its descendants: finding the next node, and the locations in
 * messages, rely on it. */
static int nodes_are_nested(const sherdi_json *document)
{
    static const char *const FIRST[] = {
        [SHERDI_JSON_OBJECT] = "{",  [SHERDI_JSON_ARRAY] = "[",
        [SHERDI_JSON_STRING] = "\"", [SHERDI_JSON_NUMBER] = "-0123456789",
        [SHERDI_JSON_BOOL] = "tf",   [SHERDI_JSON_NULL] = "n",
    };
    const sherdi_json_node *nodes = document->nodes;

    for (size_t i = 0; i < document->node_count; i++) {
        const sherdi_json_node *node   = &nodes[i];
        const sherdi_json_node *parent = node->parent;

        if (node->end_node <= node || strchr(FIRST[node->kind], *node->lexeme) == NULL ||
            (i > 0 && (node->lexeme <= nodes[i - 1].lexeme || parent >= node ||
                       node->end_node > parent->end_node)) ||
            (i == 0 && node->end_node != nodes + document->node_count)) {
            return 0;
        }
    }
    return 1;
}

/* ---- document ---- */

static sherd_status document_read(sherdi_mem *mem, sherdi_json *document)
{
    node_builder builder = {.document = document, .where = {0, 1, 1}};

    SHERDI_TRY(bytes_check(document));
    SHERDI_TRY(comments_blank(document));
    SHERDI_TRY(commas_blank(document));
    SHERDI_TRY(tree_load(document));
    document->nodes = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, values_most(document),
                                         sizeof(*document->nodes));
    if (document->nodes == NULL) {
        return SHERD_E_NOMEM;
    }
    builder.here = token_next(document, 0);
    node_build(&builder, document->tree, NULL, NULL);
    SHERDI_SLOW_ASSERT(nodes_are_nested(document));
    return SHERD_OK;
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
    document->source    = text;
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
    json_decref(document->tree);
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

    /* More than 19 digits do not fit into 64 bits, and for those a double is exact enough to say so. */
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
