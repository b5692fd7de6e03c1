"""benchmarks/kinds.py without a clock: products counted, references and peers right, wrong results marked."""
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import reference

torch = pytest.importorskip('torch')
FOLDER = Path(__file__).parents[1] / 'benchmarks'
if not FOLDER.is_dir():
    pytest.skip('installed without its source', allow_module_level=True)
sys.path.append(str(FOLDER))
import harness  # noqa: E402
import kinds  # noqa: E402
import peers  # noqa: E402
import picture  # noqa: E402
from layers import Layer  # noqa: E402

sys.path.remove(str(FOLDER))  # it has a file named cuda

SMALL = Layer(4, 6, (5, 4), (3, 3), 2, (1, 2), groups=2)
FOUR = Layer(2, 3, (3, 4, 3, 2), (3, 2, 2, 1), 1, (2, 1, 1, 0), dilation=2)
GROUPS = kinds._groups(True)
ROWS = [pytest.param(name, map_name, kind, id=f'{name}-{map_name}-{kind}')
        for name, group in GROUPS.items() for map_name in group.maps for kind in group.kinds]


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def small(name):
    return FOUR if name == 'four_axes' else SMALL


def job_of(name, map_name, kind, batch=2):
    try:
        return GROUPS[name].make(small(name), batch, map_name, kind)
    except peers.Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize('layer', [SMALL, SMALL._replace(stride=1, dilation=2, padding=3),
                                   Layer(2, 2, (3,), (2,), 2, 1, transposed=True)], ids=str)
def test_products_are_those_of_the_definition(layer):
    positions, cells = (layer.size, layer.output_size) if layer.transposed else (layer.output_size, layer.size)
    met = made = 0
    for k in itertools.product(*map(range, layer.kernel)):
        for a in itertools.product(*map(range, positions)):
            cell = [layer.stride * i + layer.dilation * j - pad for i, j, pad in zip(a, k, layer.pads)]
            made += 1
            met += all(0 <= c < n for c, n in zip(cell, cells))
    channels = 3 * layer.in_channels * layer.out_channels // layer.groups
    assert met < made
    assert (peers.products(layer, 3, False), peers.products(layer, 3, True)) == (met * channels, made * channels)


def by_definition(layer, map_name, x, w, y, mode, value):
    """A map with what the padded cells hold, each place a cell of its own: gradients of copies are added up."""
    pads = [(pad,) * 2 for pad in layer.pads]
    like = {'constant': 'constant', 'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect'}[mode]
    more = {'constant_values': -1} if mode == 'constant' else {}
    cell = np.pad(np.arange(math.prod(layer.size)).reshape(layer.size), pads, like, **more)
    padded = np.concatenate([x.reshape(*x.shape[:2], -1), np.full((*x.shape[:2], 1), value)], -1)[:, :, cell]
    common = (layer.stride,) * layer.rank, (0,) * layer.rank, (layer.dilation,) * layer.rank, layer.groups
    if map_name == 'forward':
        return reference.forward(padded, w, layer.output_size, *common)
    if map_name == 'grad_weight':
        return reference.grad_weight(padded, y, layer.kernel, *common)
    found = reference.grad_input(w, y, padded.shape[2:], *common)
    grad = np.zeros((*x.shape[:2], math.prod(layer.size) + 1))
    for place, to in np.ndenumerate(cell):
        grad[:, :, to] += found[(..., *place)]
    return grad[:, :, :-1].reshape(x.shape)


@pytest.mark.parametrize('mode', kinds.MODES)
@pytest.mark.parametrize('map_name', harness.MAPS)
def test_references_of_paddings_are_the_definition(map_name, mode):
    job = job_of('padding', map_name, mode)
    x, w, y = (array.double().numpy() for array in harness.operands(SMALL, 2, torch.float32))
    expected = by_definition(SMALL, map_name, x, w, y, mode, peers.PADDING_VALUE)
    np.testing.assert_allclose(job.reference.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('map_name', harness.MAPS)
@pytest.mark.parametrize('name', ['complex', 'four_axes'])
def test_other_references_are_the_definition(name, map_name):
    layer, dtype = small(name), torch.complex128 if name == 'complex' else torch.float64
    x, w, y = (array.numpy() for array in harness.operands(layer, 2, dtype))
    common = (layer.stride,) * layer.rank, layer.pads, (layer.dilation,) * layer.rank, layer.groups
    expected = {'forward': lambda: reference.forward(x, w, layer.output_size, *common),
                'grad_input': lambda: reference.grad_input(w, y, layer.size, *common),
                'grad_weight': lambda: reference.grad_weight(x, y, layer.kernel, *common)}[map_name]()
    if name == 'complex':
        found = peers.complex_reference(layer, map_name, *map(torch.from_numpy, (x, w, y)))
    else:
        found = peers.autograd_call(peers.summed_forward(layer), map_name, *map(torch.from_numpy, (x, w, y)))()
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('name, map_name, kind', ROWS)
def test_everyone_finds_the_same(name, map_name, kind):
    job = job_of(name, map_name, kind)
    assert peers.error_of(job.ours(), job.reference) <= job.limit and set(job.peers) <= set(GROUPS[name].peers)
    for peer, (call, *_) in job.peers.items():
        if peer not in ('zeros a product', 'sum and write', 'own float32', 'torch quantised',
                        'onnxruntime QLinearConv'):
            assert peers.error_of(call(), job.reference) <= 2 * job.limit, peer


@pytest.mark.parametrize('kind', ['int8', 'uint8'])
@pytest.mark.parametrize('make', [peers.quantised_call, peers.runtime_call])
def test_quantised_convolutions_are_rounded_to_their_unit(make, kind):
    x, w = peers.integer_operands(SMALL, 2, getattr(torch, kind))
    w = w // 2                   # processors without VNNI add two products in 16 bits, which more would not fit
    exact = harness.torch_call(SMALL, 'forward', x.double(), w.double(), None)()
    unit = peers.unit_of(exact)
    if make is peers.runtime_call:
        pytest.importorskip('onnx')
        pytest.importorskip('onnxruntime')
    found = make(SMALL, x, w, unit)()
    if isinstance(found, np.ndarray):
        assert found.dtype == kind and np.abs(found.astype(int)).max() == 127
        found = unit * torch.from_numpy(found)
    else:
        found = found.dequantize()
    assert float((found - exact).abs().max()) <= unit * 0.501


def test_threads_of_onnxruntime_rest_between_calls(monkeypatch):
    pytest.importorskip('onnx')
    given, real = [], pytest.importorskip('onnxruntime').InferenceSession
    monkeypatch.setattr('onnxruntime.InferenceSession', lambda *of: given.append(of[1]) or real(*of))
    peers.runtime_call(SMALL, *peers.integer_operands(SMALL, 2, torch.int8))
    assert [options.get_session_config_entry('session.force_spinning_stop') for options in given] == ['1']


def test_versions_are_those_of_what_was_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, 'onnxruntime', SimpleNamespace(__version__='1.2.3'))
    monkeypatch.delitem(sys.modules, 'absent', raising=False)
    assert harness.versions('numpy', 'onnxruntime', 'absent') == {'numpy': np.__version__, 'onnxruntime': '1.2.3'}


def test_integers_wrap():
    layer = SMALL._replace(in_channels=64, out_channels=64)
    job = peers.integers(layer, 1, 'forward', 'int16→int32')
    assert int(job.reference.abs().max()) < 2**31
    x, w = (array.numpy() for array in peers.integer_operands(layer, 1, torch.int16))
    exact = reference.forward(x.astype(np.int64), w.astype(np.int64), layer.output_size, (2, 2), layer.pads, (1, 1), 2)
    assert np.abs(exact).max() > 2**31 and (exact.astype(np.int32) == job.reference.numpy()).all()


def test_errors():
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert peers.error_of(np.array([3, 5], np.float32), exact) == pytest.approx(0.2)
    assert peers.error_of(torch.tensor([3.0, 4.0]), exact) == 0 and peers.error_of(np.ones(3), exact) == math.inf
    assert peers.error_of(np.array([1, 2, 3, 4], np.int8), torch.tensor([1, 2, 3, 2**32 + 4])) == 0.25
    assert peers.error_of(np.array([1j], np.complex64), torch.tensor([2j], dtype=torch.complex128)) == 0.5


def row_of():
    job = peers.Job(lambda: 0, {'zeros a product': peers.Peer(lambda: 0, 2.0, 0.95)}, torch.zeros(1), 1e-6)
    group = GROUPS['padding']._replace(make=lambda *_: job)
    arguments = SimpleNamespace(seconds=0, best=True)
    return group, kinds.time_row(arguments, group, group.network, SMALL, 'forward', 'circular')


def test_a_row_is_checked_and_scaled(monkeypatch):
    monkeypatch.setattr(kinds, 'interleaved_samples', lambda calls, seconds: [[3.0, 2.0], [1.0, 0.9]])
    for error, right in ((1e-7, True), (2e-6, False), (math.nan, False)):
        monkeypatch.setattr(peers, 'error_of', lambda *_: error)
        group, row = row_of()
        assert row['right'] is right and row['pyconv_seconds'] == 2
        assert row['peers'] == {'zeros a product': {'seconds': 0.9, 'ratio': 0.9, 'target': 0.95}}
        text = kinds.row_text(group, row)
        assert '0.90<' in text and text.endswith(' !') is not right and '\n' not in text


def test_what_is_missing_is_said(capsys):
    def make(*_):
        raise peers.Missing('no reason')

    group = GROUPS['halves']._replace(make=make)
    assert kinds.time_row(None, group, group.network, SMALL, 'forward', 'bfloat16') is None
    assert f'{SMALL} bfloat16 is left out: no reason' in capsys.readouterr().out


def test_means():
    rows = [{'group': 'a', 'layer': layer, 'kind': 'k', 'map': 'forward',
             'peers': {'torch': {'ratio': ratio, 'target': 0.95}}} for layer, ratio in (('x', 4.0), ('y', 0.25))]
    [entry] = kinds.summarise(rows)
    assert entry['geometric_mean'] == pytest.approx(1)
    assert (entry['least'], entry['where'], entry['below_target'], entry['layers']) == (0.25, 'y', 1, 2)
    assert 'y, 1 of 2 below' in kinds.summary_text([entry])


def test_layers_have_padding_and_every_kind_is_named():
    for name, group in kinds._groups(False).items():
        assert len(group.network.layers) >= 3 and set(group.maps) <= set(harness.MAPS)
        if name == 'padding':
            assert all(layer.padding for layer in group.network.layers)


def test_a_quick_run_on_one_small_layer(tmp_path):
    command = [sys.executable, FOLDER / 'kinds.py', '--tiny', '--quick', '--best', '--threads', '1', '--maps',
               'forward', 'grad_weight', '--kinds', 'reflect', 'complex64', 'int8', 'float16', 'float32',
               '--output', tmp_path / 'kinds.json']
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / 'kinds.json').read_text())
    assert {row['kind'] for row in record['rows']} == {'reflect', 'complex64', 'int8', 'float16', 'float32'}
    assert record['times'] == 'least' and all(row['right'] for row in record['rows']) and record['summary']
    assert (tmp_path / 'kinds.png').stat().st_size > 10000
    picture.draw_kinds(record, tmp_path / 'again.png')
