"""tools/deepspeed_keys.py on a package that is made here, the page that it wrote, and DeepSpeed where it is installed."""
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "deepspeed_keys.py"
sys.path.insert(0, str(TOOL.parent))
sys.dont_write_bytecode = True

import deepspeed_keys  # noqa: E402

# Every way in which DeepSpeed takes a dictionary apart. Nothing of it may run.
FILES = {
    "__init__.py": "raise SystemExit('a package was imported')\n",
    "git_version_info_installed.py": "version='9.9.9+abc '\n",
    "runtime/__init__.py": "",
    "runtime/constants.py": "STEPS = 'steps'\nSTEPS_DEFAULT = None\nOLD = 'gone'\nNESTED_SIZE = 2 * 1024**2\n",
    "runtime/models.py": """
class Inner(DeepSpeedConfigModel):
    ratio: float = Field(0.5, ge=0.0)
class Section(DeepSpeedConfigModel):
    stage: Stage = 0
    size: int = Field(pp_int(5e8), ge=0, alias="stage3_size")
    inner: Optional[Inner] = None
    names: List[str] = Field(default_factory=lambda: list(NAMES))
NAMES = ["a"]
""",
    "runtime/config.py": """
from .constants import *
from .models import Section
from ..other import get_other
_REMOVED = {OLD: f"{OLD} is gone"}
def _reject(param_dict):
    for key, message in _REMOVED.items():
        if key in param_dict:
            raise ValueError(message)
def get_steps(param_dict):
    return get_scalar_param(param_dict, STEPS, STEPS_DEFAULT)
def get_sub(param_dict):
    return param_dict.get("sub", {})
class DeepSpeedConfig(object):
    def __init__(self, config):
        self._param_dict = config
        _reject(self._param_dict)
        self._initialize_params(copy.copy(self._param_dict))
    def _initialize_params(self, param_dict):
        self.steps = get_steps(param_dict)
        sub = get_sub(param_dict)
        self.size = sub.get("size", NESTED_SIZE)
        self.section = Section(**param_dict.get("section", {}))
        self.other = get_other(param_dict)
""",
    "other.py": """
def get_other(param_dict):
    defaults = {"kind": "best", "depth": 3}
    for key, value in param_dict.get("other", {}).items():
        defaults[key] = value
    return defaults
""",
}
EXPECTED = {"gone": None, "steps": "any = none", "sub.size": "int = 2097152", "section.stage": "Stage = 0",
            "section.stage3_size": "int = 500000000", "section.inner.ratio": "float = 0.5", "section.names": 'List[str] = ["a"]',
            "other.kind": 'str = "best"', "other.depth": "int = 3"}


def made(folder: Path, files: dict) -> Path:
    for name, text in files.items():
        (folder / "deepspeed" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "deepspeed" / name).write_text(text)
    return folder / "deepspeed"


def run(*args: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-B", TOOL, *map(str, args)], capture_output=True, text=True)


def test_reading(scratch: Path) -> None:
    version, keys, removed = deepspeed_keys.keys_of(made(scratch / "a", FILES))
    found = {name: key.shown() for name, key in keys.items() if name != "optimizer.params.adam_w_mode"}
    assert (version, removed) == ("9.9.9", ["gone"]), (version, removed)
    assert found == {name: text for name, text in EXPECTED.items() if text}, found


def test_difference(scratch: Path) -> None:
    old, page, wheel = scratch / "a" / "deepspeed", scratch / "page.md", scratch / "b.whl"
    assert run(old, "--write", "--page", page).returncode == 0
    same = run(old, "--page", page)
    assert same.returncode == 0 and len(same.stdout.splitlines()) == 1, same
    other = dict(FILES)
    other["runtime/models.py"] = FILES["runtime/models.py"].replace("5e8", "6e8").replace("ratio", "share")
    other["runtime/config.py"] = FILES["runtime/config.py"].replace("{OLD:", "{'other': '', OLD:")
    with zipfile.ZipFile(wheel, "w") as out:
        for name, text in other.items():
            out.writestr(f"deepspeed/{name}", text)
    later = run(wheel, "--page", page)
    said = later.stdout
    assert later.returncode == 1, later
    for line in ("~ section.stage3_size: int = 500000000 -> int = 600000000", "+ section.inner.share", "- section.inner.ratio: was",
                 "other: refused by name now"):
        assert line in said, (line, said)


def test_unreadable(scratch: Path) -> None:
    scratch.joinpath("empty").mkdir()
    for source in (scratch / "empty", scratch / "nothing", TOOL):
        got = run(source)
        assert got.returncode == 2 and str(source) in got.stderr, got
    empty = made(scratch / "c", {**FILES, "runtime/config.py": "class Another: pass\n"})
    assert "has to learn" in run(empty).stderr


def test_page() -> None:
    got = run("--verdicts")
    assert got.returncode == 0, f"docs/deepspeed-keys.md is not what docs/configuration.md says; write it anew:\n{got.stdout}"


def test_installed() -> None:
    found = importlib.util.find_spec("deepspeed")  # of a package at the top nothing runs
    page = deepspeed_keys.page_read(deepspeed_keys.PAGE.read_text())
    folder = Path(found.submodule_search_locations[0]) if found is not None and found.submodule_search_locations else None
    if folder is None or deepspeed_keys.Package(folder).version() != page[0]:
        print(f"  no deepspeed {page[0]} here: the page is not compared with it")
        return
    got = run(folder)
    assert got.returncode == 0, got.stdout
    assert len(page[1]) > 300 and "zero_optimization.compute_grad_norm" in page[1] and "nebula" in page[2]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_reading(Path(folder))
        test_difference(Path(folder))
        test_unreadable(Path(folder))
    test_page()
    test_installed()
    print("5 passed")


main()
