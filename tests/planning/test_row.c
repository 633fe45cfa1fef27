/* Rows against what they are made of: the engine's own numbers, the paper's formula, sums that must
 * agree. */
#include "planning/row.h"

#include "tests/lib/check.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static planning_model *counted(size_t elems)
{
    char            why[256];
    planning_model *model = planning_model_from_count(elems, why, sizeof(why));

    CHECK(model != NULL);
    return model;
}

static planning_model *gpt2(void)
{
    char            why[256];
    arch            sizes;
    planning_model *model;

    CHECK_INT(0, arch_preset(ARCH_GPT2, "124m", &sizes));
    model = planning_model_from_arch(&sizes, "124m", why, sizeof(why));
    CHECK(model != NULL);
    return model;
}

static planning_request request_of(const planning_model *model, const char *backend)
{
    planning_request request = {.model = model, .backend = backend};

    planning_rates_assume(backend, &request.rates);
    return request;
}

static void expect_sums(const planning_row *row)
{
    size_t spare = row->memory.has_spare_state ? row->memory.nvme_state_planned / 2 : 0;

    CHECK_INT((long long)(row->params_bytes + row->grads_bytes + row->optimizer_bytes +
                          row->gathered_bytes + row->transient_bytes + row->staging_bytes + spare),
              (long long)(row->device_bytes + row->host_bytes + row->nvme_bytes));
    CHECK(row->pinned_bytes <= row->host_bytes);
}

static void row_purposes_sum_to_spaces(void)
{
    static const char *const BACKENDS[] = {"cpu", "cuda"};
    static const int         WORLDS[]   = {1, 2, 3, 7, 8, 64};
    planning_model          *model      = gpt2();

    for (size_t b = 0; b < 2; b++) {
        planning_request request = request_of(model, BACKENDS[b]);

        for (size_t w = 0; w < sizeof(WORLDS) / sizeof(WORLDS[0]); w++) {
            for (int stage = 0; stage <= 3; stage++) {
                for (int offload = 0; offload < PLANNING_OFFLOADS; offload++) {
                    planning_layout layout = {.stage      = stage,
                                              .offload    = (planning_offload)offload,
                                              .world_size = WORLDS[w]};
                    planning_row    row;

                    if (!planning_offload_fits_stage(layout.offload, stage)) {
                        continue;
                    }
                    CHECK_OK(planning_row_make(&request, &layout, &row));
                    CHECK_INT(stage, row.layout.stage);
                    CHECK_INT(offload, row.layout.offload);
                    expect_sums(&row);
                }
            }
        }
    }
    planning_model_destroy(model);
}

/* Table 1 of Rajbhandari et al. 2020, and its formula. */
static void row_model_state_is_the_papers(void)
{
    static const double ELEMS[]  = {7.5e9, 128e9, 1e12};
    static const int    WORLDS[] = {1, 4, 16, 64, 256, 1024};

    for (size_t e = 0; e < 3; e++) {
        planning_model  *model   = counted((size_t)ELEMS[e]);
        planning_request request = request_of(model, "cuda");

        for (size_t w = 0; w < 6; w++) {
            for (int stage = 1; stage <= 3; stage++) {
                planning_layout layout = {
                    .stage = stage, .offload = PLANNING_OFFLOAD_NONE, .world_size = WORLDS[w]};
                planning_row row;
                double       state;
                double       paper = planning_paper_bytes(ELEMS[e], stage, WORLDS[w], 2, 12);

                CHECK_OK(planning_row_make(&request, &layout, &row));
                state = (double)(row.params_bytes + row.grads_bytes + row.optimizer_bytes);
                CHECK(fabs(state / paper - 1) < 0.01);
                CHECK(fabs(row.paper_bytes / paper - 1) < 1e-9);
            }
        }
        planning_model_destroy(model);
    }
    CHECK(planning_paper_bytes(7.5e9, 1, 64, 2, 12) == 7.5e9 * 4 + 7.5e9 * 12 / 64);
    CHECK(planning_paper_bytes(7.5e9, 0, 64, 4, 8) == 7.5e9 * 16);
}

static void row_that_does_not_fit_says_what_would(void)
{
    planning_model  *model   = counted((size_t)7500000000);
    planning_request request = request_of(model, "cuda");
    planning_layout  layout  = {.stage = 1, .offload = PLANNING_OFFLOAD_NONE, .world_size = 8};
    planning_row     row;

    request.device_bytes = (size_t)40000000000;
    request.host_bytes   = (size_t)1 << 40;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(1, row.has_fit);
    CHECK_INT(0, row.fits);
    CHECK(strstr(row.why, "of device memory on each rank") != NULL);
    CHECK(strstr(row.why, "zero_optimization.stage 2 would fit") != NULL);
    request.activation_bytes = (size_t)20000000000; /* what is left is less */
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(strstr(row.why, "with 19073.5 MiB of activations") != NULL);
    CHECK(strstr(row.why, "zero_optimization.stage 3 would fit") != NULL);
    request.activation_bytes = (size_t)50000000000; /* nothing is left */
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(0, row.fits);
    CHECK(strstr(row.why, "activations alone take 47683.7 MiB of the 38147.0 MiB of a device") !=
          NULL);
    request.backend          = "cpu"; /* of all ranks of the host, past what can be counted */
    request.activation_bytes = (size_t)1 << 62;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(0, row.fits);
    CHECK(strstr(row.why, "of a host") != NULL);
    request.backend          = "cuda";
    request.activation_bytes = 0;
    layout.stage             = 3;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(1, row.fits);
    request.device_bytes = 0;
    request.host_bytes   = 0;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(0, row.has_fit);
    planning_model_destroy(model);
}

/* To the byte, of all ranks of a host, and where memory is not asked about. */
static void row_is_held_against_the_drives(void)
{
    planning_model  *model   = counted(100000000);
    planning_request request = request_of(model, "cuda");
    planning_layout  layout  = {
          .stage = 3, .offload = PLANNING_OFFLOAD_OPTIMIZER_NVME, .world_size = 4};
    planning_row row;
    size_t       need;

    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(0, row.has_fit);
    need = 4 * (row.memory.nvme_planned + row.memory.nvme_index_planned);
    CHECK(row.memory.nvme_index_planned > 0);
    CHECK(planning_nvme_need(&request, &row) == (double)need);
    request.nvme_bytes = need;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(1, row.has_fit);
    CHECK_INT(1, row.fits);
    request.nvme_bytes = need - 1;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(0, row.fits);
    CHECK(strstr(row.why, "MiB of the drives of each host, 0.0 MiB more than they have") != NULL);
    request.ranks_per_host = 2;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(1, row.fits);
    layout.offload     = PLANNING_OFFLOAD_OPTIMIZER_CPU; /* needs no drive */
    request.nvme_bytes = 1;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(1, row.fits);
    planning_model_destroy(model);
}

/* Old names of keys, and keys that other places refuse, do not make one row of all. */
static void row_is_of_its_layout_whatever_a_setting_says(void)
{
    const char      *settings[] = {"zero_optimization.cpu_offload=true",
                                   "zero_optimization.offload_optimizer.gradients=\"nvme\""};
    planning_model  *model      = counted(100000000);
    planning_request request    = request_of(model, "cuda");

    for (size_t s = 0; s < 2; s++) {
        request.settings     = &settings[s];
        request.num_settings = 1;
        for (int offload = 0; offload < PLANNING_OFFLOADS; offload++) {
            planning_layout layout = {
                .stage = 3, .offload = (planning_offload)offload, .world_size = 8};
            planning_row row;

            CHECK_OK(planning_row_make(&request, &layout, &row));
            CHECK_INT(offload, row.layout.offload);
        }
    }
    planning_model_destroy(model);
}

/* The drive is the host's: what eight ranks write wears it eight times as fast. */
static void row_wear_counts_the_ranks_of_a_host(void)
{
    const char      *settings[] = {"aio.step_seconds=10"};
    planning_model  *model      = counted(100000000);
    planning_request request    = request_of(model, "cuda");
    planning_layout  layout     = {
             .stage = 3, .offload = PLANNING_OFFLOAD_OPTIMIZER_NVME, .world_size = 8};
    planning_row one, eight;

    request.settings       = settings;
    request.num_settings   = 1;
    request.ranks_per_host = 1;
    CHECK_OK(planning_row_make(&request, &layout, &one));
    request.ranks_per_host = 8;
    CHECK_OK(planning_row_make(&request, &layout, &eight));
    CHECK(one.traffic.wear_step_s == 10 && eight.traffic.wear_step_s == 10);
    CHECK(fabs(one.traffic.wear_days / eight.traffic.wear_days - 8) < 1e-9);
    planning_model_destroy(model);
}

/* Rates of 1 make seconds of bytes. */
static void row_time_follows_the_traffic(void)
{
    planning_model  *model   = gpt2();
    planning_request request = request_of(model, "cuda");
    planning_layout layout = {.stage = 3, .offload = PLANNING_OFFLOAD_PARAMS_NVME, .world_size = 4};
    planning_row    row;
    double          wire, nvme;

    for (int i = 0; i < PLANNING_RATES; i++) {
        request.rates.values[i] = 1;
    }
    CHECK_OK(planning_row_make(&request, &layout, &row));
    wire = (double)(row.traffic.wire_micro_planned + row.traffic.wire_step_planned);
    nvme = 4.0 * (double)(row.traffic.read_micro_planned + row.traffic.read_step_planned +
                          row.traffic.written_micro_planned + row.traffic.written_step_planned);
    CHECK(row.time.by_bound[PLANNING_BOUND_WIRE] == wire);
    CHECK(row.time.by_bound[PLANNING_BOUND_NVME] == nvme);
    CHECK(row.time.by_bound[PLANNING_BOUND_COMPUTE] == 0);
    CHECK_INT(PLANNING_BOUND_NVME, row.time.bound);
    request.batch  = 2;
    request.length = 1024;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(row.activation_bytes > 0);
    CHECK(row.time.by_bound[PLANNING_BOUND_COMPUTE] ==
          planning_model_flops_per_token(model, 1024) * 2048);
    CHECK_INT(PLANNING_BOUND_COMPUTE, row.time.bound);
    CHECK(row.time.step_s >= row.time.by_bound[PLANNING_BOUND_COMPUTE]);
    planning_model_destroy(model);
}

/* The update pass of the budgets: 28 bytes an element and 2 of the norm, in bf16 with one
 * micro-batch. */
/* Rates of 1 make seconds of bytes: of those inside a host, or of those between. */
static void row_prices_what_goes_to_other_hosts(void)
{
    static const planning_layout LAYOUTS[] = {{.stage = 3, .world_size = 8},
                                              {.stage = 1, .world_size = 8},
                                              {.stage = 3, .world_size = 8, .second_copy_ranks = 4},
                                              {.stage = 3, .world_size = 8, .replica_ranks = 4},
                                              {.stage = 2, .world_size = 8, .replica_ranks = 4}};
    planning_model              *model     = gpt2();
    planning_request             request   = request_of(model, "cpu");
    double                       between_of[5];

    request.ranks_per_host = 4;
    for (int l = 0; l < 5; l++) {
        planning_row row;
        double       wire, between;

        for (int i = 0; i < PLANNING_RATES; i++) {
            request.rates.values[i] = 1e18;
        }
        request.rates.values[PLANNING_RATE_BETWEEN] = 1;
        CHECK_OK(planning_row_make(&request, &LAYOUTS[l], &row));
        wire    = (double)(row.traffic.wire_micro_planned + row.traffic.wire_step_planned);
        between = (double)(row.traffic.between_micro_planned + row.traffic.between_step_planned);
        CHECK(between > 0 && between < wire);
        CHECK_CLOSE(row.time.by_bound[PLANNING_BOUND_WIRE], between, 1e-6);
        CHECK_CLOSE(row.time.step_s, between, 1e-3); /* one wire, and nothing to hide behind */
        request.rates.values[PLANNING_RATE_BETWEEN] = 1e18;
        request.rates.values[PLANNING_RATE_WIRE]    = 1;
        CHECK_OK(planning_row_make(&request, &LAYOUTS[l], &row));
        CHECK_CLOSE(row.time.by_bound[PLANNING_BOUND_WIRE], wire - between, 1e-6);
        between_of[l] = between;
    }
    CHECK(between_of[2] < between_of[0]);
    CHECK(between_of[3] < between_of[2]);
    request.ranks_per_host = 8;
    for (int l = 0; l < 2; l++) {
        planning_row row;

        CHECK_OK(planning_row_make(&request, &LAYOUTS[l], &row));
        CHECK(row.traffic.between_micro_planned + row.traffic.between_step_planned == 0);
    }
    planning_model_destroy(model);
}

static void row_counts_the_update_pass(void)
{
    planning_model  *model   = counted(64000000);
    planning_request request = request_of(model, "cpu");
    planning_layout  layout  = {.stage = 0, .offload = PLANNING_OFFLOAD_NONE, .world_size = 1};
    planning_row     row;

    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(fabs((double)row.traffic.update_device_planned / 64e6 - 30) < 0.01);
    CHECK_INT(0, (long long)row.traffic.update_host_planned);
    layout =
        (planning_layout){.stage = 2, .offload = PLANNING_OFFLOAD_OPTIMIZER_CPU, .world_size = 1};
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(fabs((double)row.traffic.update_host_planned / 64e6 - 28) <
          0.01); /* measured where it was made */
    CHECK_INT(0, (long long)row.traffic.update_device_planned);
    planning_model_destroy(model);
}

/* ------------------------------------------------------- optimizers, encodings -- */

typedef struct optimizer_case {
    const char *settings; /* of optimizer.params in addition to the type's */
    const char *type;
    int         num_signed, num_squares; /* parts after the master; the second have a free sign */
    int         sweeps;
} optimizer_case;

static const optimizer_case OPTIMIZERS[] = {
    {"optimizer.params.lr=1e-3", "AdamW", 1, 1, 1},
    {"optimizer.params.lr=1e-3", "Lamb", 1, 1, 2},
    {"optimizer.params.lr=1e-3", "Lion", 1, 0, 1},
    {"optimizer.params.momentum=0", "SGD", 0, 0, 1},
    {"optimizer.params.momentum=0.9", "SGD", 1, 0, 1},
    {"optimizer.params.lr=1e-3", "Adagrad", 0, 1, 1},
};

static const char *const ENCODINGS[][2] = {
    {"fp32", "fp32"}, {"bf16_beside", "fp32"}, {"fp32", "bf16"}, {"bf16_beside", "bf16"},
    {"fp32", "fp8"},  {"bf16_beside", "fp8"},  {"bf16", "fp8"}};

/* Bytes of 64 elements by the tables of docs/numerics.md. */
static size_t chunk_bytes(const optimizer_case *what, const char *const encoding[2])
{
    size_t moment   = strcmp(encoding[1], "fp32") == 0 ? 256 : encoding[1][0] == 'b' ? 128 : 68;
    int    has_sign = what->num_squares > 0 && moment != 68;
    size_t master   = strcmp(encoding[0], "fp32") == 0   ? 256
                      : strcmp(encoding[0], "bf16") == 0 ? 128
                                                         : 128 + (has_sign ? 0 : 8);

    return master + (size_t)(what->num_signed + what->num_squares) * moment;
}

#define ENCODED_ELEMS 1000000

static void check_row(const optimizer_case *what, const char *const encoding[2],
                      const planning_row *row)
{
    double chunk  = (double)chunk_bytes(what, encoding);
    double owned  = ENCODED_ELEMS / (double)(row->layout.stage == 0 ? 1 : row->layout.world_size);
    double beside = strcmp(encoding[0], "bf16_beside") == 0 ? 2 : 0; /* the parameter is read */
    size_t parts  = 0;

    CHECK(planning_state_bytes(row, 0) * 64 == chunk);
    CHECK(planning_state_bytes(row, 1) == 4.0 * (1 + what->num_signed + what->num_squares));
    for (int i = 0; i < row->num_state_parts; i++) {
        CHECK(strcmp(row->state_parts[i].optimizer, what->type) == 0);
        parts += row->state_parts[i].bytes;
    }
    CHECK(row->optimizer_bytes >= parts && row->optimizer_bytes < parts + 64 * SHERD_ALIGN_BYTES);
    CHECK(fabs((double)parts / (owned * chunk / 64) - 1) < 0.02); /* padding */
    if (what->sweeps == 1) {
        double moved = 6 + beside + chunk / 32; /* gradient, norm, parameter; state in and out */

        CHECK(fabs((double)row->traffic.update_device_planned / (owned * moved) - 1) < 0.02);
    }
}

static void row_state_is_of_its_optimizer_and_encodings(void)
{
    planning_model  *model   = counted(ENCODED_ELEMS);
    planning_request request = request_of(model, "cpu");
    char             text[3][64];
    const char      *settings[] = {text[0], text[1], text[2], NULL};

    request.settings     = settings;
    request.num_settings = 4;
    for (size_t o = 0; o < sizeof(OPTIMIZERS) / sizeof(OPTIMIZERS[0]); o++) {
        (void)snprintf(text[0], sizeof(text[0]), "optimizer.type=\"%s\"", OPTIMIZERS[o].type);
        settings[3] = OPTIMIZERS[o].settings;
        for (size_t e = 0; e < sizeof(ENCODINGS) / sizeof(ENCODINGS[0]); e++) {
            (void)snprintf(text[1], sizeof(text[1]), "sherd.master_encoding=\"%s\"",
                           ENCODINGS[e][0]);
            (void)snprintf(text[2], sizeof(text[2]), "sherd.moment_encoding=\"%s\"",
                           ENCODINGS[e][1]);
            for (int stage = 0; stage <= 3; stage++) {
                planning_layout layout = {.stage      = stage,
                                          .offload    = PLANNING_OFFLOAD_NONE,
                                          .world_size = 1 + 2 * (stage % 2)};
                planning_row    row;

                CHECK_OK(planning_row_make(&request, &layout, &row));
                check_row(&OPTIMIZERS[o], ENCODINGS[e], &row);
            }
        }
    }
    planning_model_destroy(model);
}

/* On a drive the bf16 values are with what their masters lack: nothing is saved there. */
static void row_of_state_on_storage_has_the_values_too(void)
{
    const char      *settings[] = {"sherd.master_encoding=\"bf16_beside\""};
    planning_model  *model      = counted(ENCODED_ELEMS);
    planning_request request    = request_of(model, "cpu");
    planning_layout  layout     = {
             .stage = 2, .offload = PLANNING_OFFLOAD_OPTIMIZER_NVME, .world_size = 1};
    planning_row row;

    request.settings     = settings;
    request.num_settings = 1;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(planning_state_bytes(&row, 0) == 12 && planning_state_bytes(&row, 1) == 12);
    CHECK(strcmp(row.state_parts[row.num_state_parts - 1].part, "parameter") == 0);
    CHECK(fabs((double)row.optimizer_bytes / (12.0 * ENCODED_ELEMS) - 1) < 0.02);
    CHECK(fabs((double)row.traffic.read_step_planned / (10.0 * ENCODED_ELEMS) - 1) < 0.02);
    CHECK(fabs((double)row.traffic.written_step_planned / (12.0 * ENCODED_ELEMS) - 1) < 0.02);
    planning_model_destroy(model);
}

/* An fp32 parameter is its own master; SGD without a momentum then has no state. */
static void row_of_fp32_counts_no_master(void)
{
    const char      *settings[] = {"bf16.enabled=false", "optimizer.type=\"SGD\""};
    planning_model  *model      = counted(ENCODED_ELEMS);
    planning_request request    = request_of(model, "cpu");
    planning_layout  layout     = {.stage = 1, .offload = PLANNING_OFFLOAD_NONE, .world_size = 1};
    planning_row     row;

    request.settings     = settings;
    request.num_settings = 1;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(planning_state_bytes(&row, 1) == 8 && row.paper_bytes == 16.0 * ENCODED_ELEMS);
    CHECK(strcmp(row.state_parts[0].encoding, "parameter") == 0);
    request.num_settings = 2;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(planning_state_bytes(&row, 1) == 0 && row.paper_bytes == 8.0 * ENCODED_ELEMS);
    planning_model_destroy(model);
}

static double elems_of(const planning_row *row, const char *optimizer, const char *part)
{
    double sum = 0;

    for (int i = 0; i < row->num_state_parts; i++) {
        sum += strcmp(row->state_parts[i].optimizer, optimizer) == 0 &&
                       strcmp(row->state_parts[i].part, part) == 0
                   ? (double)row->state_parts[i].elems
                   : 0;
    }
    return sum;
}

static void row_tells_the_optimizers_of_groups_apart(void)
{
    const char      *settings[] = {"sherd.groups=[{\"name\": \"matrices\", \"type\": \"Lion\", "
                                        "\"matching\": [\"*.mlp.*weight\"]}]",
                                   "sherd.master_encoding=\"bf16_beside\""};
    planning_model  *model      = gpt2();
    planning_request request    = request_of(model, "cpu");
    planning_layout  layout     = {.stage = 2, .offload = PLANNING_OFFLOAD_NONE, .world_size = 1};
    planning_row     row;
    double           lion, adam;

    request.settings     = settings;
    request.num_settings = 2;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    lion = elems_of(&row, "Lion", "master");
    adam = elems_of(&row, "AdamW", "master");
    CHECK(lion == 12 * 8 * 768.0 * 768.0); /* two matrices of a layer, four times as wide */
    CHECK(elems_of(&row, "Lion", "exp_avg_sq") == 0);
    CHECK(fabs((lion + adam) / (double)row.trainable_elems - 1) < 1e-3);
    CHECK(fabs(planning_state_bytes(&row, 0) - (lion * 6.125 + adam * 10) / (lion + adam)) < 1e-9);
    planning_model_destroy(model);
}

/* ------------------------------------------------------------------- settings -- */

static void row_of_a_wrong_setting_fails_with_its_name(void)
{
    const char      *settings[] = {"zero_optimization.stagee=1"};
    planning_model  *model      = counted(1000);
    planning_request request    = request_of(model, "cpu");
    planning_layout  layout     = {
             .stage = -1, .offload = PLANNING_OFFLOAD_AS_CONFIGURED, .world_size = 2};
    planning_row row;

    request.settings     = settings;
    request.num_settings = 1;
    CHECK_STATUS(SHERD_E_INVAL, planning_row_make(&request, &layout, &row));
    CHECK_ERROR_SAYS("stagee");
    request.num_settings = 0;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(3, row.layout.stage);
    CHECK_INT(PLANNING_OFFLOAD_NONE, row.layout.offload);
    planning_model_destroy(model);
}

/* As trainers write them: the batch and the optimizer's rate are the trainer's to fill in. */
static void row_assumes_what_the_trainer_fills_in(void)
{
    static const char TEXT[] =
        "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\","
        " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2},"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}}";
    char             path[512];
    planning_model  *model   = counted(1000000);
    planning_request request = request_of(model, "cpu");
    planning_layout  layout  = {
          .stage = -1, .offload = PLANNING_OFFLOAD_AS_CONFIGURED, .world_size = 2};
    planning_row row;
    FILE        *file;

    (void)snprintf(path, sizeof(path), "%s/auto.json", test_scratch());
    file = fopen(path, "w");
    CHECK(file != NULL && fputs(TEXT, file) >= 0 && fclose(file) == 0);
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK(strcmp("", row.assumed.text) == 0); /* planning's own configuration leaves nothing open */
    request.config_path = path;
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_INT(2, row.layout.stage);
    CHECK(strstr(row.assumed.text, "train_micro_batch_size_per_gpu 1") != NULL);
    planning_model_destroy(model);
}

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    (void)strncat(ctx, text, len_bytes);
    return SHERD_OK;
}

static void row_is_one_line_of_json(void)
{
    static char      text[16384];
    planning_model  *model   = gpt2();
    planning_request request = request_of(model, "cuda");
    planning_layout  layout  = {
          .stage = 3, .offload = PLANNING_OFFLOAD_OPTIMIZER_NVME, .world_size = 8};
    planning_row row;
    json_t      *root;

    text[0] = '\0';
    CHECK_OK(planning_row_make(&request, &layout, &row));
    CHECK_OK(planning_row_write(&request, &row, text_add, text));
    CHECK(strchr(text, '\n') == text + strlen(text) - 1);
    root = json_loads(text, 0, NULL);
    CHECK(root != NULL);
    CHECK_INT((long long)row.params_bytes,
              json_integer_value(json_object_get(root, "params_bytes")));
    CHECK_INT((long long)row.nvme_bytes, json_integer_value(json_object_get(root, "nvme_bytes")));
    CHECK(strcmp("optimizer-nvme", json_string_value(json_object_get(root, "offload"))) == 0);
    CHECK(json_is_null(json_object_get(root, "fits")));
    CHECK(json_number_value(json_object_get(root, "wear_days")) > 0);
    json_decref(root);
    planning_model_destroy(model);
}

/* ------------------------------------------------------------------ rates -- */

static void rates_take_what_is_given(void)
{
    planning_rates rates;
    char           why[256];

    planning_rates_assume("cuda", &rates);
    CHECK_INT(0,
              planning_rates_set("wire=50e9,up=25G,flops=1T,between=2G", &rates, why, sizeof(why)));
    CHECK(rates.values[PLANNING_RATE_WIRE] == 50e9);
    CHECK(rates.values[PLANNING_RATE_UP] == 25e9);
    CHECK(rates.values[PLANNING_RATE_FLOPS] == 1e12);
    CHECK_INT(PLANNING_GIVEN, rates.origins[PLANNING_RATE_UP]);
    CHECK_INT(PLANNING_ASSUMED, rates.origins[PLANNING_RATE_DOWN]);
}

static void rates_of_nonsense_are_refused(void)
{
    static const char *const WRONG[] = {"wire",      "wire=",    "wire=0",      "wire=-1",
                                        "wire=fast", "cable=1",  "wire=1e300P", "wire=5e-324",
                                        "wire=1GG",  "wire=inf", "=1"};
    planning_rates           rates;
    char                     why[256];

    planning_rates_assume("cpu", &rates);
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++) {
        CHECK_INT(-1, planning_rates_set(WRONG[i], &rates, why, sizeof(why)));
        CHECK(strstr(why, "is not a rate") != NULL);
    }
}

static int load_text(const char *text, planning_rates *rates, char *why, size_t why_bytes)
{
    char  path[] = "/tmp/sherd-rates-XXXXXX";
    int   fd     = mkstemp(path);
    FILE *file   = fdopen(fd, "w");
    int   result;

    CHECK(file != NULL);
    (void)fputs(text, file);
    (void)fclose(file);
    result = planning_rates_load(path, "cpu", rates, why, why_bytes);
    (void)remove(path);
    return result;
}

static void rates_files_are_read_or_refused(void)
{
    planning_rates rates;
    char           why[512];

    planning_rates_assume("cpu", &rates);
    CHECK_INT(
        0, load_text("{\"wire\": 5, \"machine\": \"x\", \"up\": null}", &rates, why, sizeof(why)));
    CHECK(rates.values[PLANNING_RATE_WIRE] == 5);
    CHECK_INT(PLANNING_MEASURED, rates.origins[PLANNING_RATE_WIRE]);
    CHECK_INT(PLANNING_ASSUMED, rates.origins[PLANNING_RATE_UP]);
    CHECK_INT(-1, load_text("{\"wire\": \"fast\"}", &rates, why, sizeof(why)));
    CHECK_INT(-1, load_text("{\"wire\": 0}", &rates, why, sizeof(why)));
    CHECK_INT(0, load_text("{\"wire\": 5, \"backend\": \"cpu\"}", &rates, why, sizeof(why)));
    CHECK_INT(-1, load_text("{\"wire\": 5, \"backend\": \"cuda\"}", &rates, why, sizeof(why)));
    CHECK(strstr(why, "this plan is for cpu") != NULL);
    CHECK_INT(-1, load_text("{}", &rates, why, sizeof(why)));
    CHECK_INT(-1, load_text("[1", &rates, why, sizeof(why)));
    CHECK_INT(-1, planning_rates_load("/nowhere/rates.json", "cpu", &rates, why, sizeof(why)));
    CHECK(strstr(why, "/nowhere/rates.json") != NULL);
}

static void offload_is_found_by_all_its_names(void)
{
    static const struct {
        const char      *name;
        planning_offload offload;
    } NAMES[] = {{"none", PLANNING_OFFLOAD_NONE},
                 {"cpu", PLANNING_OFFLOAD_OPTIMIZER_CPU},
                 {"optimizer_nvme", PLANNING_OFFLOAD_OPTIMIZER_NVME},
                 {"param-cpu", PLANNING_OFFLOAD_PARAMS_CPU},
                 {"params_nvme", PLANNING_OFFLOAD_PARAMS_NVME}};
    planning_offload offload;

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        CHECK_INT(0, planning_offload_find(NAMES[i].name, &offload));
        CHECK_INT(NAMES[i].offload, offload);
    }
    CHECK_INT(-1, planning_offload_find("gpu", &offload));
    CHECK_INT(-1, planning_offload_find("", &offload));
    CHECK_INT(-1, planning_offload_find("optimizer-nvme-of-a-very-long-name", &offload));
}

static const test_case cases[] = {
    CASE(offload_is_found_by_all_its_names),
    CASE(row_purposes_sum_to_spaces),
    CASE(row_model_state_is_the_papers),
    CASE(row_that_does_not_fit_says_what_would),
    CASE(row_is_held_against_the_drives),
    CASE(row_is_of_its_layout_whatever_a_setting_says),
    CASE(row_wear_counts_the_ranks_of_a_host),
    CASE(row_time_follows_the_traffic),
    CASE(row_prices_what_goes_to_other_hosts),
    CASE(row_counts_the_update_pass),
    CASE(row_state_is_of_its_optimizer_and_encodings),
    CASE(row_of_state_on_storage_has_the_values_too),
    CASE(row_of_fp32_counts_no_master),
    CASE(row_tells_the_optimizers_of_groups_apart),
    CASE(row_of_a_wrong_setting_fails_with_its_name),
    CASE(row_assumes_what_the_trainer_fills_in),
    CASE(row_is_one_line_of_json),
    CASE(rates_take_what_is_given),
    CASE(rates_of_nonsense_are_refused),
    CASE(rates_files_are_read_or_refused),
};

RUN_MAIN(cases)
