"""What pages say of the sources, held against them: test_pages.py SOURCE API_JSON.

docs/promises.md has the versions that the build and the code check; docs/step-report.md has every field of the report; docs/guide.md has the
programs examples/resume/resume.c and examples/elastic/elastic.c in part; the script of docs/diverged.md runs and finds a difference.
"""
import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

root, api_path = Path(sys.argv[1]), Path(sys.argv[2])
failures = []


def text_of(path):
    return (root / path).read_text(encoding="utf-8")


def block(page, language, containing):
    """The block of code of the page that has that text."""
    [found] = [code for code in re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.M | re.S) if containing in code]
    return found


# Where a version is checked, and the words of the page around it; {} is the version as the source has it.
VERSIONS = [
    ("meson.build", r"^\s+version: '([\d.]+)'", "This is version {}."),
    ("meson.build", r"meson_version: '>=([\d.]+)'", "| meson | {} |"),
    ("meson.build", r"dependency\('jansson', version: '>=([\d.]+)'\)", "| jansson | {} |"),
    ("meson.build", r"dependency\('hwloc', version: '>=([\d.]+)'", "| hwloc | {} |"),
    ("meson.build", r"'soversion': '(\d+)'", "`libsherd.so.{}`"),
    ("kernels/meson.build", r"cuda_version.version_compare\('>=([\d.]+)'\)", "; {} adds 10.0 |"),
    ("pyproject.toml", r'requires-python = ">=([\d.]+)"', "| Python | {} |"),
    ("pyproject.toml", r'"torch>=([\d.]+)"', "| PyTorch | {} |"),
    ("collectives/nccl_library.c", r"OLDEST_VERSION 2(\d\d)00", "| NCCL | 2.{},"),
    ("collectives/nccl_library.c", r"OLDEST_VERSION 2(\d\d)00", "| nccl.h | 2.{} |"),
    ("collectives/nccl_choice.c", r"SHARES_FROM_VERSION 2(\d\d)00", "several ranks on one GPU | 2.{} |"),
    ("collectives/mpi_library.c", r"OLDEST_MAJOR (\d)", "| Open MPI | {} to"),
    ("collectives/mpi_library.c", r"NEWEST_MAJOR (\d)", " to {}, which have one binary interface"),
    ("engine/checkpoint/manifest.h", r"SHERDI_CHECKPOINT_FORMAT (\d+)", "the checkpoints of format {}, of all"),
    ("offload/state.h", r"SHERDI_STATE_FORMAT (\d+)u", "Format {} is read"),
]


def check_versions():
    page = text_of("docs/promises.md")
    for path, pattern, words in VERSIONS:
        found = re.search(pattern, text_of(path), re.M)
        if found is None:
            failures.append(f"{path} has no {pattern}: tests/house/test_pages.py has to know where the version is now")
        elif words.format(found[1]) not in page:
            failures.append(f'docs/promises.md does not have "{words.format(found[1])}", as {path} says')


def check_report():
    page = text_of("docs/step-report.md")
    fields = [field["name"] for field in json.loads(api_path.read_text(encoding="utf-8"))["structs"]["sherd_step_report"]["fields"]]
    failures.extend(f"docs/step-report.md does not have the field {name}" for name in fields if f"`{name}`" not in page)


def check_guide():
    for page, call, path in (("docs/guide.md", "sherd_checkpoint_save", "examples/resume/resume.c"),
                             ("docs/elastic.md", "sherd_step_share", "examples/elastic/elastic.c")):
        program = text_of(path)
        for part in block(page, "c", call).split("\n\n"):
            if part.strip("\n") not in program:
                failures.append(f"{page} has lines that {path} has not:\n{part}")


def safetensors(path, values):
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps({"w": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def check_script():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        safetensors(folder / "a", [1, 2, 3])
        safetensors(folder / "b", [1, 2, 3.5])
        (folder / "first.py").write_text(block("docs/diverged.md", "python", "def tensors"), encoding="utf-8")
        got = subprocess.run([sys.executable, "first.py", "a", "b"], cwd=folder, check=True, capture_output=True, text=True).stdout
    if got != "w: 1 of 3 differ, most at 2: 3.0 and 3.5\n":
        failures.append(f"the script of docs/diverged.md prints {got!r}")


check_versions()
check_report()
check_guide()
check_script()
if failures:
    sys.exit("\n".join(failures))
print(f"{len(VERSIONS)} versions, the fields of the report, a program and a script: the pages have them as they are")
