"""A GPU for the tests: emulated on any machine, real where there is one. Both take and give NumPy arrays."""
import numpy as np
import pytest

from emulated_device import EmulatedArray, EmulatedDevice, emulated_kind
from emulator import bf16_of_bits, bits_of_bf16
from problems import LESS
from pyconv._gpu import launch, tiles

DTYPES = ('float16', 'bfloat16', 'float32', 'float64')
# The ways to multiply, by name: dtype and keywords.
WAYS = {
    'float32': ('float32', {}), 'tf32': ('float32', {'allow_tf32': True}),
    'tf32x3': ('float32', {'algorithm': 'tf32x3'}), 'float64': ('float64', {}),
    'float16': ('float16', {}), 'bfloat16': ('bfloat16', {}),
    'wgmma float16': ('float16', {'algorithm': 'wgmma'}), 'wgmma bfloat16': ('bfloat16', {'algorithm': 'wgmma'}),
    'wgmma tf32': ('float32', {'algorithm': 'wgmma', 'allow_tf32': True}),
    'float64 m16n8k16': ('float64', {'algorithm': 'm16n8k16'}),
}


def rounded(values, dtype):
    """Values as that dtype holds them, in a NumPy float."""
    if dtype == 'bfloat16':
        return bf16_of_bits(bits_of_bf16(np.asarray(values, np.float32)))
    with np.errstate(over='ignore'):
        return np.asarray(values).astype(dtype)


class Emulated:
    """The lock-step emulator behind pyconv's own device and array interfaces."""

    def __init__(self, monkeypatch, **settings):
        from pyconv import _cuda
        from pyconv._gpu import kinds, launch

        self.device = EmulatedDevice(**settings)
        self.memory = self.device.memory
        monkeypatch.setattr(launch, 'device', lambda index: self.device)
        monkeypatch.setattr(kinds, 'KINDS', [emulated_kind(self.memory), *kinds.KINDS])
        _cuda.forget()

    def upload(self, array, dtype):
        """The array in GPU memory in its own layout, whatever its strides are."""
        with np.errstate(over='ignore'):
            return EmulatedArray.from_numpy(self.memory, np.asarray(array), dtype)

    def empty(self, shape, dtype):
        """New memory, of NaN."""
        return EmulatedArray.empty(self.memory, shape, dtype)

    def download(self, array):
        return array.to_numpy()


class Real:
    """The GPU of this machine, through torch's tensors."""

    def __init__(self):
        import torch

        from pyconv import _cuda

        self.torch = torch
        _cuda.forget()  # a test may have changed what plans depend on

    def upload(self, array, dtype):
        torch = self.torch
        given = np.asarray(array)
        order = sorted(range(given.ndim), key=lambda axis: -abs(given.strides[axis]))
        dense = torch.from_numpy(np.ascontiguousarray(
            given.transpose(order).astype(np.float64 if 'float' in dtype else dtype)))
        tensor = dense.to('cuda', getattr(torch, dtype))
        return tensor.permute(*np.argsort(order)) if order else tensor

    def empty(self, shape, dtype):
        poison = 1 if 'int' in dtype else np.nan
        return self.torch.full(shape, poison, dtype=getattr(self.torch, dtype), device='cuda')

    def download(self, array):
        half = array.dtype in (self.torch.float16, self.torch.bfloat16)
        return (array.float() if half else array).cpu().numpy()


def less(gpu, problem):
    """The problem, or where the GPU is emulated one like it that takes less."""
    return LESS.get(problem.name, problem) if isinstance(gpu, Emulated) else problem


def tiles_of(dtype, keywords):
    """How many tiles a way of WAYS has."""
    element = tiles.ELEMENTS[dtype]
    way = tiles.way_of(element, keywords.get('algorithm', 'auto'), keywords.get('allow_tf32', False), (9, 0))
    return len(tiles.tiles(way, element))


# Of those whose kernels differ by more than how a number is read, multiplied and kept, as bfloat16's do from float16's.
DISTINCT = [way for way in WAYS if 'bfloat16' not in way]
# (way, number of a tile): of warpgroups' tiles, of which test_hopper has all, two, and of those of tf32 one.
FEW_TILES = {'wgmma float16': 2, 'wgmma tf32': 1}
IN_TILES = [(name, size) for name in DISTINCT for size in range(FEW_TILES.get(name) or tiles_of(*WAYS[name]))]


def take_tile(monkeypatch, size):
    """Every product in its tile of that number, or in its last where it has fewer."""
    def tile_of(way, element, results, blocks, seconds=None, **how):
        found = tiles.tiles(way, element, **how)
        return found[min(size, len(found) - 1)]
    monkeypatch.setattr(tiles, 'tile_of', tile_of)


def skip_what_the_chip_lacks(request):
    """Skip a test whose parameter `way` is one of Hopper's own, where the GPU is another."""
    parameters = request.node.callspec.params if hasattr(request.node, 'callspec') else {}
    _, keywords = WAYS.get(parameters.get('way'), (None, {}))
    capability = launch.device(0).capability
    if keywords.get('algorithm') in tiles.HOPPERS and capability != (9, 0):
        pytest.skip(f'{keywords["algorithm"]} is of capability 9.0; this GPU has {capability[0]}.{capability[1]}')


def real_gpu():
    """Why there is no GPU for the tests, or None where there is one."""
    try:
        import torch
    except ImportError:
        return 'torch, whose CUDA tensors the tests use, is not installed'
    return None if torch.cuda.is_available() else 'this machine has no GPU that torch sees'
