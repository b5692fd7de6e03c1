"""Put a file in the place of pyconv._cpu: python docs/with_backend.py FILE runs pyconv's self-test on that backend.

As a plugin it does the same to tests: PYCONV_BACKEND=FILE PYTHONPATH=docs python -m pytest -p with_backend tests/...
"""

import os
import sys
from importlib.util import spec_from_file_location

FILE = os.environ.get("PYCONV_BACKEND") or sys.argv[1]


class Instead:
    """Finds FILE where pyconv._cpu is looked for."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, FILE) if name == "pyconv._cpu" else None


sys.meta_path.insert(0, Instead)

if __name__ == "__main__":
    from pyconv.__main__ import test_level

    sys.exit("the self-test failed" if test_level() else print("the self-test passed"))
