"""The driver that runs nothing (stub_cuda.c), compiled."""
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

COMPILER = shlex.split(sysconfig.get_config_var('CC') or '')


def has_compiler():
    """Whether the C compiler of this Python is here."""
    return bool(COMPILER) and shutil.which(COMPILER[0]) is not None


def built(folder):
    """The library, in that folder under the driver's name: once it is loaded, whoever loads the driver gets it."""
    library = folder / 'libcuda.so.1'
    subprocess.run([*COMPILER, '-std=c99', '-shared', '-fPIC', f'-Wl,-soname,{library.name}', '-o', library,
                    Path(__file__).with_suffix('.c'), '-ldl'], check=True)
    return library
