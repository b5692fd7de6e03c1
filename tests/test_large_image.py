"""The example that filters a picture larger than its memory and learns a blur: it runs, within its limit."""
import re
import sys

import numpy as np
import pytest

dask = pytest.importorskip('dask')
pytest.importorskip('sklearn')


@pytest.fixture(scope='module')
def story(example):
    return example('large_image')


def test_quick_run_filters_learns_and_draws(run_example):
    lines = run_example('large_image')
    assert lines[0] == 'the wall: 2560 x 5124 pixels, 150 MB as float32'
    if sys.platform == 'linux':
        assert lines[1] == 'with 96 MB of memory more, conv2d of it all: MemoryError'
        assert int(re.search(r'at most (\d+) MB', lines[-3])[1]) <= 96
    assert '; 0 of 39352320 numbers differ from ' in lines[-3]
    first, last = map(float, re.search(r'difference (\S+) at first, (\S+) at last', lines[-2]).groups())
    assert last < first / 10


def test_a_blur_is_learned_to_the_last_digit(story):
    """Of numbers that nobody rounded, conjugate gradients find the nine of a kernel in nine steps, up to rounding."""
    import dask.array as da

    rng = np.random.default_rng(0)
    sharp, true = rng.standard_normal((2, 1, 40, 30)), rng.standard_normal((1, 1, 3, 3))
    lazily = da.from_array(sharp, chunks=(1, 1, 16, 16))
    blurred = story.conv2d(lazily, true).persist()
    with dask.config.set(scheduler='synchronous'):
        kernel, losses, errors = story.learn_kernel(lazily, blurred, true.shape, 9, true)
    np.testing.assert_allclose(kernel, true, rtol=1e-9)  # the problem's condition is near 1: noise has no direction
    assert losses == sorted(losses, reverse=True) and errors[-1] < 1e-9


def test_shapes_of_the_blurs(story):
    assert story.disc(2)[0, 0].tolist() == [
        [0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]
    assert story.shaken(9).sum() == pytest.approx(1) and (story.shaken(9) >= 0).all()
