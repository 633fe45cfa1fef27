"""Runs the tests of one suite of a build, without meson: suite.py BUILD SUITE [--jobs N] [--seconds S]. A test whose program
was not built is reported and is no failure; one for which no time was left is. Ends with 0 when all that ran passed, 77 when none
ran, else 1; the last line counts, and the line before it that begins with "skipped: " says why the first skipped test was."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

PASSED, SKIPPED, FAILED, NOT_BUILT, NOT_RUN = "passed", "skipped", "failed", "not built", "not run"


def known(build, what):
    """What meson knows of the tests, or of the targets."""
    return json.loads((build / "meson-info" / f"intro-{what}.json").read_text())


def tests_of(build, suite):
    """The tests of a suite; `files` are those of the programs that they need."""
    files = {target["id"]: target["filename"] for target in known(build, "targets")}
    tests = [test for test in known(build, "tests") if any(name.split(":")[-1] == suite for name in test["suite"])]
    return [{**test, "files": [file for needed in test["depends"] for file in files[needed]]} for test in tests]


def environment_of(test):
    """As meson sets it: the folder of our library before others, and no team of threads bound to the CPUs of another test's."""
    library = ":".join(filter(None, (test["env"].get("LD_LIBRARY_PATH", "").rstrip(":"), os.environ.get("LD_LIBRARY_PATH"))))
    return {"SHERD_CPU_BIND": "none", **os.environ, **test["env"], **({"LD_LIBRARY_PATH": library} if library else {})}


def ended(process, seconds):
    """Its output, and its exit status; None when it had to be killed."""
    try:
        return process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # what it started, too
        return process.communicate()[0], None


def run(test, build, deadline):
    """One test: what became of it, how long it took, and its output."""
    if not os.access(test["cmd"][0], os.X_OK) or not all(map(os.path.exists, test["files"])):
        return NOT_BUILT, 0.0, ""
    start = time.monotonic()
    if start >= deadline:
        return NOT_RUN, 0.0, ""
    seconds = max(1.0, min(test["timeout"] or 1e9, deadline - start))
    process = subprocess.Popen(test["cmd"], cwd=test["workdir"] or build, env=environment_of(test),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True)
    text, status = ended(process, seconds)
    if status is None:
        text += f"\nkilled after {seconds:.0f} s\n"
    return {0: PASSED, 77: SKIPPED}.get(status, FAILED), time.monotonic() - start, text


def reason(text):
    """Why a test was skipped, as it said."""
    lines = [line.split("skipped: ", 1)[1] for line in text.splitlines() if "skipped: " in line]
    return lines[0] if lines else "without a reason"


def tell(test, result, seconds, text):
    """Its line at once, and of one that failed the end of what it printed."""
    print(f"{result:9} {seconds:6.1f} s  {test['name']}", flush=True)
    if result == FAILED:
        print("\n".join("    " + line for line in text.splitlines()[-40:]), flush=True)


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("suite")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all of them; what runs then is killed")
    return parser.parse_args()


def main():
    """Runs them."""
    given = arguments()
    build = given.build.resolve()
    deadline = time.monotonic() + given.seconds
    counts = dict.fromkeys((PASSED, SKIPPED, FAILED, NOT_BUILT, NOT_RUN), 0)
    why = ""
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as threads:
        running = {threads.submit(run, test, build, deadline): test for test in tests_of(build, given.suite)}
        for done in concurrent.futures.as_completed(running):
            result, seconds, text = done.result()
            tell(running[done], result, seconds, text)
            counts[result] += 1
            why = why or (reason(text) if result == SKIPPED else "")
    if why:
        print(f"skipped: {why}")
    print(", ".join(f"{count} {what}" for what, count in counts.items() if count or what == PASSED))
    return 1 if counts[FAILED] or counts[NOT_RUN] else 0 if counts[PASSED] else 77


if __name__ == "__main__":
    sys.exit(main())
