"""`python -m sherd COMMAND ...` runs the `sherd` command that was built with this package.

The commands are env, plan, bench, config, launch, state, checkpoint, test and trace; docs/guide.md describes them.
"""
from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Iterator

HERE = Path(__file__).resolve().parent


def _candidates() -> Iterator[Path]:
    """Yields the places where the command may be: among the scripts of a wheel, or in the build folder of a source tree."""
    try:
        installed = importlib.metadata.distribution("sherd")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    for file in (installed.files if installed is not None else None) or []:
        if file.name == "sherd" and file.parent.name == "bin":
            yield Path(str(file.locate()))
    yield HERE.parent / "bin" / "sherd"  # where `pip install --target` puts it
    yield HERE.parent.parent / "build" / "cli" / "sherd"


def find_command() -> Path:
    """Returns the absolute path of the command. Raises FileNotFoundError, which names the places that were searched."""
    places = [path.resolve() for path in _candidates()]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the sherd command is not there: {', '.join(map(str, places))}; `pip install .` in the tree, "
                            f"or `./run build`, builds it")


def main() -> None:
    """Replaces this process by the command, with the arguments of this process. Does not return.

    Raises SystemExit with a message where there is no command.
    """
    try:
        command = find_command()
    except FileNotFoundError as error:
        sys.exit(f"sherd: {error}")
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
