"""The keys that a release of DeepSpeed reads, with their meaning in sherd.

    python3 tools/deepspeed_keys.py SOURCE            the difference between SOURCE and docs/deepspeed-keys.md
    python3 tools/deepspeed_keys.py SOURCE --write    makes that page of SOURCE
    python3 tools/deepspeed_keys.py --verdicts        what the page says of sherd, against docs/configuration.md; with --write it says that

SOURCE is a source archive (of the release's files on PyPI: pip would run an archive to ask for its name), a wheel, or a folder of
one that is unpacked or installed. Nothing of it is run or imported: its source is parsed, and the ways in which it takes a dictionary apart are followed from the class of its
configuration on. The last column of the page comes out of docs/configuration.md, which sherd writes of its own tables.
Leaves with 0 where there is no difference, with 1 where there is one, with 2 where SOURCE cannot be read.
"""
from __future__ import annotations

import argparse
import ast
import re
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, REFERENCE = DOCS / "deepspeed-keys.md", DOCS / "configuration.md"
ROOT = ("deepspeed.runtime.config", "DeepSpeedConfig")
MODEL = "DeepSpeedConfigModel"  # the base of its sections that are classes with fields
READERS = ("get_scalar_param", "get_dict_param", "get_list_param")
# Classes that are given a block as arguments: the block, a type that is named in it, the class, arguments that are no keys.
SCHEDULES = "deepspeed.runtime.lr_schedules"
GIVEN = [("scheduler.params", name, SCHEDULES, name) for name in
         ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")] + [
    ("optimizer.params", "Adam, AdamW", "deepspeed.ops.adam.fused_adam", "FusedAdam"),
    ("optimizer.params", "Adam, AdamW", "deepspeed.ops.adam.cpu_adam", "DeepSpeedCPUAdam"),
    ("optimizer.params", "Adagrad", "deepspeed.ops.adagrad.cpu_adagrad", "DeepSpeedCPUAdagrad"),
    ("optimizer.params", "Lamb", "deepspeed.ops.lamb.fused_lamb", "FusedLamb"),
    ("optimizer.params", "Lion", "deepspeed.ops.lion.fused_lion", "FusedLion"),
    ("optimizer.params", "Lion", "deepspeed.ops.lion.cpu_lion", "DeepSpeedCPULion"),
    ("optimizer.params", "Muon", "deepspeed.runtime.zero.muon.original_muon", "Muon")]
NOT_KEYS = ("self", "params", "model_params", "optimizer", "adam_w_mode", "adamw_mode")
# Taken out before the class is given the rest: the module that the release has then, the constant of the default, type, readers.
MORE = {"optimizer.params.adam_w_mode": ("deepspeed.runtime.config", "ADAM_W_MODE_DEFAULT", "bool", "Adam, AdamW"),
        "optimizer.params.torch_adam": ("deepspeed.ops.adam.fused_adam", None, "bool", "Adam, AdamW"),
        "optimizer.params.muon_lr": ("deepspeed.runtime.zero.muon.original_muon", None, "float", "Muon"),
        "optimizer.params.adam_lr": ("deepspeed.runtime.zero.muon.original_muon", None, "float", "Muon"),
        "optimizer.params.per_head_muon": ("deepspeed.runtime.zero.muon.original_muon", None, "bool", "Muon")}


class Unreadable(Exception):
    """SOURCE is not what was expected; the text says what to do."""


@dataclass
class Key:
    """A key of DeepSpeed's: its type and default as its source has them, "" for what it does not say."""

    type: str = ""
    default: str = ""
    readers: list[str] = field(default_factory=list)  # types of an optimizer or a schedule

    def shown(self) -> str:
        return f"{self.type or 'any'} = {self.default or 'none'}"


# ------------------------------------------------------------------ source --

def sources(path: Path) -> Iterator[tuple[str, str]]:
    """The Python files of a wheel, an archive or a folder: the path inside, and the text."""
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            yield str(file.relative_to(path.parent if path.name == "deepspeed" else path)), file.read_text(encoding="utf-8")
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name).decode("utf-8")
    elif path.is_file() and tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and member.name.endswith(".py") else None
                if content is not None:
                    yield member.name, content.read().decode("utf-8")
    else:
        raise Unreadable(f"{path} is no wheel, no source archive and no folder")


class Package:
    """The modules of DeepSpeed by name, parsed when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.texts: dict[str, str] = {}
        self.packages: set[str] = set()
        self.parsed: dict[str, dict[str, Any]] = {}
        for name, text in sources(path):
            parts = list(Path(name).with_suffix("").parts)
            if "deepspeed" not in parts:
                continue
            parts = parts[parts.index("deepspeed"):]
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            self.texts[module] = text
            if is_package:
                self.packages.add(module)
        if ROOT[0] not in self.texts:
            raise Unreadable(f"{path} has no module {ROOT[0]}: give a wheel, an archive or a folder of DeepSpeed")

    def version(self) -> str:
        for module in ("deepspeed.git_version_info_installed", "deepspeed.git_version_info"):
            found = re.search(r"^(?:__)?version(?:__)? *= *['\"]([0-9][^'\" ]*)", self.texts.get(module, ""), re.M)
            if found:
                return found[1].split("+")[0]
        return "unknown"

    def names(self, module: str) -> dict[str, Any]:
        """What a module's names are: a node and its module, or the list "*" of modules that it takes all of."""
        if module not in self.parsed:
            found: dict[str, Any] = {"*": []}
            self.parsed[module] = found
            for node in ast.walk(ast.parse(self.texts.get(module, ""))):
                self._name_add(found, module, node)
        return self.parsed[module]

    def _name_add(self, found: dict[str, Any], module: str, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, (node, module))
        elif isinstance(node, ast.Assign) and node.col_offset == 0 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = (node.value, module)  # the last one counts
        elif isinstance(node, ast.AnnAssign) and node.col_offset == 0 and isinstance(node.target, ast.Name):
            found[node.target.id] = (node.value, module)
        elif isinstance(node, ast.ImportFrom):
            base = module if module in self.packages else module.rpartition(".")[0]
            for _ in range(node.level - 1):
                base = base.rpartition(".")[0]
            origin = node.module or "" if node.level == 0 else f"{base}.{node.module}" if node.module else base
            for alias in node.names:
                if alias.name == "*":
                    found["*"].append(origin)
                else:
                    found.setdefault(alias.asname or alias.name, (alias.name, origin))

    def find(self, module: str, name: str, depth: int = 8) -> tuple[ast.AST | None, str]:
        """The definition of a name, through imports; (None, "") for what is not of the package."""
        known = self.names(module)
        if depth == 0 or module not in self.texts:
            return None, ""
        if name in known and name != "*":
            node, origin = known[name]
            return self.find(origin, node, depth - 1) if isinstance(node, str) else (node, origin)
        for other in known["*"]:
            node, origin = self.find(other, name, depth - 1)
            if node is not None:
                return node, origin
        return None, ""

    # ---- constants

    def fold(self, node: ast.AST | None, module: str) -> Any:
        """A constant's value; ValueError for what is none."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            found, origin = self.find(module, node.id)
            return self.fold(found, origin)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.fold(node.operand, module)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
            left, right = self.fold(node.left, module), self.fold(node.right, module)
            return left * right if isinstance(node.op, ast.Mult) else left**right
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.fold(item, module) for item in node.elts]
        if isinstance(node, ast.Dict):
            return {self.fold(key, module): self.fold(value, module) for key, value in zip(node.keys, node.values)}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._fold_attribute(node, module)
        if isinstance(node, ast.Call):
            return self._fold_call(node, module)
        raise ValueError(ast.unparse(node) if node is not None else "nothing")

    def _fold_attribute(self, node: ast.Attribute, module: str) -> Any:
        if ast.unparse(node) == "sys.maxsize":
            return 2**63 - 1
        owner, origin = self.find(module, node.value.id)
        for item in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name) and item.targets[0].id == node.attr:
                return self.fold(item.value, origin)
        raise ValueError(ast.unparse(node))

    def _fold_call(self, node: ast.Call, module: str) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "pp_int":
            return int(self.fold(node.args[0], module))
        if name == "Field":
            given = {item.arg: item.value for item in node.keywords}
            if node.args or "default" in given:
                return self.fold(node.args[0] if node.args else given["default"], module)
            factory = given.get("default_factory")
            return self.fold(factory.body, module) if isinstance(factory, ast.Lambda) else {}
        if name in ("list", "dict", "tuple") and len(node.args) == 1:
            return self.fold(node.args[0], module)
        raise ValueError(ast.unparse(node))


def written(value: Any) -> str:
    """A default as JSON users write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(written(item) or "null" for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(item) or 'null'}" for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# --------------------------------------------------------------- following --

class Reading:
    """Follows a dictionary through the functions that take it apart. A place in it is a tuple of keys."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.keys: dict[str, Key] = {}
        self.removed: list[str] = []
        self.seen: set[tuple[Any, ...]] = set()

    def run(self) -> None:
        owner, module = self.package.find(*ROOT)
        if not isinstance(owner, ast.ClassDef):
            raise Unreadable(f"{ROOT[0]} has no class {ROOT[1]}: this tool has to learn how this release reads its configuration")
        for method in owner.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "_initialize_params", "_do_warning_check"):
                self.follow(method, module, {"config": (), "param_dict": (), "self._param_dict": ()}, owner)
        for block, kind, module, name in GIVEN:
            self.given_class(block, kind, module, name)
        for path, (module, constant, kind, reader) in MORE.items():
            if module in self.package.texts:
                default = self.folded(ast.Name(constant), module) if constant else None
                self.add(tuple(path.split(".")), default, kind, reader)

    def add(self, path: tuple[Any, ...], default: Any = None, kind: str = "", reader: str = "") -> None:
        if not path or not all(isinstance(part, str) for part in path):
            return
        key = self.keys.setdefault(".".join(path), Key())
        key.default = key.default or written(default)
        key.type = key.type or kind or (type(default).__name__ if default is not None else "")
        if reader and reader not in key.readers:
            key.readers.append(reader)

    def folded(self, node: ast.AST | None, module: str) -> Any:
        try:
            return self.package.fold(node, module)
        except ValueError:
            return None

    # ---- expressions

    def place(self, node: ast.AST | None, env: dict[str, tuple[Any, ...]], module: str) -> tuple[Any, ...] | None:
        """Where in the configuration an expression's value lies; None: nowhere."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return env.get(ast.unparse(node))
        if isinstance(node, ast.Subscript):
            return self._member(self.place(node.value, env, module), node.slice, module)
        if isinstance(node, ast.IfExp):
            return self.place(node.body, env, module) or self.place(node.orelse, env, module)
        if isinstance(node, ast.BoolOp):
            return next((at for at in (self.place(item, env, module) for item in node.values) if at is not None), None)
        if isinstance(node, ast.DictComp):  # {key: d.get(key) for key in ...}: a part of the dictionary, at its place
            return self.place(node.value.func.value, env, module) if isinstance(node.value, ast.Call) and isinstance(
                node.value.func, ast.Attribute) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("copy", "deepcopy", "get"):
            if node.func.attr != "get":
                return self.place(node.args[0], env, module) if node.args else None
            return self._member(self.place(node.func.value, env, module), node.args[0], module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._returned(node, env, module)
        return None

    def _returned(self, call: ast.Call, env: dict[str, tuple[Any, ...]], module: str) -> tuple[Any, ...] | None:
        """The place that a function returns of the dictionary that it is given."""
        function, origin = self.package.find(module, call.func.id)
        if not isinstance(function, ast.FunctionDef):
            return None
        bound = {item.arg: self.place(value, env, module) for item, value in zip(function.args.args, call.args)}
        known = {name: at for name, at in bound.items() if at is not None}
        ends = [item.value for item in function.body if isinstance(item, ast.Return)]
        return self.place(ends[0], known, origin) if known and ends else None

    def _member(self, at: tuple[Any, ...] | None, key: ast.AST, module: str) -> tuple[Any, ...] | None:
        name = self.folded(key, module)
        return at + (name,) if at is not None and isinstance(name, str) else None

    # ---- functions

    def follow(self, function: ast.FunctionDef, module: str, env: dict[str, tuple[Any, ...]],
               owner: ast.ClassDef | None = None) -> None:
        once = (module, function.name, owner.name if owner else "", tuple(sorted(env.items())))
        if once in self.seen:
            return
        self.seen.add(once)
        env = dict(env)
        for node in in_order(function):
            if isinstance(node, ast.Assign):
                self._assigned(node, env, module)
            elif isinstance(node, ast.For):
                self._looped(node, function, env, module)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                self.add(self.place(node, env, module) or ())
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                self._asked(node, env, module)
            elif isinstance(node, ast.Call):
                self._called(node, env, module, owner)

    def _assigned(self, node: ast.Assign, env: dict[str, tuple[Any, ...]], module: str) -> None:
        """The first place stays: a second one is that of an older name."""
        at = self.place(node.value, env, module)
        for target in node.targets:
            if isinstance(target, (ast.Name, ast.Attribute)) and at is not None:
                env.setdefault(ast.unparse(target), at)

    def _looped(self, node: ast.For, function: ast.FunctionDef, env: dict[str, tuple[Any, ...]], module: str) -> None:
        """`for key in NAMES.items(): if key in d: raise` refuses; a loop over d's own items takes the entries of a literal in the same expression."""
        over = node.iter.func.value if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute) else node.iter
        at = self.place(over, env, module)
        if at is not None:
            for item in ast.walk(function):
                if isinstance(item, ast.Dict) and item.keys:
                    for key, default in (self.folded(item, module) or {}).items():
                        self.add(at + (key,), default)
            return
        literal = self.package.find(module, over.id)[0] if isinstance(over, ast.Name) else None
        names = [self.folded(key, module) for key in literal.keys] if isinstance(literal, ast.Dict) else []
        if names and any(isinstance(item, ast.Raise) for item in ast.walk(node)):
            asked = [item for item in ast.walk(node) if isinstance(item, ast.Compare) and isinstance(item.ops[0], ast.In)]
            inside = self.place(asked[0].comparators[0], env, module) if asked else None
            if inside is not None:
                self.removed += [".".join(inside + (name,)) for name in names]

    def _asked(self, node: ast.Compare, env: dict[str, tuple[Any, ...]], module: str) -> None:
        over = node.comparators[0]
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr == "keys":
            over = over.func.value
        self.add(self._member(self.place(over, env, module), node.left, module) or ())

    def _called(self, node: ast.Call, env: dict[str, tuple[Any, ...]], module: str, owner: ast.ClassDef | None) -> None:
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            default = self.folded(node.args[1], module) if len(node.args) > 1 else None
            self.add(self.place(node, env, module) or (), default if default != {} else None)
        elif name in READERS and len(node.args) > 2:
            at = self._member(self.place(node.args[0], env, module), node.args[1], module)
            self.add(at or (), self.folded(node.args[2], module))
        elif name.startswith("self.") and owner is not None:
            method = next((item for item in owner.body if isinstance(item, ast.FunctionDef) and item.name == name[5:]), None)
            self._enter(method, module, node, env, module, owner)
        elif isinstance(node.func, ast.Name):
            found, origin = self.package.find(module, node.func.id)
            if isinstance(found, ast.FunctionDef):
                self._enter(found, origin, node, env, module, None)
            elif isinstance(found, ast.ClassDef):
                self._made(found, origin, node, env, module)

    def _enter(self, function: ast.FunctionDef | None, origin: str, call: ast.Call, env: dict[str, tuple[Any, ...]], module: str,
               owner: ast.ClassDef | None) -> None:
        if function is None:
            return
        names = [item.arg for item in function.args.args if item.arg != "self"]
        given = dict(zip(names, call.args)) | {item.arg: item.value for item in call.keywords if item.arg}
        bound = {name: self.place(value, env, module) for name, value in given.items()}
        known = {name: at for name, at in bound.items() if at is not None}
        texts = {name: self.folded(value, module) for name, value in given.items()}
        texts |= {name: self.folded(value, origin) for name, value in
                  zip(names[len(names) - len(function.args.defaults):], function.args.defaults) if name not in given}
        if known:
            self.follow(substituted(function, {name: text for name, text in texts.items() if isinstance(text, str)}), origin, known, owner)

    def _made(self, owner: ast.ClassDef, origin: str, call: ast.Call, env: dict[str, tuple[Any, ...]], module: str) -> None:
        """A class of a dictionary: a model with fields, or one whose __init__ takes it apart."""
        spread = next((self.place(item.value, env, module) for item in call.keywords if item.arg is None), None)
        if spread is not None and self.is_model(owner, origin):
            self.model(owner, origin, spread)
            return
        method = next((item for item in owner.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
        self._enter(method, origin, call, env, module, owner)

    # ---- classes

    def is_model(self, owner: ast.AST | None, module: str, depth: int = 5) -> bool:
        if not isinstance(owner, ast.ClassDef) or depth == 0:
            return False
        bases = [base.id for base in owner.bases if isinstance(base, ast.Name)]
        return MODEL in bases or any(self.is_model(*self.package.find(module, base), depth - 1) for base in bases)

    def model(self, owner: ast.ClassDef, module: str, at: tuple[Any, ...]) -> None:
        """The fields of a model under the name that a file uses, and of the models that they are."""
        for base in owner.bases:
            found, origin = self.package.find(module, base.id) if isinstance(base, ast.Name) else (None, "")
            if isinstance(found, ast.ClassDef) and found.name != MODEL and self.is_model(found, origin):
                self.model(found, origin, at)
        for item in owner.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            keywords = {word.arg: word.value for word in item.value.keywords} if isinstance(item.value, ast.Call) else {}
            name = self.folded(keywords.get("alias"), module) if "alias" in keywords else item.target.id
            is_old = "deprecated" in ast.unparse(item.value) if item.value is not None else False
            inner = [self.package.find(module, word.id) for word in ast.walk(item.annotation) if isinstance(word, ast.Name)]
            models = [(found, origin) for found, origin in inner if self.is_model(found, origin)]
            if models:
                self.model(*models[0], at + (name,))
            else:
                kind = re.sub(r"^Optional\[(.*)\]$", r"\1", ast.unparse(item.annotation))
                self.add(at + (name,), self.folded(item.value, module), kind + (", deprecated" if is_old else ""))

    def given_class(self, block: str, kind: str, module: str, name: str) -> None:
        owner, _ = self.package.find(module, name)
        for method in owner.body if isinstance(owner, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                names = method.args.args
                defaults = [None] * (len(names) - len(method.args.defaults)) + list(method.args.defaults)
                for item, default in zip(names, defaults):
                    if item.arg not in NOT_KEYS:
                        self.add(tuple(block.split(".")) + (item.arg,), self.folded(default, module) if default else None, "", kind)


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Depth first, in the order of the text; what a statement reads comes before what it assigns to."""
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)
        yield child


def substituted(function: ast.FunctionDef, texts: dict[str, str]) -> ast.FunctionDef:
    """The function with its arguments that are texts put in."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Constant(texts[node.id]) if node.id in texts and isinstance(node.ctx, ast.Load) else node

    return Put().visit(ast.parse(ast.unparse(function)).body[0]) if texts else function


def keys_of(path: Path) -> tuple[str, dict[str, Key], list[str]]:
    """The version, the keys that are no blocks, and the keys that the release refuses by name."""
    package = Package(path)
    reading = Reading(package)
    reading.run()
    blocks = {key.rpartition(".")[0] for key in reading.keys if "." in key}
    blocks |= {block.rpartition(".")[0] for block in blocks}
    leaves = {key: value for key, value in sorted(reading.keys.items()) if key not in blocks and key not in reading.removed}
    return package.version(), leaves, reading.removed


# ---------------------------------------------------------------- verdicts --

VERDICTS = {"choices that never change": "any value is right", "hints that are not taken": "ignored with a warning",
            "Refused": "refused unless off"}


class Verdicts:
    """What docs/configuration.md says of a key."""

    def __init__(self, text: str) -> None:
        self.said: dict[str, str] = {}
        self.blocks: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        verdict = "honoured"
        for line in text.splitlines():
            if line.startswith("## "):
                verdict = next((said for head, said in VERDICTS.items() if head in line), "honoured")
                is_alias = line == "## Other names"
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) < 3 or not cells[0].startswith("`"):
                continue
            name = cells[0].strip("`")
            if is_alias:
                self.aliases[name] = cells[1].strip("`")
            elif cells[1].startswith("block"):
                self.blocks[name] = verdict
            else:
                self.said[name] = verdict

    def of(self, key: str) -> str:
        if key in self.said or key in self.blocks:
            return self.said.get(key) or self.blocks[key]
        head, _, rest = key.partition(".")
        if key in self.aliases:
            return f"read as `{self.aliases[key]}`: {self.of(self.aliases[key])}"
        if head in self.aliases and rest:
            return self.of(f"{self.aliases[head]}.{rest}")
        block = key
        while "." in block:
            block = block.rpartition(".")[0]
            has_members = any(name.startswith(block + ".") for name in self.said)  # of which this is none
            if self.blocks.get(block, "honoured") != "honoured" and not has_members:
                return f"as `{block}`: {self.blocks[block]}"
        return "not known: warns, in a closed block an error"


# -------------------------------------------------------------------- page --

HEAD = """# DeepSpeed's keys, one by one

<!-- Written by tools/deepspeed_keys.py of deepspeed {version}. -->

This page lists every key that DeepSpeed {version} reads from a configuration, and says what sherd does with it. It is for everyone who brings a
DeepSpeed file along. Types and defaults are those of DeepSpeed's own source. The column *for* names the optimizers or schedules that read the key.

| here | what sherd does |
|---|---|
| honoured | the key has an effect; [configuration.md](configuration.md) explains it |
| any value is right | the key has no effect, and no value would change a result |
| ignored with a warning | the key has no effect; a value other than the default gives a warning |
| refused unless off | a value other than the default is an error, because sherd would train something else than the file says |
| as `BLOCK`: ... | the key is treated as the block in which it stands |
| read as `KEY`: ... | the key is another name of `KEY` |

[configuration.md](configuration.md) says why a key has no effect. `python3 tools/deepspeed_keys.py` FILE prints what another release of DeepSpeed
changed; FILE is its source archive, a wheel, or the folder in which it is installed.

| key | type | default there | for | here |
|---|---|---|---|---|
"""
REMOVED = """
## Removed keys

DeepSpeed {version} refuses a file that has one of these keys, whatever its value. Files of older releases have them, so sherd does what they ask for:
each key is treated as the last column says.

| key | here |
|---|---|
"""


def row_of(name: str, key: Key, verdicts: Verdicts) -> str:
    default = f"`{key.default}`" if key.default else "none"
    kind = key.type.replace("|", "or") or "any"
    return f"| `{name}` | {kind} | {default} | {', '.join(key.readers)} | {verdicts.of(name)} |\n"


def page_of(version: str, keys: dict[str, Key], removed: list[str], verdicts: Verdicts) -> str:
    rows = "".join(row_of(name, key, verdicts) for name, key in keys.items())
    gone = "".join(f"| `{name}` | {verdicts.of(name)} |\n" for name in removed)
    return HEAD.format(version=version) + rows + (REMOVED.format(version=version) + gone if removed else "")


def page_read(text: str) -> tuple[str, dict[str, Key], list[str], dict[str, str]]:
    """The version of a page, its keys, the removed ones, and what it says of each here."""
    version = re.search(r"of deepspeed (\S+)\. -->", text)
    keys, removed, said = {}, [], {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or not cells[0].startswith("`"):
            continue
        name = cells[0].strip("`")
        said[name] = cells[-1]
        if len(cells) == 5:
            default = "" if cells[2] == "none" else cells[2].strip("`")
            keys[name] = Key("" if cells[1] == "any" else cells[1], default, [item for item in cells[3].split(", ") if item])
        else:
            removed.append(name)
    return version[1] if version else "unknown", keys, removed, said


def differences(old: tuple[str, dict[str, Key], list[str]], new: tuple[str, dict[str, Key], list[str]],
                verdicts: Verdicts) -> list[str]:
    """A line for each key that came, went or changed between two releases."""
    lines = []
    for name in sorted(old[1].keys() | new[1].keys()):
        before, after = old[1].get(name), new[1].get(name)
        if before is None and after is not None:
            lines.append(f"+ {name}: {after.shown()}; here: {verdicts.of(name)}")
        elif after is None and before is not None:
            lines.append(f"- {name}: was {before.shown()}{', refused now' if name in new[2] else ''}; here: {verdicts.of(name)}")
        elif before is not None and after is not None and (before.default, before.type) != (after.default, after.type.replace("|", "or")):
            lines.append(f"~ {name}: {before.shown()} -> {after.shown()}; here: {verdicts.of(name)}")
    lines += [f"- {name}: refused by name now; here: {verdicts.of(name)}" for name in new[2] if name not in old[2] and name not in old[1]]
    return lines + [f"  {name}: no longer refused by name" for name in old[2] if name not in new[2]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true", help="make the page")
    parser.add_argument("--verdicts", action="store_true", help="compare the page's last column with docs/configuration.md")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    verdicts = Verdicts(REFERENCE.read_text(encoding="utf-8"))
    if given.verdicts:
        version, keys, removed, said = page_read(given.page.read_text(encoding="utf-8"))
        if given.write:
            given.page.write_text(page_of(version, keys, removed, verdicts), encoding="utf-8")
            return 0
        lines = [f"~ {name}: {said[name]} -> {verdicts.of(name)}" for name in [*keys, *removed] if said[name] != verdicts.of(name)]
    elif given.source is None:
        parser.error("give a wheel, a source archive or a folder of DeepSpeed, or --verdicts")
    else:
        new = keys_of(given.source)
        if given.write:
            given.page.write_text(page_of(*new, verdicts), encoding="utf-8")
            return 0
        old = page_read(given.page.read_text(encoding="utf-8"))[:3]
        print(f"{given.page.name}: deepspeed {old[0]}, {len(old[1])} keys; {given.source.name}: {new[0]}, {len(new[1])} keys")
        lines = differences(old, new, verdicts)
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unreadable as error:
        print(f"deepspeed_keys: {error}", file=sys.stderr)
        sys.exit(2)
