/* The campaign of flipped bits. A training is made twice; in the second run one bit is changed, in
 * a gradient before its unit is released, in the state between two steps, in the state before a
 * checkpoint is saved, or in a file of a checkpoint. `sherd diff` then compares the logs of the two
 * runs, or log and checkpoint. The campaign checks that a change of any weight is always found, in
 * a step in which the bit can show, and that runs without a change are equal. It prints the share
 * in which unit, rank and step are right, by the place of the bit.
 *
 * flips SHERD [--seed N] [--count N] [--seconds N] [--tell 1]
 *
 * Runs the seeds N, N + 1, ...: `count` of them, or as many as begin within `seconds`. --tell 1
 * prints each with the answer of sherd diff. */
#include "sherd_build.h"
#include "tests/campaign/flip.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define OUT_BYTES 4096

static const char *const PLACE_NAMES[PLACES] = {
    "gradient",      "weights at rest",          "moments at rest",
    "moments saved", "moments saved, uncounted", "checkpoint file",
    "nothing"};

static flip        f;
static const char *command;

/* ------------------------------------------------------------------- outcome -- */

/* What sherd diff says. */
typedef struct told {
    int       status; /* its exit status */
    long long step;
    int       unit, rank, num_ranks;
    char      text[OUT_BYTES];
} told;

static long long number_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    return at == NULL || strncmp(at + strlen(key), "null", 4) == 0 ? -1 : atoll(at + strlen(key));
}

static void diff_run(const char *other, told *out)
{
    char   line[1200];
    FILE  *pipe;
    size_t bytes;
    int    status;

    (void)snprintf(line, sizeof(line), "%s diff %s %s --json 2>&1", command, f.path[0], other);
    pipe = popen(line, "r");
    CHECK(pipe != NULL);
    bytes            = fread(out->text, 1, sizeof(out->text) - 1, pipe);
    out->text[bytes] = '\0';
    status           = pclose(pipe);
    CHECK(WIFEXITED(status));
    out->status    = WEXITSTATUS(status);
    out->step      = number_of(out->text, "\"step\": ");
    out->unit      = (int)number_of(out->text, "\"unit\": \"unit ");
    out->rank      = (int)number_of(out->text, "\"rank\": ");
    out->num_ranks = (int)number_of(out->text, "\"ranks\": ");
}

typedef struct tally {
    int drawn, vanished, found, step, unit, rank, all;
} tally;

static tally tallies[PLACES], staged; /* staged: the two runs are of different stages */

/* Whether the rank is right: the one of the bit; all, where each has it. */
static int rank_is_right(const told *t)
{
    if (f.ranks == 1) {
        return t->rank == 0;
    }
    return f.owner >= 0 ? t->rank == f.owner && t->num_ranks == 1
                        : t->rank < 0 || t->num_ranks == f.ranks;
}

static void count(const told *t, int is_vanished, int stages_differ)
{
    tally    *into  = stages_differ ? &staged : &tallies[f.where];
    long long truth = f.where == IN_WEIGHTS || f.where == IN_MOMENTS ? f.step + 1 : f.step;
    int       step = t->step == truth, unit = t->unit == f.unit;
    int       rank = rank_is_right(t);

    into->drawn++;
    into->vanished += is_vanished;
    if (t->status == 1) {
        into->found++;
        into->step += step;
        into->unit += unit;
        into->rank += rank;
        into->all += step && unit && rank;
        if (t->step < truth) {
            test_fail(__FILE__, __LINE__, "found in step %lld, and the bit shows from %lld on: %s",
                      t->step, truth, t->text);
        }
    }
}

static int weights_differ(void)
{
    return memcmp(f.fingerprints[0], f.fingerprints[1], sizeof(f.fingerprints[0])) != 0;
}

static uint64_t seed;
static int      is_telling;

static void outcome_check(const told *t)
{
    int has_two = f.where == IN_GRADIENT || f.where == IN_WEIGHTS || f.where == IN_MOMENTS;

    if (t->status != 0 && t->status != 1) {
        test_fail(__FILE__, __LINE__, "sherd diff: %s", t->text);
    }
    if (f.where == NOWHERE && t->status != 0) {
        test_fail(__FILE__, __LINE__, "equal runs are not equal: %s", t->text);
    }
    if (t->status == 0 && has_two && weights_differ()) {
        test_fail(__FILE__, __LINE__, "weights differ, and nothing was found");
    }
    if (f.where == IN_SAVED && f.step % f.interval != f.unit % f.interval) {
        f.where = IN_SAVED_UNCOUNTED;
    }
    if (t->status == 0 && (f.where == IN_FILE || f.where == IN_SAVED)) {
        test_fail(__FILE__, __LINE__, "a checkpoint with another bit was found equal");
    }
    count(t, t->status == 0 && has_two, f.stage != f.other_stage);
    if (is_telling) {
        (void)printf("seed %llu: %s %s, step %d, unit %d, rank %d, bit %u of element %zu; stage %d "
                     "on %d ranks, %s, interval %d%s%s: %s",
                     (unsigned long long)seed, PLACE_NAMES[f.where], f.part, f.step, f.unit,
                     f.owner, f.bit, f.index, f.stage, f.ranks, f.optimizer, f.interval, f.zero,
                     f.top, t->text);
    }
}

/* ---------------------------------------------------------------------- draws -- */

static int one_in(uint64_t *random, uint64_t n)
{
    return test_random(random) % n == 0;
}

static void layout_draw(uint64_t *random)
{
    static const char *const OPTIMIZERS[] = {"AdamW", "AdamW", "Lamb", "Muon"};
    int                      tier;

    f.ranks        = 1 + (int)(test_random(random) % 4);
    f.stage        = (int)(test_random(random) % 4);
    f.accumulation = 1 + (int)(test_random(random) % 2);
    f.interval     = one_in(random, 2) ? 1 : 2 << test_random(random) % 4;
    f.is_queued    = one_in(random, 4);
    f.dtype        = one_in(random, 2) ? SHERD_F32 : SHERD_BF16;
    f.optimizer    = OPTIMIZERS[test_random(random) % 4];
    f.clip         = one_in(random, 2) ? 1 : 0;
    f.elems =
        one_in(random, 2) ? 100 + test_random(random) % 3000 : 30000 + test_random(random) % 30000;
    tier      = f.stage == 0 ? 0 : (int)(test_random(random) % 4);
    f.zero[0] = f.top[0] = '\0';
    if (one_in(random, 3)) {
        (void)snprintf(f.zero, sizeof(f.zero), ", \"sub_group_size\": 256");
    }
    if (tier > 1) {
        (void)snprintf(f.zero + strlen(f.zero), sizeof(f.zero) - strlen(f.zero),
                       ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}",
                       tier == 2 ? "cpu" : "nvme", test_scratch());
    }
    if (one_in(random, 6)) {
        (void)snprintf(f.top, sizeof(f.top), ", \"deterministic\": true");
    }
}

static void bit_draw(uint64_t *random)
{
    f.where = (place)(test_random(random) % PLACES);
    f.where = f.where == IN_SAVED_UNCOUNTED ? IN_SAVED : f.where;
    f.step  = 1 + (int)(test_random(random) % (FLIP_STEPS - 1));
    f.param = (int)(test_random(random) % FLIP_PARAMS);
    f.micro = (int)(test_random(random) % (uint64_t)f.accumulation);
    f.rank  = (int)(test_random(random) % (uint64_t)f.ranks);
    f.index = test_random(random) %
              (f.param % 2 == 0 ? f.elems + 61 * (size_t)(f.param / 2) : 5 + (size_t)f.param / 2);
    f.bit         = (unsigned)(test_random(random) % 32);
    f.part_number = f.where == IN_MOMENTS || f.where == IN_SAVED
                        ? strcmp(f.optimizer, "Muon") == 0 ? 1 : 1 + (int)(test_random(random) % 2)
                        : 0;
    if (f.part_number > 0 && strcmp(f.optimizer, "Muon") == 0) {
        f.optimizer = "AdamW"; /* whose parts have names that are the same for all parameters */
    }
    f.part = f.part_number == 0 ? "master" : f.part_number == 1 ? "exp_avg" : "exp_avg_sq";
    if (f.where == IN_FILE && strstr(f.zero, "nvme\",") != NULL) {
        f.zero[0] = '\0'; /* the values would be in the linked files of the state */
    }
    /* Stages make other sums of several micro-batches, and LAMB and Muon need more of a layout. */
    f.other_stage = f.stage;
    if (one_in(random, 5) && f.stage > 0 && f.accumulation == 1 && f.where <= IN_MOMENTS) {
        f.other_stage = 1 + f.stage % 3;
    }
}

static void bit_is_found(void)
{
    uint64_t random = seed;
    told     t      = {0};
    char     checkpoint[600];

    memset(&f, 0, sizeof(f));
    layout_draw(&random);
    bit_draw(&random);
    f.owner = f.unit = -1;
    for (int run = 0; run < 2; run++) {
        (void)snprintf(f.path[run], sizeof(f.path[run]), "%s/%llu-%d", test_scratch(),
                       (unsigned long long)seed, run);
    }
    (void)snprintf(f.dir, sizeof(f.dir), "%s/%llu", test_scratch(), (unsigned long long)seed);
    (void)snprintf(checkpoint, sizeof(checkpoint), "%s/saved", f.dir);
    for (f.run = 0; f.run < (f.where == IN_SAVED || f.where == IN_FILE ? 1 : 2); f.run++) {
        test_world(f.ranks, flip_train, &f);
    }
    if (f.where == IN_FILE) {
        flip_file(&f, &random);
    }
    if (f.is_refused) {
        return;
    }
    diff_run(f.where == IN_SAVED || f.where == IN_FILE ? checkpoint : f.path[1], &t);
    outcome_check(&t);
}

static const test_case CASES[] = {CASE(bit_is_found)};

static void tally_print(const char *name, const tally *of)
{
    (void)printf("%-24s %6d %9d %7d %6d %6d %6d %6d\n", name, of->drawn, of->vanished, of->found,
                 of->step, of->unit, of->rank, of->all);
}

static void tallies_print(void)
{
    (void)printf("%-24s %6s %9s %7s %6s %6s %6s %6s\n", "bit in", "drawn", "vanished", "found",
                 "step", "unit", "rank", "all");
    for (int where = 0; where < PLACES; where++) {
        tally_print(PLACE_NAMES[where], &tallies[where]);
    }
    tally_print("runs of two stages", &staged);
}

#ifdef SHERDI_HAVE_XXHASH
int main(int argc, char **argv)
{
    uint64_t first   = 1;
    long     counted = 1, seconds = -1, done = 0, failed = 0;
    time_t   ends_at;

    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) {
            first = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            counted = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--tell") == 0) {
            is_telling = atoi(argv[i + 1]);
        }
    }
    if (argc % 2 != 0 || argc < 2) {
        (void)printf("usage: %s SHERD [--seed N] [--count N] [--seconds N] [--tell 1]\n", argv[0]);
        return 2;
    }
    command = argv[1];
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (ends_at = time(NULL) + seconds; seconds < 0 ? done < counted : time(NULL) < ends_at;
         done++) {
        seed = first + (uint64_t)done;
        if (test_main(0, NULL, CASES, 1) != 0) {
            (void)printf(
                "FAIL seed %llu: %s, step %d, unit %d, rank %d, bit %u, stage %d/%d on %d\n"
                "  repeat: %s %s --seed %llu\n",
                (unsigned long long)seed, PLACE_NAMES[f.where], f.step, f.unit, f.owner, f.bit,
                f.stage, f.other_stage, f.ranks, argv[0], argv[1], (unsigned long long)seed);
            failed++;
        }
    }
    tallies_print();
    (void)printf("flips: %ld from seed %llu, %ld failed\n", done, (unsigned long long)first,
                 failed);
    return failed > 0;
}
#else /* without libxxhash there are no checkpoints */
int main(void)
{
    (void)CASES, (void)tallies_print, (void)command, (void)seed;
    (void)puts("skip: no libxxhash in this build");
    return 77;
}
#endif
