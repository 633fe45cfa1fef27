"""`python -m sherd.run SCRIPT ARGUMENTS...` runs a script that was written for another library. docs/launching.md is the user's page.

--as deepspeed: sherd.deepspeed stands in for the package deepspeed, which the script imports by its name.
--accelerate FILE: starts the ranks that a file of `accelerate config` asks for, with the variables that `accelerate launch` sets.
--num_gpus N: starts N ranks on this host, as the command `deepspeed` does.
Without the last two, this process is one rank: of torchrun, of another launcher, or alone.
"""
from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import os
import sys
import types
from typing import Any, Iterator, Mapping, Sequence

PACKAGES = ("deepspeed",)  # those that sherd.<package> stands in for
KINDS = ("DEEPSPEED", "MULTI_GPU", "MULTI_CPU", "NO")  # distributed_type of a file that --accelerate takes


# ---------------------------------------------------------------- stand-in --

class Described(importlib.metadata.Distribution):
    """What importlib.metadata says of a package that sherd.<package> stands in for."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


class Finder:
    """Finds that description, before one of a package that is installed."""

    def __init__(self, name: str, version: str) -> None:
        self._name, self._found = name, Described(name, version)

    def find_spec(self, *_: Any) -> None:
        return None  # the modules are in sys.modules

    def find_distributions(self, context: Any) -> Iterator[Described]:
        if context.name == self._name:
            yield self._found


def stand_in(package: str) -> None:
    """Makes `import <package>` give sherd.<package> in this process, with all its modules. Local.

    Libraries that look whether it is installed (Accelerate, transformers) find it, with the version whose calls it has. Raises RuntimeError
    where the package itself is imported already.
    """
    own = f"sherd.{package}"
    made = importlib.import_module(own)
    if sys.modules.get(package, made) is not made:
        raise RuntimeError(f"{package} is imported already, from {sys.modules[package].__file__}: stand in for it before")
    for name, module in list(sys.modules.items()):
        if name == own or name.startswith(f"{own}."):
            sys.modules[name.removeprefix("sherd.")] = module
    sys.meta_path.insert(0, Finder(package, made.__version__))  # type: ignore[arg-type]


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as the interpreter does. Raises what it raises, and FileNotFoundError."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    script = types.ModuleType("__main__")
    script.__file__ = path
    sys.modules["__main__"] = script
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    exec(compile(text, path, "exec"), script.__dict__)


# ------------------------------------------------------------------- ranks --

def start(count: int, command: Sequence[str], master: Sequence[str] = ("--standalone",)) -> None:
    """Starts ranks of this host by torchrun, and waits for them. Raises what torchrun raises. `command` is a script, or -m and a module."""
    from torch.distributed.run import main
    main([*master, "--nproc-per-node", str(count), *command])


def launched(file: str, more: Sequence[str], command: Sequence[str]) -> None:
    """Starts the ranks that a file of `accelerate config` asks for, and waits for them. `more` are options of `accelerate launch`.

    Raises SystemExit with a message for a file that is not one, and what torchrun raises.
    """
    try:
        from accelerate.commands import launch
        from accelerate.utils import launch as ways
    except ImportError as error:
        sys.exit(f"sherd.run: --accelerate needs the package accelerate, which has the settings of its files: {error}")
    kind = checked(file, launch.launch_command_parser())
    is_module = command[0] == "-m"
    given = launch.launch_command_parser().parse_args(["--config_file", file, *more, *command])
    try:
        args, defaults, of_file = launch._validate_launch_command(given)
        if kind == "DEEPSPEED":
            fields = [*defaults.deepspeed_config, *(["mixed_precision"] if of_file else [])]
            args.deepspeed_fields_from_accelerate_config = ",".join(fields)
            other, environment = ways.prepare_deepspeed_cmd_env(args)
            if other:
                sys.exit(f"sherd.run: {file}: deepspeed_multinode_launcher {args.deepspeed_multinode_launcher} is DeepSpeed's own: write "
                         f"\"standard\", and start this command on each host with its machine_rank")
        elif kind == "MULTI_GPU":
            environment = ways.prepare_multi_gpu_env(args)
        else:
            other, environment = ways.prepare_simple_launcher_cmd_env(args)
            if args.mpirun_hostfile is not None:
                os.execvpe(other[0], other, environment)
    except (ValueError, ConnectionError, AssertionError) as error:
        sys.exit(f"sherd.run: {file}: {error}")
    os.environ.update(environment)
    import torch
    if not torch.cuda.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"  # without it and without a GPU, each process is one rank alone to Accelerate
    if args.num_processes == 1 and kind in ("MULTI_CPU", "NO"):
        os.execv(sys.executable, [sys.executable, *command])
    start(args.num_processes // (args.num_machines or 1), command if is_module else command, meeting_of(args))


def meeting_of(args: argparse.Namespace) -> list[str]:
    """Returns torchrun's options for the hosts and the address of a launch."""
    port = str(args.main_process_port or 29500)
    if (args.num_machines or 1) == 1:
        return ["--standalone"] if getattr(args, "standalone", False) or args.main_process_port is None else ["--master-port", port]
    return ["--nnodes", str(args.num_machines), "--node-rank", str(args.machine_rank), "--master-addr", str(args.main_process_ip),
            "--master-port", port]


def checked(file: str, parser: argparse.ArgumentParser) -> str:
    """Returns the distributed_type of a file. Raises SystemExit, which says what is wrong and where."""
    import yaml
    from accelerate.commands.config.config_args import ClusterConfig
    try:
        with open(file, encoding="utf-8") as opened:
            found = yaml.safe_load(opened)  # JSON is YAML too
    except OSError as error:
        sys.exit(f"sherd.run: {error}: give a file that `accelerate config` has written")
    except yaml.YAMLError as error:
        sys.exit(f"sherd.run: {file} is not YAML: {error}")
    if not isinstance(found, Mapping):
        sys.exit(f"sherd.run: {file} has no keys: give a file that `accelerate config` has written")
    if found.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        sys.exit(f"sherd.run: {file}: compute_environment {found['compute_environment']} is not one that sherd starts: LOCAL_MACHINE is")
    known(file, "", found, [*ClusterConfig.__dataclass_fields__, "deepspeed_plugin"])
    options = [action.dest for action in parser._actions]
    known(file, "deepspeed_config.", found.get("deepspeed_config") or {}, options)
    kind = str(found.get("distributed_type") or "NO")  # to YAML, a NO without quotes is false
    if kind not in KINDS:
        sys.exit(f"sherd.run: {file}: distributed_type {kind} is not one that sherd starts: {', '.join(KINDS)} are")
    return kind


def known(file: str, prefix: str, found: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises SystemExit for a key that is not among the names."""
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            sys.exit(f"sherd.run: {file}: {prefix}{key} is not a key of such a file{f': is {prefix}{near[0]} meant?' if near else ''}")


# ----------------------------------------------------------------- command --

def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m sherd.run", usage="%(prog)s [options] SCRIPT [ARGUMENTS ...]",
                                   description="Runs a script that was written for another library (docs/launching.md).")
    made.add_argument("--as", dest="package", choices=PACKAGES, help="let sherd.PACKAGE stand in for this package in the script")
    made.add_argument("--accelerate", metavar="FILE", help="start the ranks that a file of `accelerate config` asks for")
    made.add_argument("-n", "--num_gpus", "--num_processes", dest="count", type=int, metavar="N",
                      help="start N ranks on this host; with --accelerate in place of the file's num_processes")
    made.add_argument("--master_port", "--main_process_port", dest="port", type=int, metavar="PORT",
                      help="where they meet; without it or with 0, any free port, and with --accelerate that of the file")
    made.add_argument("--local_rank", action="store_true", help="give the script --local_rank=N, as the command `deepspeed` does; on with --num_gpus")
    made.add_argument("--no_local_rank", action="store_true", help="do not")
    made.add_argument("script", metavar="SCRIPT", help="the script, with its arguments after it")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises SystemExit with a message, and what the script raises."""
    args = parser().parse_args(argv)
    if args.count is not None and args.count < 1:
        parser().error(f"--num_gpus {args.count} is no number of ranks")
    if not os.path.isfile(args.script):
        parser().error(f"there is no script {args.script}")
    wants_rank = (args.local_rank or args.count is not None and args.accelerate is None) and not args.no_local_rank
    own = ["-m", "sherd.run", *(["--as", args.package] if args.package else []), *(["--local_rank"] if wants_rank else [])]
    command = [*(own if len(own) > 2 else []), args.script, *args.arguments]
    if args.accelerate is not None:
        more = [] if args.count is None else ["--num_processes", str(args.count)]
        launched(args.accelerate, more + ([] if args.port is None else ["--main_process_port", str(args.port)]), command)
    elif args.count is not None:
        start(args.count, command, ["--master-port", str(args.port)] if args.port else ["--standalone"])
    else:
        if args.package is not None:
            stand_in(args.package)
        rank = [f"--local_rank={os.environ.get('LOCAL_RANK', os.environ.get('SHERD_RANK', 0))}"] if wants_rank else []
        run_script(args.script, [*rank, *args.arguments])


if __name__ == "__main__":
    main()
