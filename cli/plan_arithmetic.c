/* Times the trainer's arithmetic for sherd plan: a few steps of sherd-llm with one layer of the
 * planned model, whose log says how long the arithmetic took. See plan_rates.h. */
#include "cli/plan_rates.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_CHARS 4096

/* The first half warms up: caches, and a GPU's libraries, which choose and load kernels. */
#define STEPS_CPU    8
#define STEPS_DEVICE 12
#define STEPS_MOST   64

/* A size that is large enough to be as fast as a large model, and small enough to be quick. */
#define TOKENS_CPU         ((size_t)512)
#define TOKENS_DEVICE      ((size_t)8192)
#define LAYER_ELEMS_CPU    ((size_t)16 << 20)
#define LAYER_ELEMS_DEVICE ((size_t)256 << 20)

/* The trainer's tokens are bytes. */
#define VOCAB_LEAST ((size_t)256)
#define TEXT_BYTES  ((size_t)1 << 20)

/* ------------------------------------------------------------------ model -- */

static size_t layer_elems(const arch *sizes)
{
    size_t elems = 0;

    for (size_t k = arch_unit_first_param(sizes, 1); k < arch_unit_first_param(sizes, 2); k++) {
        arch_param param;

        arch_param_get(sizes, k, &param);
        elems += arch_param_elems(&param);
    }
    return elems;
}

static size_t half(size_t count)
{
    return count > 1 ? count / 2 : count;
}

/* Makes the sizes that the trainer makes of the options below. */
static arch sizes_complete(const arch *from)
{
    arch made;

    arch_begin(from->kind, &made);
    made.hidden     = from->hidden;
    made.layers     = 1;
    made.heads      = from->heads;
    made.kv_heads   = from->kv_heads;
    made.inner      = from->inner;
    made.vocab      = from->vocab;
    made.max_length = from->max_length;
    arch_complete(&made);
    return made;
}

/* One layer, with so much of the vocabulary that the head has the part in the arithmetic that it
 * has in the whole model. */
static arch layer_of(const arch *planned, size_t most_elems)
{
    arch sizes = *planned;

    sizes.vocab = planned->vocab / (planned->layers > 0 ? planned->layers : 1);
    sizes.vocab = sizes.vocab > VOCAB_LEAST ? sizes.vocab : VOCAB_LEAST;
    sizes       = sizes_complete(&sizes);
    while (layer_elems(&sizes) > most_elems && sizes.heads > 1) {
        sizes.hidden   = half(sizes.hidden);
        sizes.heads    = half(sizes.heads);
        sizes.kv_heads = half(sizes.kv_heads);
        sizes.inner    = half(sizes.inner);
        sizes          = sizes_complete(&sizes);
    }
    return sizes;
}

plan_arithmetic plan_arithmetic_of(const arch *planned, const char *backend, size_t batch,
                                   size_t length)
{
    int    is_cpu = strcmp(backend, "cpu") == 0;
    size_t tokens = is_cpu ? TOKENS_CPU : TOKENS_DEVICE;
    arch   other;

    if (planned == NULL) {
        (void)arch_preset(ARCH_GPT2, "124m", &other);
        arch_complete(&other);
        planned = &other;
    }
    length = length > 0 && length < tokens ? length : tokens;
    batch  = batch > 0 && batch < tokens / length ? batch : tokens / length;

    plan_arithmetic of = {.sizes = layer_of(planned, is_cpu ? LAYER_ELEMS_CPU : LAYER_ELEMS_DEVICE),
                          .batch = batch,
                          .length  = length,
                          .ranks   = 1,
                          .steps   = is_cpu ? STEPS_CPU : STEPS_DEVICE,
                          .backend = backend};

    of.sizes.max_length = length;
    return of;
}

/* ---------------------------------------------------------------- trainer -- */

/* Finds sherd-llm in the folder of this program, where it is installed, or where a build has it. */
static int trainer_find(char out[PATH_CHARS])
{
    static const char *const PLACES[] = {"sherd-llm", "../trainer/sherd-llm"};
    char                     self[PATH_CHARS - 64];
    ssize_t                  len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char                    *slash;

    if (len <= 0) {
        return -1;
    }
    self[len] = '\0';
    slash     = strrchr(self, '/');
    if (slash == NULL) {
        return -1;
    }
    *slash = '\0';
    for (size_t i = 0; i < sizeof(PLACES) / sizeof(PLACES[0]); i++) {
        (void)snprintf(out, PATH_CHARS, "%s/%s", self, PLACES[i]);
        if (access(out, X_OK) == 0) {
            return 0;
        }
    }
    return -1;
}

/* Words of letters: their meaning does not matter, but they must be bytes of a text. */
static int text_write(const char *path)
{
    FILE    *out  = fopen(path, "we");
    uint32_t draw = 1;

    for (size_t i = 0; out != NULL && i < TEXT_BYTES; i++) {
        draw = draw * 1664525u + 1013904223u;
        (void)fputc(draw >> 29 == 0 ? ' ' : 'a' + (int)(draw >> 16) % 26, out);
    }
    return out == NULL || fclose(out) != 0 ? -1 : 0;
}

/* A GPU's times are taken only where that is asked for. */
static const char CONFIG[] =
    "{\"wall_clock_breakdown\": true, \"zero_optimization\": {\"stage\": 0}}\n";

static int config_write(const char *path)
{
    FILE *out = fopen(path, "we");

    if (out != NULL) {
        (void)fputs(CONFIG, out);
    }
    return out == NULL || fclose(out) != 0 ? -1 : 0;
}

typedef struct trainer_args {
    char        text[PATH_CHARS], log[PATH_CHARS], config[PATH_CHARS];
    char        numbers[10][24];
    const char *list[48];
    int         count, num_numbers;
} trainer_args;

static void text_add(trainer_args *args, const char *name, const char *value)
{
    args->list[args->count++] = name;
    if (value != NULL) {
        args->list[args->count++] = value;
    }
}

static void number_add(trainer_args *args, const char *name, size_t value)
{
    char *text = args->numbers[args->num_numbers++];

    (void)snprintf(text, sizeof(args->numbers[0]), "%zu", value);
    text_add(args, name, text);
}

static void args_make(const plan_arithmetic *of, const char *folder, trainer_args *args)
{
    const arch *sizes = &of->sizes;

    *args = (trainer_args){.count = 0};
    (void)snprintf(args->text, sizeof(args->text), "%s/text", folder);
    (void)snprintf(args->log, sizeof(args->log), "%s/log", folder);
    (void)snprintf(args->config, sizeof(args->config), "%s/config.json", folder);
    text_add(args, "sherd-llm", NULL);
    text_add(args, "--quiet", NULL);
    text_add(args, "--data", args->text);
    text_add(args, "--log", args->log);
    text_add(args, "--config", args->config);
    text_add(args, "--sample", "0");
    text_add(args, "--eval-every", "0");
    text_add(args, "--backend", of->backend);
    text_add(args, "--precision", sherd_dtype_name(of->dtype));
    text_add(args, "--arch", arch_kind_name(sizes->kind));
    text_add(args, "--layers", "1");
    number_add(args, "--hidden", sizes->hidden);
    number_add(args, "--heads", sizes->heads);
    number_add(args, "--inner", sizes->inner);
    number_add(args, "--vocab", sizes->vocab);
    number_add(args, "--length", of->length);
    number_add(args, "--batch", of->batch);
    number_add(args, "--steps", (size_t)of->steps);
    number_add(args, "--ranks", (size_t)of->ranks);
    if (sizes->kind != ARCH_GPT2) {
        number_add(args, "--kv-heads", sizes->kv_heads);
    }
}

static int trainer_run(const char *trainer, const trainer_args *args, const char *folder)
{
    char  said[PATH_CHARS];
    pid_t pid;
    int   status;

    (void)snprintf(said, sizeof(said), "%s/said", folder);
    pid = fork();
    if (pid == 0) {
        int fd = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(fd, STDOUT_FILENO);
        (void)dup2(fd, STDERR_FILENO);
        (void)execv(trainer, (char *const *)(uintptr_t)args->list);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The last line that it has written. */
static void reason_read(const char *folder, char *why, size_t why_bytes)
{
    char  path[PATH_CHARS];
    char  line[256];
    char  last[256] = "it says nothing";
    FILE *from;

    (void)snprintf(path, sizeof(path), "%s/said", folder);
    from = fopen(path, "re");
    while (from != NULL && fgets(line, sizeof(line), from) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] != '\0') {
            (void)snprintf(last, sizeof(last), "%s", line);
        }
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    (void)snprintf(why, why_bytes, "sherd-llm failed: %.200s", last);
}

/* -------------------------------------------------------------------- log -- */

static int seconds_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median seconds of arithmetic in the second half of the steps; 0: the log has none. */
static double seconds_read(const char *path)
{
    double seconds[STEPS_MOST];
    char   line[4096];
    size_t count = 0, first, middle;
    FILE  *from  = fopen(path, "re");

    while (from != NULL && count < STEPS_MOST && fgets(line, sizeof(line), from) != NULL) {
        json_t       *step = json_loads(line, 0, NULL);
        const json_t *took = json_object_get(json_object_get(step, "figures"), "compute_s");

        if (json_is_number(took)) {
            seconds[count++] = json_number_value(took);
        }
        json_decref(step);
    }
    if (from != NULL) {
        (void)fclose(from);
    }
    first = count / 2;
    if (count == 0) {
        return 0;
    }
    qsort(seconds + first, count - first, sizeof(*seconds), seconds_order);
    middle = first + (count - first - 1) / 2;
    return (seconds[middle] + seconds[first + (count - first) / 2]) / 2;
}

int plan_arithmetic_run(const plan_arithmetic *of, const char *folder, double *flops_out, char *why,
                        size_t why_bytes)
{
    char         trainer[PATH_CHARS];
    trainer_args args;
    double       seconds;

    if (trainer_find(trainer) != 0) {
        (void)snprintf(why, why_bytes, "the trainer, sherd-llm, is not in this program's folder");
        return -1;
    }
    args_make(of, folder, &args);
    if (text_write(args.text) != 0 || config_write(args.config) != 0) {
        (void)snprintf(why, why_bytes, "%.200s: %s", folder, strerror(errno));
        return -1;
    }
    if (trainer_run(trainer, &args, folder) != 0) {
        reason_read(folder, why, why_bytes);
        return -1;
    }
    seconds = seconds_read(args.log);
    if (!(seconds > 0)) {
        (void)snprintf(why, why_bytes, "the log of sherd-llm has no times");
        return -1;
    }
    *flops_out = (double)of->batch * (double)of->length *
                 arch_flops_per_token(&of->sizes, of->length) / seconds;
    return 0;
}
