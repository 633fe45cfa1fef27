"""Makes the calls of modules that a build does not have: absent.py MODULES API SOURCE MODULE... > absent.c

Each is a line of a table, which the macros at its head turn into a function: it fails with SHERD_E_NOTSUP and names the module, or,
where it returns no status, returns nothing. MODULES is modules.txt, API the list of the interface (api_list.py). A call belongs to the
module in whose files it is defined.
"""
import json
import re
import sys
from pathlib import Path

HEAD = '''/* Made by tools/absent.py. */
#include "base/absent.h"

#include "sherd.h"
#include "sherd_tools.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define ABSENT(type, nothing, module, name, ...) \\
    type name(__VA_ARGS__)                       \\
    {                                            \\
        (void)sherdi_absent(#module, #name);     \\
        return nothing;                          \\
    }
#define ABSENT_STATUS(module, name, ...)         \\
    sherd_status name(__VA_ARGS__)               \\
    {                                            \\
        return sherdi_absent(#module, #name);    \\
    }
#define ABSENT_VOID(module, name, ...)           \\
    void name(__VA_ARGS__)                       \\
    {                                            \\
    }
#define ABSENT_INIT(module, name, type)          \\
    void name(type *given)                       \\
    {                                            \\
        if (given != NULL) {                     \\
            *given = (type){.struct_size = sizeof(type)}; \\
        }                                        \\
    }

'''


def files_by_module(path):
    files, module = {}, None
    for text in path.read_text(encoding="utf-8").splitlines():
        text = text.split("#")[0].strip()
        if text.startswith("["):
            module = text[1:].split("]")[0]
            files[module] = []
        elif text.endswith(".c"):
            files[module].append(text)
    return files


def defined_in(path):
    """The public functions that a source defines: their names begin a line, or follow a type at its beginning."""
    text = path.read_text(encoding="utf-8")
    return set(re.findall(r"^[a-z][\w \*]*?\b(sherd_\w+)\([^;{]*\)\n\{", text, re.M))


def line_of(module, name, call):
    args = call["args"]
    prototype = ", ".join(arg["type"] + " " + arg["name"] for arg in args) or "void"
    if call["returns"] == "sherd_status":
        return f"ABSENT_STATUS({module}, {name}, {prototype})"
    if call["returns"] == "void" and name.endswith("_init"):
        return f"ABSENT_INIT({module}, {name}, {args[0]['type'].rstrip('* ')})"
    if call["returns"] == "void":
        return f"ABSENT_VOID({module}, {name}, {prototype})"
    nothing = "NULL" if call["returns"].endswith("*") else "0"
    return f"ABSENT({call['returns']}, {nothing}, {module}, {name}, {prototype})"


def main(modules, api, source, *absent):
    files = files_by_module(Path(modules))
    calls = json.loads(Path(api).read_text(encoding="utf-8"))["functions"]
    print(HEAD, end="")
    for module in absent:
        found = set().union(*(defined_in(Path(source) / path) for path in files[module]))
        for name in sorted(found & set(calls)):
            print(line_of(module, name, calls[name]))


if __name__ == "__main__":
    main(*sys.argv[1:])
