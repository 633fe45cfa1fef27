/* Text to train on: a file or a folder of UTF-8 text (a token is a byte), or a file of
 * GPT-2 tokens as llm.c writes them. The last twentieth is kept for validation. The order is
 * a pure function of seed and number, so it needs no state to be resumed. */
#ifndef LLM_DATA_H
#define LLM_DATA_H

#include <stddef.h>
#include <stdint.h>

typedef struct corpus {
    int    fd;          /* of a file: tokens are read when they are needed; -1: of a folder */
    char  *text;        /* of a folder's files [count] */
    size_t start_bytes; /* of the first token in the file */
    int    is_text;     /* a token is a byte; else a token file of uint16 */
    size_t count;       /* tokens altogether */
    size_t train;       /* the first `train` of them are for training */
    size_t vocab;       /* least vocabulary that a model needs: 256, or the largest token + 1 */
    size_t files;       /* how many were read */
} corpus;

/** Looks through `path` once. Returns 0; -1 with a sentence in `text`. */
int  corpus_open(const char *path, corpus *out, char *text, size_t text_bytes);
void corpus_close(corpus *c); /* accepts one that was never opened, with fd -1 */
/** Tokens [first, first + count). Returns 0; -1 with errno, which is 0 where the file was cut off or
 *  changed since it was opened. Any thread. */
int corpus_read(const corpus *c, size_t first, size_t count, int32_t *out);

/* How sequences are cut from a corpus: `length` inputs and as many targets, one further. */
typedef struct order {
    const corpus *c;
    uint64_t      seed;
    size_t        length;
    size_t        batch; /* sequences per micro-batch */
} order;

/** NULL, or a sentence why the corpus is too short. */
const char *order_check(const order *o, char *text, size_t text_bytes);
/** Inputs and targets [batch, length] of sequences [first, first + batch) of the run. A micro-batch of all ranks takes
 *  the next world * batch of them, rank r the r-th `batch`: a layout changes who computes, not what, and a run that goes
 *  on needs to know nothing but how many there were. An epoch visits every sequence of the training part once, in a
 *  seeded order and at a seeded offset. Returns as corpus_read does. */
int order_train(const order *o, uint64_t first, int32_t *inputs, int32_t *targets);
/** Micro-batch `number` of `count` that are spread evenly over the validation part. */
int order_validate(const order *o, uint64_t number, uint64_t count, int32_t *inputs,
                   int32_t *targets);

#endif
