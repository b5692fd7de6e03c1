"""What the tests of pyconv.torch share: the six functions by rank, and small problems for numerical derivatives."""
import torch

import pyconv.torch as door

CONV = {1: door.conv1d, 2: door.conv2d, 3: door.conv3d}
TRANSPOSE = {1: door.conv_transpose1d, 2: door.conv_transpose2d, 3: door.conv_transpose3d}

# rank, transposed, input, weight, settings: small, since a numerical derivative calls for each element
DERIVATIVES = {
    '1d': (1, False, (2, 2, 5), (3, 2, 3), {}),
    'strided': (1, False, (1, 2, 8), (2, 2, 3), {'stride': 3, 'padding': 1}),
    'padded': (2, False, (1, 1, 3, 4), (2, 1, 2, 3), {'padding': (1, 2)}),
    'pairs': (2, False, (1, 1, 4, 5), (2, 1, 2, 3), {'padding': ((-1, 2), (2, 0)), 'stride': (2, 1)}),
    'same': (2, False, (1, 1, 3, 5), (2, 1, 2, 2), {'padding': 'same', 'stride': 2}),
    'causal': (1, False, (1, 2, 6), (2, 2, 3), {'padding': 'causal', 'dilation': 2}),
    'dilated': (2, False, (1, 1, 5, 4), (2, 1, 2, 2), {'dilation': (3, 2), 'padding': 1}),
    'grouped': (1, False, (1, 4, 5), (6, 2, 2), {'groups': 2, 'stride': 2}),
    'depthwise': (2, False, (1, 2, 3, 3), (4, 1, 2, 2), {'groups': 2, 'padding': 1}),
    '3d': (3, False, (1, 1, 3, 2, 3), (2, 1, 2, 2, 2), {'stride': (2, 1, 1), 'padding': (1, 0, 1)}),
    'no batch': (1, False, (2, 5), (2, 2, 3), {'padding': 'full', 'stride': 2}),
    'transposed': (1, True, (2, 3, 3), (3, 2, 3), {}),
    'transposed strided': (2, True, (1, 2, 2, 3), (2, 1, 2, 3), {'stride': (2, 3), 'padding': (0, 1)}),
    'transposed output padding': (1, True, (1, 2, 3), (2, 2, 3), {'stride': 3, 'padding': 1, 'output_padding': 2}),
    'transposed output padding above stride':
        (1, True, (1, 2, 3), (2, 1, 2), {'stride': 2, 'padding': 1, 'output_padding': 3, 'dilation': 4}),
    'transposed dilated grouped': (1, True, (1, 4, 3), (4, 2, 2), {'stride': 2, 'dilation': 3, 'groups': 2}),
    'transposed depthwise': (2, True, (1, 2, 2, 2), (2, 1, 3, 2), {'stride': 2, 'padding': 1, 'groups': 2}),
    'transposed same': (1, True, (1, 2, 4), (2, 1, 3), {'stride': 2, 'padding': 'same'}),
    'circular': (2, False, (1, 1, 3, 4), (2, 1, 3, 2),
                 {'padding': (2, 1), 'padding_mode': 'circular', 'stride': (1, 2)}),
    'reflect cropped': (1, False, (1, 2, 5), (2, 2, 3), {'padding': ((-1, 3),), 'padding_mode': 'reflect'}),
    'constant': (1, False, (2, 2, 4), (2, 2, 3),
                 {'padding': 2, 'stride': 2, 'padding_mode': 'constant', 'padding_value': 1.5}),
    'transposed replicate': (1, True, (1, 2, 3), (2, 1, 3),
                             {'padding': 1, 'stride': 2, 'padding_mode': 'replicate', 'output_padding': 1}),
    'transposed 3d': (3, True, (1, 2, 1, 2, 2), (2, 1, 2, 1, 2), {'stride': (2, 1, 2), 'output_padding': (1, 0, 0)}),
}
FROZEN = {'none frozen': (), 'input frozen': (0,), 'weight frozen': (1,), 'no bias': (2,)}


def operands_of(name, dtype=torch.float64):
    """Input, weight and bias, leaves that want no gradient."""
    rank, transposed, input_shape, weight_shape, settings = DERIVATIVES[name]
    channels = weight_shape[1] * settings.get('groups', 1) if transposed else weight_shape[0]
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype)
            for shape in (input_shape, weight_shape, (channels,))]


def case_of(name, frozen=(), dtype=torch.float64):
    """(function of the tensors that are not frozen, those tensors); a frozen bias is none at all."""
    rank, transposed, *_, settings = DERIVATIVES[name]
    conv, operands = (TRANSPOSE if transposed else CONV)[rank], operands_of(name, dtype)

    def function(*free):
        free = iter(free)
        given = [tensor if place in frozen else next(free) for place, tensor in enumerate(operands)]
        return conv(*given[:2], None if 2 in frozen else given[2], **settings)

    return function, [tensor.requires_grad_() for place, tensor in enumerate(operands) if place not in frozen]
