/* The command line. One table defines the options; the parser and the help both use it. */
#include "options.h"

#include "sherd.h"
#include "weights.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
    OPTION_ARCH,
    OPTION_PRESET,
    OPTION_MODEL,
    OPTION_PRECISION,
    OPTION_TEXT,   /* const char * */
    OPTION_WHOLE,  /* a whole number of at least `least` */
    OPTION_NUMBER, /* a whole number from `least` to `most` */
    OPTION_RATE,   /* double, at least 0 */
    OPTION_SWITCH, /* int, set to 1 */
    OPTION_ATTENTION,
    OPTION_PLACES,
    OPTION_SPAN, /* MIN:MAX, two ints one after the other */
    OPTION_RECOMPUTE,
    OPTION_HELP,
} option_kind;

typedef struct option_row {
    const char *name;
    const char *value; /* name of its value in the help; NULL: it takes none */
    option_kind kind;
    size_t      offset, bytes; /* in options */
    long long   least, most;
    const char *meaning;
    const char *heading; /* of the part of the help that begins here */
} option_row;

#define FIELD(name) offsetof(options, name), sizeof(((options *)NULL)->name)
#define SIZES       1, 1 << 28
#define COUNTS      0, LONG_MAX / 2

static const option_row rows[] = {
    {"arch", "NAME", OPTION_ARCH, 0, 0, 0, 0, ARCH_KIND_NAMES " (default: minimind)", "Model"},
    {"preset", "NAME", OPTION_PRESET, 0, 0, 0, 0, "sizes by name, listed below (default: bytes)",
     NULL},
    {"model", "PATH", OPTION_MODEL, 0, 0, 0, 0,
     "a model of transformers instead: a folder with config.json and safetensors, from whose "
     "weights "
     "the training starts, or a config.json alone",
     NULL},
    {"hidden", "N", OPTION_WHOLE, FIELD(sizes.hidden), SIZES,
     "width of the model (default: the preset's)", NULL},
    {"layers", "N", OPTION_WHOLE, FIELD(sizes.layers), SIZES,
     "number of layers (default: the preset's)", NULL},
    {"heads", "N", OPTION_WHOLE, FIELD(sizes.heads), SIZES,
     "number of attention heads (default: the preset's)", NULL},
    {"kv-heads", "N", OPTION_WHOLE, FIELD(sizes.kv_heads), SIZES,
     "heads of keys and values, not for gpt2 (default: the preset's, or one that fits --heads)",
     NULL},
    {"inner", "N", OPTION_WHOLE, FIELD(sizes.inner), SIZES,
     "width of the feed-forward part (default: the preset's, or one that fits --hidden)", NULL},
    {"vocab", "N", OPTION_WHOLE, FIELD(sizes.vocab), SIZES,
     "number of tokens that the model knows (default: the preset's)", NULL},
    {"length", "N", OPTION_WHOLE, FIELD(length), SIZES, "tokens in a sequence (default: 128)",
     NULL},

    {"data", "PATH", OPTION_TEXT, FIELD(data_path), 0, 0,
     "UTF-8 text, a file or a folder (each byte is a token), or a .bin token file of llm.c",
     "Training"},
    {"config", "FILE", OPTION_TEXT, FIELD(config_path), 0, 0,
     "DeepSpeed-style JSON file (default: ZeRO-3, bf16, AdamW, WarmupCosineLR)", NULL},
    {"steps", "N", OPTION_WHOLE, FIELD(steps), COUNTS, "number of optimizer steps (default: 800)",
     NULL},
    {"minutes", "N", OPTION_RATE, FIELD(minutes), 0, 0,
     "make fewer steps if a trial of three shows that they would take more than N minutes", NULL},
    {"seed", "N", OPTION_WHOLE, FIELD(seed), 0, LLONG_MAX,
     "seed of the initial weights, the order of the data and the sample (default: 1)", NULL},
    {"eval-every", "N", OPTION_WHOLE, FIELD(eval_every), COUNTS,
     "validate every N steps and after the last one (default: 100; 0: only after the last one)",
     NULL},
    {"eval-first", NULL, OPTION_SWITCH, FIELD(is_first_validated), 0, 0,
     "also validate before the first step", NULL},
    {"sample", "N", OPTION_WHOLE, FIELD(sample), COUNTS,
     "tokens of text to write at the end (default: 200)", NULL},
    {"prompt", "TEXT", OPTION_TEXT, FIELD(prompt), 0, 0,
     "text with which the sample starts (default: the start of the validation text)", NULL},
    {"log", "FILE", OPTION_TEXT, FIELD(log_path), 0, 0,
     "write a JSON object for each step and checkpoint to FILE; with --resume, append them", NULL},
    {"init", "PATH", OPTION_TEXT, FIELD(init_path), 0, 0,
     "start with these weights: safetensors of this model (file or folder), or a .bin of llm.c",
     NULL},
    {"export", "PATH", OPTION_TEXT, FIELD(export_path), 0, 0,
     "write the weights at the end: a folder that transformers loads, or a .safetensors or .bin "
     "file",
     NULL},
    {"export-as", "TYPE", OPTION_PRECISION, FIELD(export_precision), 0, 0,
     "element type of the exported weights: fp32, bf16 or fp16 (default: fp32)", NULL},
    {"export-file-bytes", "N", OPTION_WHOLE, FIELD(export_file_bytes), COUNTS,
     "most bytes in one exported file; more weights go into several (default: 5e9)", NULL},
    {"activations", "LIST", OPTION_PLACES, FIELD(places), 0, 0,
     "where what a layer's forward leaves waits for backward: device; cheap, on the device "
     "without what one cheap kernel makes again; cpu or nvme, likewise; recompute, which keeps the "
     "layer's input alone, on the device, or recompute-cpu or recompute-nvme there. cpu:20,device: "
     "the first 20 layers on cpu (default: device)",
     NULL},
    {"recompute", NULL, OPTION_RECOMPUTE, FIELD(places), 0, 0,
     "the same as --activations recompute", NULL},
    {"quiet", NULL, OPTION_SWITCH, FIELD(is_quiet), 0, 0, "print no progress and no summary", NULL},

    {"lr", "RATE", OPTION_RATE, FIELD(lr), 0, 0, "learning rate",
     "In place of what the configuration says (default: as it says)"},
    {"batch", "N", OPTION_NUMBER, FIELD(batch), 1, 1 << 20, "sequences in a micro-batch", NULL},
    {"accumulation", "N", OPTION_NUMBER, FIELD(accumulation), 1, 1 << 20,
     "micro-batches per step on each rank", NULL},
    {"stage", "N", OPTION_NUMBER, FIELD(stage), 0, 3, "ZeRO stage, 0 to 3", NULL},
    {"precision", "TYPE", OPTION_PRECISION, FIELD(precision), 0, 0,
     "element type of parameters and gradients: fp32, bf16 or fp16", NULL},
    {"offload", "TIER", OPTION_TEXT, FIELD(offload), 0, 0,
     "where the optimizer state rests: none, cpu or nvme", NULL},
    {"offload-params", "TIER", OPTION_TEXT, FIELD(offload_params), 0, 0,
     "where the parameters rest at stage 3: none, cpu or nvme", NULL},
    {"nvme-path", "DIR", OPTION_TEXT, FIELD(nvme_path), 0, 0,
     "folder on the drive, for what rests on nvme", NULL},

    {"save", "DIR", OPTION_TEXT, FIELD(save_dir), 0, 0,
     "save checkpoints in DIR: at the end, and when Ctrl-C, SIGTERM or SIGUSR1 ends the run",
     "Saving and resuming"},
    {"save-every", "N", OPTION_WHOLE, FIELD(save_every), COUNTS,
     "also save every N steps (default: 0, only at the end)", NULL},
    {"keep", "N", OPTION_NUMBER, FIELD(keep), 0, INT_MAX,
     "number of checkpoints that stay in DIR (default: as the configuration says, else 0: all)",
     NULL},
    {"resume", NULL, OPTION_SWITCH, FIELD(is_resumed), 0, 0,
     "continue from the latest checkpoint in the folder of --save, or from state left on nvme",
     NULL},
    {"resume-from", "FOLDER", OPTION_TEXT, FIELD(resume_from), 0, 0,
     "continue from this checkpoint, on any number of ranks", NULL},

    {"backend", "NAME", OPTION_TEXT, FIELD(backend), 0, 0,
     "cpu or cuda (default: SHERD_BACKEND, else cpu: a GPU is used only on request)", "Machine"},
    {"ranks", "N", OPTION_NUMBER, FIELD(ranks), 1, 1024,
     "ranks, as threads (default: 4, on GPUs 1, or what mpirun, torchrun or srun started)", NULL},
    {"elastic", "MIN:MAX", OPTION_SPAN, FIELD(least_ranks), 1, OPTIONS_MOST_RANKS,
     "let the signals SIGTTIN (one more) and SIGTTOU (one less) change the number of ranks between "
     "these two while the training goes on; the global batch stays. Ranks that are processes are "
     "started by sherd launch --elastic MIN:MAX, which takes the signals; there ranks may also die",
     NULL},
    {"threads", "N", OPTION_NUMBER, FIELD(threads), 1, 256,
     "threads of each rank (default: cores / ranks)", NULL},
    {"attention", "NAME", OPTION_ATTENTION, FIELD(choices.attention), 0, 0,
     "GPU: own, warpgroup (own, by H100's products of warpgroups), cudnn (if its library is "
     "there and has kernels), or auto: warpgroup, or else cudnn if it gives the same bits every "
     "time (default: auto)",
     NULL},
    {"logits-rows", "N", OPTION_NUMBER, FIELD(choices.logits_rows), 0, INT_MAX,
     "GPU: tokens whose logits exist at a time (default: 0, as many as 800 MB or the layers' inner "
     "activations hold)",
     NULL},
    {"tune", "N", OPTION_NUMBER, FIELD(choices.tune), 0, 16,
     "GPU: time up to N kernels for each shape of product, once, and keep the fastest (default: 0)",
     NULL},
    {"tuned", "FILE", OPTION_TEXT, FIELD(choices.tuned), 0, 0,
     "what --tune measured, so that runs repeat (default: sherd/products.tsv in the user's cache)",
     NULL},
    {"graphs", NULL, OPTION_SWITCH, FIELD(choices.is_graphed), 0, 0,
     "GPU: launch each pass of a unit as one graph; small micro-batches gain by it", NULL},
    {"peak-tflops", "N", OPTION_RATE, FIELD(peak_tflops), 0, 0,
     "peak of the GPU in TFLOPS, for the share that is reached (default: by the GPU's name)", NULL},
    {"help", NULL, OPTION_HELP, 0, 0, 0, 0, "print this text", NULL},
};

#define NUM_ROWS (sizeof(rows) / sizeof(rows[0]))

static void help_print(void)
{
    printf("usage: sherd-llm --data PATH [OPTIONS]\n\n"
           "Trains a small language model with ZeRO on CPUs or GPUs. Started alone, it runs\n"
           "several ranks as threads. Under mpirun, torchrun or srun each process is one rank.\n"
           "Ctrl-C finishes the step, saves if --save is given, and prints the summary.\n");
    for (size_t i = 0; i < NUM_ROWS; i++) {
        char left[64];

        if (rows[i].heading != NULL) {
            printf("\n%s\n", rows[i].heading);
        }
        (void)snprintf(left, sizeof(left), "--%s%s%s", rows[i].name,
                       rows[i].value != NULL ? " " : "",
                       rows[i].value != NULL ? rows[i].value : "");
        printf("  %-21s  %s\n", left, rows[i].meaning);
    }
    for (int kind = ARCH_GPT2; kind < ARCH_KINDS; kind++) {
        const char *name;

        printf("%sPresets of %s:", kind == ARCH_GPT2 ? "\n" : "", arch_kind_name((arch_kind)kind));
        for (size_t i = 0; (name = arch_preset_name((arch_kind)kind, i)) != NULL; i++) {
            printf(" %s", name);
        }
        printf("\n");
    }
    printf("\nExamples\n"
           "  sherd-llm --data text.txt --stage 2 --ranks 2 --precision fp32\n"
           "  mpirun -n 4 sherd-llm --data text.txt --steps 1000 --log run.jsonl\n"
           "  sherd-llm --data tokens.bin --arch gpt2 --preset 124m --ranks 1 --batch 4 \\\n"
           "      --length 64\n"
           "  sherd-llm --data tokens.bin --model Llama-3-8B --backend cuda --export trained\n"
           "  sherd-llm --data tokens.bin --arch gpt2 --preset 124m --backend cuda \\\n"
           "      --batch 32 --length 1024\n");
}

static int wrong(const option_row *row, const char *value, const char *wanted)
{
    (void)fprintf(stderr, "sherd-llm: --%s takes %s, not '%s'\n", row->name, wanted, value);
    return 2;
}

/* Reads a whole number from `least` to `most`; returns -1 for anything else. */
static int integer_read(const char *text, long long least, long long most, long long *out)
{
    char     *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || errno != 0 || value < least || value > most) {
        return -1;
    }
    *out = value;
    return 0;
}

static int number_apply(const option_row *row, const char *value, void *field)
{
    long long number;
    int       narrow;
    char      wanted[64];

    if (integer_read(value, row->least, row->most, &number) != 0) {
        if (row->kind == OPTION_WHOLE) {
            (void)snprintf(wanted, sizeof(wanted), "a number of at least %lld", row->least);
        } else {
            (void)snprintf(wanted, sizeof(wanted), "a number from %lld to %lld", row->least,
                           row->most);
        }
        return wrong(row, value, wanted);
    }
    narrow = (int)number;
    memcpy(field, row->bytes == sizeof(narrow) ? (void *)&narrow : (void *)&number, row->bytes);
    return 0;
}

static int rate_apply(const option_row *row, const char *value, double *field)
{
    char  *end;
    double rate = strtod(value, &end);

    if (*value == '\0' || *end != '\0' || !(rate >= 0.0) || !isfinite(rate)) {
        return wrong(row, value, "a number of at least 0");
    }
    *field = rate;
    return 0;
}

static int precision_apply(const option_row *row, const char *value, options_precision *field)
{
    static const char *const names[] = {"", "fp32", "bf16", "fp16"};

    for (int i = PRECISION_FP32; i <= PRECISION_FP16; i++) {
        if (strcmp(value, names[i]) == 0) {
            *field = (options_precision)i;
            return 0;
        }
    }
    return wrong(row, value, "fp32, bf16 or fp16");
}

static int places_apply(const option_row *row, const char *value, layer_places *field)
{
    char why[320];

    if (layer_places_parse(value, field, why, sizeof(why)) != 0) {
        (void)fprintf(stderr, "sherd-llm: --%s: %s\n", row->name, why);
        return 2;
    }
    return 0;
}

static int attention_apply(const option_row *row, const char *value, compute_attention *field)
{
    return compute_attention_find(value, field) == 0
               ? 0
               : wrong(row, value, "auto, own, cudnn or warpgroup");
}

/* Reads MIN:MAX into two ints one after the other. */
static int span_apply(const option_row *row, const char *value, int *field)
{
    char     *end   = NULL;
    long long least = strtoll(value, &end, 10);
    long long most  = *end == ':' && end != value ? strtoll(end + 1, &end, 10) : 0;

    if (*end != '\0' || least < row->least || most < least || most > row->most) {
        (void)fprintf(stderr,
                      "sherd-llm: --%s %s: give two whole numbers, the smaller first, from %lld to "
                      "%lld, such as 2:8\n",
                      row->name, value, row->least, row->most);
        return 2;
    }
    field[0] = (int)least;
    field[1] = (int)most;
    return 0;
}

/* Applies one option. Architecture and preset are applied before single sizes, wherever they stand:
 * see options_parse. */
static int row_apply(const option_row *row, const char *value, options *out)
{
    void *field = (char *)out + row->offset;

    switch (row->kind) {
    case OPTION_ARCH:
    case OPTION_PRESET:
    case OPTION_MODEL:
    case OPTION_HELP:
        return 0;
    case OPTION_PRECISION:
        return precision_apply(row, value, field);
    case OPTION_TEXT:
        *(const char **)field = value;
        return 0;
    case OPTION_RATE:
        return rate_apply(row, value, field);
    case OPTION_ATTENTION:
        return attention_apply(row, value, field);
    case OPTION_PLACES:
        return places_apply(row, value, field);
    case OPTION_RECOMPUTE:
        *(layer_places *)field = layer_places_all(LAYER_RECOMPUTED);
        return 0;
    case OPTION_SWITCH:
        *(int *)field = 1;
        return 0;
    case OPTION_SPAN:
        return span_apply(row, value, field);
    default:
        return number_apply(row, value, field);
    }
}

static int preset_apply(const char *arch_name, const char *preset_name, arch *out)
{
    arch_kind kind;

    if (arch_kind_find(arch_name, &kind) != 0) {
        (void)fprintf(stderr, "sherd-llm: --arch takes " ARCH_KIND_NAMES ", not '%s'\n", arch_name);
        return 2;
    }
    if (arch_preset(kind, preset_name, out) != 0) {
        (void)fprintf(stderr, "sherd-llm: %s has no preset '%s'; it has", arch_name, preset_name);
        for (size_t i = 0; arch_preset_name(kind, i) != NULL; i++) {
            (void)fprintf(stderr, " %s", arch_preset_name(kind, i));
        }
        (void)fprintf(stderr, "\n");
        return 2;
    }
    return 0;
}

/* The contents of the command line: the names of model and preset, and which options it sets. */
typedef struct arguments {
    const char   *arch, *preset, *model;
    unsigned char given[NUM_ROWS];
} arguments;

/* Goes over the command line once. With `out` NULL it only looks at --arch, --preset, --model and
 * --help. */
static int arguments_walk(int argc, char **argv, options *out, arguments *seen)
{
    struct option table[NUM_ROWS + 1] = {0};
    int           found;

    for (size_t i = 0; i < NUM_ROWS; i++) {
        table[i] =
            (struct option){.name    = rows[i].name,
                            .has_arg = rows[i].value != NULL ? required_argument : no_argument,
                            .val     = (int)i};
    }
    optind = 0; /* restarts getopt */
    while ((found = getopt_long(argc, argv, "", table, NULL)) != -1) {
        int result = 0;

        if (found < 0 || found >= (int)NUM_ROWS) {
            (void)fprintf(stderr, "sherd-llm: --help lists the options\n");
            return 2; /* getopt has printed the mistake */
        }
        if (rows[found].kind == OPTION_HELP) {
            help_print();
            return 1;
        }
        seen->given[found] = 1;
        if (rows[found].kind == OPTION_ARCH) {
            seen->arch = optarg;
        } else if (rows[found].kind == OPTION_PRESET) {
            seen->preset = optarg;
        } else if (rows[found].kind == OPTION_MODEL) {
            seen->model = optarg;
        } else if (out != NULL) {
            result = row_apply(&rows[found], optarg, out);
        }
        if (result != 0) {
            return result;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "sherd-llm: '%s' is no option; --help lists them\n", argv[optind]);
        return 2;
    }
    return 0;
}

static int is_given(const arguments *seen, const char *name)
{
    size_t i = 0;

    while (strcmp(rows[i].name, name) != 0) {
        i++;
    }
    return seen->given[i];
}

/* Takes sizes and first weights from a model of transformers, which leaves no size to give. */
static int model_apply(const arguments *seen, options *out)
{
    static const char *const SIZE_NAMES[] = {"arch",  "preset",   "hidden", "layers",
                                             "heads", "kv-heads", "inner",  "vocab"};
    char                     why[512];
    int                      is_folder;

    for (size_t i = 0; i < sizeof(SIZE_NAMES) / sizeof(SIZE_NAMES[0]); i++) {
        if (is_given(seen, SIZE_NAMES[i])) {
            (void)fprintf(stderr,
                          "sherd-llm: --model says what the model is, and --%s cannot change it: "
                          "give one of them\n",
                          SIZE_NAMES[i]);
            return 2;
        }
    }
    if (weights_model_read(seen->model, &out->sizes, &is_folder, why, sizeof(why)) != SHERD_OK) {
        (void)fprintf(stderr, "sherd-llm: %s\n", why);
        return 2;
    }
    if (is_folder && out->init_path != NULL) {
        (void)fprintf(
            stderr,
            "sherd-llm: --model %s brings weights: to start with those of --init, give its "
            "config.json\n",
            seen->model);
        return 2;
    }
    out->init_path = is_folder ? seen->model : out->init_path;
    return 0;
}

/* Refuses sequences longer than a window of attention, with which the trainer does not compute. */
static int window_check(const options *o)
{
    if (o->sizes.window == 0 || o->length <= o->sizes.window) {
        return 0;
    }
    (void)fprintf(
        stderr,
        "sherd-llm: this model's attention has a window (sliding_window is %zu), which the "
        "trainer does not compute: use --length %zu or less, where it changes nothing\n",
        o->sizes.window, o->sizes.window);
    return 2;
}

/* Computes sizes that follow from others, unless they were set: the preset's inner width or heads
 * would not fit another width. */
static int sizes_settle(options *out, const arch *preset, const arguments *seen)
{
    arch       *sizes = &out->sizes;
    char        text[256];
    const char *why;

    if (sizes->hidden != preset->hidden && !is_given(seen, "inner")) {
        sizes->inner = 0;
    }
    if (sizes->heads != preset->heads && !is_given(seen, "kv-heads")) {
        sizes->kv_heads = sizes->kind == ARCH_GPT2 || sizes->heads % 2 != 0 ? 0 : sizes->heads / 2;
    }
    if (sizes->hidden != preset->hidden || sizes->heads != preset->heads) {
        sizes->head_elems = 0;
    }
    arch_complete(sizes);
    if (sizes->max_length < out->length) {
        (void)fprintf(stderr, "sherd-llm: this model has %zu positions, too few for --length %zu\n",
                      sizes->max_length, out->length);
        return 2;
    }
    why = arch_check(sizes, text, sizeof(text));
    if (why != NULL) {
        (void)fprintf(stderr, "sherd-llm: %s\n", why);
        return 2;
    }
    return window_check(out);
}

/* Checks options against each other. */
static int pairs_check(const options *o, const arguments *seen)
{
    const char *why = NULL;

    if (!isnan(o->minutes) && (o->is_resumed || o->resume_from != NULL)) {
        why = "--minutes chooses the steps of a new run; --resume goes on with those of the old "
              "one: give --steps";
    } else if (is_given(seen, "activations") && is_given(seen, "recompute")) {
        why = "--recompute is --activations recompute: give one of them";
    } else if (o->is_resumed && o->resume_from != NULL) {
        why = "--resume takes the latest and --resume-from a certain one: give one of them";
    } else if (o->save_dir == NULL && (is_given(seen, "save-every") || is_given(seen, "keep"))) {
        why = "--save-every and --keep need --save DIR";
    }
    if (why == NULL && is_given(seen, "elastic")) {
        int ranks = o->ranks > 0 ? o->ranks : OPTIONS_DEFAULT_RANKS;

        if (sherd_launcher() == NULL && (ranks < o->least_ranks || ranks > o->most_ranks)) {
            why = "--ranks (default: 4) has to be between the numbers of --elastic";
        } else if (!isnan(o->minutes)) {
            why = "--minutes times steps of one number of ranks: give --steps with --elastic";
        }
    }
    if (why != NULL) {
        (void)fprintf(stderr, "sherd-llm: %s\n", why);
    }
    return why == NULL ? 0 : 2;
}

int options_parse(int argc, char **argv, options *out)
{
    options   o    = {.length       = 128,
                      .steps        = 800,
                      .seed         = 1,
                      .minutes      = (double)NAN,
                      .lr           = (double)NAN,
                      .peak_tflops  = (double)NAN,
                      .batch        = -1,
                      .accumulation = -1,
                      .stage        = -1,
                      .keep         = -1,
                      .eval_every   = 100,
                      .sample       = 200};
    arguments seen = {.arch = "minimind", .preset = "bytes"};
    arch      preset;
    int       result;

    result = arguments_walk(argc, argv, NULL, &seen);
    if (result == 0 && seen.model == NULL) {
        result = preset_apply(seen.arch, seen.preset, &o.sizes);
    }
    if (result == 0) {
        preset = o.sizes;
        opterr = 0; /* the first walk has printed the mistakes of getopt */
        result = arguments_walk(argc, argv, &o, &seen);
    }
    if (result == 0 && seen.model != NULL) {
        result = model_apply(&seen, &o);
        preset = o.sizes;
    }
    if (result == 0) {
        result = sizes_settle(&o, &preset, &seen);
    }
    if (result == 0 && o.backend != NULL && strcmp(o.backend, "cpu") != 0 &&
        strcmp(o.backend, "cuda") != 0) {
        (void)fprintf(stderr, "sherd-llm: --backend takes cpu or cuda, not '%s'\n", o.backend);
        result = 2;
    }
    if (result == 0) {
        result = pairs_check(&o, &seen);
    }
    if (result == 0 && o.data_path == NULL) {
        (void)fprintf(stderr, "sherd-llm: --data PATH is needed: UTF-8 text or a token file "
                              "(./run train brings a default)\n");
        result = 2;
    }
    if (result == 0) {
        *out = o;
    }
    return result;
}
