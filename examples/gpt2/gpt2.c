/* gpt2: trains GPT-2 on the bytes of a text, on any number of ranks, at any ZeRO stage. One file, to be copied as the beginning of a
 * trainer of your own: examples/minimal is the page before it, trainer the full trainer. It reads from top to bottom: options, text,
 * arithmetic, model, training, ranks. Names of sherd begin with sherd_, and a comment explains each call where it is used first. Which
 * stage is trained, and where state and parameters rest, is not in this file: the configuration says it.
 *
 * It is not made for large models: it computes in fp32, with one thread of the CPU for each rank, and has no tokenizer, no dropout and no
 * sampling. Names and shapes of the parameters are those of transformers' GPT-2.
 *
 *     cc -O3 -march=native gpt2.c $(pkg-config --cflags --libs sherd) -lm -pthread -o gpt2
 *     ./gpt2 --data text                                     one rank
 *     ./gpt2 --data text --ranks 4                           four ranks, threads of this process
 *     mpirun -n 4 ./gpt2 --data text                         four processes; torchrun, srun and sherd launch do, too
 *     ./gpt2 --data text --save runs/a --resume 1            continues from the latest checkpoint, if one exists */
#define _GNU_SOURCE 1
#include <sherd.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call that can fail returns a status. All pass it on, and rank_main prints it once, with sherd's message. */
#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        sherd_status status_ = (call);                                                                                                     \
        if (status_ != SHERD_OK) return status_;                                                                                           \
    } while (0)

enum { BYTES = 256, MAX_LAYERS = 64, MAX_BATCH = 256, MAX_RANKS = 64, EVAL_ROWS = 32, DEPTH = 128, PANEL = 64 };

/* ---------------------------------------------------------- options ---- */

/* clang-format off */
/* The options of the command line; they do not change once the ranks have started. Texts come first, then numbers. */
enum { DATA, CONFIG, SAVE, BATCH, STEPS, LENGTH, LAYERS, WIDTH, HEADS, RANKS, EVAL_EVERY, SAVE_EVERY, RESUME, NUM_OPTIONS };
static sherd_config *config;
static struct { const char *name, *help, *text; long number, least, most; } option[NUM_OPTIONS] = {
    {"--data", "the text; its last tenth is held out", NULL, 0, 0, 0},
    {"--config", "file with DeepSpeed's keys; else ZeRO-3 with AdamW", NULL, 0, 0, 0},
    {"--save", "folder for checkpoints; Ctrl-C ends after the step and saves", NULL, 0, 0, 0},
    {"--batch", "sequences of a micro-batch; 0: as configured, else 8", "8", 0, 0, MAX_BATCH},
    {"--steps", "optimizer steps in all", NULL, 200, 0, 1000000},
    {"--length", "tokens of a sequence", NULL, 64, 1, 1000000},
    {"--layers", "layers of the model", NULL, 2, 1, MAX_LAYERS},
    {"--width", "width of a token", NULL, 64, 1, 1000000},
    {"--heads", "heads of attention", NULL, 4, 1, 1000000},
    {"--ranks", "ranks, as threads; a launcher's ranks are processes", NULL, 1, 1, MAX_RANKS},
    {"--eval-every", "steps between evaluations; 0: at the end only", NULL, 0, 0, 1000000},
    {"--save-every", "steps between checkpoints; 0: at the end only", NULL, 0, 0, 1000000},
    {"--resume", "1: goes on from the latest checkpoint in --save, if there is one", NULL, 0, 0, 1}};
/* clang-format on */

static int complain(const char *what, const char *why) { return fprintf(stderr, "gpt2: %s: %s\n", what, why) != 0; }

static int options_read(char **argv)
{
    char *end, why[64];

    for (int i = 0; argv[0] != NULL; i = 0, argv += 2) {
        while (i < NUM_OPTIONS && strcmp(option[i].name, argv[0]) != 0) i++;
        if (i == NUM_OPTIONS || argv[1] == NULL)
            return complain(argv[0], i < NUM_OPTIONS ? "needs a value" : "there is no such option; --help lists them");
        option[i].text   = argv[1];
        option[i].number = strtol(argv[1], &end, 10);
        (void)snprintf(why, sizeof(why), "takes a number from %ld to %ld", option[i].least, option[i].most);
        if (i >= BATCH && (*end != '\0' || option[i].number < option[i].least || option[i].number > option[i].most))
            return complain(argv[0], why);
    }
    if (option[DATA].text == NULL) return complain("--data", "needs a value");
    if (option[RESUME].number > 0 && option[SAVE].text == NULL) return complain("--resume", "needs --save");
    return option[WIDTH].number % option[HEADS].number == 0 ? 0 : complain("--width", "is no multiple of --heads");
}

/* Makes the configuration: of a file, or of a struct, for which sherd's core is enough. The engine checks it, and derives the rest. */
static sherd_status config_make(void)
{
    sherd_settings settings;

    if (option[CONFIG].text == NULL) {
        sherd_settings_init(&settings); /* as every struct of the interface is: AdamW, gradients clipped at 1 */
        settings.stage            = 3;
        settings.micro_batch_size = option[BATCH].number > 0 ? (int)option[BATCH].number : 8;
        settings.lr               = 2e-3;
        settings.steps_per_print  = 10;
        return sherd_config_from_settings(&settings, &config);
    }
    TRY(sherd_config_load(option[CONFIG].text, &config));
    if (option[BATCH].number > 0 ||
        (!sherd_config_has(config, "train_micro_batch_size_per_gpu") && !sherd_config_has(config, "train_batch_size")))
        TRY(sherd_config_set(config, "train_micro_batch_size_per_gpu", option[BATCH].text));
    for (size_t i = 0; i < sherd_config_warning_count(config); i++) /* keys without an effect */
        (void)complain("configuration", sherd_config_warning(config, i));
    return SHERD_OK;
}

/* ------------------------------------------------------------- text ---- */

static struct {
    unsigned char *bytes;
    size_t         all, train; /* lengths; the text after `train` is held out */
} text;

static int text_read(void)
{
    FILE *file = fopen(option[DATA].text, "rb");

    if (file == NULL || fseek(file, 0, SEEK_END) != 0) return complain(option[DATA].text, strerror(errno));
    text.all   = (size_t)ftell(file);
    text.train = text.all - text.all / 10;
    text.bytes = calloc(text.all + 1, 1);
    rewind(file);
    if (text.bytes == NULL || fread(text.bytes, 1, text.all, file) != text.all) return complain(option[DATA].text, "cannot be read");
    (void)fclose(file);
    return text.all / 10 > (size_t)option[LENGTH].number ? 0 : complain(option[DATA].text, "is shorter than 10 (--length + 1) bytes");
}

/* Random bits of a number (the finaliser of splitmix64, Steele, Lea, Flood 2014): there is no state, and all ranks can make the same. */
static uint64_t bits_of(uint64_t stream, uint64_t number)
{
    uint64_t z = stream * 0xd1342543de82ef95u + (number + 1) * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ------------------------------------------------------- arithmetic ---- */

/* A matrix in memory: element [i][j] is at[i * row_step + j * column_step]. So the transpose is the same memory, seen otherwise. */
typedef struct matrix {
    float *at;
    size_t rows, columns, row_step, column_step;
} matrix;

static matrix matrix_of(float *at, size_t rows, size_t columns) { return (matrix){at, rows, columns, columns, 1}; }
static matrix transposed(matrix m) { return (matrix){m.at, m.columns, m.rows, m.column_step, m.row_step}; }
static void   clear(matrix m) { memset(m.at, 0, m.rows * m.columns * sizeof(float)); } /* of one without gaps */

static void add(size_t count, const float *x, float *y)
{
    for (size_t i = 0; i < count; i++) y[i] += x[i];
}

/* Takes PANEL columns of b from row k on, without gaps, and zeros where b ends; returns how many rows there are. */
static size_t panel_take(matrix b, size_t k, size_t j, float panel[DEPTH][PANEL])
{
    size_t rows = b.rows - k < DEPTH ? b.rows - k : DEPTH, columns = b.columns - j;
    float *from = b.at + k * b.row_step + j * b.column_step;

    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < PANEL; c++) panel[i][c] = c < columns ? from[i * b.row_step + c * b.column_step] : 0.0f;
    return rows;
}

/* out += a b, where a row of out has no gaps. The sums of a panel's row stay in registers, as vectors. Their order is always the same, so a
 * micro-batch has the same gradient on every rank. */
static void product_add(matrix out, matrix a, matrix b)
{
    float panel[DEPTH][PANEL], sums[PANEL];

    for (size_t j = 0; j < b.columns; j += PANEL) {
        for (size_t k = 0, depth = 0; k < b.rows; k += depth) {
            depth = panel_take(b, k, j, panel);
            for (size_t i = 0; i < a.rows; i++) {
                memset(sums, 0, sizeof(sums));
                for (size_t n = 0; n < depth; n++)
                    for (size_t c = 0; c < PANEL; c++) sums[c] += a.at[i * a.row_step + (k + n) * a.column_step] * panel[n][c];
                add(b.columns - j < PANEL ? b.columns - j : PANEL, sums, out.at + i * out.row_step + j);
            }
        }
    }
}

/* Makes probabilities of x; returns the logarithm of the sum of its exponentials. */
static double softmax(size_t count, float *x)
{
    float  most = x[0];
    double sum  = 0.0;

    for (size_t i = 1; i < count; i++) most = fmaxf(most, x[i]);
    for (size_t i = 0; i < count; i++) sum += (double)(x[i] = expf(x[i] - most));
    for (size_t i = 0; i < count; i++) x[i] = (float)((double)x[i] / sum);
    return (double)most + log(sum);
}

/* ------------------------------------------------------------ model ---- */

/* A parameter: its values and gradient, which are there while its unit is acquired; a vector has one row. */
typedef struct param {
    matrix      data, grad;
    float       mean, sigma; /* of its first values */
    sherd_param handle;      /* sherd's number of it */
} param;

/* The activations of the model: a row for each token. The attention weights are stored with their result. */
typedef struct tensor {
    matrix data, grad;
    float *weights;
} tensor;

/* Places among the tensors and the params of a unit; a bias comes after its weight. The last unit's are NORM_1, with LN_F and HEAD. */
enum { IN, NORM_1, QKV, MIXED, MIDDLE, NORM_2, WIDE, ACTIVE, OUT, NUM_TENSORS };
enum { LN_1 = 0, ATTN = 2, ATTN_OUT = 4, LN_2 = 6, MLP = 8, MLP_OUT = 10, LAYER_PARAMS = 12 };
enum { WTE = 0, WPE = 1, LN_F = 0, HEAD = 2, NUM_OPS = 10 };

/* A unit is a set of parameters that are acquired and released together: the embeddings, a layer, or the last norm with the head. */
typedef struct unit {
    sherd_unit         handle;
    const struct kind *kind;
    param              params[LAYER_PARAMS];
    size_t             num_params;
    tensor             tensors[NUM_TENSORS];
} unit;

/* A rank's model. The memory of tensors is the program's own. */
typedef struct model {
    sherd_engine        *engine;
    size_t               batch, length, layers, width, heads, vocab, tokens;
    unit                 units[MAX_LAYERS + 2];
    matrix               logits, scores;
    const unsigned char *rows[MAX_BATCH];   /* length + 1 tokens each */
    double               losses[MAX_BATCH]; /* the mean of each sequence */
} model;

/* An operation makes y of x. With `back` it adds to the gradients of x and of its parameters, from that of y. */
typedef struct op {
    void (*run)(model *m, const param *p, const tensor *x, const tensor *y, int back);
    int param, x, y;
} op;

static void embed(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    (void)x;
    for (size_t i = 0, w = m->width; i < m->tokens; i++) {
        size_t token = m->rows[i / m->length][i % m->length] * w, position = i % m->length * w;

        if (!back) memcpy(y->data.at + i * w, p[WTE].data.at + token, w * sizeof(float));
        if (!back) add(w, p[WPE].data.at + position, y->data.at + i * w);
        if (back) add(w, y->grad.at + i * w, p[WTE].grad.at + token);
        if (back) add(w, y->grad.at + i * w, p[WPE].grad.at + position);
    }
}

/* y = x w + b; p[0] is the weight [inputs, outputs], p[1] the bias. */
static void linear(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    size_t out = p->data.columns;

    for (size_t i = 0; i < m->tokens; i++) {
        if (!back) memcpy(y->data.at + i * out, p[1].data.at, out * sizeof(float));
        if (back) add(out, y->grad.at + i * out, p[1].grad.at);
    }
    if (!back) product_add(y->data, x->data, p->data);
    if (back) product_add(p->grad, transposed(x->data), y->grad);
    if (back) product_add(x->grad, y->grad, transposed(p->data));
}

/* LayerNorm (Ba et al. 2016): p[0] is the scale, p[1] the bias. Back, y becomes their input. */
static void norm(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    size_t width = m->width;

    for (size_t at = 0; at < m->tokens * width; at += width) {
        const float *in = x->data.at + at, *d = y->grad.at + at;
        float       *out = y->data.at + at, sum = 0.0f, dot = 0.0f, scale;
        double       mean = 0.0, square = 0.0;

        for (size_t i = 0; i < width; i++) mean += (double)in[i] / (double)width;
        for (size_t i = 0; i < width; i++) square += ((double)in[i] - mean) * ((double)in[i] - mean) / (double)width;
        scale = (float)(1.0 / sqrt(square + 1e-5));
        for (size_t i = 0; i < width; i++) out[i] = (in[i] - (float)mean) * scale;
        for (size_t i = 0; i < width && !back; i++) out[i] = out[i] * p[0].data.at[i] + p[1].data.at[i];
        for (size_t i = 0; i < width && back; i++) {
            p[0].grad.at[i] += d[i] * out[i];
            p[1].grad.at[i] += d[i];
            sum += d[i] * p->data.at[i] / (float)width;
            dot += d[i] * p->data.at[i] * out[i] / (float)width;
        }
        for (size_t i = 0; i < width && back; i++) x->grad.at[at + i] += scale * (d[i] * p->data.at[i] - sum - out[i] * dot);
    }
}

/* Head n of all heads of all sequences: its rows in a table of tokens, from column `first` on for the first head. */
static matrix head_of(const model *m, matrix table, size_t first, size_t n)
{
    size_t width = m->width / m->heads;

    return (matrix){table.at + n / m->heads * m->length * table.columns + first + n % m->heads * width, m->length, width, table.columns, 1};
}

/* A row of x has queries, then keys, then values. A token sees itself and those before it. */
static void attention(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    size_t length = m->length, w = m->width;
    float  scale = 1.0f / sqrtf((float)(w / m->heads));

    (void)p;
    if (!back) clear(y->data);
    for (size_t n = 0; n < m->batch * m->heads; n++) {
        matrix weights = matrix_of(y->weights + n * length * length, length, length), down = head_of(m, y->grad, 0, n);
        matrix q = head_of(m, x->data, 0, n), k = head_of(m, x->data, w, n), v = head_of(m, x->data, 2 * w, n);

        clear(back ? m->scores : weights);
        product_add(back ? m->scores : weights, back ? down : q, transposed(back ? v : k));
        for (size_t t = 0; t < length; t++) { /* softmax, or back through it */
            float *row = weights.at + t * length, *d = m->scores.at + t * length, dot = 0.0f;

            for (size_t i = 0; i < length && !back; i++) row[i] = i <= t ? row[i] * scale : 0.0f;
            if (!back) (void)softmax(t + 1, row);
            for (size_t i = 0; i <= t && back; i++) dot += row[i] * d[i];
            for (size_t i = 0; i < length && back; i++) d[i] = row[i] * (d[i] - dot) * scale;
        }
        if (!back) product_add(head_of(m, y->data, 0, n), weights, v);
        if (back) product_add(head_of(m, x->grad, 0, n), m->scores, k);
        if (back) product_add(head_of(m, x->grad, w, n), transposed(m->scores), q);
        if (back) product_add(head_of(m, x->grad, 2 * w, n), transposed(weights), down);
    }
}

/* GELU in the form of tanh (Hendrycks and Gimpel 2016), which GPT-2 takes. */
static void gelu(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    const float c = 0.7978845608f, cubic = 0.044715f; /* c: the root of 2 / pi */

    (void)p;
    for (size_t i = 0; i < m->tokens * x->data.columns; i++) {
        float v = x->data.at[i], t = tanhf(c * (v + cubic * v * v * v)), slope = c * (1.0f + 3.0f * cubic * v * v) * (1.0f - t * t);

        if (!back) y->data.at[i] = 0.5f * v * (1.0f + t);
        if (back) x->grad.at[i] += y->grad.at[i] * 0.5f * (1.0f + t + v * slope);
    }
}

static void residual(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    (void)p;
    if (!back) add(m->tokens * m->width, x->data.at, y->data.at);
    if (back) add(m->tokens * m->width, y->grad.at, x->grad.at);
}

/* The head, whose weight is the table of tokens, and the loss. Forward leaves in the logits the gradient of this micro-batch's mean loss,
 * times the loss scale (1 unless fp16 is on); the mean over ranks and micro-batches is sherd's. */
static void head(model *m, const param *p, const tensor *x, const tensor *y, int back)
{
    float scale = sherd_loss_scale(m->engine) / (float)m->tokens;

    (void)y;
    if (back) product_add(x->grad, m->logits, p->data);
    if (back) product_add(p->grad, transposed(m->logits), x->data);
    if (back) return;
    clear(m->logits);
    product_add(m->logits, x->data, transposed(p->data));
    memset(m->losses, 0, sizeof(m->losses));
    for (size_t i = 0; i < m->tokens; i++) {
        float *row = m->logits.at + i * m->vocab, *next = row + m->rows[i / m->length][i % m->length + 1];
        double logit = (double)*next;

        m->losses[i / m->length] += (softmax(m->vocab, row) - logit) / (double)m->length;
        *next -= 1.0f;
        for (size_t k = 0; k < m->vocab; k++) row[k] *= scale;
    }
}

/* The kinds of units. Shapes and tensors are in widths of a token; a vector has 0 rows, and a tensor that a unit has not 0 columns. */
/* clang-format off */
enum { VOCAB = 1000, LENGTHS };
static const struct kind {
    const char *name;
    struct shape { const char *name; size_t rows, columns; } params[LAYER_PARAMS];
    size_t widths[NUM_TENSORS];
    op     ops[NUM_OPS];
} kinds[3] = {
    {"embeddings", {{"wte.weight", VOCAB, 1}, {"wpe.weight", LENGTHS, 1}}, {[OUT] = 1}, {{embed, WTE, IN, OUT}}},
    {"h.%zu",
     {{".ln_1.weight", 0, 1}, {".ln_1.bias", 0, 1}, {".attn.c_attn.weight", 1, 3}, {".attn.c_attn.bias", 0, 3},
      {".attn.c_proj.weight", 1, 1}, {".attn.c_proj.bias", 0, 1}, {".ln_2.weight", 0, 1}, {".ln_2.bias", 0, 1},
      {".mlp.c_fc.weight", 1, 4}, {".mlp.c_fc.bias", 0, 4}, {".mlp.c_proj.weight", 4, 1}, {".mlp.c_proj.bias", 0, 1}},
     {[NORM_1] = 1, [QKV] = 3, [MIXED] = 1, [MIDDLE] = 1, [NORM_2] = 1, [WIDE] = 4, [ACTIVE] = 4, [OUT] = 1},
     {{norm, LN_1, IN, NORM_1}, {linear, ATTN, NORM_1, QKV}, {attention, 0, QKV, MIXED}, {linear, ATTN_OUT, MIXED, MIDDLE},
      {residual, 0, IN, MIDDLE}, {norm, LN_2, MIDDLE, NORM_2}, {linear, MLP, NORM_2, WIDE}, {gelu, 0, WIDE, ACTIVE},
      {linear, MLP_OUT, ACTIVE, OUT}, {residual, 0, MIDDLE, OUT}}},
    {"head", {{"ln_f.weight", 0, 1}, {"ln_f.bias", 0, 1}}, {[NORM_1] = 1}, {{norm, LN_F, IN, NORM_1}, {head, HEAD, NORM_1, OUT}}}};
/* clang-format on */

/* Computes a unit. From acquire to release its parameters are whole on this rank, at any stage, and for BACKWARD there are gradients to add
 * to; its release says that they are complete, and stages 2 and 3 then reduce them, each to the slices that the ranks own. */
static sherd_status unit_run(model *m, unit *u, sherd_pass pass)
{
    int back = pass == SHERD_BACKWARD;

    TRY(sherd_unit_acquire(m->engine, u->handle, pass));
    for (param *p = u->params; p < u->params + u->num_params; p++) {
        p->data.at = sherd_param_data(m->engine, p->handle);
        p->grad.at = back ? sherd_param_grad(m->engine, p->handle) : NULL;
    }
    for (int i = NORM_1; i < NUM_TENSORS && !back; i++) clear(u->tensors[i].grad);
    for (int i = 0; i < NUM_OPS; i++) {
        const op *o = &u->kind->ops[back ? NUM_OPS - 1 - i : i];

        if (o->run != NULL) o->run(m, &u->params[o->param], &u->tensors[o->x], &u->tensors[o->y], back);
    }
    return sherd_unit_release(m->engine, u->handle, pass);
}

/* Computes all units. EVAL is a forward without a backward. */
static sherd_status pass_run(model *m, sherd_pass pass)
{
    for (size_t i = 0; i < m->layers + 2; i++) TRY(unit_run(m, &m->units[pass == SHERD_BACKWARD ? m->layers + 1 - i : i], pass));
    return SHERD_OK;
}

static matrix matrix_make(size_t rows, size_t columns)
{
    float *at = calloc(rows * columns + 1, sizeof(*at));

    if (at == NULL) exit(complain("activations", "no memory"));
    return matrix_of(at, rows, columns);
}

/* Declares a unit and its parameters, in the same way on all ranks. First values are GPT-2's: N(0, 0.02), less before residual sums. */
static sherd_status unit_declare(model *m, unit *u)
{
    sherd_unit_params  about;
    sherd_param_params each;
    char               name[32], full[64];

    (void)snprintf(name, sizeof(name), u->kind->name, (size_t)(u - m->units) - 1);
    sherd_unit_params_init(&about);
    about.name = name;
    TRY(sherd_unit_add(m->engine, &about, &u->handle));
    for (const struct shape *s = u->kind->params; s < u->kind->params + LAYER_PARAMS && s->name != NULL; s++) {
        size_t rows = s->rows == VOCAB ? m->vocab : s->rows == LENGTHS ? m->length : s->rows * m->width;
        param *p    = &u->params[u->num_params++];

        p->data = p->grad = matrix_of(NULL, rows > 0 ? rows : 1, s->columns * m->width);
        p->mean           = rows == 0 && strstr(s->name, "bias") == NULL ? 1.0f : 0.0f;
        p->sigma          = rows == 0 ? 0.0f : strstr(s->name, "c_proj") == NULL ? 0.02f : 0.02f / sqrtf(2.0f * (float)m->layers);
        sherd_param_params_init(&each);
        (void)snprintf(full, sizeof(full), "%s%s", s->name[0] == '.' ? name : "", s->name);
        each.name                 = full;
        each.ndim                 = rows == 0 ? 1 : 2;
        each.shape[0]             = rows;
        each.shape[each.ndim - 1] = p->data.columns;
        TRY(sherd_param_add(m->engine, u->handle, &each, &p->handle));
    }
    return SHERD_OK;
}

/* Makes the units and their memory. Forward takes units in the order of declaration, and backward in the reverse, unless sherd_pass_add says
 * otherwise: sherd gathers ahead what comes next. The head is tied: it reads the embeddings' table of tokens, and adds to its gradient. */
static sherd_status model_make(model *m)
{
    unit *last = &m->units[m->layers + 1];

    m->tokens = m->batch * m->length;
    m->logits = matrix_make(m->tokens, m->vocab);
    m->scores = matrix_make(m->length, m->length);
    for (unit *u = m->units; u <= last; u++) {
        u->kind = &kinds[u == m->units ? 0 : u < last ? 1 : 2];
        TRY(unit_declare(m, u));
        if (u > m->units) u->tensors[IN] = (u - 1)->tensors[OUT];
        for (int k = NORM_1; k < NUM_TENSORS; k++) {
            u->tensors[k].data = matrix_make(m->tokens, u->kind->widths[k] * m->width);
            u->tensors[k].grad = matrix_make(m->tokens, u->kind->widths[k] * m->width);
        }
        u->tensors[MIXED].weights = matrix_make(u->kind->widths[MIXED] * m->tokens * m->heads, m->length).at;
    }
    last->params[last->num_params++] = m->units[0].params[WTE];
    return sherd_unit_reads(m->engine, last->handle, last->params[HEAD].handle);
}

/* Gives sherd_param_fill first values: of any range, in any order, the same on every rank (Box and Muller 1958). */
static sherd_status values_make(void *ctx, size_t first, size_t count, float *out)
{
    const param *p = ctx;

    for (size_t i = 0; i < count; i++) {
        uint64_t bits   = bits_of((uint64_t)p->handle, first + i);
        double   radius = sqrt(-2.0 * log(((double)(bits >> 32) + 0.5) * 0x1p-32));

        out[i] = p->mean + p->sigma * (float)(radius * cos(0x1p-31 * M_PI * (double)(bits & UINT32_MAX)));
    }
    return SHERD_OK;
}

/* --------------------------------------------------------- training ---- */

/* The state of one rank. */
typedef struct trainer {
    sherd_world      *world;
    sherd_engine_info info;
    model             m;
    pthread_t         thread;
    sherd_status      status;
    int               rank, ranks, is_stopping, is_untold;
    long              step;
    uint64_t          sequences; /* that all ranks have seen, including earlier parts of the run */
    double            loss;
} trainer;

static volatile sig_atomic_t is_asked_to_stop;
static void                  stop_ask(int number) { is_asked_to_stop = number; }

/* Prints the step that was queued last; sherd_step_wait waits for its update. */
static sherd_status step_print(trainer *t)
{
    sherd_step_report report;

    if (!t->is_untold) return SHERD_OK;
    t->is_untold = 0;
    sherd_step_report_init(&report);
    TRY(sherd_step_wait(t->m.engine, &report));
    if (t->rank == 0 && (t->info.steps_per_print == 0 || t->step % t->info.steps_per_print == 0))
        printf("step %ld: loss %.4f, gradient norm %.4f, rate %.2e\n", t->step, t->loss, report.grad_norm, report.lr);
    return SHERD_OK;
}

/* Prints the mean loss of EVAL_ROWS sequences of the held-out text. All ranks acquire equally often, also one without a sequence. */
static sherd_status evaluate(trainer *t)
{
    size_t batch = t->m.batch, own = (size_t)t->rank * batch, starts = text.all - text.train - t->m.length;
    double loss = 0.0;

    TRY(step_print(t));
    for (size_t first = 0; first < EVAL_ROWS; first += (size_t)t->ranks * batch) {
        for (size_t b = 0; b < batch; b++) t->m.rows[b] = text.bytes + text.train + (first + own + b) % EVAL_ROWS * starts / EVAL_ROWS;
        TRY(pass_run(&t->m, SHERD_EVAL));
        for (size_t b = 0; b < batch && first + own + b < EVAL_ROWS; b++) loss += t->m.losses[b] / EVAL_ROWS;
    }
    TRY(sherd_world_sum_f64(t->world, &loss, 1));
    if (t->rank == 0) printf("step %ld: loss %.4f on what is held out\n", t->step, loss);
    return SHERD_OK;
}

/* Saves DIR/step-000100: every rank writes its slices, and the checkpoint is complete or does not exist. */
static sherd_status step_save(trainer *t)
{
    if (option[SAVE].text == NULL) return SHERD_OK;
    TRY(step_print(t));
    TRY(sherd_checkpoint_save(t->m.engine, option[SAVE].text, NULL, NULL));
    if (t->rank == 0) printf("step %ld: saved in %s\n", t->step, option[SAVE].text);
    return SHERD_OK;
}

/* One step: its micro-batches, each ended by sherd_step_queue. The last of these calls takes the norm, clips and queues the update; updates
 * on the host (offload) overlap with the next forward. Therefore the step before is printed here. The position of a sequence in the text
 * depends only on its number: any number of ranks sees the same data, and a resumed run continues. */
static sherd_status step_run(trainer *t)
{
    double sums[2] = {0.0, (double)is_asked_to_stop};
    model *m       = &t->m;

    for (int k = 0; k < t->info.accumulation; k++) {
        for (size_t b = 0; b < m->batch; b++)
            m->rows[b] = text.bytes + bits_of(UINT64_MAX, t->sequences + (size_t)t->rank * m->batch + b) % (text.train - m->length);
        TRY(pass_run(m, SHERD_FORWARD));
        TRY(pass_run(m, SHERD_BACKWARD));
        for (size_t b = 0; b < m->batch; b++) sums[0] += m->losses[b] / t->info.train_batch_size;
        t->sequences += (uint64_t)t->ranks * m->batch;
        TRY(step_print(t));
        TRY(sherd_step_queue(t->m.engine));
    }
    TRY(sherd_world_sum_f64(t->world, sums, 2)); /* so all ranks stop after the same step */
    t->loss        = sums[0];
    t->is_stopping = sums[1] > 0.0;
    t->is_untold   = 1;
    t->step++;
    return SHERD_OK;
}

static int is_due(const trainer *t, long every) { return every > 0 && t->step % every == 0 && t->step < option[STEPS].number; }

static sherd_status steps_run(trainer *t)
{
    while (t->step < option[STEPS].number && !t->is_stopping) {
        TRY(step_run(t));
        if (is_due(t, option[EVAL_EVERY].number)) TRY(evaluate(t));
        if (is_due(t, option[SAVE_EVERY].number)) TRY(step_save(t));
    }
    TRY(evaluate(t));
    TRY(step_save(t));
    if (option[SAVE].text != NULL) TRY(sherd_checkpoint_wait(t->m.engine, NULL)); /* if saves are asynchronous */
    /* At the end, state on NVMe is removed, unless the run was stopped and no checkpoint has it. */
    return t->is_stopping && option[SAVE].text == NULL ? sherd_engine_keep_state(t->m.engine, 1) : SHERD_OK;
}

/* ------------------------------------------------------------ ranks ---- */

/* Makes the engine and the model. Seal plans all of sherd's memory and allocates it; after it, training allocates nothing. */
static sherd_status engine_make(trainer *t)
{
    TRY(sherd_engine_create(t->world, config, &t->m.engine));
    sherd_engine_info_init(&t->info);
    TRY(sherd_engine_query(t->m.engine, &t->info));
    if (t->info.compute_dtype != SHERD_F32 || strcmp(t->info.backend, "cpu") != 0 || t->info.micro_batch_size > MAX_BATCH)
        exit(complain("configuration", "this trainer computes in fp32, on the CPU, at most 256 sequences at a time"));
    t->m.vocab  = BYTES;
    t->m.batch  = (size_t)t->info.micro_batch_size;
    t->m.length = (size_t)option[LENGTH].number;
    t->m.layers = (size_t)option[LAYERS].number;
    t->m.width  = (size_t)option[WIDTH].number;
    t->m.heads  = (size_t)option[HEADS].number;
    TRY(model_make(&t->m));
    return sherd_engine_seal(t->m.engine);
}

/* Gives the parameters their values: first ones, or those of the latest checkpoint, which any number of ranks can have saved, at any
 * stage. Where state on NVMe is resumed ("resume" in the configuration), fill leaves it alone. */
static sherd_status values_begin(trainer *t)
{
    char latest[4096];
    int  has_latest = 0;

    if (option[RESUME].number > 0) { /* rank 0 looks for it */
        (void)snprintf(latest, sizeof(latest), "%s/latest", option[SAVE].text);
        has_latest = t->rank == 0 && access(latest, F_OK) == 0;
        TRY(sherd_world_broadcast(t->world, &has_latest, sizeof(has_latest), 0));
    }
    if (option[SAVE].text != NULL) /* where sherd has no checkpoints, this fails before the first step */
        TRY(has_latest ? sherd_checkpoint_load(t->m.engine, option[SAVE].text, NULL, NULL) : sherd_checkpoint_wait(t->m.engine, NULL));
    for (unit *u = t->m.units; u < t->m.units + t->m.layers + 2 && !has_latest; u++)
        for (param *p = u->params; p < u->params + u->num_params; p++)
            if (u->kind != &kinds[2] || p < &u->params[HEAD]) TRY(sherd_param_fill(t->m.engine, p->handle, values_make, p));
    TRY(sherd_engine_query(t->m.engine, &t->info));
    t->step      = (long)t->info.step;
    t->sequences = (uint64_t)t->info.samples;
    return SHERD_OK;
}

/* The fingerprint is a sum over the bits of all weights: runs that have the same one have trained the same model. */
static sherd_status rank_run(trainer *t)
{
    uint64_t fingerprint;

    TRY(engine_make(t));
    TRY(values_begin(t));
    if (t->rank == 0) printf("%zu parameters, %d ranks, stage %d\n", t->info.param_elems, t->ranks, t->info.stage);
    TRY(steps_run(t));
    TRY(sherd_engine_fingerprint(t->m.engine, &fingerprint));
    if (t->rank == 0) printf("step %ld: fingerprint %016llx\n", t->step, (unsigned long long)fingerprint);
    return SHERD_OK;
}

static trainer trainers[MAX_RANKS];

/* One rank, from its world on. If it fails it prints the reason and aborts the world, so that the calls of the other ranks end. */
static void *rank_main(void *arg)
{
    trainer *t = arg;

    t->rank = sherd_world_rank(t->world), t->ranks = sherd_world_size(t->world);
    if (option[RANKS].text != NULL && t->ranks != (int)option[RANKS].number)
        exit(complain("--ranks", "the launcher has started another number"));
    t->status = rank_run(t);
    if (t->status != SHERD_OK && t->status != SHERD_E_PEER_LOST) (void)complain("a rank fails", sherd_last_error());
    if (t->status != SHERD_OK) sherd_world_abort(t->world, "the trainer failed");
    sherd_engine_destroy(t->m.engine);
    sherd_world_destroy(t->world);
    return NULL;
}

/* Makes the worlds and starts the ranks: this process alone, or as a launcher has started it, or several threads. */
static int ranks_run(void)
{
    sherd_world *worlds[MAX_RANKS];
    int          is_launched = sherd_launcher() != NULL, count = is_launched ? 1 : (int)option[RANKS].number;

    if ((is_launched ? sherd_world_from_env(NULL, worlds) : sherd_world_threads(count, worlds)) != SHERD_OK)
        return complain("ranks", sherd_last_error());
    for (int i = 0; i < count; i++) trainers[i].world = worlds[i];
    for (int i = 1; i < count; i++)
        if (pthread_create(&trainers[i].thread, NULL, rank_main, &trainers[i]) != 0) exit(complain("ranks", "no room for a thread"));
    (void)rank_main(&trainers[0]);
    for (int i = 1; i < count; i++) (void)pthread_join(trainers[i].thread, NULL);
    return trainers[0].status != SHERD_OK; /* a rank that fails ends the others */
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        puts("usage: gpt2 --data FILE [OPTIONS]\n\nTrains GPT-2 on the bytes of a text.\n");
        for (int i = 0; i < NUM_OPTIONS; i++)
            printf(i < BATCH ? "  %-12s  %s\n" : "  %-12s  %s (%ld)\n", option[i].name, option[i].help, option[i].number);
        puts("\nSHERD_LOG=warn shows what sherd has to say.");
        return 0;
    }
    if (options_read(argv + 1) != 0 || text_read() != 0) return 1;
    if (config_make() != SHERD_OK) return complain("configuration", sherd_last_error());
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    (void)signal(SIGINT, stop_ask);
    (void)signal(SIGTERM, stop_ask);
    int result = ranks_run();
    sherd_config_destroy(config);
    free(text.bytes);
    return result;
}
