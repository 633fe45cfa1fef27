"""`python -m sherd env|plan|bench|config|state|checkpoint|test|trace ...`: the sherd command that was built with this package."""
from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Iterator

HERE = Path(__file__).resolve().parent


def _candidates() -> Iterator[Path]:
    """Yields where the command may be: a wheel has it among its scripts, a tree in its build folder."""
    try:
        installed = importlib.metadata.distribution("sherd")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    for file in (installed.files if installed is not None else None) or []:
        if file.name == "sherd" and file.parent.name == "bin":
            yield Path(str(file.locate()))
    yield HERE.parent / "bin" / "sherd"  # pip install --target
    yield HERE.parent.parent / "build" / "cli" / "sherd"


def find_command() -> Path:
    """Returns the path of the command. FileNotFoundError lists the places where it was looked for."""
    places = [path.resolve() for path in _candidates()]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the sherd command is not there: {', '.join(map(str, places))}; `pip install .` in the tree, "
                            f"or `./run build`, builds it")


def main() -> None:
    """Replaces this process by the command, with the same arguments."""
    try:
        command = find_command()
    except FileNotFoundError as error:
        sys.exit(f"sherd: {error}")
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
