"""Calls of torch's tensors like one before: the same results, the same errors, the same questions to torch."""
import sys

import numpy as np
import pytest

from calls import assert_same_bits, planar
from pyconv import _known, _libraries, _ops

torch = pytest.importorskip('torch')
if _libraries.exchange_of(torch.Tensor) is None:
    pytest.skip('NumPy from 2.1 on reads tensors fast', allow_module_level=True)

X, Y = torch.arange(200.0).reshape(2, 4, 5, 5), torch.arange(100.0).reshape(2, 2, 5, 5)
W, B = torch.arange(72.0).reshape(2, 4, 3, 3), torch.arange(2.0)
V = torch.arange(144.0).reshape(4, 4, 3, 3)  # with as many channels either way
conv, backwards, to_weight = planar(X, W, B, Y)
TRANSFORMS = [torch.compile(lambda x: conv(x), backend='eager'), torch.func.vmap(lambda x: conv(x)),
              torch.func.functionalize(lambda x: conv(x)), torch.func.grad(lambda x: conv(x).sum())]


@pytest.fixture(autouse=True)
def nothing_known():
    _known.forget()
    yield
    _known.forget()


class Sub(torch.Tensor):
    """A kind of tensor with a type of its own."""


def outcome(call):
    """What a call returns, leaves in `out` and counts as writing, or the error that it raises."""
    out = torch.full(Y.shape, 7.0)
    try:
        return call(out), out, np.full((), out._version)
    except (TypeError, ValueError) as error:
        return type(error), str(error).partition('\n')[0]


def freed(first):
    flat = torch.ones(8192)
    weight = flat[first:first + W.numel()].view(W.shape)
    flat.untyped_storage().resize_(0)
    return weight


def over_input(out):
    memory = torch.zeros(X.numel() + Y.numel())
    return conv(memory[:X.numel()].view(X.shape), out=memory[X.numel() - 1:-1].view(Y.shape))


def dual(out, **more):
    with torch.autograd.forward_ad.dual_level():
        made = torch.autograd.forward_ad.make_dual(out, out)
        return torch.autograd.forward_ad.unpack_dual(conv(out=made, **more)).primal


def without_gradients(out):
    with torch.no_grad():
        return conv(out=torch.empty(Y.shape, requires_grad=True)).detach()


def inference(out):
    with torch.inference_mode():
        return conv(out=torch.zeros(Y.shape)).clone()


def traced(out):
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(lambda x: conv(x))(X)


def faked(out):
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode() as mode:
        return conv(mode.from_tensor(X))


BEFORE = [conv, lambda: conv(out=torch.empty_like(Y)), lambda: conv(b=None), lambda: conv(padding='same'), backwards,
          lambda: backwards(out=torch.empty_like(X)), to_weight, lambda: to_weight(out=torch.empty_like(W)),
          lambda: conv(V, V, None), lambda: conv(X.numpy(), W.numpy(), B.numpy())]
LATER = {
    'float stride': lambda out: conv(stride=1.0),
    'bool stride': lambda out: conv(stride=True),
    'no input': lambda out: conv(None),
    'no weight': lambda out: conv(w=None),
    'numpy weight': lambda out: conv(w=W.numpy()),
    'numpy input': lambda out: conv(X.numpy()),
    'numpy out': lambda out: conv(out=out.numpy()),
    'out of numpy arrays': lambda out: conv(X.numpy(), W.numpy(), B.numpy(), out=out),
    'list of numbers': lambda out: conv(b=[0.0, 1.0]),
    'type of its own': lambda out: conv(X.as_subclass(Sub), out=out),
    'parameters': lambda out: conv(torch.nn.Parameter(X), torch.nn.Parameter(W), torch.nn.Parameter(B), out=out),
    'float64': lambda out: conv(X.double(), W.double(), B.double()),
    'float64 weight': lambda out: conv(w=W.double()),
    'float64 bias': lambda out: conv(b=B.double()),
    'float16': lambda out: conv(X.half(), W.half(), B.half()),
    'bfloat16 weight': lambda out: conv(w=W.bfloat16()),
    'complex64': lambda out: torch.view_as_real(conv(X + 1j, (W + 1j).conj(), None)),
    'imaginary part': lambda out: conv((X + 1j * X).conj().imag),
    'weight that is negated': lambda out: conv(w=(W + 1j * W).conj().imag),
    'zeros without memory': lambda out: conv(torch._efficientzerotensor(X.shape)),
    'freed weight': lambda out: conv(w=freed(0)),
    'freed weight, not at the start': lambda out: conv(w=freed(4096)),
    'sparse': lambda out: conv(w=W.to_sparse()),
    'meta': lambda out: conv(w=W.to('meta')),
    'channels last': lambda out: conv(X.to(memory_format=torch.channels_last)),
    'strided': lambda out: conv(X.transpose(2, 3), out=out),
    'other bias': lambda out: conv(b=torch.zeros(3)),
    'other channels': lambda out: conv(w=torch.zeros(2, 3, 3, 3)),
    'batch of nothing': lambda out: conv(X[:0]),
    'out': lambda out: conv(out=out),
    'out of float64': lambda out: conv(out=out.double()),
    'out of another shape': lambda out: conv(out=out[:1]),
    'out in another order': lambda out: conv(out=out.transpose(2, 3)),
    'out with its channels last': lambda out: conv(out=out.to(memory_format=torch.channels_last)),
    'out that overlaps itself': lambda out: conv(out=out[:1].expand(out.shape)),
    'out over the input': over_input,
    'out that is the input': lambda out: conv(V, V, None, out=V),
    'out that requires a gradient': lambda out: conv(out=out.requires_grad_()),
    'out that requires a gradient, where none is recorded': without_gradients,
    'out of zeros without memory': lambda out: conv(out=torch._efficientzerotensor(Y.shape)),
    'out that is negated': lambda out: conv(out=(Y + 1j * Y).conj().imag),
    'out with a tangent': dual,
    'out with a tangent, of numpy arrays': lambda out: dual(out, x=X.numpy(), w=W.numpy(), b=B.numpy()),
    'out on the device meta': lambda out: conv(out=out.to('meta')),
    'buffer': lambda out: conv(out=out, finput=torch.full((5000,), torch.nan)),
    'small buffer': lambda out: conv(out=out, finput=torch.zeros(1)),
    'algorithm': lambda out: conv(algorithm='gemm'),
    'accumulate': lambda out: conv(out=out, accumulate=True),
    'padding mode': lambda out: conv(padding_mode='circular'),
    'result type': lambda out: conv(dtype='f8'),
    'size of a list': lambda out: backwards(list(X.shape)),
    'other size': lambda out: backwards((2, 4, 6, 5)),
    'out of a gradient': lambda out: to_weight(out=out[:, 0, :2, :2]),
    'per sample': lambda out: to_weight(per_sample=True),
    'int for per_sample': lambda out: to_weight(per_sample=0),
    'inference mode': inference,
    'compiled': lambda out: TRANSFORMS[0](X),
    'vmap': lambda out: TRANSFORMS[1](X[None]),
    'functionalize': lambda out: TRANSFORMS[2](X),
    'grad': lambda out: TRANSFORMS[3](X),
    'vmap of something else': lambda out: torch.func.vmap(lambda one: conv() * one)(torch.ones(2)),
    'traced': traced,
    'traced by jit': lambda out: torch.jit.trace(lambda x: conv(x), X, check_trace=False),
    'faked': faked,
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('call', LATER.values(), ids=LATER)
def test_what_differs_in_anything_else(call):
    """The same outcome as where nothing is known, and nothing else of the calls before."""
    torch._dynamo.reset()
    first = outcome(call)
    _known.forget()
    torch._dynamo.reset()
    before = [each() for _ in range(2) for each in BEFORE]
    second = outcome(call)
    if isinstance(first[0], type):
        assert first == second
    else:
        assert type(first[0]) is type(second[0])
        for one, other in zip(first, second):
            assert_same_bits(np.asarray(other), np.asarray(one))
    _known.forget()
    outcome(call)
    for each, wanted in zip(BEFORE, before):
        assert_same_bits(np.asarray(each()), np.asarray(wanted))


def no_geometry(*given):
    raise AssertionError('asked for the geometry again')


@pytest.mark.parametrize('call', BEFORE)
def test_a_second_call_takes_few_steps(call, monkeypatch):
    """Of Python's functions, each of which takes some 0.1 us; the geometry is not asked again."""
    wanted = call()
    for name in ('problem', 'convolved'):
        monkeypatch.setattr(_ops.geometries, name, no_geometry)
    steps = []

    def step(frame, event, _):
        if event == 'call' and 'pyconv' in frame.f_code.co_filename and 'tests' not in frame.f_code.co_filename:
            steps.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        found = call()
    finally:
        sys.setprofile(before)
    assert_same_bits(np.asarray(found), np.asarray(wanted))
    assert len(steps) <= 40, steps
