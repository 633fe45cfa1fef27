"""The public headers as one machine-readable list: python3 api_list.py HEADER... > api.json

A binding that compiles nothing reads what it needs from here: constants, enums, structs with their fields, callbacks,
functions. The headers stay the one place where the interface is written; tests/house holds the list against the
compiler. What is understood is the C that these headers are written in, and anything else is an error with its text.
"""
import json
import math
import re
import sys

IDENT = r"[A-Za-z_]\w*"


def fail(what, text):
    raise SystemExit(f"api_list: {what}: {' '.join(text.split())[:200]}")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text).replace("\\\n", " ")


def split_lines(text):
    """Directives apart from declarations, in order."""
    directives, rest = [], []
    for line in text.split("\n"):
        (directives if line.lstrip().startswith("#") else rest).append(line.strip())
    return directives, " ".join(rest)


# ---------------------------------------------------------------- constants --

def value_of(text, known):
    """A number, a text, or a product of numbers; None for what is no constant of the interface."""
    text = text.strip()
    if re.fullmatch(r'"[^"]*"', text):
        return text[1:-1]
    if text in known:
        return known[text]
    factors = text.strip("()").split("*")
    if all(re.fullmatch(r"\s*-?\d+\s*", factor) for factor in factors):
        return math.prod(map(int, factors))
    return None


def constants_of(directives, known):
    found = {}
    for line in directives:
        match = re.match(rf"#\s*define\s+(SHERD_\w+)\s+(.+)$", line)
        value = value_of(match[2], known | found) if match else None
        if value is not None:
            found[match[1]] = value
    return found


def expand_lists(directives, text):
    """Enums whose members stand in a list macro: the members, written out."""
    for line in directives:
        match = re.match(rf"#\s*define\s+({IDENT})\(X\)\s+(.+)$", line)
        if match:
            members = re.findall(rf"X\(({IDENT}),\s*(-?\d+)", match[2])
            text = text.replace(match[1] + "(SHERD_STATUS_ENUM)", "".join(f"{n} = {v}," for n, v in members))
    return text


# ------------------------------------------------------------- declarations --

def type_and_name(text):
    """'const char *name' -> ('const char *', 'name'); a type alone has the name ''."""
    text = " ".join(text.replace("*", " * ").split())
    match = re.fullmatch(rf"(.*[\s*])({IDENT})", text)
    words = text.replace("*", "").replace("const", "").replace("struct", "").split()
    if match is None or len(words) == 1:
        return tidy(text), ""
    return tidy(match[1]), match[2]


def tidy(type_text):
    return re.sub(r"\*\s+(?=\*)", "*", " ".join(type_text.replace("struct ", "").split()))


def parameters(text):
    """The parameters of a function; those of a callback too. An array is a pointer here."""
    if text.strip() in ("", "void"):
        return []
    result = []
    for part in text.split(","):
        type_text, name = type_and_name(re.sub(r"\[\w*\]", "", part))
        if "[" in part:
            type_text += " *"
        result.append({"name": name, "type": type_text})
    return result


def fields_of(struct, body, known, callbacks):
    """The fields in order; one that is an array has its count. Inline callbacks get the name STRUCT.FIELD."""
    fields = []
    for part in filter(None, map(str.strip, body.split(";"))):
        inline = re.fullmatch(rf"(.+?)\(\*({IDENT})\)\s*\((.*)\)", part, flags=re.S)
        if inline:
            callbacks[f"{struct}.{inline[2]}"] = {"returns": tidy(inline[1]), "args": parameters(inline[3])}
            fields.append({"name": inline[2], "type": f"{struct}.{inline[2]}"})
            continue
        fields += declarators(part, known)
    return fields


def declarators(part, known):
    """'size_t a, b[8]' -> two fields."""
    first, *others = part.split(",")
    base, _ = type_and_name(re.sub(r"\[.*", "", first))
    result = []
    for text in [first, *others]:
        array = re.search(r"\[\s*(\w+)\s*\]", text)
        name = re.search(rf"({IDENT})\s*(\[|$)", text.strip())
        if name is None or ("*" in text and text is not first):
            fail("a field that is not understood", part)
        field = {"name": name[1], "type": base}
        if array:
            field["count"] = known[array[1]] if array[1] in known else int(array[1])
        result.append(field)
    return result


def enum_members(body, name):
    members, following = {}, 0
    for part in filter(None, map(str.strip, body.split(","))):
        match = re.fullmatch(rf"({IDENT})(?:\s*=\s*(-?\d+))?", part)
        if match is None:
            fail(f"a member of {name} that is not understood", part)
        following = int(match[2]) if match[2] else following
        members[match[1]] = following
        following += 1
    return members


# -------------------------------------------------------------------- whole --

def take(pattern, text, use):
    """Calls use(match) for every match and takes it out of the text."""
    for match in re.finditer(pattern, text, flags=re.S):
        use(match)
    return re.sub(pattern, " ", text, flags=re.S)


def take_types(text, api, known):
    def enum(match):
        api["enums"][match[1]] = enum_members(match[2], match[1])

    def struct(match):
        api["structs"][match[1]] = {"fields": fields_of(match[1], match[2], known, api["callbacks"])}

    def callback(match):
        api["callbacks"][match[2]] = {"returns": tidy(match[1]), "args": parameters(match[3])}

    def handle(match):
        api["handles"].append(match[1])

    def alias(match):
        api["aliases"][match[2]] = tidy(match[1])

    text = take(rf"typedef\s+enum\s+({IDENT})\s*\{{(.*?)\}}\s*{IDENT}\s*;", text, enum)
    text = take(rf"typedef\s+struct\s+({IDENT})\s*\{{(.*?)\}}\s*{IDENT}\s*;", text, struct)
    text = take(rf"typedef\s+([\w\s*]+?)\(\*({IDENT})\)\s*\(([^)]*)\)\s*;", text, callback)
    text = take(rf"typedef\s+struct\s+({IDENT})\s+{IDENT}\s*;", text, handle)
    return take(rf"typedef\s+([\w\s*]+?)({IDENT})\s*;", text, alias)


def take_functions(text, api):
    def function(match):
        returns, name = type_and_name(match[1].replace("SHERD_MUST_USE", ""))
        api["functions"][name] = {"returns": returns, "args": parameters(match[2]),
                                  "must_use": "SHERD_MUST_USE" in match[1]}

    return take(r"SHERD_API\s([\w\s*]+?)\(([^)]*)\)\s*;", text, function)


def read_header(path, api):
    with open(path, encoding="utf-8") as file:
        directives, text = split_lines(without_comments(file.read()))
    known = api["constants"]
    known.update(constants_of(directives, known))
    text = re.sub(r'extern\s+"C"\s*\{', "", expand_lists(directives, text))
    text = re.sub(r"\bSHERD_CALL\b", "SHERD_API SHERD_MUST_USE sherd_status", text)
    rest = take_functions(take_types(text, api, known), api)
    if rest.replace("}", "").strip():
        fail(f"{path} has what is not understood", rest)


def read_headers(paths):
    """The list of all headers together, in the order in which they stand there."""
    api = {"format": 1, "constants": {}, "enums": {}, "aliases": {}, "handles": [], "callbacks": {}, "structs": {},
           "functions": {}}
    for path in paths:
        read_header(path, api)
    return api


if __name__ == "__main__":
    json.dump(read_headers(sys.argv[1:]), sys.stdout, indent=1)
    sys.stdout.write("\n")
