"""Losses and gradients of small random models of each family and shape, compared with transformers' own: within 1e-5, in fp32.
usage: test_models.py ORACLE MAKE_CASES. Without the packages it is skipped."""
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (SHERD_PYTHON names an interpreter that has torch and transformers)")
    sys.exit(77)

if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "cases.json")
        with open(path, "w") as out:
            subprocess.run([sys.executable, sys.argv[2]], stdout=out, check=True, timeout=240)
        sys.exit(subprocess.run([sys.argv[1], path, "--stage", "3", "--ranks", "2", "--within", "1e-5"], timeout=60).returncode)
