"""Emulated arrays keep values and layouts, the emulated device keeps to what a GPU allows."""
import numpy as np
import pytest

from emulated_device import EmulatedArray, EmulatedDevice
from emulated_memory import ORIGIN
from emulator import KernelError, Memory
from gpus import DTYPES, Emulated


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
@pytest.mark.parametrize('view', [
    lambda x: x, lambda x: x.transpose(0, 2, 1), lambda x: x[::-1, :, ::2], lambda x: x[1:1], lambda x: x[..., 3:1:-1],
    lambda x: np.broadcast_to(x[:1], (3, *x.shape[1:])),
])
def test_arrays(dtype, view):
    memory = Memory()
    values = view(np.arange(2 * 3 * 4).reshape(2, 3, 4).astype('float64' if dtype == 'float64' else 'float32'))
    array = EmulatedArray.from_numpy(memory, values.astype(dtype) if dtype == 'float16' else values, dtype)
    assert array.shape == values.shape and array.address % 2 == 0 and array.address >= ORIGIN
    assert np.array_equal(array.to_numpy(), values)
    again = EmulatedArray.from_numpy(memory, np.arange(24, dtype=np.float32).reshape(2, 3, 4), 'bfloat16').view(view)
    assert np.array_equal(again.to_numpy(), values) and again.strides == tuple(s // values.itemsize
                                                                             for s in values.strides)
    places = array.address + sum(step * index for step, index in zip(array.strides, np.indices(array.shape))) * (
        array.stored().itemsize)
    assert array.shape[0] == 0 or memory.pieces(np.ravel(places), 2)
    interface = array.__cuda_array_interface__
    assert interface['shape'] == values.shape and interface['data'] == (array.address, False)


class Source:
    name, arguments = 'fill', ('out', 'n')
    text = 'def fill(out, n):\n    t = thread()\n    store_i32(out + i64(t * 4), t < n, t)'


def test_device():
    device = EmulatedDevice(capability=(8, 0), multiprocessors=108)
    out = EmulatedArray.empty(device.memory, (20,), 'float32')
    handle = device.kernel(Source, 32, 0)
    device.run(handle, (1, 1, 1), [out.address, 20])
    assert (out.stored().view(np.int32) == np.arange(20)).all()
    assert device.launched == ['fill'] and device.launches == 1
    assert (device.shared_limit, EmulatedDevice(device.memory).shared_limit) == (163 * 1024, 227 * 1024)
    assert device.kernel(Source, 32, 82 * 1024, 2)       # blocks_per_sm is a bound on registers
    for wrong in (lambda: device.kernel(Source, 33, 0), lambda: device.kernel(Source, 32, 164 * 1024),
                  lambda: EmulatedDevice(capability=(7, 5)).kernel(Source, 32, 64 * 1024 + 1),
                  lambda: device.run(handle, (1, 65536, 1), [0, 0])):
        with pytest.raises(KernelError):
            wrong()
    with pytest.raises(TypeError, match='fill must be given 2 arguments; got 1'):
        device.run(handle, (1, 1, 1), [0])
    with pytest.raises(OverflowError):
        device.run(handle, (1, 1, 1), [1 << 63, 0])
    device.run(handle, (0, 1, 1), [0, 0])
    assert device.launches == 1


@pytest.mark.parametrize('dtype', [*DTYPES, 'int32'])
def test_an_upload_lies_as_the_array_did(monkeypatch, dtype):
    """Backwards, with gaps or broadcast, whatever type it comes in."""
    array = np.broadcast_to(np.arange(24.0).reshape(2, 1, 3, 4)[..., ::-1, ::2], (2, 5, 3, 2))
    found = Emulated(monkeypatch).upload(array, dtype)
    assert found.strides == (12, 0, -4, 2) and np.array_equal(found.to_numpy(), array)
