/* Fields: the elements of a description on a disk. A table of fields has for each its name on the
 * disk, its type, and its member of a struct; the description is written and read from the same
 * table. manifest.c and linked.c have the tables. */
#ifndef SHERDI_ENGINE_CHECKPOINT_FIELDS_H
#define SHERDI_ENGINE_CHECKPOINT_FIELDS_H

#include "base/json.h"
#include "base/json_text.h"

struct json_t;

typedef enum sherdi_field_type {
    /* a whole number from `least` to `most` (0: to the maximum of the member); 32 or 64 bits */
    SHERDI_FIELD_NUMBER,
    SHERDI_FIELD_FLAG,   /* true or false; an int */
    SHERDI_FIELD_REAL,   /* a number above zero; a double */
    SHERDI_FIELD_HASH,   /* a string of 16 hexadecimal digits; a uint64_t */
    SHERDI_FIELD_TEXT,   /* a string; a char[] */
    SHERDI_FIELD_STRING, /* a string of at least `least` bytes; a char * */
    SHERDI_FIELD_NAME,   /* a string, the `name` of a number; an int or enum */
    SHERDI_FIELD_OBJECT, /* an object with `fields`, whose members are in the same struct */
    /* rows, each a struct of its own: an object with `fields`, or the value of its one field */
    SHERDI_FIELD_LIST,
} sherdi_field_type;

/* A table ends with SHERDI_FIELD_END. */
typedef struct sherdi_field sherdi_field;
struct sherdi_field {
    const char       *key;
    sherdi_field_type type;
    size_t            offset, bytes; /* of the member, or of a row; 0 bytes: a constant, `least` */
    int64_t           least, most;
    /* Of a list: offsets of its count (a size_t) and its capacity. A capacity of 0: the rows are in
     * the struct itself, at most `most`, and the count is an int. */
    size_t count, capacity;
    /* The offset of an int which says whether the field is there; 0: it always is. A hash that is
     * not there is written as null. */
    size_t has;
    /* The first day on which files had it: those from before lack it, and the member stays as it
     * was. NULL: all have it. */
    const char *since;
    /* Returns what stands for a number; NULL: it is beyond the last. `root` is the struct of the
     * whole description. A NUMBER that has a name may be that word, for -1. */
    const char *(*name)(const void *root, int number);
    const sherdi_field *fields;
};

#define SHERDI_FIELD(type_, key_, owner, member, ...)                                              \
    {                                                                                              \
        .type = SHERDI_FIELD_##type_, .key = (key_), .offset = offsetof(owner, member),            \
        .bytes = sizeof(((owner *)0)->member), __VA_ARGS__                                         \
    }
/* One that need not be there. */
#define SHERDI_FIELD_IF(has_, type_, key_, owner, member, ...)                                     \
    SHERDI_FIELD(type_, key_, owner, member, .has = offsetof(owner, has_), __VA_ARGS__)
#define SHERDI_FIELD_LIST_IN(key_, owner, member, num, most_, table, ...)                          \
    {                                                                                              \
        .type = SHERDI_FIELD_LIST, .key = (key_), .offset = offsetof(owner, member),               \
        .bytes = sizeof(*((owner *)0)->member), .count = offsetof(owner, num), .most = (most_),    \
        .fields = (table), __VA_ARGS__                                                             \
    }
#define SHERDI_FIELD_LIST_AT(key_, owner, member, num, cap, table, ...)                            \
    {                                                                                              \
        .type = SHERDI_FIELD_LIST, .key = (key_), .offset = offsetof(owner, member),               \
        .bytes = sizeof(*((owner *)0)->member), .count = offsetof(owner, num),                     \
        .capacity = offsetof(owner, cap), .fields = (table), __VA_ARGS__                           \
    }
#define SHERDI_FIELD_END                                                                           \
    {                                                                                              \
        .key = NULL                                                                                \
    }

/** Returns the object that describes a struct; NULL: no memory. The caller owns it. */
struct json_t *sherdi_fields_json(const sherdi_field *fields, const void *root, const void *object);
/** Adds values to a text, with their keys or without, up to the first that is not there. */
void sherdi_fields_print(const sherdi_field *fields, const void *object, int has_keys,
                         sherdi_text *text);

/* A description that is read. */
typedef struct sherdi_fields_reader {
    sherdi_mem *mem;
    const char *label;
    const char *sentence;    /* about damage: a format with the label and the reason */
    const void *root;        /* for `name` */
    int         is_borrowed; /* a STRING is the document's, not a copy in memory of the account */
    uint32_t    line;        /* of the value that was read last */
} sherdi_fields_reader;

/** Fails with E_INVAL. */
sherd_status sherdi_fields_damaged(const sherdi_fields_reader *r, const char *what);
/** Reads a struct from an object, from a list of the values in the order of the fields, or from the
 *  value of its one field. Rows of lists are added to those that are there. E_INVAL, E_NOMEM. */
sherd_status sherdi_fields_read(sherdi_fields_reader *r, const sherdi_field *fields,
                                const sherdi_json_node *node, void *object);
/** Reads a hash from 16 hexadecimal digits; returns whether they are there. */
int sherdi_hash_read(const char *text, uint64_t *out);

#endif
