"""Copies a library that another one needs: bundle.py LIBRARY COPY.

The library is the one that the loader finds on this machine for LIBRARY under the file name of COPY.
"""
import re
import shutil
import subprocess
import sys
from pathlib import Path


def loaded_path(library: str, name: str) -> str:
    """Returns the path at which the loader finds `name` for `library`; ends the program with a message where it finds none."""
    listed = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} => (/\S+)", listed, re.MULTILINE)
    if found is None:
        sys.exit(f"{library} does not need {name}, or the loader does not find it:\n{listed}")
    return found.group(1)


if __name__ == "__main__":
    target = Path(sys.argv[2])
    shutil.copyfile(loaded_path(sys.argv[1], target.name), target)
