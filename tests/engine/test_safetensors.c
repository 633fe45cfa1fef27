/* Headers of safetensors files: what is written is read again, what is wrong is refused with the
 * tensor's name. */
#include "engine/checkpoint/safetensors.h"
#include "tests/lib/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sherdi_mem account;

static sherd_status parse(const char *text, size_t data_bytes, sherdi_safetensors **out)
{
    sherdi_mem_init(&account);
    *out = NULL;
    return sherdi_safetensors_parse(&account, "t.safetensors", text, strlen(text),
                                    8 + strlen(text) + data_bytes, out);
}

static void check_refused(const char *text, size_t data_bytes, const char *sentence)
{
    sherdi_safetensors *file;

    CHECK_STATUS(SHERD_E_INVAL, parse(text, data_bytes, &file));
    CHECK_ERROR_SAYS("t.safetensors");
    CHECK_ERROR_SAYS(sentence);
    CHECK(file == NULL);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void check_text(const char *want, const char *got)
{
    CHECK(got != NULL);
    CHECK_INT(strlen(want), strlen(got));
    CHECK_BYTES_EQUAL(want, got, strlen(want));
}

static size_t prefix_of(const char *bytes)
{
    size_t value = 0;

    for (size_t i = 8; i-- > 0;) {
        value = value << 8 | (unsigned char)bytes[i];
    }
    return value;
}

/* What a builder laid out, parsed with exactly its data after it. */
static sherdi_safetensors *parsed(sherdi_safetensors_builder *builder, const char *bytes,
                                  size_t len_bytes)
{
    sherdi_safetensors *file;

    CHECK_INT(len_bytes - 8, prefix_of(bytes));
    CHECK_OK(sherdi_safetensors_parse(&account, "t.safetensors", bytes + 8, len_bytes - 8,
                                      len_bytes + sherdi_safetensors_data_bytes(builder), &file));
    return file;
}

static sherdi_safetensors_builder *begun(size_t align_bytes)
{
    sherdi_safetensors_builder *builder;

    sherdi_mem_init(&account);
    CHECK_OK(sherdi_safetensors_begin(&account, align_bytes, &builder));
    return builder;
}

static void end(sherdi_safetensors_builder *builder, sherdi_safetensors *file)
{
    sherdi_safetensors_destroy(file);
    sherdi_safetensors_builder_destroy(builder);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

/* ---- round trips ---- */

#define EVIL_NAME "a \"quoted\\name\"\n\x01 of \xc3\xa9\xf0\x9f\xa6\x99"

static void written_tensors_are_read_again(void)
{
    const size_t                shape[3] = {2, 3, 5};
    sherdi_safetensors_builder *builder  = begun(4096);
    sherdi_safetensors         *file;
    const sherdi_tensor        *tensor;
    const char                 *bytes;
    size_t                      len_bytes, first, second, third;

    CHECK_OK(sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_F64, 3, shape, &first));
    CHECK_OK(sherdi_safetensors_add(builder, EVIL_NAME, SHERDI_TENSOR_BF16, 0, NULL, &second));
    CHECK_OK(sherdi_safetensors_add(builder, "", SHERDI_TENSOR_U8, 1, shape, &third));
    CHECK_OK(sherdi_safetensors_metadata(builder, "format", EVIL_NAME));
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    CHECK_INT(4096, len_bytes);
    file = parsed(builder, bytes, len_bytes);
    CHECK_INT(3, file->num_tensors);
    CHECK_INT(4096, file->data_at);
    CHECK_INT(240 + 2 + 2, file->data_bytes);
    tensor = sherdi_safetensors_find(file, "w");
    CHECK(tensor == &file->tensors[0] && tensor->dtype == SHERDI_TENSOR_F64);
    CHECK_INT(3, tensor->ndim);
    CHECK_BYTES_EQUAL(shape, tensor->shape, sizeof(shape));
    CHECK_INT(30, tensor->elems);
    CHECK(tensor->begin == first && first == 0 && tensor->end == 240);
    tensor = sherdi_safetensors_find(file, EVIL_NAME);
    CHECK(tensor == &file->tensors[1] && tensor->ndim == 0 && tensor->elems == 1);
    CHECK(tensor->begin == second && second == 240 && tensor->end == 242);
    CHECK(sherdi_safetensors_find(file, "")->begin == third);
    CHECK(sherdi_safetensors_find(file, "x") == NULL);
    check_text(EVIL_NAME, sherdi_safetensors_note(file, "format"));
    CHECK(sherdi_safetensors_note(file, "w") == NULL);
    end(builder, file);
}

static void every_dtype_is_read_by_its_name(void)
{
    sherdi_safetensors_builder *builder  = begun(8);
    const size_t                shape[1] = {7};
    sherdi_safetensors         *file;
    const char                 *bytes;
    size_t                      len_bytes;

    for (int i = 0; i < SHERDI_TENSOR_DTYPES; i++) {
        CHECK_OK(sherdi_safetensors_add(builder, sherdi_tensor_dtype_name((sherdi_tensor_dtype)i),
                                        (sherdi_tensor_dtype)i, 1, shape, NULL));
    }
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    CHECK(len_bytes % 8 == 0);
    file = parsed(builder, bytes, len_bytes);
    for (int i = 0; i < SHERDI_TENSOR_DTYPES; i++) {
        const char          *name   = sherdi_tensor_dtype_name((sherdi_tensor_dtype)i);
        const sherdi_tensor *tensor = sherdi_safetensors_find(file, name);

        CHECK(tensor != NULL && (int)tensor->dtype == i);
        CHECK_INT(7 * sherdi_tensor_dtype_bytes((sherdi_tensor_dtype)i),
                  tensor->end - tensor->begin);
    }
    end(builder, file);
}

static void a_file_without_tensors_is_read(void)
{
    sherdi_safetensors_builder *builder = begun(8);
    sherdi_safetensors         *file;
    const char                 *bytes;
    size_t                      len_bytes;

    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    file = parsed(builder, bytes, len_bytes);
    CHECK_INT(0, file->num_tensors);
    CHECK(sherdi_safetensors_find(file, "w") == NULL);
    end(builder, file);
}

static void empty_tensors_take_no_bytes(void)
{
    const size_t                none[2] = {0, 4}, one[1] = {1};
    sherdi_safetensors_builder *builder = begun(8);
    sherdi_safetensors         *file;
    const char                 *bytes;
    size_t                      len_bytes;

    CHECK_OK(sherdi_safetensors_add(builder, "a", SHERDI_TENSOR_F32, 2, none, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "b", SHERDI_TENSOR_F32, 1, one, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "c", SHERDI_TENSOR_F32, 2, none, NULL));
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    file = parsed(builder, bytes, len_bytes);
    CHECK_INT(0, sherdi_safetensors_find(file, "a")->elems);
    CHECK_INT(4, sherdi_safetensors_find(file, "c")->begin);
    end(builder, file);
}

static void many_tensors_are_found_by_name(void)
{
    enum { COUNT = 20000 };
    sherdi_safetensors_builder *builder  = begun(4096);
    const size_t                shape[1] = {3};
    sherdi_safetensors         *file;
    const char                 *bytes;
    char                        name[64];
    size_t                      len_bytes;

    for (size_t i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "layers.%zu.weight", i);
        CHECK_OK(sherdi_safetensors_add(builder, name, SHERDI_TENSOR_F32, 1, shape, NULL));
    }
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    file = parsed(builder, bytes, len_bytes);
    CHECK_INT(COUNT, file->num_tensors);
    for (size_t i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "layers.%zu.weight", i);
        CHECK_INT(12 * i, sherdi_safetensors_find(file, name)->begin);
    }
    end(builder, file);
}

static void a_reserved_value_is_set_later(void)
{
    sherdi_safetensors_builder *builder = begun(4096);
    sherdi_safetensors         *file;
    const char                 *bytes;
    size_t                      len_bytes;

    CHECK_OK(sherdi_safetensors_metadata(builder, "a", "1"));
    CHECK_OK(sherdi_safetensors_reserve(builder, "sums", 16));
    CHECK_OK(sherdi_safetensors_reserve(builder, "more", 4));
    CHECK_OK(sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_F32, 0, NULL, NULL));
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    file = parsed(builder, bytes, len_bytes);
    check_text("", sherdi_safetensors_note(file, "sums"));
    sherdi_safetensors_destroy(file);

    CHECK_OK(sherdi_safetensors_set(builder, "sums", "0123456789abcdef"));
    CHECK_OK(sherdi_safetensors_set(builder, "more", "xy"));
    file = parsed(builder, bytes, len_bytes);
    check_text("0123456789abcdef", sherdi_safetensors_note(file, "sums"));
    check_text("xy", sherdi_safetensors_note(file, "more"));
    check_text("1", sherdi_safetensors_note(file, "a"));
    CHECK_INT(1, file->num_tensors);

    CHECK_STATUS(SHERD_E_INVAL, sherdi_safetensors_set(builder, "more", "12345"));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_safetensors_set(builder, "more", "\"\""));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_safetensors_set(builder, "a", "2"));
    CHECK_ERROR_SAYS("no room was reserved for the metadata key a");
    end(builder, file);
}

/* ---- what cannot be written ---- */

static void builder_refuses_names_and_shapes(void)
{
    const size_t                large[2] = {SIZE_MAX / 4, 5}, half[1] = {SIZE_MAX / 2};
    const size_t                nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    sherdi_safetensors_builder *builder = begun(8);

    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_safetensors_add(builder, "__metadata__", SHERDI_TENSOR_U8, 0, NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_U8, 2, large, NULL));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_U8, 9, nine, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "v", SHERDI_TENSOR_U8, 1, half, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "u", SHERDI_TENSOR_U8, 1, half, NULL));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_U8, 1, half, NULL));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_safetensors_add(builder, "\xff", SHERDI_TENSOR_U8, 0, NULL, NULL));
    CHECK_ERROR_SAYS("not UTF-8");
    end(builder, NULL);
}

static void builder_refuses_a_name_twice(void)
{
    sherdi_safetensors_builder *builder = begun(8);
    const char                 *bytes;
    size_t                      len_bytes;

    CHECK_OK(sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_U8, 0, NULL, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "v", SHERDI_TENSOR_U8, 0, NULL, NULL));
    CHECK_OK(sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_U8, 0, NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    CHECK_ERROR_SAYS("two tensors are called w");
    end(builder, NULL);

    builder = begun(8);
    CHECK_OK(sherdi_safetensors_metadata(builder, "k", "1"));
    CHECK_OK(sherdi_safetensors_reserve(builder, "k", 1));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    CHECK_ERROR_SAYS("two metadata keys are called k");
    end(builder, NULL);
}

/* ---- what is refused ---- */

#define W(dtype, shape, offsets)                                                                   \
    "{\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void ranges_have_to_fit_type_and_shape(void)
{
    check_refused(W("F32", "[2]", "[0,4]"), 4, "tensor w: its data_offsets are 4 bytes apart");
    check_refused(W("F32", "[]", "[0,0]"), 0, "tensor w: its data_offsets are 0 bytes apart");
    check_refused(W("F32", "[1]", "[4,0]"), 4, "tensor w: its data_offsets are 4 to 0");
    check_refused(W("F32", "[2]", "[0,8]"), 7, "0 to 8, and the file has 7 bytes of data");
    check_refused(W("U8", "[9223372036854775807,3]", "[0,1]"), 1, "too many elements");
    check_refused(W("F64", "[4611686018427387904]", "[0,0]"), 0, "data_offsets are 0 bytes apart");
    check_refused(W("U8", "[0,9223372036854775807,3]", "[0,1]"), 1, "data_offsets are 1 bytes");
    check_refused(W("U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0, "too many");
}

static void data_have_no_holes_overlaps_or_rests(void)
{
#define TWO(offsets)                                                                               \
    "{\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets "},"                        \
    "\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
    check_refused(TWO("[5,9]"), 9, "tensor v begins at byte 5 of the data");
    check_refused(TWO("[3,7]"), 7, "tensor v begins at byte 3 of the data");
    check_refused(TWO("[0,4]"), 4,
                  "begins at byte 0 of the data, and what lies before it ends at 4");
    check_refused(TWO("[4,8]"), 9, "its tensors are 8 bytes, and its data are 9");
    check_refused(W("U8", "[4]", "[1,5]"), 5, "tensor w begins at byte 1");
    check_refused("{}", 1, "its tensors are 0 bytes, and its data are 1");
}

static void descriptions_are_strict(void)
{
    check_refused(W("F33", "[]", "[0,4]"), 4, "tensor w: the dtype F33 is not known");
    check_refused("{\"w\":{\"dtype\":4,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "its dtype");
    check_refused("{\"w\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "its dtype");
    check_refused("{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "its shape is not");
    check_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "its data_offsets are not");
    check_refused(W("U8", "4", "[0,4]"), 4, "its shape is not");
    check_refused(W("U8", "[-1]", "[0,4]"), 4, "its shape is not");
    check_refused(W("U8", "[4.0]", "[0,4]"), 4, "its shape is not");
    check_refused(W("U8", "[4e0]", "[0,4]"), 4, "its shape is not");
    check_refused(W("U8", "[\"4\"]", "[0,4]"), 4, "its shape is not");
    check_refused(W("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "at most 8 sizes");
    check_refused(W("U8", "[18446744073709551617]", "[0,1]"), 1, "its shape is not");
    check_refused(W("U8", "[]", "[0,1,2]"), 1, "its data_offsets are not");
    check_refused(W("U8", "[]", "[0]"), 1, "its data_offsets are not");
    check_refused("{\"w\":[]}", 0, "tensor w: it is not described by an object");
    check_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1,
                  "it has a key other than");
}

static void headers_are_objects_without_doubles(void)
{
    check_refused("[]", 0, "does not begin with a brace");
    check_refused("", 0, "does not begin with a brace");
    check_refused(" {}", 0, "does not begin with a brace");
    check_refused("{", 0, "not JSON");
    check_refused("{} {}", 0, "not JSON");
    check_refused("{\"\\u0000\":{}}", 0, "not JSON");
    check_refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
                  "\"w\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[1,2]}}",
                  2, "for the second time");
    check_refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "for the second time");
    check_refused("{\"__metadata__\":{\"a\":1}}", 0, "the value of __metadata__ key a");
    check_refused("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
}

/* ---- files ---- */

static const char *file_with(const void *bytes, size_t len_bytes, size_t file_bytes)
{
    static char path[512];
    int         fd;

    (void)snprintf(path, sizeof(path), "%s/t.safetensors", test_scratch());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, len_bytes) == (ssize_t)len_bytes);
    CHECK(ftruncate(fd, (off_t)file_bytes) == 0 && close(fd) == 0);
    return path;
}

static void check_file_refused(const char *path, sherd_status status, const char *sentence)
{
    sherdi_safetensors *file = NULL;

    sherdi_mem_init(&account);
    CHECK_STATUS(status, sherdi_safetensors_open(&account, path, NULL, &file));
    CHECK_ERROR_SAYS(path);
    CHECK_ERROR_SAYS(sentence);
    CHECK(file == NULL);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void a_file_is_opened_by_its_path(void)
{
    sherdi_safetensors_builder *builder  = begun(4096);
    const size_t                shape[1] = {100};
    sherdi_safetensors         *file;
    const char                 *bytes;
    size_t                      len_bytes;
    int                         fd = -1;

    CHECK_OK(sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_F32, 1, shape, NULL));
    CHECK_OK(sherdi_safetensors_finish(builder, &bytes, &len_bytes));
    CHECK_OK(sherdi_safetensors_open(&account, file_with(bytes, len_bytes, len_bytes + 400), &fd,
                                     &file));
    CHECK_INT(4096, file->data_at);
    CHECK_INT(400, file->data_bytes);
    CHECK(fd >= 0 && close(fd) == 0);
    sherdi_safetensors_destroy(file);
    CHECK_OK(sherdi_safetensors_open(&account, file_with(bytes, len_bytes, len_bytes + 400), NULL,
                                     &file));
    end(builder, file);
}

static void lengths_beyond_the_file_are_refused(void)
{
    const unsigned char huge[8]  = {255, 255, 255, 255, 255, 255, 255, 255};
    const unsigned char large[8] = {1, 0xe1, 0xf5, 5}; /* 100,000,001 */
    const unsigned char most[8]  = {0, 0xe1, 0xf5, 5};
    const unsigned char three[8] = {3};
    char                path[512];

    check_file_refused(file_with(huge, 8, 100), SHERD_E_INVAL, "18446744073709551615 bytes");
    check_file_refused(file_with(large, 8, 200000000), SHERD_E_INVAL, "100000001 bytes");
    check_file_refused(file_with(most, 8, 100), SHERD_E_INVAL, "is it cut short?");
    check_file_refused(file_with(three, 8, 10), SHERD_E_INVAL,
                       "3 bytes, and the whole file has 10");
    check_file_refused(file_with(three, 7, 7), SHERD_E_INVAL, "it has 7 bytes");
    check_file_refused(test_scratch(), SHERD_E_INVAL, "not a regular file");
    (void)snprintf(path, sizeof(path), "%s/nothing", test_scratch());
    check_file_refused(path, SHERD_E_IO, "No such file");
    (void)snprintf(path, sizeof(path), "%s/pipe", test_scratch());
    CHECK(mkfifo(path, 0600) == 0);
    check_file_refused(path, SHERD_E_INVAL, "not a regular file");
}

/* ---- memory ---- */

static void memory_follows_from_the_header(void)
{
    const size_t        header_bytes = (size_t)1 << 20;
    char               *text         = malloc(header_bytes + 1);
    sherdi_safetensors *file;
    size_t              at = 0;

    CHECK(text != NULL);
    at += (size_t)sprintf(text, "{\"w\":{\"dtype\":\"U8\",\"shape\":[");
    while (at < header_bytes - 8) {
        text[at++] = '1';
        text[at++] = ',';
    }
    (void)sprintf(text + at, "1]}}");
    CHECK_STATUS(SHERD_E_INVAL, parse(text, 0, &file));
    CHECK(atomic_load(&account.peak_bytes[SHERDI_MEM_CONTROL]) < 100 * header_bytes);
    CHECK_INT(0, sherdi_mem_held_all(&account));
    free(text);
}

static sherd_status round_trip(void)
{
    sherdi_safetensors_builder *builder = NULL;
    sherdi_safetensors         *file    = NULL;
    const char                 *bytes   = NULL;
    size_t                      len_bytes;
    sherd_status                status = sherdi_safetensors_begin(&account, 8, &builder);

    if (status == SHERD_OK) {
        status = sherdi_safetensors_add(builder, "w", SHERDI_TENSOR_F32, 0, NULL, NULL);
    }
    if (status == SHERD_OK) {
        status = sherdi_safetensors_metadata(builder, "k", "v");
    }
    if (status == SHERD_OK) {
        status = sherdi_safetensors_finish(builder, &bytes, &len_bytes);
    }
    if (status == SHERD_OK) {
        status = sherdi_safetensors_open(&account, file_with(bytes, len_bytes, len_bytes + 4), NULL,
                                         &file);
    }
    sherdi_safetensors_destroy(file);
    sherdi_safetensors_builder_destroy(builder);
    return status;
}

static void every_allocation_may_fail(void)
{
    size_t made;

    sherdi_mem_init(&account);
    (void)sherdi_mem_fail_nth(0);
    CHECK_OK(round_trip());
    made = sherdi_mem_fail_nth(0);
    CHECK(made > 10);
    for (size_t n = 1; n <= made; n++) {
        (void)sherdi_mem_fail_nth(n);
        CHECK_STATUS(SHERD_E_NOMEM, round_trip());
        (void)sherdi_mem_fail_nth(0);
        CHECK_INT(0, sherdi_mem_held_all(&account));
    }
}

static const test_case CASES[] = {
    CASE(written_tensors_are_read_again),    CASE(every_dtype_is_read_by_its_name),
    CASE(a_file_without_tensors_is_read),    CASE(empty_tensors_take_no_bytes),
    CASE(many_tensors_are_found_by_name),    CASE(a_reserved_value_is_set_later),
    CASE(builder_refuses_names_and_shapes),  CASE(builder_refuses_a_name_twice),
    CASE(ranges_have_to_fit_type_and_shape), CASE(data_have_no_holes_overlaps_or_rests),
    CASE(descriptions_are_strict),           CASE(headers_are_objects_without_doubles),
    CASE(a_file_is_opened_by_its_path),      CASE(lengths_beyond_the_file_are_refused),
    CASE(memory_follows_from_the_header),    CASE(every_allocation_may_fail),
};

RUN_MAIN(CASES)
