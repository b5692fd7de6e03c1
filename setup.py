"""Build pyconv._cpu: the Cython frame, and one C object per instruction set of the kernels in pyconv/_tiles."""

import platform
import subprocess
import tempfile
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

TILES = Path("pyconv/_tiles")
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = {"portable": []} | ({
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"],
} if X86 else {})
PROBE = """
#include <omp.h>
#include <stdio.h>
int main(void) {
    int n = 0;
    #pragma omp parallel num_threads(2) reduction(+:n)
    n += 1;
    printf("%d\\n", n);
    return 0;
}
"""


def openmp_runs(compiler):
    """Whether a small OpenMP program compiles, links, and runs two threads."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(PROBE)
        try:
            objects = compiler.compile([str(source)], output_dir=folder, extra_postargs=["-fopenmp"])
            compiler.link_executable(objects, "probe", output_dir=folder, extra_postargs=["-fopenmp"])
            answer = subprocess.run([str(Path(folder, "probe"))], capture_output=True, text=True, timeout=30)
            return answer.returncode == 0 and answer.stdout.strip() == "2"
        except Exception:  # whatever a strange compiler raises, the answer is no
            return False


class BuildKernels(build_ext):
    """Compile the kernels once per instruction set with its own flags, and link them into the extension."""

    def build_extension(self, ext):
        openmp = ["-fopenmp"] if openmp_runs(self.compiler) else []
        if not openmp:
            print("pyconv: no working OpenMP here, building for one thread")
        common = ["-O3", "-std=gnu11", "-fno-tree-loop-distribute-patterns"]  # else a few zeros become a call
        headers = [str(path) for path in TILES.glob("*.h")]
        ext.extra_compile_args, ext.extra_link_args = common + openmp, openmp
        ext.extra_objects = []
        for level, flags in LEVELS.items():
            ext.extra_objects += self.compiler.compile(
                [str(TILES / f'{level}.c')], output_dir=self.build_temp, depends=headers,
                extra_postargs=common + flags)
        super().build_extension(ext)


if __name__ == "__main__":
    from Cython.Build import cythonize

    setup(
        cmdclass={"build_ext": BuildKernels},
        ext_modules=cythonize([Extension(
            "pyconv._cpu", ["pyconv/_cpu.pyx", str(TILES / "select.c")],
            define_macros=[("PYCONV_X86_LEVELS", "1")] if X86 else [],
            include_dirs=[numpy.get_include()],
            depends=[str(path) for path in (*TILES.glob("*.h"), *Path("pyconv").glob("*.px[di]"))],
        )]),
    )
