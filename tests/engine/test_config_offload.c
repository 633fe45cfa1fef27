/* Tests every key of offload_optimizer, offload_param and aio: what it resolves to, and what is
 * refused or warned of. */
#include "tests/engine/config_helpers.h"

#include "collectives/world.h"
#include "engine/run/differences.h"
#include "engine/run/engine_impl.h"

#include <stdlib.h>

#define STATE "zero_optimization.offload_optimizer."
#define PARAM "zero_optimization.offload_param."

/* Bytes of a text inside a complete file, and of a block inside that text. */
enum { MEMBERS_BYTES = 1024, BLOCK_BYTES = 512 };

/* Returns the settings of a file at stage 3 with `members` in a block of zero_optimization. */
static sherdi_settings settings_with(const char *block, const char *members)
{
    char text[MEMBERS_BYTES];

    (void)snprintf(text, sizeof(text), "\"zero_optimization\": {\"stage\": 3, \"%s\": {%s}}", block,
                   members);
    return settings_of(text);
}

static sherdi_settings settings_of_state(const char *members)
{
    return settings_with("offload_optimizer", members);
}

static sherdi_settings settings_of_param(const char *members)
{
    return settings_with("offload_param", members);
}

/* ---- defaults ---- */

static void check_offload_defaults(const sherdi_settings *got)
{
    CHECK_INT(4, got->offload.state.buffer_count);
    CHECK_INT(4194304, got->offload.state.buffer_elems);
    CHECK_INT(1, got->offload.state.pin_memory);
    CHECK_INT(5, got->offload.params.buffer_count);
    CHECK_INT(100000000, got->offload.params.buffer_elems);
    CHECK_INT(1, got->offload.params.pin_memory);
    CHECK_CLOSE(1, got->offload.ratio, 0);
    /* not DeepSpeed's default: false is slower and gives the same bits */
    CHECK_INT(1, got->offload.pipeline_read);
    CHECK_INT(1, got->offload.pipeline_write);
    CHECK_INT(0, got->offload.fast_init);
    CHECK_INT(0, got->offload.gradients_on_nvme);
    CHECK_INT(0, got->offload.verify_reads);
    CHECK_INT(0, got->offload.resume_state);
    CHECK_INT(0, got->offload.keep_state);
    CHECK_INT(1, got->offload.durable);
    CHECK_INT(1000000000, got->offload.params_in_cpu);
    CHECK_INT(SHERDI_IO_AUTO, got->io.engine);
    CHECK_INT(1048576, got->io.block_bytes);
    CHECK_INT(8, got->io.depth);
}

static void config_offload_defaults(void)
{
    sherdi_settings got = settings_of("");

    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.state.space);
    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.params.space);
    CHECK_INT(0, got.offload.state.num_folders);
    CHECK_INT(0, got.offload.params.num_folders);
    check_offload_defaults(&got);
}

static void config_offload_auto_is_the_default(void)
{
    sherdi_settings got = settings_of(
        "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"auto\","
        " \"nvme_path\": \"auto\", \"buffer_count\": \"auto\", \"buffer_size\": \"auto\","
        " \"pin_memory\": \"auto\", \"pipeline_read\": \"auto\", \"pipeline_write\": \"auto\","
        " \"fast_init\": \"auto\", \"ratio\": \"auto\", \"gradients\": \"auto\","
        " \"verify_reads\": \"auto\", \"resume\": \"auto\", \"keep\": \"auto\","
        " \"durable\": \"auto\"}, \"offload_param\": {\"device\": \"auto\", \"nvme_path\": "
        "\"auto\","
        " \"buffer_count\": \"auto\", \"buffer_size\": \"auto\", \"max_in_cpu\": \"auto\","
        " \"pin_memory\": \"auto\"}}, \"aio\": {\"block_size\": \"auto\", \"queue_depth\": "
        "\"auto\","
        " \"engine\": \"auto\"}");

    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.state.space);
    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.params.space);
    check_offload_defaults(&got);
}

/* ---- every key ---- */

static void config_offload_of_state_arrives(void)
{
    sherdi_settings got = settings_of_state(
        "\"device\": \"nvme\", \"nvme_path\": \"/a\", \"buffer_count\": 7, \"buffer_size\": 1e6,"
        " \"pin_memory\": false, \"pipeline_read\": false, \"pipeline_write\": false,"
        " \"fast_init\": true, \"ratio\": 0.5, \"gradients\": \"nvme\", \"verify_reads\": true,"
        " \"keep\": true, \"durable\": false");

    CHECK_INT(SHERDI_SPACE_STORAGE, got.offload.state.space);
    CHECK_INT(1, got.offload.state.num_folders);
    CHECK(strcmp(got.offload.state.folders[0], "/a") == 0);
    CHECK_INT(7, got.offload.state.buffer_count);
    CHECK_INT(1000000, got.offload.state.buffer_elems);
    CHECK_INT(0, got.offload.state.pin_memory);
    CHECK_INT(0, got.offload.pipeline_read);
    CHECK_INT(0, got.offload.pipeline_write);
    CHECK_INT(1, got.offload.fast_init);
    CHECK_CLOSE(0.5, got.offload.ratio, 0);
    CHECK_INT(1, got.offload.gradients_on_nvme);
    CHECK_INT(1, got.offload.verify_reads);
    CHECK_INT(0, got.offload.resume_state);
    CHECK_INT(1, got.offload.keep_state);
    CHECK_INT(0, got.offload.durable);
    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.params.space);
    CHECK_INT(1, settings_of_state("\"device\": \"nvme\", \"nvme_path\": \"/a\", \"resume\": true")
                     .offload.resume_state);
    CHECK_INT(
        0, settings_of_state("\"device\": \"nvme\", \"nvme_path\": \"/a\", \"gradients\": \"cpu\"")
               .offload.gradients_on_nvme);
}

static void config_offload_of_params_arrives(void)
{
    sherdi_settings got = settings_of_param("\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b\"],"
                                            " \"buffer_count\": 3, \"buffer_size\": 5e7,"
                                            " \"max_in_cpu\": 0, \"pin_memory\": false");

    CHECK_INT(SHERDI_SPACE_STORAGE, got.offload.params.space);
    CHECK_INT(2, got.offload.params.num_folders);
    CHECK(strcmp(got.offload.params.folders[1], "/b") == 0);
    CHECK_INT(3, got.offload.params.buffer_count);
    CHECK_INT(50000000, got.offload.params.buffer_elems);
    CHECK_INT(0, got.offload.params_in_cpu);
    CHECK_INT(0, got.offload.params.pin_memory);
    CHECK_INT(SHERDI_SPACE_DEVICE, got.offload.state.space);
    CHECK(settings_of_param("\"max_in_cpu\": 9223372036854775807").offload.params_in_cpu ==
          SIZE_MAX);
}

static void config_aio_arrives(void)
{
    sherdi_settings got = settings_of("\"aio\": {\"block_size\": 262144, \"queue_depth\": 32,"
                                      " \"engine\": \"threads\"}");

    CHECK_INT(262144, got.io.block_bytes);
    CHECK_INT(32, got.io.depth);
    CHECK_INT(SHERDI_IO_THREADS, got.io.engine);
    CHECK_INT(SHERDI_IO_URING, settings_of("\"aio\": {\"engine\": \"io_uring\"}").io.engine);
    check_silent("\"aio\": {\"intra_op_parallelism\": 4, \"single_submit\": true,"
                 " \"overlap_events\": false, \"use_gds\": false}");
    check_warns("\"aio\": {\"use_gds\": true}", "aio.use_gds is ignored");
    check_warns("\"aio\": {\"thread_count\": 4}", "is read as aio.intra_op_parallelism");
}

/* ---- spaces ---- */

static void config_space_follows_device_and_stage(void)
{
    static const struct {
        const char  *device;
        int          stage;
        sherdi_space state, param;
    } ROWS[] = {
        {"none", 3, SHERDI_SPACE_DEVICE, SHERDI_SPACE_DEVICE},
        {"cpu", 0, SHERDI_SPACE_DEVICE, SHERDI_SPACE_DEVICE},
        {"cpu", 1, SHERDI_SPACE_HOST, SHERDI_SPACE_DEVICE},
        {"cpu", 2, SHERDI_SPACE_HOST, SHERDI_SPACE_DEVICE},
        {"cpu", 3, SHERDI_SPACE_HOST, SHERDI_SPACE_HOST},
        {"nvme", 0, SHERDI_SPACE_DEVICE, SHERDI_SPACE_DEVICE},
        {"nvme", 1, SHERDI_SPACE_STORAGE, SHERDI_SPACE_DEVICE},
        {"nvme", 2, SHERDI_SPACE_STORAGE, SHERDI_SPACE_DEVICE},
        {"nvme", 3, SHERDI_SPACE_STORAGE, SHERDI_SPACE_STORAGE},
    };
    char members[MEMBERS_BYTES];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        sherdi_settings got;

        (void)snprintf(members, sizeof(members),
                       "\"zero_optimization\": {\"stage\": %d, \"offload_optimizer\": {\"device\": "
                       "\"%s\", \"nvme_path\": \"/x\"}, \"offload_param\": {\"device\": \"%s\","
                       " \"nvme_path\": \"/y\"}}",
                       ROWS[i].stage, ROWS[i].device, ROWS[i].device);
        got = settings_of(members);
        CHECK_INT(ROWS[i].state, got.offload.state.space);
        CHECK_INT(ROWS[i].param, got.offload.params.space);
        CHECK_INT(ROWS[i].state == SHERDI_SPACE_STORAGE, got.offload.state.num_folders);
        CHECK_INT(ROWS[i].param == SHERDI_SPACE_STORAGE, got.offload.params.num_folders);
    }
}

static void config_old_offload_switches_are_cpu(void)
{
    CHECK_INT(SHERDI_SPACE_HOST,
              settings_of("\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}")
                  .offload.state.space);
    CHECK_INT(SHERDI_SPACE_HOST,
              settings_of("\"zero_optimization\": {\"stage\": 2, \"cpu-offload\": true}")
                  .offload.state.space);
    CHECK_INT(SHERDI_SPACE_HOST,
              settings_of("\"zero_optimization\": {\"stage\": 3, \"cpu_offload_param\": true}")
                  .offload.params.space);
    CHECK_INT(SHERDI_SPACE_HOST,
              settings_of("\"zero_optimization\": {\"stage\": 3, \"cpu_offload_params\": true}")
                  .offload.params.space);
    CHECK_INT(SHERDI_SPACE_DEVICE,
              settings_of("\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": false}")
                  .offload.state.space);
    CHECK_INT(
        0, settings_of("\"zero_optimization\": {\"stage\": 2, \"cpu_offload_pin_memory\": false}")
               .offload.state.pin_memory);
}

static void config_ratio_holds_at_any_stage(void)
{
    char members[MEMBERS_BYTES];

    for (int stage = 1; stage <= 3; stage++) {
        (void)snprintf(members, sizeof(members),
                       "\"zero_optimization\": {\"stage\": %d, \"offload_optimizer\": {\"device\": "
                       "\"cpu\", \"ratio\": 0.25}}",
                       stage);
        check_silent(members);
        CHECK_CLOSE(0.25, settings_of(members).offload.ratio, 0);
    }
    CHECK_CLOSE(0, settings_of_state("\"device\": \"cpu\", \"ratio\": 0").offload.ratio, 0);
}

/* ---- folders ---- */

static void config_folders_are_a_name_or_a_list(void)
{
    sherdi_settings got;
    char            members[BLOCK_BYTES];
    char            name[SHERDI_FOLDER_BYTES];

    got = settings_of_state("\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b b\", \"c\\u00e9\","
                            " \"auto\", \"/e/\", \"/\", \"7\", \"8\"]");
    CHECK_INT(8, got.offload.state.num_folders);
    CHECK(strcmp(got.offload.state.folders[0], "/a") == 0);
    CHECK(strcmp(got.offload.state.folders[1], "/b b") == 0);
    CHECK(strcmp(got.offload.state.folders[2], "c\xc3\xa9") == 0);
    CHECK(strcmp(got.offload.state.folders[3], "auto") == 0);
    CHECK(strcmp(got.offload.state.folders[4], "/e/") == 0);
    CHECK(strcmp(got.offload.state.folders[7], "8") == 0);

    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(members, sizeof(members), "\"device\": \"nvme\", \"nvme_path\": \"%s\"", name);
    got = settings_of_state(members);
    CHECK(strcmp(got.offload.state.folders[0], name) == 0);
    CHECK_INT(0, settings_of_state("\"nvme_path\": null").offload.state.num_folders);
}

/* The bytes are the same whatever was there before, because ranks may compare or hash them. */
static void config_settings_are_the_same_bytes_again(void)
{
    static const char members[] = "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
                                  "{\"device\": \"nvme\", \"nvme_path\": [\"/aaaa\", \"/b\"]}}";
    sherdi_settings   one, two;
    sherd_config     *config = completed(members);

    memset(&one, 0x5a, sizeof(one));
    memset(&two, 0xa5, sizeof(two));
    CHECK_OK(sherdi_config_resolve(config, 1, &one));
    CHECK_OK(sherdi_config_resolve(config, 1, &two));
    CHECK_BYTES_EQUAL(&one, &two, sizeof(one));
    for (size_t i = strlen("/aaaa"); i < SHERDI_FOLDER_BYTES; i++) {
        CHECK_INT(0, one.offload.state.folders[0][i]);
    }
    sherd_config_destroy(config);
}

/* ---- errors ---- */

static void config_offload_values_out_of_range_are_refused(void)
{
    static const struct {
        const char *key, *value, *sentence;
    } ROWS[] = {
        {STATE "device", "\"disk\"", "is \"disk\"; known: none|cpu|nvme"},
        {STATE "nvme_path", "7", "is 7; it must be the name of a folder, or a list of such names"},
        {STATE "nvme_path", "true", "it must be the name of a folder, or a list of such names"},
        {STATE "nvme_path", "{}", "it must be the name of a folder, or a list of such names"},
        {STATE "nvme_path", "\"\"", "the name of a folder is not empty"},
        {STATE "nvme_path", "[]", "give a folder at least"},
        {STATE "buffer_count", "0", "is 0; it must be at least 1"},
        {STATE "buffer_count", "1.5", "must be a whole number"},
        {STATE "buffer_size", "4095", "is 4095; it must be at least 4096"},
        {STATE "pin_memory", "\"maybe\"", "must be true or false"},
        {STATE "pipeline_read", "2", "must be true or false"},
        {STATE "pipeline_write", "[]", "must be true or false"},
        {STATE "fast_init", "null", "remove it or give it a value"},
        {STATE "ratio", "1.5", "is 1.5; it must be from 0 to 1"},
        {STATE "ratio", "-0.1", "it must be from 0 to 1"},
        {STATE "gradients", "\"none\"", "is \"none\"; known: cpu|nvme"},
        {STATE "verify_reads", "3", "must be true or false"},
        {STATE "resume", "\"last\"", "must be true or false"},
        {STATE "keep", "{}", "must be true or false"},
        {STATE "durable", "-1", "must be true or false"},
        {PARAM "device", "true", "it must be text"},
        {PARAM "nvme_path", "[[]]", "it must be the name of a folder, or a list of such names"},
        {PARAM "buffer_count", "0", "is 0; it must be at least 1"},
        {PARAM "buffer_size", "0", "is 0; it must be at least 1"},
        {PARAM "max_in_cpu", "-1", "is -1; it must be at least 0"},
        {PARAM "pin_memory", "5", "must be true or false"},
        {"aio.block_size", "512", "is 512; it must be at least 4096"},
        {"aio.queue_depth", "0", "is 0; it must be at least 1"},
        {"aio.queue_depth", "3e9", "and fit 32 bits"},
        {"aio.engine", "\"libaio\"", "is \"libaio\"; known: auto|io_uring|threads"},
    };
    sherd_config *config = parsed("{}");
    char          text[TEXT_BYTES];
    char          location[64];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        const char *leaf   = sherdi_config_leaf(ROWS[i].key);
        int         is_aio = strncmp(ROWS[i].key, "aio.", 4) == 0;

        CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, ROWS[i].key, ROWS[i].value));
        CHECK_ERROR_SAYS("set by the program: ");
        CHECK_ERROR_SAYS(ROWS[i].sentence);
        (void)snprintf(text, sizeof(text),
                       is_aio ? "{\"aio\": {\n  \"%s\": %s}}"
                       : strncmp(ROWS[i].key, STATE, strlen(STATE)) == 0
                           ? "{\"zero_optimization\": {\"offload_optimizer\": {\n  \"%s\": %s}}}"
                           : "{\"zero_optimization\": {\"offload_param\": {\n  \"%s\": %s}}}",
                       leaf, ROWS[i].value);
        check_load_refused(SHERD_E_INVAL, text, ROWS[i].sentence);
        (void)snprintf(location, sizeof(location), "configuration:2:%d: %s",
                       ROWS[i].value[0] == '[' && ROWS[i].value[1] == '[' ? 17 : 3, ROWS[i].key);
        CHECK_ERROR_SAYS(location);
    }
    sherd_config_destroy(config);
}

static void config_folder_of_a_list_is_named_by_its_own_location(void)
{
    char text[TEXT_BYTES];
    char name[SHERDI_FOLDER_BYTES + 1];

    check_load_refused(SHERD_E_INVAL,
                       "{\"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\":\n"
                       "[\"/a\",\n \"\"]}}}",
                       "configuration:3:2: " STATE
                       "nvme_path is \"\"; the name of a folder is not empty");
    check_load_refused(SHERD_E_INVAL,
                       "{\"zero_optimization\": {\"offload_optimizer\": {\"nvme_path\":\n"
                       "[\"/a\", \"/b\", \"/a/\"]}}}",
                       "configuration:2:14: " STATE
                       "nvme_path is \"/a/\"; it is in the list already");
    check_load_refused(SHERD_E_INVAL,
                       "{\"zero_optimization\": {\"offload_param\": {\"nvme_path\":\n"
                       "[\"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\", \"8\", \"9\"]}}}",
                       "configuration:2:42: " PARAM
                       "nvme_path is \"9\"; there are at most 8 folders");
    check_load_refused(SHERD_E_INVAL,
                       "{\"zero_optimization\": {\"offload_param\": {\"nvme_path\":\n"
                       "[\"/a\", 3]}}}",
                       "configuration:2:8: " PARAM
                       "nvme_path is 3; it must be the name of a folder");
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(text, sizeof(text),
                   "{\"zero_optimization\": {\"offload_param\": {\n\"nvme_path\": \"%s\"}}}", name);
    check_load_refused(SHERD_E_INVAL, text, "the name of a folder has at most 255 bytes");
    CHECK_ERROR_SAYS("configuration:2:1: " PARAM "nvme_path is \"xxx");
}

static void config_offload_contradictions_are_refused(void)
{
    static const struct {
        const char *block, *sentence;
    } ROWS[] = {
        {"\"offload_optimizer\": {\n\"device\": \"nvme\"}",
         "configuration:2:1: " STATE "device is nvme, which needs nvme_path"},
        {"\"stage\": 3, \"offload_param\": {\n \"device\": \"nvme\"}, \"offload_optimizer\": "
         "{\"device\": \"nvme\", \"nvme_path\": \"/x\"}",
         "configuration:2:2: " PARAM "device is nvme, which needs nvme_path"},
        {"\"offload_optimizer\": {\n\"gradients\": \"nvme\"}",
         "configuration:2:1: " STATE "gradients is nvme, but offload_optimizer.device is not"},
        {"\"offload_optimizer\": {\"device\": \"cpu\",\n\"gradients\": \"nvme\"}",
         "configuration:2:1: " STATE "gradients is nvme, but offload_optimizer.device is not"},
        {"\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/x\", \"ratio\": 0.5,\n"
         "\"resume\": true}",
         "configuration:2:1: " STATE "resume is true with a ratio below 1"},
    };
    char text[TEXT_BYTES];

    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        (void)snprintf(text, sizeof(text), "{\"zero_optimization\": {%s}}", ROWS[i].block);
        check_load_refused(SHERD_E_INVAL, text, ROWS[i].sentence);
    }
}

/* Split masters save nothing if the parameters are read from storage as well. */
static void config_masters_beside_stored_parameters_warn(void)
{
    static const char *const PARAMS[] = {"nvme", "cpu"};

    for (size_t i = 0; i < COUNT_OF(PARAMS); i++) {
        char text[512];

        (void)snprintf(text, sizeof(text),
                       "\"bf16\": {\"enabled\": true}, \"sherd\": {\"master_encoding\": "
                       "\"bf16_beside\"}, \"zero_optimization\": {\"stage\": 3, "
                       "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/x\"}, "
                       "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"/x\"}}",
                       PARAMS[i]);
        if (i == 0) {
            check_warns(text, "saves nothing where the parameters are on nvme too");
        } else {
            check_silent(text);
        }
    }
}

static void config_files_keys_without_files_warn(void)
{
    static const char *const MEMBERS[] = {"\"verify_reads\": true", "\"resume\": true",
                                          "\"keep\": true", "\"durable\": false"};
    char                     text[MEMBERS_BYTES];

    for (size_t i = 0; i < COUNT_OF(MEMBERS); i++) {
        (void)snprintf(text, sizeof(text),
                       "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {%s}}",
                       MEMBERS[i]);
        check_warns(text, "has no effect: only device nvme has files");
        (void)snprintf(text, sizeof(text),
                       "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": "
                       "\"cpu\",\n%s}}",
                       MEMBERS[i]);
        check_warns(text, "configuration:2:1: " STATE);
        CHECK_INT(0, settings_of(text).offload.resume_state);
        CHECK_INT(0, settings_of(text).offload.keep_state);
        CHECK_INT(0, settings_of(text).offload.verify_reads);
        (void)snprintf(text, sizeof(text),
                       "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": "
                       "\"nvme\", \"nvme_path\": \"/x\", %s}}",
                       MEMBERS[i]);
        check_silent(text);
    }
    check_silent("\"zero_optimization\": {\"offload_optimizer\": {\"verify_reads\": false,"
                 " \"resume\": false, \"keep\": false, \"durable\": true}}");
    check_silent(
        "\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\","
        " \"resume\": false, \"ratio\": 0.5}}");
}

/* ---- the program ---- */

static void config_program_offloads(void)
{
    sherd_config   *config = completed("\"zero_optimization\": {\"stage\": 3}");
    sherdi_settings got;

    CHECK_OK(sherd_config_set(config, STATE "device", "\"nvme\""));
    CHECK_INT(0, sherd_config_has(config, STATE "nvme_path"));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &got));
    CHECK_ERROR_SAYS("the program: " STATE "device is nvme, which needs nvme_path");
    CHECK_OK(sherd_config_set(config, STATE "nvme_path", "\"/a\""));
    CHECK_INT(1, sherd_config_has(config, STATE "nvme_path"));
    CHECK_INT(1, resolved(config, 1).offload.state.num_folders);
    CHECK_OK(sherd_config_set(config, STATE "nvme_path", "[\"/b\", \"/c\"]"));
    CHECK_OK(sherd_config_set(config, STATE "gradients", "\"nvme\""));
    CHECK_OK(sherd_config_set(config, STATE "resume", "true"));
    CHECK_OK(sherd_config_set(config, "aio.engine", "\"io_uring\""));
    CHECK_OK(sherd_config_set(config, "wall_clock_breakdown", "true"));
    got = resolved(config, 1);
    CHECK_INT(2, got.offload.state.num_folders);
    CHECK(strcmp(got.offload.state.folders[0], "/b") == 0);
    CHECK(strcmp(got.offload.state.folders[1], "/c") == 0);
    CHECK_INT(1, got.offload.gradients_on_nvme);
    CHECK_INT(1, got.offload.resume_state);
    CHECK_INT(SHERDI_IO_URING, got.io.engine);
    CHECK_INT(1, got.watch.wall_clock_breakdown);
    CHECK_OK(sherd_config_set(config, STATE "ratio", "0.5"));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &got));
    CHECK_ERROR_SAYS("the program: " STATE "resume is true with a ratio below 1");
    CHECK_OK(sherd_config_set(config, STATE "ratio", "1"));
    CHECK_OK(sherd_config_set(config, STATE "device", "\"cpu\""));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &got));
    CHECK_ERROR_SAYS("the program: " STATE "gradients is nvme");
    sherd_config_destroy(config);
}

static void config_program_fills_auto_of_offload(void)
{
    sherd_config *config =
        completed("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {"
                  "\"device\": \"auto\", \"nvme_path\": \"auto\","
                  " \"gradients\": \"nvme\", \"keep\": true}, \"offload_param\": "
                  "{\n\"device\": \"nvme\", \"nvme_path\": \"auto\"}}");
    sherdi_settings got;

    CHECK_INT(0, sherd_config_warning_count(config));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &got));
    CHECK_ERROR_SAYS("configuration:2:1: " PARAM "device is nvme, which needs nvme_path");
    CHECK_OK(sherd_config_set(config, PARAM "nvme_path", "\"/p\""));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_config_resolve(config, 1, &got));
    CHECK_ERROR_SAYS(STATE "gradients is nvme, but offload_optimizer.device is not");
    CHECK_OK(sherd_config_set(config, STATE "device", "\"nvme\""));
    CHECK_OK(sherd_config_set(config, STATE "nvme_path", "[\"/s\"]"));
    got = resolved(config, 1);
    CHECK(strcmp(got.offload.params.folders[0], "/p") == 0);
    CHECK(strcmp(got.offload.state.folders[0], "/s") == 0);
    CHECK_INT(1, got.offload.keep_state);
    sherd_config_destroy(config);
}

static void config_program_may_not_contradict_folders_of_the_file(void)
{
    sherd_config *config =
        completed("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {"
                  "\"device\": \"nvme\",\n\"nvme_path\": [\"/a\", \"/b\"]}}");

    CHECK_OK(sherd_config_set(config, STATE "nvme_path", "[\"/a\", \"/b\"]"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, STATE "nvme_path", "[\"/a\", \"/c\"]"));
    CHECK_ERROR_SAYS("nvme_path is [\"/a\", \"/b\"] at configuration:2:1, and the program gives "
                     "[\"/a\", \"/c\"]");
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, STATE "nvme_path", "\"/a\""));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_config_set(config, STATE "nvme_path", "[\"/a\", \"/b\", \"/c\"]"));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, STATE "device", "\"none\""));
    CHECK_OK(sherd_config_set(config, "!" STATE "nvme_path", "\"/c\""));
    CHECK(strcmp(resolved(config, 1).offload.state.folders[0], "/c") == 0);
    CHECK_OK(sherd_config_set(config, "!" STATE "device", "\"none\""));
    CHECK_INT(SHERDI_SPACE_DEVICE, resolved(config, 1).offload.state.space);
    sherd_config_destroy(config);
}

/* ---- the dump ---- */

static sherd_status text_append(void *ctx, const char *text, size_t len_bytes)
{
    char  *into = ctx;
    size_t used = strlen(into);

    CHECK(used + len_bytes < 65536);
    memcpy(into + used, text, len_bytes);
    into[used + len_bytes] = '\0';
    return SHERD_OK;
}

static void config_dump_has_offload(void)
{
    static const char *const LINES[] = {
        "\"" STATE "device\": {\"value\": \"nvme\", \"origin\": \"configuration:1:",
        "\"" STATE "nvme_path\": {\"value\": [\"/a\", \"/b\"], \"origin\": \"configuration:1:",
        "\"" STATE "pipeline_read\": {\"value\": true, \"origin\": \"default\"}",
        "\"" STATE "buffer_size\": {\"value\": 4194304, \"origin\": \"default\"}",
        "\"" STATE "gradients\": {\"value\": \"cpu\", \"origin\": \"default\"}",
        "\"" STATE "resume\": {\"value\": false,",
        "\"" PARAM "nvme_path\": {\"value\": null, \"origin\": \"default\"}",
        "\"" PARAM "max_in_cpu\": {\"value\": 1000000000,",
        "\"aio.engine\": {\"value\": \"auto\", \"origin\": \"default\"}",
        "\"aio.block_size\": {\"value\": 1048576,",
        "\"wall_clock_breakdown\": {\"value\": false,",
    };
    sherd_config *config =
        completed("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {"
                  "\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b\"]}}");
    char *text = calloc(1, 65536);

    CHECK(text != NULL);
    CHECK_OK(sherd_config_dump(config, text_append, text));
    for (size_t i = 0; i < COUNT_OF(LINES); i++) {
        test_check_contains(__FILE__, __LINE__, text, LINES[i]);
    }
    free(text);
    sherd_config_destroy(config);
}

/* ---- agreement of the ranks ---- */

static const struct {
    const char *key, *value;
    int         may_differ; /* the drives of the hosts may differ */
} RANK_ROWS[] = {
    {STATE "device", "\"cpu\"", 0},
    {STATE "nvme_path", "[\"/y\", \"/z\"]", 1},
    {STATE "buffer_count", "3", 0},
    {STATE "buffer_size", "8192", 0},
    {STATE "pin_memory", "false", 1},
    {STATE "pipeline_read", "false", 0},
    {STATE "pipeline_write", "false", 0},
    {STATE "fast_init", "true", 0},
    {STATE "ratio", "0.5", 0},
    {STATE "gradients", "\"nvme\"", 0},
    {STATE "verify_reads", "true", 0},
    {STATE "resume", "true", 0},
    {STATE "keep", "true", 0},
    {STATE "durable", "false", 0},
    {PARAM "device", "\"cpu\"", 0},
    {PARAM "nvme_path", "\"/y\"", 1},
    {PARAM "buffer_count", "3", 0},
    {PARAM "buffer_size", "8192", 0},
    {PARAM "max_in_cpu", "0", 0},
    {PARAM "pin_memory", "false", 1},
    {"aio.block_size", "8192", 1},
    {"aio.queue_depth", "3", 1},
    {"aio.engine", "\"threads\"", 1},
    {"wall_clock_breakdown", "true", 0},
};

static void settings_agree_on_two_ranks(sherd_world *world, void *ctx)
{
    sherdi_mem mem;

    (void)ctx;
    sherdi_mem_init(&mem);
    for (size_t i = 0; i < COUNT_OF(RANK_ROWS); i++) {
        sherd_config *config =
            completed("\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {"
                      "\"nvme_path\": \"auto\"}}");
        sherdi_settings settings;

        CHECK_OK(sherd_config_set(config, STATE "device", "\"nvme\""));
        CHECK_OK(sherd_config_set(config, STATE "nvme_path", "\"/x\""));
        CHECK_OK(sherd_config_set(config, PARAM "device", "\"nvme\""));
        CHECK_OK(sherd_config_set(config, PARAM "nvme_path", "\"/x\""));
        if (sherd_world_rank(world) == 1) {
            CHECK_OK(sherd_config_set(config, RANK_ROWS[i].key, RANK_ROWS[i].value));
        }
        settings = resolved(config, 2);
        if (RANK_ROWS[i].may_differ) {
            CHECK_OK(sherdi_agree_settings(world, &settings));
        } else {
            CHECK_STATUS(SHERD_E_INVAL, sherdi_agree_settings(world, &settings));
            CHECK_ERROR_SAYS("rank 1 has another value of ");
            CHECK_ERROR_SAYS(RANK_ROWS[i].key);
        }
        sherd_config_destroy(config);
    }
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

static void config_ranks_agree_on_offload(void)
{
    test_world(2, settings_agree_on_two_ranks, NULL);
}

static const test_case CASES[] = {
    CASE(config_offload_defaults),
    CASE(config_offload_auto_is_the_default),
    CASE(config_offload_of_state_arrives),
    CASE(config_offload_of_params_arrives),
    CASE(config_aio_arrives),
    CASE(config_space_follows_device_and_stage),
    CASE(config_old_offload_switches_are_cpu),
    CASE(config_ratio_holds_at_any_stage),
    CASE(config_folders_are_a_name_or_a_list),
    CASE(config_settings_are_the_same_bytes_again),
    CASE(config_offload_values_out_of_range_are_refused),
    CASE(config_folder_of_a_list_is_named_by_its_own_location),
    CASE(config_offload_contradictions_are_refused),
    CASE(config_masters_beside_stored_parameters_warn),
    CASE(config_files_keys_without_files_warn),
    CASE(config_program_offloads),
    CASE(config_program_fills_auto_of_offload),
    CASE(config_program_may_not_contradict_folders_of_the_file),
    CASE(config_dump_has_offload),
    CASE(config_ranks_agree_on_offload),
};

RUN_MAIN(CASES)
