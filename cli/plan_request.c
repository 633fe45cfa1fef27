/* Makes the request from the arguments of sherd plan: the model, the sequences, the rates of the
 * machine, the layouts. */
#include "cli/plan_parse.h"

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The longest sequence by default. Models that allow longer ones are seldom trained with them. */
#define MOST_TOKENS ((size_t)2048)

/* ------------------------------------------------------------------ model -- */

void plan_presets_list(arch_kind kind)
{
    (void)printf("presets of %s:", arch_kind_name(kind));
    for (size_t i = 0; arch_preset_name(kind, i) != NULL; i++) {
        (void)printf(" %s", arch_preset_name(kind, i));
    }
    (void)printf("\n");
}

/* Takes the sizes of the preset, then those that were set one by one. */
static int arch_finish(const plan_parse *in, arch *model, const char **preset_out)
{
    const arch *given  = &in->given;
    const char *preset = in->preset;
    char        text[256];
    const char *wrong;

    if (preset == NULL && given->hidden == 0) {
        preset = arch_preset_name(in->kind, 0);
    }
    arch_begin(in->kind, model);
    if (preset != NULL && arch_preset(in->kind, preset, model) != 0) {
        return cli_bad("plan", "no preset '%s'", preset);
    }
    if (given->hidden + given->heads > 0) {
        model->head_elems = 0; /* the preset's would not fit */
    }
    model->hidden     = given->hidden > 0 ? given->hidden : model->hidden;
    model->layers     = given->layers > 0 ? given->layers : model->layers;
    model->heads      = given->heads > 0 ? given->heads : model->heads;
    model->kv_heads   = given->kv_heads > 0 ? given->kv_heads : model->kv_heads;
    model->inner      = given->inner > 0 ? given->inner : model->inner;
    model->vocab      = given->vocab > 0 ? given->vocab : model->vocab;
    model->max_length = given->max_length > 0 ? given->max_length : model->max_length;
    arch_complete(model);
    *preset_out = given->hidden + given->layers + given->heads + given->kv_heads + given->inner +
                              given->vocab ==
                          0
                      ? preset
                      : NULL;
    wrong       = arch_check(model, text, sizeof(text));
    return wrong == NULL ? 0 : cli_bad("plan", "%s", wrong);
}

/* Whether sizes of the model were set. The length does not count, since it is also that of the
 * sequences. */
static int has_arch_options(const plan_parse *in)
{
    const arch *given = &in->given;

    return in->has_kind || in->preset != NULL || given->hidden > 0 || given->layers > 0 ||
           given->heads > 0 || given->kv_heads > 0 || given->inner > 0 || given->vocab > 0;
}

static int model_make(const plan_parse *in, plan_options *out)
{
    char why[512] = "";
    arch sizes    = {0};
    int  wrong;

    if ((in->path != NULL) + (in->count != NULL) + has_arch_options(in) > 1) {
        return cli_bad("plan", "a model is one of --model, --params, and --arch with its sizes");
    }
    if (in->path != NULL) {
        out->model = planning_model_from_file(in->path, why, sizeof(why));
    } else if (in->count != NULL) {
        size_t elems = planning_count_parse(in->count);

        if (elems == 0) {
            return cli_bad("plan", "--params wants a count like 7.5B, not '%s'", in->count);
        }
        out->model = planning_model_from_count(elems, why, sizeof(why));
    } else {
        const char *preset = NULL;

        wrong = arch_finish(in, &sizes, &preset);
        if (wrong != 0) {
            return wrong;
        }
        out->model = planning_model_from_arch(&sizes, preset, why, sizeof(why));
    }
    if (out->model == NULL) {
        (void)fprintf(stderr, "sherd: %s\n", why);
        return 1;
    }
    out->request.model = out->model;
    return 0;
}

static int sequence_make(const plan_parse *in, plan_options *out)
{
    const planning_model *model  = out->model;
    size_t                tokens = in->tokens > 0 ? in->tokens : in->given.max_length;
    char                  text[96];

    if (tokens == 0 && model->has_arch) {
        tokens = model->sizes.max_length < MOST_TOKENS ? model->sizes.max_length : MOST_TOKENS;
    }
    if (model->has_arch && model->sizes.kind == ARCH_GPT2 && tokens > model->sizes.max_length) {
        (void)snprintf(text, sizeof(text), "%zu, and the model has %zu positions", tokens,
                       model->sizes.max_length);
        return cli_bad("plan", "--tokens is %s", text);
    }
    out->request.length = tokens;
    if (in->batch > 0) {
        if (out->request.num_settings == PLAN_MOST_SETTINGS) {
            return cli_bad("plan", "--set at most 63 times with --batch");
        }
        (void)snprintf(out->batch_setting, sizeof(out->batch_setting),
                       "train_micro_batch_size_per_gpu=%zu", in->batch);
        out->settings[out->request.num_settings++] = out->batch_setting;
    }
    return 0;
}

/* ---------------------------------------------------------------- layouts -- */

/* Refuses settings of keys that the lists set: such settings would make all rows the same. */
static int settings_check(const plan_parse *in, const plan_options *out)
{
    const struct {
        const char *key;
        int         is_set;
    } KEYS[] = {
        {"zero_optimization", in->num_stages + in->num_offloads},
        {"zero_optimization.stage", in->num_stages},
        {"zero_optimization.offload_optimizer", in->num_offloads},
        {"zero_optimization.offload_optimizer.device", in->num_offloads},
        {"zero_optimization.offload_param", in->num_offloads},
        {"zero_optimization.offload_param.device", in->num_offloads},
    };

    for (size_t i = 0; i < out->request.num_settings; i++) {
        size_t len = strcspn(out->settings[i], "=");

        for (size_t k = 0; k < sizeof(KEYS) / sizeof(KEYS[0]); k++) {
            if (KEYS[k].is_set > 0 && strlen(KEYS[k].key) == len &&
                strncmp(KEYS[k].key, out->settings[i], len) == 0) {
                return cli_bad("plan",
                               "--set %s is what --stage and --offload choose; give it one way",
                               KEYS[k].key);
            }
        }
    }
    return 0;
}

/* Gives the stage of the configuration. */
static int stage_ask(const plan_options *out, int *stage)
{
    planning_layout layout = {
        .stage = -1, .offload = PLANNING_OFFLOAD_AS_CONFIGURED, .world_size = out->worlds[0]};
    sherd_engine_info info;
    sherd_engine     *engine;
    sherd_status      status = planning_engine_open(&out->request, &layout, &engine);

    if (status != SHERD_OK) {
        return cli_fail();
    }
    sherd_engine_info_init(&info);
    status = sherd_engine_query(engine, &info);
    sherd_engine_destroy(engine);
    *stage = info.stage;
    return status == SHERD_OK ? 0 : cli_fail();
}

static int layout_refuse(planning_offload offload, int stage)
{
    (void)fprintf(stderr,
                  "sherd: --offload %s cannot be at stage %d: %s; sherd plan --help lists the "
                  "options\n",
                  planning_offload_name(offload), stage,
                  offload >= PLANNING_OFFLOAD_PARAMS_CPU
                      ? "parameters are offloaded at stage 3 alone"
                      : "the state is offloaded from stage 1 on");
    return 2;
}

static void lists_finish(plan_parse *in, const plan_options *out)
{
    int is_open   = in->num_stages + in->num_offloads == 0;
    int is_wanted = planning_has_limits(&out->request);

    if (is_open && !in->is_every_stage && !in->is_every_offload && is_wanted) {
        in->is_every_stage = in->is_every_offload = 1;
    }
    if (out->is_best && in->num_stages == 0) {
        in->is_every_stage = 1;
    }
    if (out->is_best && in->num_offloads == 0) {
        in->is_every_offload = 1;
    }
    for (int i = 0; i < 4 && in->is_every_stage; i++) {
        in->stages[i]  = i;
        in->num_stages = 4;
    }
    for (int i = 0; i < PLANNING_OFFLOADS && in->is_every_offload; i++) {
        in->offloads[i]  = (planning_offload)i;
        in->num_offloads = PLANNING_OFFLOADS;
    }
}

/* Whether the file or a setting has a key. */
static int is_key_given(const plan_options *out, const char *key)
{
    const planning_request *request = &out->request;
    sherd_config           *config;
    int                     is_given = 0;

    for (size_t i = 0; i < request->num_settings; i++) {
        is_given |= strncmp(request->settings[i], key, strlen(key)) == 0;
    }
    if (!is_given && request->config_path != NULL &&
        sherd_config_load(request->config_path, &config) == SHERD_OK) {
        is_given = sherd_config_has(config, key);
        sherd_config_destroy(config);
    }
    return is_given;
}

/* Unless the configuration says how ranks share: adds what the ranks of each of several hosts can share: replicas of each sharded layout, and second
 * copies of parameters that are gathered from memory. */
static void sharings_add(plan_options *out)
{
    int count = out->num_layouts;

    for (int l = 0; l < count; l++) {
        planning_layout replicas = out->layouts[l];
        planning_layout second   = out->layouts[l];

        replicas.replica_ranks   = PLAN_OF_A_HOST;
        second.second_copy_ranks = PLAN_OF_A_HOST;
        if (replicas.stage > 0) {
            out->layouts[out->num_layouts++] = replicas;
        }
        if (second.stage == 3 && second.offload != PLANNING_OFFLOAD_PARAMS_NVME) {
            out->layouts[out->num_layouts++] = second;
        }
    }
}

static int layouts_make(plan_parse *in, plan_options *out)
{
    int has_replicas     = is_key_given(out, PLANNING_REPLICA_KEY);
    int is_sharing_given = has_replicas || is_key_given(out, PLANNING_SECOND_COPY_KEY);
    int wrong;

    lists_finish(in, out);
    wrong = settings_check(in, out);
    if (wrong != 0) {
        return wrong;
    }
    if (in->num_offloads == 0) {
        in->offloads[in->num_offloads++] = PLANNING_OFFLOAD_AS_CONFIGURED;
    } else if (in->num_stages == 0) {
        wrong = stage_ask(out, &in->stages[in->num_stages++]);
        if (wrong != 0) {
            return wrong;
        }
    }
    if (in->num_stages == 0) {
        in->stages[in->num_stages++] = -1;
    }
    for (int s = 0; s < in->num_stages; s++) {
        for (int o = 0; o < in->num_offloads; o++) {
            planning_layout layout = {
                .stage = in->stages[s], .offload = in->offloads[o], .world_size = 0};

            if (in->is_every_stage && has_replicas && layout.stage == 0) {
                continue; /* nothing is sharded there */
            }
            if (planning_offload_fits_stage(layout.offload, layout.stage)) {
                out->layouts[out->num_layouts++] = layout;
            } else if (!in->is_every_stage && !in->is_every_offload) {
                return layout_refuse(layout.offload, layout.stage);
            }
        }
    }
    if ((out->is_best || (in->is_every_stage && in->is_every_offload)) && !is_sharing_given) {
        sharings_add(out);
    }
    return out->num_layouts > 0 ? 0 : layout_refuse(in->offloads[0], in->stages[0]);
}

/* ---------------------------------------------------------------- machine -- */

/* Whether --rates names a file: two words say where rates come from. */
static int is_rates_file(const plan_options *out)
{
    return out->rates_path != NULL && strcmp(out->rates_path, "measured") != 0 &&
           strcmp(out->rates_path, "assumed") != 0;
}

static int machine_make(const plan_parse *in, plan_options *out)
{
    planning_request *request = &out->request;
    char              why[512];

    request->backend = in->backend != NULL         ? in->backend
                       : request->device_bytes > 0 ? "cuda"
                                                   : "cpu";
    if (strcmp(request->backend, "cpu") == 0 && request->device_bytes > 0) {
        return cli_bad("plan", "on cpu device and host are one memory: give --host-memory");
    }
    for (int i = 0; i < out->num_worlds; i++) {
        if (request->rank >= out->worlds[i]) {
            (void)snprintf(why, sizeof(why), "%d, and a world has %d ranks", request->rank,
                           out->worlds[i]);
            return cli_bad("plan", "--rank is %s", why);
        }
    }
    planning_rates_assume(request->backend, &request->rates);
    out->is_measured = out->rates_path == NULL ? out->is_best && out->num_rates == 0
                                               : strcmp(out->rates_path, "measured") == 0;
    if (is_rates_file(out) && planning_rates_load(out->rates_path, request->backend,
                                                  &request->rates, why, sizeof(why)) != 0) {
        (void)fprintf(stderr, "sherd: %s\n", why);
        return 1;
    }
    for (int i = 0; i < out->num_rates; i++) {
        if (planning_rates_set(out->rates[i], &request->rates, why, sizeof(why)) != 0) {
            return cli_bad("plan", "--rate: %s", why);
        }
    }
    return 0;
}

/* Checks that the configuration can be read repeatedly, since every row reads it. */
static int config_check(const planning_request *request)
{
    struct stat info;

    if (request->config_path != NULL && stat(request->config_path, &info) == 0 &&
        !S_ISREG(info.st_mode)) {
        return cli_bad("plan", "--config wants a file that can be read more than once, not '%s'",
                       request->config_path);
    }
    return 0;
}

static int output_check(const plan_options *out)
{
    if (!out->is_best && (out->out_path != NULL || out->is_forced)) {
        return cli_bad("plan", "%s says where --best writes", out->is_forced ? "--force" : "--out");
    }
    if (out->is_best && (out->is_full || out->is_check)) {
        return cli_bad("plan", "--best chooses between layouts; give %s with the one that it chose",
                       out->is_full ? "--full" : "--check");
    }
    if (out->is_best && out->num_worlds > 1 && (out->out_path != NULL || !out->is_json)) {
        return cli_bad("plan", "--best writes one configuration; give one --world");
    }
    return 0;
}

int plan_request_make(plan_parse *in)
{
    plan_options *out   = in->out;
    int           wrong = output_check(out);

    wrong = wrong != 0 ? wrong : config_check(&out->request);
    wrong = wrong != 0 ? wrong : machine_make(in, out);
    wrong = wrong != 0 ? wrong : model_make(in, out);
    wrong = wrong != 0 ? wrong : sequence_make(in, out);
    return wrong != 0 ? wrong : layouts_make(in, out);
}
