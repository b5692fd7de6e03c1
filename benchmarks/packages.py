"""Import this before torch or pyconv: it finds NVIDIA's package `cuda`, which the file cuda.py here would hide."""

import sys
from importlib import import_module
from pathlib import Path

HERE = str(Path(__file__).parent)
_before = sys.path[:]
sys.path[:] = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != str(Path(HERE).resolve())]
try:
    import_module("cuda.bindings")
except ImportError:
    pass  # not installed: pyconv says so when a GPU is wanted
finally:
    sys.path[:] = _before
