"""Runs bench/pytorch_limited.py on a small model.

Plain torch cannot train the model within the memory of a control group, and sherd.torch can. Its peak stays within the sum of the
plan, what torch itself takes, and the activations.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/pytorch_limited.py")

with tempfile.TemporaryDirectory(dir=".") as folder:
    sys.exit(subprocess.run([sys.executable, SCRIPT, "--dir", folder, "--layers", "12", "--width", "768", "--limit", "1024",
                             "--steps", "2", "--buffer", str(1 << 19), "--slack", "128"]).returncode)
