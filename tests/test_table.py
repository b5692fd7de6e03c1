"""The table of README.md: what it says of pyconv and of torch is what calls do, where a call can show it; the rest is a
record.
"""
import importlib
from pathlib import Path

import numpy as np
import pytest

import pyconv

README = Path(__file__).parents[1] / 'README.md'
REFUSALS = (TypeError, ValueError, RuntimeError, NotImplementedError)
TORCH = '2.13.'  # the version that the table is about
ALL = (True, True, True)
WORDS = {'Spatial axes': 'any', 'Automatic differentiation': 'by doors'}  # where pyconv's cell is not yes
ELSEWHERE = {'float64 on a GPU', 'Same bits for any threads and batch', 'Works without a framework', 'GPUs'}
rng = np.random.default_rng(0)
X = rng.integers(-3, 4, (2, 4, 8, 9)).astype(np.float64)
W = rng.integers(-3, 4, (6, 4, 3, 3)).astype(np.float64)
Y = rng.integers(-3, 4, (2, 6, 6, 7)).astype(np.float64)
MODES = {'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect', 'constant': 'constant'}


def table():
    """{feature: {library: cell}}, without the numbers of footnotes and the marks of code."""
    section = README.read_text().partition('## Beside others\n')[2].partition('\n## ')[0]
    lines = [line for line in section.splitlines() if line.startswith('|')]
    head, _, *rows = ([cell.strip(' ⁰¹²³⁴⁵⁶⁷⁸⁹') for cell in line.replace('`', '').strip('|').split('|')]
                      for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


TABLE = table()


def same(one, other):
    return one.dtype == other.dtype and np.array_equal(one, other)


def padded(mode):
    """X with one cell of padding on every side, which holds 3 where it is constant."""
    more = {'constant_values': 3} if mode == 'constant' else {}
    return np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)), mode=MODES[mode], **more)


def named(mode):
    """The keywords for what `padded` does."""
    return {'padding': 1, 'padding_mode': mode} | ({'padding_value': 3} if mode == 'constant' else {})


def settings(**changes):
    """convolution's arguments from stride to groups."""
    return tuple(({'stride': 1, 'padding': 0, 'dilation': 1, 'transposed': False, 'output_padding': 0, 'groups': 1}
                  | changes).values())


def adjoint(mode):
    """grad_input of a padding mode: the padded image's gradient, added up where its cells came from."""
    inner = pyconv.conv2d_input((2, 4, 10, 11), W, np.ones((2, 6, 8, 9)))
    rows, columns = ((np.pad(np.arange(size), 1, mode=MODES[mode]) for size in (8, 9)) if mode != 'constant' else
                     (np.arange(-1, 9), np.arange(-1, 10)))
    total = np.zeros_like(X)
    for a, row in enumerate(rows):
        for b, column in enumerate(columns):
            if 0 <= row < 8 and 0 <= column < 9:
                total[:, :, row, column] += inner[:, :, a, b]
    return total


def every_map(kind, **more):
    """Whether the three maps of a type are those of float64; all numbers are small."""
    x, w, y = (array.astype(kind) for array in (X, W, Y))
    found = (pyconv.conv2d(x, w, **more), pyconv.conv2d_input(x.shape, w, y, **more),
             pyconv.conv2d_weight(x, w.shape, y, **more))
    wanted = (pyconv.conv2d(X, W), pyconv.conv2d_input(X.shape, W, Y), pyconv.conv2d_weight(X, W.shape, Y))
    return all(same(one, other.astype(more.get('dtype', kind))) for one, other in zip(found, wanted))


def sixteen_bits():
    return every_map(np.float16) and every_map(pytest.importorskip('ml_dtypes').bfloat16)


def steps():
    """Stride, dilation and groups at once, forward and transposed, of ones."""
    forward = pyconv.conv2d(np.ones((1, 4, 9, 9)), np.ones((6, 2, 3, 3)), stride=2, dilation=2, groups=2)
    transposed = pyconv.conv_transpose2d(np.ones((1, 4, 3, 3)), np.ones((4, 3, 3, 3)), stride=4, dilation=2, groups=2)
    return (forward == 18).all() and transposed.shape == (1, 6, 13, 13) and transposed.sum() == 2 * 9 * 9 * 6


def per_sample():
    found = pyconv.conv2d_weight(X, W.shape, Y, per_sample=True)
    return all(same(one, pyconv.conv2d_weight(x, W.shape, y)) for one, x, y in zip(found, X, Y))


def scratch():
    """What is lent is worked in; what it holds changes nothing."""
    sizes = pyconv.workspace(X.shape, W.shape, dtype=X.dtype)
    finput, fgrad_input = (np.full(size, np.nan) for size in sizes[:2])
    found = (pyconv.conv2d(X, W, finput=finput), pyconv.conv2d_input(X.shape, W, Y, fgrad_input=fgrad_input))
    wanted = pyconv.conv2d(X, W), pyconv.conv2d_input(X.shape, W, Y)
    return all(map(same, found, wanted)) and not any(np.isnan(one).all() for one in (finput, fgrad_input))


def ranks():
    return all((pyconv.convolution(np.ones((1, 1) + (3,) * rank), np.ones((1, 1) + (2,) * rank), None, *settings())
                == 2 ** rank).all() for rank in range(1, 6))


def other_library():
    torch = pytest.importorskip('torch')
    found = pyconv.conv2d(torch.tensor(X), torch.tensor(W))
    return isinstance(found, torch.Tensor) and same(found.numpy(), pyconv.conv2d(X, W))


def onnx():
    arguments = importlib.import_module('pyconv.onnx').conv_transpose_arguments(
        W.shape, auto_pad='SAME_UPPER', strides=[2, 2], output_shape=[12, 13])
    return pyconv.conv_transpose2d(Y, W, **arguments).shape == (2, 4, 12, 13)


def differentiable():
    torch = pytest.importorskip('torch')
    door = pytest.importorskip('pyconv.torch')
    x, w = (torch.tensor(array[:1, :2], requires_grad=True) for array in (X, W))
    return torch.autograd.gradcheck(door.conv2d, (x, w))


PYCONV = {
    'Spatial axes': ranks,
    'Stride, dilation and groups; transposed too': steps,
    'Asymmetric padding': lambda: same(
        pyconv.conv2d(X, W, padding=((1, 0), (0, 2))),
        pyconv.conv2d(np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2))), W)),
    'Negative padding, which crops': lambda: same(
        pyconv.conv2d(X, W, padding=((-1, 0), (0, -2))), pyconv.conv2d(X[:, :, 1:, :-2], W)),
    "'same' with a stride": lambda: same(
        pyconv.conv2d(X, W, padding='same', stride=2),
        pyconv.conv2d(np.pad(X, ((0, 0), (0, 0), (0, 1), (1, 1))), W)[:, :, ::2, ::2]),
    'Sizes rounded up (ceil mode)': lambda: same(
        pyconv.conv2d(X, W, stride=2, output_size=(4, 4)),
        pyconv.conv2d(np.pad(X, ((0, 0), (0, 0), (0, 1), (0, 0))), W)[:, :, ::2, ::2]),
    'Circular, replicate, reflect, constant padding': lambda: all(
        same(pyconv.conv2d(X, W, **named(mode)), pyconv.conv2d(padded(mode), W)) for mode in MODES),
    '– and its gradients': lambda: all(
        same(pyconv.conv2d_input(X.shape, W, np.ones((2, 6, 8, 9)), **named(mode)), adjoint(mode))
        and same(pyconv.conv2d_weight(X, W.shape, np.ones((2, 6, 8, 9)), **named(mode)),
                 pyconv.conv2d_weight(padded(mode), W.shape, np.ones((2, 6, 8, 9)))) for mode in MODES),
    '– and in a transposed convolution': lambda: all(
        same(pyconv.conv_transpose2d(np.ones((2, 6, 8, 9)), W, **named(mode)), adjoint(mode)) for mode in MODES),
    'Complex numbers': lambda: every_map(np.complex64) and same(
        pyconv.conv2d(X + 1j * X, 1j * W), pyconv.conv2d(X, W) * (1j - 1)),
    'Integers, with a chosen accumulator': lambda: all(
        every_map(kind, dtype=wider) for kind in (np.int8, np.int16, np.int32, np.int64)
        for wider in (np.int32, np.int64)),
    'float16 and bfloat16': sixteen_bits,
    'grad_input and grad_weight as functions': lambda: every_map(np.float32),
    'Gradients of gradients': lambda: same(
        pyconv.convolution_double_backward(X, None, None, Y, W, X, *settings(), ALL)[0], pyconv.conv2d(X, W)),
    'Derivative in a direction (forward mode)': lambda: same(
        pyconv.conv_jvp(X, W, X, None), pyconv.conv2d(X, W)),
    'Weight gradient of each sample': per_sample,
    "Adds its result to the caller's array": lambda: same(
        pyconv.conv2d_weight(X, W.shape, Y, out=W.copy(), accumulate=True), W + pyconv.conv2d_weight(X, W.shape, Y)),
    'Scratch memory of the caller': scratch,
    'Input without a batch axis': lambda: same(pyconv.conv2d(X[0], W), pyconv.conv2d(X, W)[0]),
    "Takes and returns other libraries' arrays": other_library,
    "ONNX's attributes as arguments": onnx,
    'Automatic differentiation': differentiable,
}


# --- torch: each of these shows the cell that torch has ---


def refuses(function, *arguments, **keywords):
    with pytest.raises(REFUSALS):
        function(*arguments, **keywords)
    return True


class Torch:
    """torch's functions, and the arrays of this file as its tensors."""

    def __init__(self, torch):
        self.nn, self.F, self.func, self.autograd = torch.nn, torch.nn.functional, torch.func, torch.autograd
        self.torch, self.x, self.w, self.y = torch, *map(torch.tensor, (X, W, Y))
        self.small = [torch.tensor(array[:1, :1, :4, :4], requires_grad=True) for array in (X, W)]

    def pad_then(self, mode):
        """The convolution of a padded copy, as torch.nn's layers make it."""
        return lambda x, w: self.F.conv2d(self.F.pad(x, (1, 1, 1, 1), mode), w)

    def ranks(self):
        for function, rank in ((self.F.conv1d, 1), (self.F.conv2d, 2), (self.F.conv3d, 3)):
            function(self.torch.ones((1, 1) + (3,) * rank), self.torch.ones((1, 1) + (2,) * rank))
        x, w = (self.torch.ones((1, 1) + (size,) * 4) for size in (3, 2))
        return refuses(self.torch.convolution, x, w, None, [1] * 4, [0] * 4, [1] * 4, False, [0] * 4, 1)

    def steps(self):
        ones = self.torch.ones
        self.F.conv2d(ones(1, 4, 9, 9), ones(6, 2, 3, 3), stride=2, dilation=2, groups=2)
        self.F.conv_transpose2d(ones(1, 4, 3, 3), ones(4, 3, 3, 3), stride=4, dilation=2, groups=2)
        return True

    def asymmetric(self):
        self.F.conv2d(self.F.pad(self.x, (0, 2, 1, 0)), self.w)
        return refuses(self.F.conv2d, self.x, self.w, padding=((1, 0), (0, 2)))

    def negative(self):
        self.F.conv2d(self.F.pad(self.x, (0, -2, -1, 0)), self.w)
        return refuses(self.F.conv2d, self.x, self.w, padding=-1)

    def modes(self):
        for mode in ('circular', 'replicate', 'reflect'):
            assert np.array_equal(self.pad_then(mode)(self.x, self.w), pyconv.conv2d(X, W, **named(mode)))
        return refuses(self.F.conv2d, self.x, self.w, padding=1, padding_mode='circular')

    def gradients_of_modes(self):
        return all(self.autograd.gradcheck(self.pad_then(mode), self.small) for mode in MODES)

    def transposed_modes(self):
        _, back = self.func.vjp(lambda x: self.pad_then('circular')(x, self.w), self.x)
        ones = self.torch.ones(2, 6, 8, 9, dtype=self.x.dtype)
        return np.array_equal(back(ones)[0], adjoint('circular')) and all(
            refuses(self.nn.ConvTranspose2d, 6, 4, 3, padding=1, padding_mode=mode) for mode in MODES)

    def integers(self):
        x, w = (self.torch.full(shape, 127, dtype=self.torch.int8) for shape in ((1, 4, 3, 3), (1, 4, 3, 3)))
        found = self.F.conv2d(x, w)
        return found.dtype is self.torch.int8 and found.item() == (36 * 127 * 127 + 128) % 256 - 128 and refuses(
            self.nn.grad.conv2d_weight, x, w.shape, found)

    def each_type(self, *names):
        for name in names:
            x, w = (one.to(getattr(self.torch, name)).requires_grad_() for one in (self.x, self.w))
            assert self.F.conv2d(x, w).dtype is x.dtype
            self.autograd.grad(self.F.conv2d(x, w).abs().sum(), (x, w))
        return True

    def functions(self):
        return np.array_equal(self.nn.grad.conv2d_input(X.shape, self.w, self.y), pyconv.conv2d_input(X.shape, W, Y)) \
            and np.array_equal(self.nn.grad.conv2d_weight(self.x, W.shape, self.y), pyconv.conv2d_weight(X, W.shape, Y))

    def per_sample(self):
        of_one = self.func.grad(lambda w, x, y: (self.F.conv2d(x, w) * y).sum())
        found = self.func.vmap(of_one, (None, 0, 0))(self.w, self.x, self.y)
        return np.array_equal(found, pyconv.conv2d_weight(X, W.shape, Y, per_sample=True))

    def unbatched(self):
        x = self.x[0].clone().requires_grad_()
        return self.autograd.grad(self.F.conv2d(x, self.w).sum(), x)[0].shape == x.shape


SHOWS = {  # of the other cells no call shows that a thing is not there
    ('Spatial axes', '1 to 3'): Torch.ranks,
    ('Stride, dilation and groups; transposed too', 'yes'): Torch.steps,
    ('Asymmetric padding', 'copy'): Torch.asymmetric,
    ('Negative padding, which crops', 'copy'): Torch.negative,
    ("'same' with a stride", 'no'): lambda t: refuses(t.F.conv2d, t.x, t.w, padding='same', stride=2),
    ('Circular, replicate, reflect, constant padding', 'copy'): Torch.modes,
    ('– and its gradients', 'copy'): Torch.gradients_of_modes,
    ('– and in a transposed convolution', 'vjp'): Torch.transposed_modes,
    ('Complex numbers', 'yes'): lambda t: t.each_type('complex64', 'complex128'),
    ('Integers, with a chosen accumulator', 'own type'): Torch.integers,
    ('float16 and bfloat16', 'yes'): lambda t: t.each_type('float16', 'bfloat16'),
    ('grad_input and grad_weight as functions', 'yes'): Torch.functions,
    ('Gradients of gradients', 'yes'): lambda t: t.autograd.gradgradcheck(t.F.conv2d, t.small),
    ('Derivative in a direction (forward mode)', 'yes'): lambda t: np.array_equal(
        t.func.jvp(t.F.conv2d, (t.x, t.w), (t.x, 0 * t.w))[1], pyconv.conv2d(X, W)),
    ('Weight gradient of each sample', 'vmap'): Torch.per_sample,
    ('Input without a batch axis', 'yes'): Torch.unbatched,
    ("Takes and returns other libraries' arrays", 'no'): lambda t: refuses(t.F.conv2d, X, W),
    ('Works without a framework', 'no'): lambda t: refuses(t.F.conv2d, X, W),
    ('Automatic differentiation', 'yes'): lambda t: t.autograd.gradcheck(t.F.conv2d, t.small),
}


# --- the table ---


@pytest.mark.parametrize('feature', PYCONV)
def test_pyconv_does_what_its_cell_says(feature):
    assert TABLE[feature]['pyconv'] == WORDS.get(feature, 'yes')
    assert PYCONV[feature]()


@pytest.mark.parametrize(('feature', 'cell'), SHOWS)
def test_torch_does_what_its_cell_says(feature, cell):
    assert TABLE[feature]['torch'] == cell
    torch = pytest.importorskip('torch')
    if not torch.__version__.startswith(TORCH):
        pytest.skip(f'the table is about torch {TORCH}x')
    assert SHOWS[feature, cell](Torch(torch))


def test_every_yes_of_pyconv_is_shown():
    """Here, or by tests that have a file: of bits and of the GPU."""
    assert set(TABLE) - set(PYCONV) == ELSEWHERE
    assert all(cell for row in TABLE.values() for cell in row.values())


def test_the_versions_are_named():
    assert f'torch {TORCH}' in README.read_text()
