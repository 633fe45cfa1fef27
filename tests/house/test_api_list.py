"""api.json against the compiler: test_api_list.py API_JSON PYTHON_FOLDER INCLUDE_FOLDER COMPILER...

Every constant, member, field and signature of the list is asserted in C, with sizes and offsets as ctypes lays the structs
out; and the list has every struct, enum and function that the compiler sees in the headers.
"""
import ctypes
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

api_path, python, include, *compiler = sys.argv[1:]
sys.path.insert(0, python)
from sherd._types import Types  # noqa: E402

api = json.loads(Path(api_path).read_text(encoding="utf-8"))
HEADERS = '#include "sherd.h"\n#include "sherd_tools.h"\n#include <string.h>\n'


def numbers():
    for enum, members in api["enums"].items():
        yield from (f"_Static_assert({name} == {value}, {json.dumps(enum)});" for name, value in members.items())
    for name, value in api["constants"].items():
        if isinstance(value, str):
            yield f'_Static_assert(sizeof({name}) == {len(value) + 1}, "{name}");'
            yield f"int text_{name}(void);\nint text_{name}(void) {{ return strcmp({name}, {json.dumps(value)}); }}"
        else:
            yield f'_Static_assert({name} == {value}, "{name}");'


def structs():
    for name, made in Types(api).structs.items():
        yield f'_Static_assert(sizeof({name}) == {ctypes.sizeof(made)}, "{name}");'
        for field, *_ in made._fields_:
            at = getattr(made, field)
            yield f'_Static_assert(offsetof({name}, {field}) == {at.offset}, "{name}.{field}");'
            yield f'_Static_assert(sizeof((({name} *)0)->{field}) == {at.size}, "{name}.{field}");'


def arguments(entry):
    return ", ".join(argument["type"] for argument in entry["args"]) or "void"


def signatures():
    for name, entry in api["functions"].items():
        yield f"{entry['returns']} (*the_{name})({arguments(entry)}) = {name};"
    for name, entry in api["callbacks"].items():
        pointer = f"((({name.split('.')[0]} *)0)->{name.split('.')[1]})" if "." in name else f"(({name})0)"
        yield f'_Static_assert(_Generic({pointer}, {entry["returns"]} (*)({arguments(entry)}): 1, default: 0), "{name}");'


def field_types():
    for struct, entry in api["structs"].items():
        for field in entry["fields"]:
            if "." not in field["type"]:
                member = f"(({struct} *)0)->{field['name']}" + ("[0]" if "count" in field else "")
                yield f'_Static_assert(_Generic({member}, {field["type"]}: 1, default: 0), "{struct}.{field["name"]}");'


def check_compiles(folder):
    source = Path(folder) / "list.c"
    lines = ["#include <stddef.h>", *numbers(), *structs(), *field_types(), *signatures()]
    source.write_text(HEADERS + "\n".join(lines) + "\n")
    subprocess.run([*compiler, "-std=c17", "-Wall", "-Wextra", "-Werror", "-I", include, "-fsyntax-only", str(source)],
                   check=True)
    return len(lines)


def check_complete(folder):
    source = Path(folder) / "headers.c"
    source.write_text(HEADERS)
    seen = subprocess.run([*compiler, "-E", "-P", "-I", include, str(source)], check=True, capture_output=True,
                          text=True).stdout
    for kind, pattern in {"structs": r"struct (sherd_\w+)\s*\{", "enums": r"enum (sherd_\w+)\s*\{",
                          "functions": r"\b(sherd_\w+)\s*\([^*]"}.items():
        missing = set(re.findall(pattern, seen)) ^ set(api[kind])
        assert not missing, f"{kind} of the list and of the headers differ: {sorted(missing)}"


with tempfile.TemporaryDirectory() as folder:
    count = check_compiles(folder)
    check_complete(folder)
print(f"{count} lines of C hold: {len(api['structs'])} structs, {len(api['functions'])} functions")
