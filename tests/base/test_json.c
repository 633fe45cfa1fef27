/* Tests of the JSON reader on JSON as people write it: what is read, which location each value
 * gets, and the errors. */
#include "base/json.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <string.h>

static sherdi_mem   account;
static sherdi_json *document;

static sherd_status parse_bytes(const char *text, size_t len_bytes)
{
    sherdi_mem_init(&account);
    document = NULL;
    return sherdi_json_parse(&account, "t.json", text, len_bytes, &document);
}

static sherd_status parse(const char *text)
{
    return parse_bytes(text, strlen(text));
}

static const sherdi_json_node *parsed(const char *text)
{
    CHECK_OK(parse(text));
    return sherdi_json_root(document);
}

/* Ends a case: destroys the document and checks that all its memory is freed. */
static void close_document(void)
{
    sherdi_json_destroy(document);
    document = NULL;
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void check_refused(const char *text, const char *sentence)
{
    CHECK_STATUS(SHERD_E_INVAL, parse(text));
    CHECK_ERROR_SAYS(sentence);
    CHECK(document == NULL);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void check_location(const sherdi_json_node *node, uint32_t line, uint32_t column)
{
    CHECK(node != NULL);
    CHECK_INT(line, node->line);
    CHECK_INT(column, node->column);
}

static void check_lexeme(const sherdi_json_node *node, const char *want)
{
    CHECK_INT(strlen(want), node->lexeme_bytes);
    CHECK_BYTES_EQUAL(want, node->lexeme, node->lexeme_bytes);
}

static void json_every_kind_is_read(void)
{
    const sherdi_json_node *root = parsed(
        "{\"n\": null, \"t\": true, \"f\": false, \"i\": 7, \"r\": 2.5, \"s\": \"a\\n\\u00e9\","
        " \"a\": [1, [], {}], \"o\": {\"x\": {}}}");
    const sherdi_json_node *item;

    CHECK_INT(SHERDI_JSON_OBJECT, root->kind);
    CHECK_INT(SHERDI_JSON_NULL, sherdi_json_find(root, "n")->kind);
    CHECK_INT(1, sherdi_json_find(root, "t")->is_true);
    CHECK_INT(0, sherdi_json_find(root, "f")->is_true);
    CHECK_CLOSE(7.0, sherdi_json_find(root, "i")->number, 0);
    CHECK_CLOSE(2.5, sherdi_json_find(root, "r")->number, 0);
    CHECK(strcmp("a\n\xc3\xa9", sherdi_json_find(root, "s")->string) == 0);
    check_lexeme(sherdi_json_find(root, "a"), "[1, [], {}]");
    check_lexeme(sherdi_json_find(root, "s"), "\"a\\n\\u00e9\"");

    item = sherdi_json_first(sherdi_json_find(root, "a"));
    CHECK_INT(SHERDI_JSON_NUMBER, item->kind);
    item = sherdi_json_next(item);
    CHECK_INT(SHERDI_JSON_ARRAY, item->kind);
    CHECK(sherdi_json_first(item) == NULL);
    item = sherdi_json_next(item);
    CHECK_INT(SHERDI_JSON_OBJECT, item->kind);
    CHECK(sherdi_json_next(item) == NULL);
    CHECK(sherdi_json_find(sherdi_json_find(root, "o"), "x") != NULL);
    CHECK(sherdi_json_find(root, "x") == NULL);
    CHECK(sherdi_json_next(sherdi_json_find(root, "o")) == NULL);
    CHECK(sherdi_json_next(root) == NULL);
    close_document();
}

static void json_scalar_at_the_top_is_read(void)
{
    CHECK_CLOSE(1e-3, parsed(" 1e-3 ")->number, 0);
    close_document();
    CHECK(strcmp("cpu", parsed("\"cpu\"")->string) == 0);
    close_document();
}

static void json_locations_are_those_of_the_keys(void)
{
    const sherdi_json_node *root =
        parsed("\r\n{ \"a\": 1,\r\n\t\"b\" : {\r\n    \"c\":\r\n [2, 33]}}");
    const sherdi_json_node *inner;

    check_location(root, 2, 1);
    check_location(sherdi_json_find(root, "a"), 2, 3);
    check_location(sherdi_json_find(root, "b"), 3, 2);
    inner = sherdi_json_find(sherdi_json_find(root, "b"), "c");
    check_location(inner, 4, 5);
    check_location(sherdi_json_first(inner), 5, 3);
    check_location(sherdi_json_next(sherdi_json_first(inner)), 5, 6);
    close_document();
}

static void json_columns_count_characters(void)
{
    const sherdi_json_node *root = parsed("/* \xc3\xa9\xe2\x82\xac */ {\"\xc3\xa9\": 1, \"b\": 2}");

    check_location(root, 1, 10);
    check_location(sherdi_json_find(root, "b"), 1, 19);
    close_document();
}

static void json_comments_and_trailing_commas_are_skipped(void)
{
    const sherdi_json_node *root =
        parsed("// first\n{ # hash\n  \"a\": [1, 2, /* two */ ], // end\n"
               "  \"url\": \"http://x#y/*z*/\",\n}\n# last");

    check_lexeme(sherdi_json_find(root, "url"), "\"http://x#y/*z*/\"");
    check_location(sherdi_json_find(root, "url"), 4, 3);
    check_lexeme(sherdi_json_find(root, "a"), "[1, 2            ]");
    close_document();
}

static void json_byte_order_mark_has_no_column(void)
{
    check_location(parsed("\xef\xbb\xbf{}"), 1, 1);
    close_document();
}

static void json_syntax_errors_name_their_location(void)
{
    check_refused("", "t.json:1:1: not JSON");
    check_refused("{\n  \"a\": CONFIG_MBSIZE,\n}",
                  "t.json:2:8: not JSON: invalid token near CONFIG_MBSIZE");
    check_refused("{\n  \"a\": 1\n  \"b\": 2\n}", "t.json:3:3: not JSON");
    check_refused("{\"a\": 1", "t.json:1:8: not JSON: '}' expected at the end");
    check_refused("{\"a\": 1}}", "t.json:1:9: not JSON");
    check_refused("{\"a\": [1,,2]}", "t.json:1:10: not JSON");
    check_refused("{\"a\": ,}", "t.json:1:7: not JSON");
    check_refused("[,]", "t.json:1:2: not JSON");
    check_refused("{\"a\": 1,]", "t.json:1:9: not JSON: string or '}' expected near ]");
    check_refused("[1 # two\n 2]", "t.json:2:2: not JSON: ']' expected near 2");
    check_refused("{\"a\" /* b */ 1}", "t.json:1:14: not JSON: ':' expected near 1");
    check_refused("[2x]", "t.json:1:3: not JSON: ']' expected near x");
    check_refused("[\"\\x\"]", "t.json:1:2: not JSON: invalid escape near \"\\x\"");
    check_refused("{\"a\": \"open\n}", "t.json:1:7: not JSON");
    check_refused("{'a': 1}", "t.json:1:2: not JSON");
    check_refused("{\"a\": 01}", "t.json:1:7: not JSON");
    check_refused("{\"b\": 1, \"a\": NaN}",
                  "t.json:1:15: not JSON: NaN at the key \"a\": JSON has no such number; leave the "
                  "key out, or give another number");
    check_refused("{\"a\": {\"b\": -Infinity}}",
                  "t.json:1:13: not JSON: -Infinity at the key \"b\": JSON has no such number");
    check_refused("{\"a\": [1, Infinity]}", "not JSON: Infinity at the key \"a\": JSON has no");
    check_refused("[None]", "t.json:1:2: not JSON: None: JSON writes null");
    check_refused("{\"a\": \"x\", \"b\": True}",
                  "t.json:1:17: not JSON: True at the key \"b\": JSON writes true");
    check_refused("{\"a\": False}", "not JSON: False at the key \"a\": JSON writes false");
    check_refused("{\"a\": 1e999}", "t.json:1:7: not JSON");
    check_refused("{\"a\": 1} /* open", "t.json:1:10: this comment has no end");
    check_refused("{\"a\": \"\\u0000\"}", "t.json:1:7: not JSON");
    check_refused("{\"a\": \"\\ud800\"}", "t.json:1:7: not JSON");
    check_refused("/", "t.json:1:1: not JSON");
    check_refused("\"\\", "t.json:1:1: not JSON");
}

static void json_duplicate_keys_are_refused(void)
{
    check_refused("{\"a\": {\n  \"same\": 1,\n \"same\": 2}}",
                  "t.json:3:2: key \"same\" stands here for the second time");
    check_refused("{\"same\": {\"same\": 1}, \"s\\u0061me\": 2}",
                  "t.json:1:23: key \"s\\u0061me\" stands here for the second time");
    check_refused("{\"a_very_long_key_indeed_it_is\": 1,\n\"a_very_long_key_indeed_it_is\": 1}",
                  "t.json:2:1: key \"a_very_long_key_indeed_it_is\"");
}

static void json_bytes_that_are_no_text_are_refused(void)
{
    static const char nul[] = "{\"a\":\0 1}";

    CHECK_STATUS(SHERD_E_INVAL, parse_bytes(nul, sizeof(nul) - 1));
    CHECK_ERROR_SAYS("t.json:1:6: a NUL byte");
    check_refused("{\n\"a\": \"\xff\"}", "t.json:2:7: not UTF-8");
    check_refused("\"\xc0\xaf\"", "t.json:1:2: not UTF-8");     /* overlong */
    check_refused("\"\xed\xa0\x80\"", "t.json:1:2: not UTF-8"); /* a surrogate */
    check_refused("\"\xf4\x90\x80\x80\"", "t.json:1:2: not UTF-8");
    check_refused("# \xe2\x82", "t.json:1:3: not UTF-8"); /* cut short */
    check_refused("\xff\xfe{\x01}", "t.json:1:1: not UTF-8");
}

static void json_deep_nesting_is_refused(void)
{
    char   text[4096];
    size_t depth = sizeof(text) - 1;

    memset(text, '[', depth);
    text[depth] = '\0';
    check_refused(text, "t.json:1:65: nested too deeply");

    memset(text, '[', SHERDI_JSON_MAX_DEPTH);
    memset(text + SHERDI_JSON_MAX_DEPTH, ']', SHERDI_JSON_MAX_DEPTH);
    text[2 * SHERDI_JSON_MAX_DEPTH] = '\0';
    (void)parsed(text);
    close_document();
}

static void json_integers_are_exact_where_written_so(void)
{
    static const struct {
        const char     *text;
        sherdi_json_fit fit;
        int64_t         value;
    } ROWS[] = {
        {"0", SHERDI_JSON_FITS, 0},
        {"-7", SHERDI_JSON_FITS, -7},
        {"5e8", SHERDI_JSON_FITS, 500000000},
        {"2.0", SHERDI_JSON_FITS, 2},
        {"1e14", SHERDI_JSON_FITS, 100000000000000},
        {"9007199254740993", SHERDI_JSON_FITS, 9007199254740993},
        {"9223372036854775807", SHERDI_JSON_FITS, INT64_MAX},
        {"-9223372036854775808", SHERDI_JSON_FITS, INT64_MIN},
        {"9223372036854775808", SHERDI_JSON_CLAMPED, INT64_MAX},
        {"-99999999999999999999999999999999999999999", SHERDI_JSON_CLAMPED, INT64_MIN},
        {"1e300", SHERDI_JSON_CLAMPED, INT64_MAX},
        {"15099494.4", SHERDI_JSON_TRUNCATED, 15099494},
        {"-1.5", SHERDI_JSON_TRUNCATED, -1},
    };
    int64_t got;

    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        CHECK_INT(ROWS[i].fit, sherdi_json_integer(parsed(ROWS[i].text), &got));
        CHECK_INT(ROWS[i].value, got);
        close_document();
    }
}

static void json_failed_allocations_leave_nothing(void)
{
    static const char text[] = "{\"a\": [1, 2, {\"b\": \"c\"}]}";
    sherd_status      status = SHERD_E_NOMEM;
    size_t            n;

    for (n = 1; status != SHERD_OK; n++) {
        (void)sherdi_mem_fail_nth(n);
        status = parse(text);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_INT(SHERD_E_NOMEM, status);
            CHECK(document == NULL);
            CHECK_INT(0, sherdi_mem_held_all(&account));
        }
    }
    CHECK(n > 3);
    close_document();
}

static const test_case CASES[] = {
    CASE(json_every_kind_is_read),
    CASE(json_scalar_at_the_top_is_read),
    CASE(json_locations_are_those_of_the_keys),
    CASE(json_columns_count_characters),
    CASE(json_comments_and_trailing_commas_are_skipped),
    CASE(json_byte_order_mark_has_no_column),
    CASE(json_syntax_errors_name_their_location),
    CASE(json_duplicate_keys_are_refused),
    CASE(json_bytes_that_are_no_text_are_refused),
    CASE(json_deep_nesting_is_refused),
    CASE(json_integers_are_exact_where_written_so),
    CASE(json_failed_allocations_leave_nothing),
};

RUN_MAIN(CASES)
