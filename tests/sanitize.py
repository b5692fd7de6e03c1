"""Run tests of the GPU's kernels under NVIDIA's compute-sanitizer: what an emulator in lock step cannot see.

    python tests/sanitize.py                              memcheck, racecheck and synccheck, at most two minutes each
    python tests/sanitize.py --tools racecheck --seconds 600 -k 'float16'

memcheck finds accesses beyond memory, racecheck a missing barrier between two uses of shared memory, synccheck barriers
that not all threads reach. Chosen by default: tests/test_cuda.py on the real GPU, of each way to multiply a few
problems (both tiles, sums in parts, padding and its modes, strides, groups, a tail in every direction). Everything runs
ten to a hundred times slower than otherwise.

The kernels should be compiled before (any earlier `pytest -m gpu` does that). torch's cache of memory is switched off
for memcheck: with it, an access behind an array would hit the next one and not be seen. The exit status is 0 where all
tools ran and found nothing; each tool's verdict is the last line of what is printed for it.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS.parent))

from pyconv._gpu import tiles  # noqa: E402

TOOLS = ('memcheck', 'racecheck', 'synccheck')
FOUND = 86  # the exit status where a tool has found something; pytest has 0 to 5
PROBLEMS = ('2d-stride-2', '2d-groups-of-4', '2d-crop-strided-dilated', '2d-many-input-channels', '2d-channels-33-33',
            '2d-depthwise-strided', 'reflect-2d-cropped-and-padded')
CHOSEN = f'real and (every_way or large_tiles or padding_modes) and ({" or ".join(PROBLEMS)})'
# What pyconv's kernels are called: the others are torch's, and slow to watch.
KERNELS = tuple(sorted({one.source.name for one in tiles.configurations()}))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--tools', nargs='+', choices=TOOLS, default=list(TOOLS))
    parser.add_argument('--seconds', type=float, default=120, help='for each tool (default: 120)')
    parser.add_argument('-k', dest='chosen', default=CHOSEN, help="pytest's expression for the tests")
    parser.add_argument('--sanitizer', help='where compute-sanitizer is, if not on the PATH or in CUDA_HOME')
    return parser.parse_args()


def find(given):
    """The program; None where there is none."""
    homes = [os.environ.get(name) for name in ('CUDA_HOME', 'CUDA_PATH')] + ['/usr/local/cuda']
    folders = [Path(home, folder) for home in homes if home for folder in ('bin', 'compute-sanitizer')]
    places = [folder / 'compute-sanitizer' for folder in folders]
    return given or shutil.which('compute-sanitizer') or next((str(place) for place in places if place.exists()), None)


def filters(program):
    """Options for pyconv's kernels alone; older versions have another word for them, and none is no harm."""
    usage = subprocess.run([program, '--help'], capture_output=True, text=True).stdout
    word = next((word for word in ('--kernel-name', '--kernel-regex') if re.search(f'{word}[ =]', usage)), None)
    return [part for kernel in KERNELS for part in (word, f'kns={kernel}')] if word else []


def command(program, tool, chosen):
    """What runs the chosen tests under the tool, in one process."""
    return [program, '--tool', tool, '--error-exitcode', str(FOUND), '--print-limit', '20', *filters(program),
            sys.executable, '-m', 'pytest', '-q', '-x', '-p', 'no:cacheprovider', '-m', 'gpu', '-k', chosen,
            str(TESTS / 'test_cuda.py')]


def verdict(tool, status, output, seconds):
    """(whether nothing was found, one line that says so), from the exit status and what the tool printed."""
    summaries = re.findall(r'^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$', output, re.MULTILINE)
    [ran] = re.findall(r'^.*?(\d+) passed', output, re.MULTILINE)[-1:] or ['0']
    said = summaries[-1] if summaries else 'no summary'
    clean = all(re.search(r'SUMMARY: 0 (errors|hazards)', summary) for summary in summaries)
    if status is None:
        return False, f'{tool}: out of time after {seconds:.0f} s; {said}'
    if status == 0 and int(ran) and summaries and clean:
        return True, f'{tool}: passed, {ran} tests in {seconds:.0f} s; {said}'
    why = {FOUND: 'it found something', 5: 'no test was chosen'}.get(status, f'exit status {status}')
    return False, f'{tool}: failed, {why}; {ran} tests passed in {seconds:.0f} s; {said}'


def run(words, seconds, environment):
    """(exit status, None where time ran out; all that was printed)."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                             errors='replace', start_new_session=True)
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0]
    return child.returncode, output


def main():
    arguments = parse_arguments()
    program = find(arguments.sanitizer)
    if program is None:
        sys.exit('compute-sanitizer must be on the PATH or in CUDA_HOME; it comes with the CUDA toolkit')
    failed = False
    for tool in arguments.tools:
        paths = [str(TESTS.parent), *filter(None, [os.environ.get('PYTHONPATH')])]
        environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(paths)}
        if tool == 'memcheck':
            environment['PYTORCH_NO_CUDA_MEMORY_CACHING'] = '1'
        start = time.perf_counter()
        status, output = run(command(program, tool, arguments.chosen), arguments.seconds, environment)
        print(output)
        passed, line = verdict(tool, status, output, time.perf_counter() - start)
        failed |= not passed
        print(line, flush=True)
    sys.exit(failed)


if __name__ == '__main__':
    main()
