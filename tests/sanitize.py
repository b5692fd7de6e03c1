"""Run the GPU's tests under NVIDIA's compute-sanitizer: what an emulator in lock step cannot see.

    python tests/sanitize.py                          the whole list of problems: memcheck, racecheck, then synccheck
    python tests/sanitize.py --problems few --seconds 120
    python tests/sanitize.py --tools racecheck -k 'float16'

memcheck finds accesses beyond memory, racecheck a missing barrier between two uses of shared memory, synccheck barriers
that not all threads reach. First come a few problems of tests/test_cuda.py, each in every way to multiply (both tiles,
sums in parts, padding and its modes, strides, groups, a tail in every direction), then a stride's phases, then all
problems in every way and every type (tests/test_cuda_whole_list.py), those that differ most before the rest: so a limit
of time cuts off what is least likely to find anything, and the tool's verdict says how many tests had passed.
Everything runs ten to a hundred times slower than otherwise. On an H100, 2026-11-27, beside other tests, memcheck went
through 47 tests of large tiles, padding modes and phases in 12 s, racecheck in 59, and neither found anything; the day
before synccheck went through 45 in 7. The whole list has not been run under any of the three.

The kernels should be compiled before (any earlier `pytest -m gpu` does that). torch's cache of memory is switched off
for memcheck: with it, an access behind an array would hit the next one and not be seen. memcheck is told to leave
errors of calls on the host alone: cuda-bindings asks the driver for functions in a way that some drivers refuse, and
copes with that; an error that pyconv does not cope with fails its test. The exit status is 0 where all tools ran and
found nothing; each tool's verdict is the last line of what is printed for it.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS.parent))

from pyconv._gpu import configurations  # noqa: E402

TOOLS = ('memcheck', 'racecheck', 'synccheck')
FOUND = 86  # the exit status where a tool has found something; pytest has 0 to 5
PROBLEMS = ('2d-stride-2', '2d-groups-of-4', '2d-crop-strided-dilated', '2d-many-input-channels', '2d-channels-33-33',
            '2d-depthwise-strided', 'reflect-2d-cropped-and-padded')
FEW = (f'real and ((every_way or large_tiles or padding_modes) and ({" or ".join(PROBLEMS)})'
       ' or test_phases and (phases-float16 or one-phase-float16 or phases-float64 or one-phase-float64))')
CHOSEN = {'few': FEW, 'all': f'({FEW}) or (real and every_problem_in_every_type)'}
FILES = 'test_cuda.py', 'test_cuda_spreading.py', 'test_cuda_whole_list.py'
# What pyconv's kernels are called: the others are torch's, and slow to watch.
KERNELS = tuple(sorted({one.source.name for one in configurations.all_kernels()}))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--tools', nargs='+', choices=TOOLS, default=list(TOOLS))
    parser.add_argument('--problems', choices=CHOSEN, default='all', help='(default: all)')
    parser.add_argument('--seconds', type=float, default=threading.TIMEOUT_MAX, help='for each tool (default: any)')
    parser.add_argument('-k', dest='chosen', help="pytest's expression for the tests, in place of --problems")
    parser.add_argument('--sanitizer', help='where compute-sanitizer is, if not on the PATH or in CUDA_HOME')
    return parser.parse_args()


def pytest_collection_modifyitems(items):
    """The tests in order of use: pytest loads this file as a plugin."""
    from problems import VARIED, VARIED_MODES
    varied = {str(problem) for problem in VARIED + VARIED_MODES}

    def place(item):
        """Of a few problems each in all ways before the next; of the list those that differ most."""
        if item.path.name != FILES[-1]:
            return next((number for number, name in enumerate(PROBLEMS) if name in item.name), len(PROBLEMS))
        return len(PROBLEMS) + 1 + (str(item.callspec.params['problem']) not in varied)

    items.sort(key=place)


def find(given):
    """The program; None where there is none."""
    homes = [os.environ.get(name) for name in ('CUDA_HOME', 'CUDA_PATH')] + ['/usr/local/cuda']
    folders = [Path(home, folder) for home in homes if home for folder in ('bin', 'compute-sanitizer')]
    places = [folder / 'compute-sanitizer' for folder in folders]
    return given or shutil.which('compute-sanitizer') or next((str(place) for place in places if place.exists()), None)


def options(program, tool):
    """pyconv's kernels alone, for which older versions have another word, and no errors of calls on the host.

    An option that a version does not know is left out: that is no harm.
    """
    usage = subprocess.run([program, '--help'], capture_output=True, text=True).stdout

    def known(*words):
        return next((word for word in words if re.search(f'{word}[ =]', usage)), None)

    word = known('--kernel-name', '--kernel-regex')
    found = [part for kernel in KERNELS for part in (word, f'kns={kernel}')] if word else []
    if tool == 'memcheck' and known('--report-api-errors'):
        found += ['--report-api-errors', 'no']
    return found


def command(program, tool, chosen):
    """What runs the chosen tests under the tool, in one process."""
    return [program, '--tool', tool, '--error-exitcode', str(FOUND), '--print-limit', '20', *options(program, tool),
            *words_for_pytest(chosen)]


def words_for_pytest(chosen):
    return [sys.executable, '-u', '-m', 'pytest', '-v', '-x', '-p', 'no:cacheprovider', '-p', 'sanitize', '-m', 'gpu',
            *(str(TESTS / file) for file in FILES), '-k', chosen]


def environment_of(tool):
    """This checkout, and this file as a plugin, first."""
    paths = [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get('PYTHONPATH')])]
    uncached = {'PYTORCH_NO_CUDA_MEMORY_CACHING': '1'} if tool == 'memcheck' else {}
    return {**os.environ, **uncached, 'PYTHONPATH': os.pathsep.join(paths)}


def verdict(tool, status, output, seconds):
    """(whether nothing was found, one line that says so), from the exit status and what the tool printed.

    There may be several summaries: one for each process, and one more that counts what was not printed, which is no
    total. Nothing was found if there is a total and every number of every summary is zero.
    """
    summaries = re.findall(r'^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$', output, re.MULTILINE)
    totals = [summary for summary in summaries if 'not printed' not in summary]
    unclean = [summary for summary in summaries if any(map(int, re.findall(r'\d+', summary)))]
    ran = len(re.findall(r'\bPASSED\b', output))
    [chosen] = re.findall(r'(\d+) (?:selected|items?)$', output, re.MULTILINE)[:1] or ['0']
    said = '; '.join(dict.fromkeys(unclean or totals)) or 'no summary'
    if status is None:
        return False, f'{tool}: out of time after {seconds:.0f} s; {ran} of {chosen} tests had passed; {said}'
    if status == 0 and ran and totals and not unclean:
        return True, f'{tool}: passed, {ran} tests in {seconds:.0f} s; {said}'
    why = {FOUND: 'it found something', 5: 'no test was chosen'}.get(status, f'exit status {status}')
    return False, f'{tool}: failed, {why}; {ran} of {chosen} tests passed in {seconds:.0f} s; {said}'


def run(words, seconds, environment):
    """(exit status, None where time ran out; all that was printed), which is shown as it comes."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                             errors='replace', start_new_session=True)
    out_of_time = threading.Event()

    def end():
        out_of_time.set()
        os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    lines = []
    for line in child.stdout:
        print(line, end='', flush=True)
        lines.append(line)
    timer.cancel()
    status = child.wait()
    return None if out_of_time.is_set() else status, ''.join(lines)


def main():
    arguments = parse_arguments()
    program = find(arguments.sanitizer)
    if program is None:
        sys.exit('compute-sanitizer must be on the PATH or in CUDA_HOME; it comes with the CUDA toolkit')
    failed = False
    for tool in arguments.tools:
        start = time.perf_counter()
        words = command(program, tool, arguments.chosen or CHOSEN[arguments.problems])
        status, output = run(words, arguments.seconds, environment_of(tool))
        passed, line = verdict(tool, status, output, time.perf_counter() - start)
        failed |= not passed
        print(line, flush=True)
    sys.exit(failed)


if __name__ == '__main__':
    main()
