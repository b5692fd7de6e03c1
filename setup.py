"""Build pyconv._cpu: the Cython frame, and one C object per instruction set of the kernels in pyconv/_tiles.

pyconv._driver and pyconv._xla are Cython alone. The kernels are written with gcc's vectors, for gcc and clang; on
Windows that is clang-cl, which is looked for on PATH. Linux with gcc is what has been tested.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

TILES = Path("pyconv/_tiles")
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = ({  # those that take longest to compile first
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mf16c", "-mprefer-vector-width=512"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
} if X86 else {}) | {"portable": ["-O2"] if X86 else []}  # a third less to compile, for processors of before 2013
if X86:
    LEVELS["avx2_pairs"] = LEVELS["avx2"]
    LEVELS["vnni"] = [*LEVELS["avx512"], "-mavx512vnni", "-mavx512vbmi"]
    LEVELS["avx512_pairs"] = LEVELS["vnni"]
    LEVELS["amx"] = [*LEVELS["vnni"], "-mbmi2", "-mamx-tile", "-mamx-int8", "-mamx-bf16"]  # gcc has these from 11 on
# the others have kernels of floats and of whole numbers, made side by side
OF_CELLS = "avx2_pairs", "avx512_pairs", "vnni", "amx"
PROBE_OF_MATRICES = 'int main(void) { __asm__ volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); return 0; }\n'
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


OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xpreprocessor", "-fopenmp"], ["-lomp"])]  # the second is Apple's clang
OPENMP_OF_WINDOWS = [(["/clang:-fopenmp"], ["libomp.lib"])]


def compiled(compiler, text, folder, flags):
    """The objects of a small program."""
    source = Path(folder, "probe.c")
    source.write_text(text)
    return compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)


def has_matrices(compiler, flags):
    """Whether the compiler and its assembler know AMX; the system has to, too, which is what Linux does."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return platform.system() == "Linux" and bool(compiled(compiler, PROBE_OF_MATRICES, folder, flags))
        except Exception:  # whatever a strange compiler raises, the answer is no
            return False


def openmp_runs(compiler, compile_flags, link_flags):
    """Whether a small OpenMP program compiles, links, and runs two threads."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            objects = compiled(compiler, PROBE, folder, compile_flags)
            compiler.link_executable(objects, "probe", output_dir=folder, extra_postargs=link_flags)
            answer = subprocess.run([str(Path(folder, "probe"))], capture_output=True, text=True, timeout=30)
            return answer.returncode == 0 and answer.stdout.strip() == "2"
        except Exception:  # whatever a strange compiler raises, the answer is no
            return False


def clang_cl():
    """The path of clang-cl; Microsoft's own compiler has no vectors of this kind."""
    found = shutil.which("clang-cl")
    if not found:
        raise SystemExit("pyconv needs clang-cl on Windows, and it must be on PATH; LLVM's installer brings it")
    return found


class BuildKernels(build_ext):
    """Compile the kernels once per instruction set with its own flags, and link them into pyconv._cpu."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or len(self.extensions)  # which wait for the longest

    def build_extension(self, ext):
        if ext.name == "pyconv._cpu":
            ext.depends = [*ext.depends, *ext.sources, *(str(TILES / f"{level}.c") for level in LEVELS), "setup.py"]
            if self.force or newer_group(ext.depends, self.get_ext_fullpath(ext.name)):
                self.compile_together(ext)
        super().build_extension(ext)

    def compile_together(self, ext):
        """Compile the kernels and the extension's own sources side by side; what is left of it is to link them."""
        is_windows = self.compiler.compiler_type == "msvc"
        if is_windows:
            self.compiler.initialize()
            self.compiler.cc = clang_cl()
        ways = OPENMP_OF_WINDOWS if is_windows else OPENMP
        openmp, link_flags = next((way for way in ways if openmp_runs(self.compiler, *way)), ([], []))
        if not openmp:
            print("pyconv: no working OpenMP here, building for one thread")
        levels = LEVELS
        if X86 and has_matrices(self.compiler, LEVELS["amx"]):
            ext.define_macros.append(("PYCONV_MATRICES", "1"))
        elif X86:
            print("pyconv: this compiler does not know AMX, building without it")
            levels = {level: flags for level, flags in LEVELS.items() if level != "amx"}
        # without the second a few zeros become a call; what debuggers read would take a quarter of the time
        common = ["-O3", "-fno-tree-loop-distribute-patterns", "-std=gnu11", "-g0"]
        headers = [str(path) for path in TILES.glob("*.h")]

        def spelled(flags):
            return [f"/clang:{flag}" for flag in flags] if is_windows else flags

        def objects_of(source, flags, kind=""):
            macros = [*ext.define_macros, *[(kind, "1")] * bool(kind)]
            return self.compiler.compile(
                [str(source)], output_dir=str(Path(self.build_temp, kind)), depends=headers, macros=macros,
                include_dirs=ext.include_dirs, extra_postargs=spelled(common) + flags)

        jobs = [(TILES / f"{level}.c", spelled(flags), kind) for level, flags in levels.items()
                for kind in ([""] if level in OF_CELLS else ["FLOATS", "WHOLE_NUMBERS"])]
        jobs += [(source, openmp, "") for source in ext.sources]
        with ThreadPoolExecutor(1 if is_windows else os.cpu_count()) as pool:  # half a minute each
            ext.extra_objects = [found for objects in pool.map(objects_of, *zip(*jobs)) for found in objects]
        ext.sources, ext.extra_link_args = [], link_flags


if __name__ == "__main__":
    from Cython.Build import cythonize

    setup(
        cmdclass={"build_ext": BuildKernels},
        ext_modules=cythonize([
            Extension(
                "pyconv._cpu", ["pyconv/_cpu.pyx", str(TILES / "select.c")],
                define_macros=[("PYCONV_X86_LEVELS", "1")] if X86 else [],
                include_dirs=[numpy.get_include()],
                depends=[str(path) for path in (*TILES.glob("*.h"), *Path("pyconv").glob("*.px[di]"))],
            ),
            Extension("pyconv._driver", ["pyconv/_driver.pyx"]),
            Extension("pyconv._xla", ["pyconv/_xla.pyx"], include_dirs=[numpy.get_include()]),
        ]),
    )
