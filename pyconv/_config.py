"""What runs here: the version, the instruction set in use, the threads."""

import platform

import numpy as np

from pyconv._backend import cpu
from pyconv._threads import get_num_threads

__version__ = "0.1.0"


def show_config() -> None:
    """Print the configuration: versions, the instruction set in use and those there are, OpenMP, threads.

    The environment variable PYCONV_CPU_LEVEL, read at import, forces an instruction set.

    >>> show_config()  # doctest: +ELLIPSIS
    pyconv   0.1.0
    ...
    """
    config = cpu.config()
    rows = {
        "pyconv": __version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "level": f"{config['level']} (of {', '.join(config['levels'])})",
        "OpenMP": "yes" if config["openmp"] else "no: one thread",
        "threads": get_num_threads(),
    }
    for name, value in rows.items():
        print(f"{name:8} {value}")
