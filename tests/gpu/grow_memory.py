"""Uses memory for a moment where less than GIB is available: grow_memory.py GIB. Some virtual machines get their memory as it is
used, and show little of it before; the engine refuses a plan that is larger than what is shown. Never takes the last two GiB.
Prints what was available before and after."""

import mmap
import sys
import time

GIB = 1 << 30
LEFT = 2 * GIB  # for everything else
PATIENCE_S = 1.0  # for memory that is on its way


def available():
    """The bytes that the system shows as available."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def is_there(size):
    """Whether that much is available now, or within a moment."""
    until = time.monotonic() + PATIENCE_S
    while available() < size + LEFT:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def main():
    """Touches a GiB after the other."""
    before = available()
    page = b"x" * (1 << 20)
    held = []
    while before < int(sys.argv[1]) * GIB and len(held) < int(sys.argv[1]) and is_there(GIB):
        block = mmap.mmap(-1, GIB)
        for at in range(0, GIB, len(page)):
            block[at:at + len(page)] = page
        held.append(block)
    touched = len(held)
    held.clear()
    print(f"{before / GIB:.1f} GiB available, {available() / GIB:.1f} after {touched} GiB were used")


if __name__ == "__main__":
    sys.exit(main())
