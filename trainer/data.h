/* The corpus and the order of its sequences. A corpus is a file or a folder of UTF-8 text (a token
 * is a byte), or a file of tokens as llm.c writes them. Its last twentieth is reserved for
 * validation. The order is a pure function of the seed and of the number of a sequence, so a
 * resumed run needs no state of it. */
#ifndef LLM_DATA_H
#define LLM_DATA_H

#include <stddef.h>
#include <stdint.h>

typedef struct corpus {
    int    fd;          /* of a file, whose tokens are read when they are needed; -1: a folder */
    char  *text;        /* contents of a folder's files [count] */
    size_t start_bytes; /* of the first token in the file */
    int    is_text;     /* a token is a byte; else a token file */
    size_t token_bytes; /* in the file: 1, 2 or 4 */
    size_t count;       /* tokens in all */
    size_t train;       /* the first `train` of them are for training */
    size_t vocab;       /* smallest vocabulary for a model: 256, or the largest token + 1 */
    size_t files;       /* number of files that were read */
} corpus;

/** Opens the file or folder `path` and reads it once to check it. Returns 0; -1 with a sentence in
 *  `text`. */
int  corpus_open(const char *path, corpus *out, char *text, size_t text_bytes);
void corpus_close(corpus *c); /* also accepts a corpus that was never opened, with fd -1 */
/** Reads tokens [first, first + count). Returns 0; -1 with errno, which is 0 if the file was cut
 *  off or changed after it was opened. Any thread may call it. */
int corpus_read(const corpus *c, size_t first, size_t count, int32_t *out);

/* How sequences are cut from a corpus: `length` inputs, and as many targets, which lie one token
 * further. */
typedef struct order {
    const corpus *c;
    uint64_t      seed;
    size_t        length;
    size_t        batch; /* sequences per micro-batch */
} order;

/** Returns NULL, or a sentence that says why the corpus is too short. */
const char *order_check(const order *o, char *text, size_t text_bytes);
/** Reads inputs and targets [batch, length] of sequences [first, first + batch) of the run. In a
 *  micro-batch all ranks together take the next world * batch sequences, and rank r takes the r-th
 *  `batch` of them. So a layout changes who computes a sequence, not which sequences are computed,
 *  and a resumed run needs to know only how many were used. An epoch visits every sequence of the
 *  training part once, in a seeded order and at a seeded offset. Returns as corpus_read does. */
int order_train(const order *o, uint64_t first, int32_t *inputs, int32_t *targets);
/** Reads micro-batch `number` of `count`, which are spread evenly over the validation part. Returns
 *  as corpus_read does. */
int order_validate(const order *o, uint64_t number, uint64_t count, int32_t *inputs,
                   int32_t *targets);

#endif
