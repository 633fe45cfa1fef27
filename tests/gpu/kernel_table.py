"""What the kernels take, as a page in Markdown: registers, static shared memory and spills of every kernel for each architecture, as
ptxas says; and in machine code, where cuobjdump is at hand, what the loads of the fused updates are and whether the registers of warpgroups'
products are left alone. Needs nvcc and no GPU.

kernel_table.py [--arch 80,86,89,90,100] [--files GLOB,GLOB] [--cuobjdump FILE] [--jobs N]; ends with 1 when a kernel spills
or products are given one at a time, or their registers are misused, or a thread uses more registers than it has taken."""

import argparse
import collections
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# As the builds compile them: kernels/meson.build, trainer/meson.build.
FLAGS = {"kernels": ["--fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"], "examples": []}
FUSED = ("update.cu", "encoded.cu", "lamb.cu")
ONE_ARCH = {"attention_warpgroup.cu": ["90a"]}  # instructions of one architecture
PRODUCT_RATE, SHARED_RATE = 4096, 128  # operations in 16 bits and bytes of shared memory that an H100's multiprocessor does in a clock

Kernel = collections.namedtuple("Kernel", "registers shared spills")


def compiled(source, arch, nvcc, to):
    """The cubin of a file for an architecture, and what ptxas said."""
    cubin = pathlib.Path(to) / f"{source.stem}-{arch}.cubin"
    command = [nvcc, "-cubin", str(source), "-o", str(cubin), f"-arch=sm_{arch}", "-std=c++17", "-O3", "-Xptxas=-v",
               *FLAGS[source.relative_to(ROOT).parts[0]], f"-I{ROOT}", f"-I{ROOT / 'include'}"]
    return cubin, subprocess.run(command, check=True, capture_output=True, text=True).stderr


def kernels_of(text):
    """Kernels by mangled name, from the words of ptxas."""
    found, name, spills = {}, None, 0
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name, spills = match[1], 0
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = int(match[1]) + int(match[2])
        elif name and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] = Kernel(int(match[1]), int(shared[1]) if shared else 0, spills)
            name = None
    return found


def serialized(text):
    """The kernels in which ptxas waits for each product before it gives the next one."""
    return sorted({f"{match}: products one at a time" for match in re.findall(r"instructions are serialized .* function '(\w+)'", text)})


def plain(names):
    """Names as they stand in the source."""
    if not shutil.which("c++filt"):
        return dict(zip(names, names))
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: re.sub(r"\(anonymous namespace\)::|^void ", "", line) for name, line in zip(names, out)}


def base(name):
    """Without template arguments and parameters."""
    return re.split(r"[<(]", name)[0]


def span(values):
    """"64" or "40-96"."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def table(source, by_arch, names):
    """A row for each kernel, its instances together."""
    print(f"\n### {source.relative_to(ROOT)}\n")
    print("| kernel | instances | shared | " + " | ".join(f"sm_{arch}" for arch in by_arch) + " | spilled |")
    print("|---|---|---|" + "---|" * len(by_arch) + "---|")
    groups = collections.defaultdict(list)
    for mangled in sorted(next(iter(by_arch.values()))):
        groups[base(names[mangled])].append(mangled)
    for group, members in groups.items():
        every = [by_arch[arch][name] for arch in by_arch for name in members]
        registers = " | ".join(span([by_arch[arch][name].registers for name in members]) for arch in by_arch)
        print(f"| `{group}` | {len(members)} | {span([k.shared for k in every])} | {registers} | {sum(k.spills for k in every)} |")
    return sorted(f"sm_{arch}: {names[name]}: {kernel.spills} bytes" for arch, all_of in by_arch.items()
                  for name, kernel in all_of.items() if kernel.spills)


def in_flight(lines):
    """Loads by width, and the most bytes of them, in how many, that are under way before one is used."""
    widths, waiting, most = collections.Counter(), {}, (0, 0)
    for line in lines:
        match = re.search(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?);", line)
        if not match:
            continue
        what, operands = match[1], match[2]
        parts = operands.split(",", 1)
        used = set(re.findall(r"\bR\d+\b", parts[1] if len(parts) > 1 and not what.startswith(("ST", "RED")) else operands))
        for register in [r for r, (_, group) in waiting.items() if used & group]:
            del waiting[register]
        if what.startswith("LDG"):
            bits = next((int(p) for p in what.split(".") if p in ("64", "128", "256")), 32)
            bits = 16 if ".U16" in what or ".S16" in what else bits
            widths[bits] += 1
            first = re.match(r"R(\d+)", parts[0])
            if first:
                number = int(first[1])
                waiting[number] = (bits // 8, {f"R{number + i}" for i in range(max(1, bits // 32))})
            most = max(most, (len(waiting), sum(size for size, _ in waiting.values())), key=lambda now: now[1])
    return widths, most


def sass(source, cubin, names, tool):
    """What the machine code of a file loads and stores."""
    text = subprocess.run([tool, "-sass", str(cubin)], check=True, capture_output=True, text=True).stdout
    print(f"\n### Loads of {source.relative_to(ROOT)} in machine code ({cubin.stem})\n")
    print("| kernel | loads by bits | stores by bits | loads in flight, where most | their bytes, a thread |\n|---|---|---|---|---|")
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name, lines = part.split("\n", 1)[0].strip(), part.splitlines()
        widths, (loads, size) = in_flight(lines)
        stores = collections.Counter(next((p for p in match.split(".") if p in ("64", "128", "256")), "16" if "U16" in match else "32")
                                     for match in re.findall(r"\b(STG[\w.]*)", part))
        counts = ", ".join(f"{count} x {bits}" for bits, count in sorted(widths.items(), reverse=True))
        stored = ", ".join(f"{count} x {bits}" for bits, count in sorted(stores.items(), key=lambda item: -int(item[0])))
        print(f"| `{re.sub(r'[(].*', '', names.get(name, name))}` | {counts} | {stored} | {loads} | {size} |")


def loops_of(code):
    """The loops that have products and no smaller loop with products in it, and the smallest around all products; each is a pass, as
    instructions from (address, text)."""
    at = {address: index for index, (address, _) in enumerate(code)}
    groups = [index for index, (_, text) in enumerate(code) if text.startswith("HGMMA")]
    spans = set()
    for index, (_, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)
        first = at.get(int(target[1], 16), index) if target else index
        if any(first <= group < index for group in groups):
            spans.add((first, index + 1))
    around = min((span for span in spans if span[0] <= groups[0] and span[1] > groups[-1]), key=lambda span: span[1] - span[0])
    spans = {span for span in spans if around[0] <= span[0] and span[1] <= around[1]}  # without returns from behind the loops
    inner = {span for span in spans if not any(span[0] <= other[0] and other[1] <= span[1] and other != span for other in spans)}
    return [code[first:end] for first, end in sorted(inner)], code[around[0]:around[1]]


def written_by(text):
    """The registers that an instruction writes and those that it reads, by number; of products nothing."""
    what, registers = text.split()[0], [int(number) for number in re.findall(r"\bR(\d+)\b", text)]
    if not registers or what.startswith(("HGMMA", "WARPGROUP")):
        return set(), set()
    if what.startswith(("ST", "LDGSTS", "ISETP", "FSETP", "SYNCS", "BRA", "RED")):
        return set(), set(registers)
    count = 4 if "128" in what or what.startswith("LDSM") else 2 if "64" in what or "WIDE" in what else 1
    return set(range(registers[0], registers[0] + count)), set(registers[1:])


def bare(text):
    """An instruction without the predicate in front of it."""
    return re.sub(r"^@!?U?P\w+\s+", "", text)


def reached(code, start):
    """The instructions that can be reached from one on."""
    at, found, waiting = {address: index for index, (address, _) in enumerate(code)}, set(), [start]
    while waiting:
        index = waiting.pop()
        if index in found or index >= len(code):
            continue
        found.add(index)
        text = bare(code[index][1])
        target = re.match(r"(?:BRA|BSSY|CALL)\b.*0x([0-9a-f]+)", text)
        if target and int(target[1], 16) in at:
            waiting.append(at[int(target[1], 16)])
        is_sure = text == code[index][1] and not re.match(r"BRA\S*DIV|BRA\S* !?U?P", text)
        if not (is_sure and text.startswith(("BRA", "EXIT", "RET", "BSYNC"))):
            waiting.append(index + 1)
    return [bare(code[index][1]) for index in sorted(found)]


def limits(code):
    """How many registers a thread uses from where it gives registers up or takes more, and how many it has there."""
    found = {}
    for index, (_, text) in enumerate(code):
        if match := re.search(r"USETMAXREG\.(?:TRY_)?(ALLOC|DEALLOC)\S* .*0x([0-9a-f]+)", text):
            used = [number + 1 for line in reached(code, index + 1) for number in set.union(*written_by(line))]
            found[match[1]] = (max(used, default=0), int(match[2], 16))
    return found


def work_of(loop):
    """Operations of a pass's products for a warpgroup, and bytes of shared memory that they read."""
    operations, size = 0, 0
    for _, text in loop:
        if match := re.match(r"HGMMA\.64x(\d+)x16\S* R\d+, (R\d+, )?gdesc", text):
            operations += 2 * 64 * int(match[1]) * 16
            size += (int(match[1]) + (0 if match[2] else 64)) * 16 * 2
    return operations, size


def misused(loop):
    """How often two passes of a loop touch registers of products under way, or give those of a left side another value behind it."""
    count, flying, begun, so_far = 0, [], [], set()
    all_written = set().union(*[written_by(text)[0] for _, text in loop])
    for text in [text for _, text in loop] * 2:
        written, read = written_by(text)
        for sums, left in flying + begun:
            count += bool(written & (sums | left)) + bool(read & sums)
        so_far |= written
        if match := re.match(r"HGMMA\.64x(\d+)x16\S* R(\d+), (?:R(\d+), )?gdesc", text):
            columns, first, left = int(match[1]), int(match[2]), int(match[3] or 0)
            left = set(range(left, left + 4)) if match[3] else set()
            count += bool((left - so_far) & all_written)  # made before the loop, so that nothing in the loop may write it
            begun.append((set(range(first, first + columns // 2)), left))
            if "gsb0" in text:
                flying.append((set().union(*[sums for sums, _ in begun]), set().union(*[left for _, left in begun])))
                begun = []
        elif match := re.match(r"WARPGROUP.DEPBAR.LE gsb0, 0x(\d+)", text):
            flying = flying[max(0, len(flying) - int(match[1])):]
    return count


def products(source, cubin, names, tool):
    """A row for each kernel: its innermost loops. Returns the kernels whose registers are misused."""
    text = subprocess.run([tool, "-sass", str(cubin)], check=True, capture_output=True, text=True).stdout
    print(f"\n### Products of {source.relative_to(ROOT)} in machine code ({cubin.stem})\n")
    print("| kernel | instructions of a pass of each loop | of these products | their operations, clocks | they read, clocks "
          "| registers misused | of computing threads, used of | of copying threads, used of |")
    print("|---|---|---|---|---|---|---|---|")
    bad = []
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name, lines = part.split("\n", 1)[0].strip(), part.splitlines()
        whole = [(int(match[1], 16), match[2])
                 for match in (re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line) for line in lines) if match]
        loops, around = loops_of([(address, bare(text)) for address, text in whole])
        count = sum(misused(loop) for loop in [*loops, around])
        bad += [f"{names.get(name, name)}: {count} registers of products misused"] if count else []
        threads = limits(whole)
        bad += [f"{names.get(name, name)}: {used} registers of {most}" for used, most in threads.values() if used > most]
        works = [work_of(loop) for loop in loops]
        columns = [", ".join(str(len(loop)) for loop in loops),
                   ", ".join(str(sum(text.startswith("HGMMA") for _, text in loop)) for loop in loops),
                   ", ".join(f"{work / 1e6:.2f} M, {work // PRODUCT_RATE}" for work, _ in works),
                   ", ".join(f"{size >> 10} KiB, {size // SHARED_RATE}" for _, size in works), str(count),
                   *("{} of {}".format(*threads.get(what, (0, 0))) for what in ("ALLOC", "DEALLOC"))]
        print(f"| `{re.sub(r'[(].*', '', names.get(name, name))}` | {' | '.join(columns)} |")
    return bad


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="80,86,89,90,100")
    parser.add_argument("--files", default="kernels/cuda/*.cu,trainer/cuda/*.cu")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--cuobjdump", default=shutil.which("cuobjdump"))
    parser.add_argument("--sass-arch", default="90")
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_args()


def main():
    """All files, for all architectures."""
    given = arguments()
    sources = sorted(path for pattern in given.files.split(",") for path in ROOT.glob(pattern))
    archs, wrong = given.arch.split(","), []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(given.jobs) as threads:
        work = {(source, arch): threads.submit(compiled, source, arch, given.nvcc, folder)
                for source in sources for arch in ONE_ARCH.get(source.name, archs)}
        for source in sources:
            by_arch = {arch: kernels_of(work[source, arch].result()[1]) for arch in ONE_ARCH.get(source.name, archs)}
            names = plain(sorted(next(iter(by_arch.values()))))
            if names:
                wrong += table(source, by_arch, names)
            if source.name in FUSED and given.cuobjdump and given.sass_arch in archs:
                sass(source, work[source, given.sass_arch].result()[0], names, given.cuobjdump)
            if source.name in ONE_ARCH and given.cuobjdump:
                wrong += serialized(work[source, ONE_ARCH[source.name][0]].result()[1])
                wrong += products(source, work[source, ONE_ARCH[source.name][0]].result()[0], names, given.cuobjdump)
            sys.stdout.flush()
    print("\nNo kernel spills." if not wrong else "\nWrong:\n\n" + "\n".join(f"* `{line}`" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
