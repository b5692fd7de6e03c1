"""pyconv.torch's modules beside torch.nn's: signatures, parameters, values, and the exchange of one for the other."""
import copy
import inspect
import io
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pyconv
import pyconv.torch as door

CONVS = 'Conv1d', 'Conv2d', 'Conv3d'
TRANSPOSED = 'ConvTranspose1d', 'ConvTranspose2d', 'ConvTranspose3d'
SHAPES = {'1': (7,), '2': (7, 6), '3': (5, 6, 7)}
every_module = pytest.mark.parametrize('name', [*CONVS, *TRANSPOSED])


def integers(tensor):
    """Small integers in its place, so that sums are exact."""
    with torch.no_grad():
        return tensor.copy_(torch.randint(-3, 4, tensor.shape))


def pair(name, *arguments, **settings):
    """A module of torch.nn and pyconv's with the same parameters, of integers."""
    theirs, ours = getattr(nn, name)(*arguments, **settings), getattr(door, name)(*arguments, **settings)
    for parameter in theirs.parameters():
        integers(parameter)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def image(name, *lead, dtype=torch.float32):
    return integers(torch.empty(*lead, *SHAPES[name[-2]], dtype=dtype))


def assert_alike(theirs, ours, x, *more):
    """Values and all gradients are equal."""
    x, answers = x.requires_grad_(), []
    for module in (theirs, ours):
        y = module(x, *more)
        answers.append((y, *torch.autograd.grad((y * y).sum(), (x, *module.parameters()))))
    for ours, theirs in zip(*answers, strict=True):
        assert torch.equal(ours, theirs)


@every_module
def test_signature_is_that_of_torch_and_three_keywords(name):
    ours, theirs = (inspect.signature(getattr(module, name)).parameters.values() for module in (door, nn))
    assert [(p.name, p.default, p.kind) for p in ours][:-3] == [(p.name, p.default, p.kind) for p in theirs]
    assert [p.name for p in ours][-3:] == ['padding_value', 'algorithm', 'allow_tf32']


@every_module
@pytest.mark.parametrize('settings', [
    {}, {'stride': 2, 'padding': 1, 'groups': 2}, {'bias': False, 'dilation': 2}, {'dtype': torch.float64},
], ids=str)
def test_same_seed_same_weights_same_values(name, settings):
    results = []
    for module in (nn, door):
        torch.manual_seed(3)
        results.append(getattr(module, name)(4, 6, 3, **settings))
        results.append(torch.rand(2))
    theirs, after, ours, also_after = results
    assert torch.equal(after, also_after)
    state, other = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(other) and all(torch.equal(state[key], other[key]) for key in state)
    assert repr(ours) == repr(theirs)
    theirs.load_state_dict(integers_of(state))
    ours.load_state_dict(theirs.state_dict())
    for lead in ((2, 4), (4,)):
        assert_alike(theirs, ours, image(name, *lead, dtype=theirs.weight.dtype))


def integers_of(state):
    return {key: torch.randint(-3, 4, value.shape).to(value.dtype) for key, value in state.items()}


@pytest.mark.parametrize('name', CONVS)
@pytest.mark.parametrize('mode', ['zeros', 'circular', 'replicate', 'reflect'])
@pytest.mark.parametrize('padding', [1, 'valid', 'same'])
def test_padding_of_torch(name, mode, padding):
    theirs, ours = pair(name, 2, 3, 4, padding=padding, padding_mode=mode)
    assert repr(ours) == repr(theirs)
    assert_alike(theirs, ours, image(name, 2, 2))


@pytest.mark.parametrize('size', [None, (13, 12), (14, 11), torch.Size((2, 3, 14, 12))], ids=str)
def test_output_size_is_torch_s(size):
    theirs, ours = pair('ConvTranspose2d', 4, 3, 3, stride=2, padding=1, output_padding=1)
    assert_alike(theirs, ours, image('ConvTranspose2d', 2, 4), size)


OWN = {
    'Conv1d': [{'padding': 'causal', 'dilation': 2}, {'padding': 'same', 'stride': 2}, {'padding': ((-1, 3),)}],
    'Conv2d': [{'padding': 'full'}, {'padding': ((1, 0), (2, 3)), 'padding_mode': 'circular'},
               {'padding': (1, 2), 'padding_mode': 'constant', 'padding_value': -1.5}],
    'ConvTranspose2d': [{'padding': 1, 'padding_mode': mode} for mode in ('circular', 'replicate', 'reflect')] + [
        {'padding': 'same', 'stride': 2}, {'padding': 1, 'padding_mode': 'constant', 'padding_value': 2}],
}


@pytest.mark.parametrize(('name', 'settings'), [(name, s) for name, every in OWN.items() for s in every], ids=str)
def test_settings_of_pyconv(name, settings):
    module, x = getattr(door, name)(2, 4, 3, **settings), image(name, 2, 2)
    function = getattr(pyconv, {'Conv1d': 'conv1d', 'Conv2d': 'conv2d'}.get(name, 'conv_transpose2d'))
    weight, bias = module.weight.detach(), module.bias.detach()
    assert torch.equal(module(x), function(x, weight, bias, **settings))
    assert ('padding_value' in repr(module)) == ('padding_value' in settings)
    with pytest.raises(ValueError, match=f'^model must have settings of torch.nn.{name}; got padding'):
        door.restore(module)
    assert type(module) is getattr(door, name)


def test_more_padding_than_torch_takes():
    module, x = door.Conv1d(2, 2, 3, padding=9, padding_mode='reflect'), image('Conv1d', 2)
    wanted = pyconv.conv1d(x, module.weight.detach(), module.bias.detach(), padding=9, padding_mode='reflect')
    assert torch.equal(module(x), wanted)


def test_a_transposed_same_takes_its_size():
    module = door.ConvTranspose1d(2, 2, 4, stride=2, padding='same')
    assert module(torch.ones(1, 2, 5)).shape[2] == 10 and module(torch.ones(1, 2, 5), (9,)).shape[2] == 9


@pytest.mark.parametrize(('error', 'settings', 'text'), [
    (ValueError, {'padding': 'circular'}, 'padding must be an int >= 0, a sequence of 1 such or of 1 pairs'),
    (ValueError, {'padding': -1}, 'padding must be an int >= 0'),
    (TypeError, {'padding': 1.5}, 'padding must be an int >= 0'),
    (ValueError, {'padding_mode': 'wrap'}, "padding_mode must be one of 'zeros', 'constant', 'circular'"),
    (ValueError, {'padding_value': 1}, "padding_value must be 0 where padding_mode is not 'constant'; got 1$"),
    (TypeError, {'allow_tf32': 1}, 'allow_tf32 must be True or False; got 1$'),
    (ValueError, {'stride': 0}, 'stride must be an int >= 1 or a sequence of 1 such; got 0$'),
    (ValueError, {'stride': (3, 3)}, r'stride must be an int >= 1 or a sequence of 1 such; got \(3, 3\)$'),
    (ValueError, {'dilation': ()}, r'dilation must be an int >= 1 or a sequence of 1 such; got \(\)$'),
    (ValueError, {'kernel_size': 0}, 'kernel_size must be an int >= 1 or a sequence of 1 such; got 0$'),
    (ValueError, {'kernel_size': (3, 3)}, 'kernel_size must be an int >= 1 or a sequence of 1 such'),
    (TypeError, {'kernel_size': 1.5}, 'kernel_size must be an int >= 1 or a sequence of 1 such; got 1.5$'),
    (ValueError, {'groups': 0}, 'groups must be an int >= 1; got 0$'),
    (ValueError, {'groups': 3}, 'groups must divide in_channels, 2; got 3$'),
    (ValueError, {'out_channels': 3, 'groups': 2}, 'groups must divide out_channels, 3; got 2$'),
], ids=str)
@pytest.mark.parametrize('name', ['Conv1d', 'ConvTranspose1d'])
def test_wrong_settings(name, error, settings, text):
    with pytest.raises(error, match=f'^{text}'):
        getattr(door, name)(**{'in_channels': 2, 'out_channels': 2, 'kernel_size': 3, **settings})


def test_wrong_output_padding():
    with pytest.raises(ValueError, match='^output_padding must be an int >= 0 or a sequence of 2 such; got -1$'):
        door.ConvTranspose2d(2, 2, 3, stride=2, output_padding=-1)


def test_replace_and_restore_want_a_module():
    for function in (door.replace, door.restore):
        for model in (5, nn.Conv1d):
            with pytest.raises(TypeError) as error:
                function(model)
            assert str(error.value) == f'model must be a torch.nn.Module; got {type(model).__name__}'


# exchange


class Net(nn.Module):
    """A model with a module that it uses twice, one of a class of its own, and a transposed one."""

    class Own(nn.Conv1d):
        pass

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 4, 3, padding='same', padding_mode='circular')
        self.middle = nn.ModuleList([nn.Conv1d(4, 4, 3, padding=1), nn.ReLU()])
        self.again = self.middle[0]
        self.own = self.Own(4, 4, 1)
        self.last = nn.ConvTranspose1d(4, 1, 4, stride=2, padding=1)

    def forward(self, x):
        for module in (self.first, *self.middle, self.again, self.own, self.last):
            x = module(x)
        return x


def net():
    """In float64, which holds what comes out of five layers of integers."""
    torch.manual_seed(0)
    model = Net().double()
    for parameter in model.parameters():
        integers(parameter)
    return model


def test_replace_and_restore():
    model, plain, x = net(), net(), image('Conv1d', 2, 2, dtype=torch.float64)
    before, modules = dict(model.named_parameters()), list(model.modules())
    calls = []
    model.first.register_forward_hook(lambda *call: calls.append(call))
    assert door.replace(model) is model
    assert [type(module) for module in (model.first, model.again, model.own, model.last)] == [
        door.Conv1d, door.Conv1d, Net.Own, door.ConvTranspose1d]
    assert model.again is model.middle[0] and all(map(lambda a, b: a is b, model.modules(), modules))
    assert_alike(plain, model, x)
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before) and calls
    attributes = {name: dict(vars(module)) for name, module in plain.named_modules() if 'Conv' in type(module).__name__}
    assert door.restore(model) is model
    assert [type(module) for module in model.modules()] == [type(module) for module in plain.modules()]
    for name, module in model.named_modules():
        for word in ('padding', 'padding_mode'):
            assert name not in attributes or getattr(module, word) == attributes[name][word]
    assert_alike(plain, model, x)


def test_replace_names_the_algorithm():
    model, x = net(), image('Conv1d', 2, 2, dtype=torch.float64)
    wanted = door.replace(net())(x)
    assert door.replace(model, algorithm='fft') is model
    assert [name for name, module in model.named_modules() if getattr(module, 'algorithm', None) == 'fft'] == [
        name for name, module in model.named_modules() if type(module) in (door.Conv1d, door.ConvTranspose1d)] != []
    with pytest.raises(ValueError, match="^algorithm must be one of 'auto', 'gemm', 'winograd'; got 'fft'$"):
        model(x)
    assert torch.equal(door.replace(door.restore(model))(x), wanted)


@pytest.mark.parametrize('settings', [
    {'padding': (1, 2), 'padding_mode': 'reflect'}, {'padding': 'same', 'padding_mode': 'replicate', 'dilation': 2},
    {'padding': 'valid', 'padding_mode': 'circular'},
], ids=str)
def test_restore_of_a_module_that_was_never_torch_s(settings):
    theirs, ours = pair('Conv2d', 2, 3, (3, 2), **settings)
    assert type(door.restore(ours)) is nn.Conv2d and set(vars(ours)) == set(vars(theirs))
    assert_alike(theirs, ours, image('Conv2d', 1, 2))


def test_restore_changes_nothing_where_it_cannot_change_all():
    model = door.replace(nn.Sequential(nn.Conv1d(1, 1, 3), nn.Sequential(door.Conv1d(1, 1, 3, padding='causal'))))
    with pytest.raises(ValueError, match="^1.0 must have settings of torch.nn.Conv1d; got padding='causal'$"):
        door.restore(model)
    assert type(model[0]) is door.Conv1d
    own = door.ConvTranspose1d(1, 1, 3, padding=((1, 0),), padding_mode='reflect')
    with pytest.raises(ValueError) as error:
        door.restore(own)
    assert str(error.value) == (
        "model must have settings of torch.nn.ConvTranspose1d; got padding=((1, 0),), padding_mode='reflect'")


# what one does with modules


def test_optimizers_go_on():
    models, losses = [net(), door.replace(net())], []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 2.0 ** -20, momentum=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2, 4, dtype=torch.float64)).sum()
            loss.backward()
            optimizer.step()
        losses.append(loss)
    torch.testing.assert_close(*losses, rtol=1e-13, atol=0)  # sums of tens of terms in two orders


COPIES = {
    'deepcopy': copy.deepcopy,
    'pickle': lambda model: pickle.loads(pickle.dumps(model)),
    'torch.save': lambda model: torch.load(saved(model), weights_only=False),
}


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


@pytest.mark.parametrize('make', COPIES.values(), ids=COPIES)
def test_copies(make):
    more = {'padding_mode': 'constant', 'padding_value': 2.5, 'algorithm': 'gemm', 'allow_tf32': True}
    module = door.Conv2d(2, 3, 3, padding=1, **more)
    other, x = make(module), image('Conv2d', 2)
    assert type(other) is door.Conv2d and repr(other) == repr(module) and other.weight is not module.weight
    assert torch.equal(other(x), module(x)) and type(other).__module__ == 'pyconv.torch'
    replaced, x = make(door.replace(net())), image('Conv1d', 1, 2, dtype=torch.float64)
    assert type(replaced.first) is door.Conv1d and replaced.again is replaced.middle[0]
    assert torch.equal(replaced(x), net()(x))


@pytest.mark.parametrize('type_', [torch.bfloat16, torch.float16], ids=str)
def test_autocast(type_):
    pytest.importorskip('ml_dtypes')
    theirs, ours = pair('Conv2d', 2, 3, 3, padding=1, padding_mode='circular')
    scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
    x, gradients = image('Conv2d', 2, 2), []
    for module in (theirs, ours):
        with torch.autocast('cpu', type_):
            y = module(x)
        assert y.dtype == type_
        scaler.scale(y.float().sum()).backward()
        gradients.append([parameter.grad for parameter in module.parameters()])
    assert all(ours.dtype == torch.float32 and torch.equal(ours, theirs) for ours, theirs in zip(*gradients))


def train_part(rank, folder):
    """One of two processes: the mean of the gradients of both halves of a batch."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/meeting', rank=rank, world_size=2)
    model = DistributedDataParallel(door.replace(torch.load(f'{folder}/model', weights_only=False)))
    model(torch.load(f'{folder}/images')[rank::2]).sum().backward()
    torch.save([parameter.grad for parameter in model.parameters()], f'{folder}/{rank}')
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads can abort an interpreter that ends


@pytest.mark.skipif(not torch.distributed.is_available(), reason='torch was built without torch.distributed')
def test_two_processes(tmp_path):
    model, images = net(), image('Conv1d', 4, 2, dtype=torch.float64)
    torch.save(model, tmp_path / 'model')
    torch.save(images, tmp_path / 'images')
    torch.multiprocessing.spawn(train_part, (str(tmp_path),), nprocs=2)
    model(images).sum().backward()
    for rank in (0, 1):
        for parts, parameter in zip(torch.load(tmp_path / str(rank)), model.parameters(), strict=True):
            assert torch.equal(2 * parts, parameter.grad)


@pytest.mark.skipif(not torch.distributed.is_available(), reason='this torch has no torch.distributed')
def test_sharded_by_fsdp():
    """It resizes the weights before and after each pass."""
    if np.lib.NumpyVersion(np.__version__) < '2.1.0':
        pytest.skip('before NumPy 2.1 torch cannot resize a tensor that NumPy has seen')
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3))
    x = torch.ones(2, 3, 8, 8)
    wanted = model(x)
    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(door.replace(model))
        for _ in range(2):
            y = model(x)
            y.sum().backward()
            torch.testing.assert_close(y, wanted)
    finally:
        distributed.destroy_process_group()
