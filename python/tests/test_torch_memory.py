"""A model that plain torch cannot train in a memory control group is trained in it by sherd.torch, and its peak is within
the plan, what torch takes by itself, and the activations: bench/pytorch_limited.py on a small model."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/pytorch_limited.py")

with tempfile.TemporaryDirectory(dir=".") as folder:
    sys.exit(subprocess.run([sys.executable, SCRIPT, "--dir", folder, "--layers", "12", "--width", "768", "--limit", "1024",
                             "--steps", "2", "--buffer", str(1 << 19), "--slack", "128"]).returncode)
