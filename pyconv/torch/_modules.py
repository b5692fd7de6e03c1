"""torch.nn's convolutions as modules over this door's functions, and the exchange of the ones for the others."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from pyconv._arguments import check_flag
from pyconv._padding import SAME, all_pads
from pyconv._settings import AUTO
from pyconv._signatures import Padding, Sizes
from pyconv._spread import exact_steps, sizes_of
from pyconv.torch._call import convolve
from pyconv.torch._maps import exact_mode_of

Model = TypeVar("Model", bound=nn.Module)
MODES_OF_NN = ("zeros", "circular", "replicate", "reflect")
BEYOND = "padding_value", "algorithm", "allow_tf32"  # what a module has more than torch.nn's


class _Settings:
    """What a module has beyond torch.nn's; one that was torch.nn's has none of it."""

    _rank: int  # of the class
    padding_mode: Any
    padding_value: complex = 0
    algorithm: str = AUTO
    allow_tf32: bool = False

    def _checked(
        self, channels: dict[str, int], kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
        output_padding: Any = 0,
    ) -> Any:
        """The padding made exact. TypeError or ValueError where one of them is no call's, before there is a weight."""
        sizes_of("kernel_size", kernel_size, self._rank, 1)
        sizes_of("output_padding", output_padding, self._rank, 0)
        _, padding, _, groups = exact_steps(self._rank, stride, padding, dilation, groups)
        for name, count in channels.items():
            if count % groups:
                raise ValueError(f"groups must divide {name}, {count}; got {groups}")
        return (padding,) * self._rank if isinstance(padding, int) else padding

    def _set(
        self: Any, padding: Any, padding_mode: str, padding_value: complex, algorithm: str, allow_tf32: bool
    ) -> None:
        """Keep the settings that torch.nn knows in part, and check those of them that _checked has not. A call tells
        which algorithms its tensors have."""
        check_flag("allow_tf32", allow_tf32)
        self.padding_mode, self.padding_value = exact_mode_of(padding_mode, padding_value, self.weight.dtype)
        self.padding, self.algorithm, self.allow_tf32 = padding, algorithm, bool(allow_tf32)

    def _convolve(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None, added: Any, size: Any) -> Tensor:
        return convolve(
            len(self.kernel_size), self.transposed, input, weight, bias, self.stride, self.padding, self.dilation,
            self.groups, added, size, self.padding_mode, self.padding_value, self.algorithm, self.allow_tf32,
        )

    def extra_repr(self: Any) -> str:
        """As torch.nn's, and the settings that only pyconv's has."""
        more = [f"{name}={getattr(self, name)}" for name in BEYOND if getattr(self, name) != getattr(_Settings, name)]
        return ", ".join([super().extra_repr(), *more])  # type: ignore[misc]


class _Conv(_Settings):
    """The body of Conv1d, Conv2d and Conv3d."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None, *, padding_value: complex = 0, algorithm: str = AUTO, allow_tf32: bool = False,
    ) -> None:
        channels = {"in_channels": in_channels, "out_channels": out_channels}
        padding = self._checked(channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(  # type: ignore[call-arg]
            in_channels, out_channels, kernel_size, stride, 0, dilation, groups, bias, device=device, dtype=dtype)
        self._set(padding, padding_mode, padding_value, algorithm, allow_tf32)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._convolve(input, weight, bias, 0, None)


class _ConvTranspose(_Settings):
    """The body of ConvTranspose1d, ConvTranspose2d and ConvTranspose3d."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None, *, padding_value: complex = 0,
        algorithm: str = AUTO, allow_tf32: bool = False,
    ) -> None:
        channels = {"in_channels": in_channels, "out_channels": out_channels}
        padding = self._checked(channels, kernel_size, stride, padding, dilation, groups, output_padding)
        super().__init__(  # type: ignore[call-arg]
            in_channels, out_channels, kernel_size, stride, 0, output_padding, groups, bias, dilation, device=device,
            dtype=dtype)
        self._set(padding, padding_mode, padding_value, algorithm, allow_tf32)

    def forward(self: Any, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """output_size: the spatial sizes, or as in torch.nn the whole shape; it stands for output_padding."""
        rank, added = len(self.kernel_size), self.output_padding
        if output_size is not None:
            if len(output_size) == input.ndim:
                output_size = output_size[input.ndim - rank:]
            if self.padding not in SAME:
                added = 0
        return self._convolve(input, self.weight, self.bias, added, output_size)  # type: ignore[no-any-return]


class Conv1d(_Conv, nn.Conv1d):
    """torch.nn.Conv1d over pyconv.torch.conv1d: as Conv2d, with one spatial axis."""

    _rank = 1


class Conv2d(_Conv, nn.Conv2d):
    """torch.nn.Conv2d over pyconv.torch.conv2d: its signature, its parameters and, from the same seed, their values.

    It is one of torch.nn's, so that whatever looks for those finds it, and state_dicts go from either to the other.
    padding is any that conv2d takes; padding_mode also 'constant', with padding_value. TypeError or ValueError where
    the settings are none of conv2d's.

    >>> import torch
    >>> conv = Conv2d(3, 8, 5, stride=2, padding="same", padding_mode="reflect")
    >>> conv(torch.ones(1, 3, 9, 9)).shape, isinstance(conv, torch.nn.Conv2d)
    (torch.Size([1, 8, 5, 5]), True)
    """

    _rank = 2


class Conv3d(_Conv, nn.Conv3d):
    """torch.nn.Conv3d over pyconv.torch.conv3d: as Conv2d, with three spatial axes."""

    _rank = 3


class ConvTranspose1d(_ConvTranspose, nn.ConvTranspose1d):
    """torch.nn.ConvTranspose1d over pyconv.torch.conv_transpose1d: as ConvTranspose2d, with one spatial axis."""

    _rank = 1


class ConvTranspose2d(_ConvTranspose, nn.ConvTranspose2d):
    """torch.nn.ConvTranspose2d over pyconv.torch.conv_transpose2d: what Conv2d is to torch.nn.Conv2d.

    padding_mode may be any: what goes back to a padded cell is added to the cell that it stands for.

    >>> import torch
    >>> conv = ConvTranspose2d(8, 3, 5, stride=2, padding=2, padding_mode="circular")
    >>> conv(torch.ones(1, 8, 5, 5), output_size=(10, 10)).shape
    torch.Size([1, 3, 10, 10])
    """

    _rank = 2


class ConvTranspose3d(_ConvTranspose, nn.ConvTranspose3d):
    """torch.nn.ConvTranspose3d over pyconv.torch.conv_transpose3d: as ConvTranspose2d, with three spatial axes."""

    _rank = 3


OURS: dict[type, type] = {
    ours.__mro__[3]: ours for ours in (Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
}
THEIRS = {ours: theirs for theirs, ours in OURS.items()}
for _class in THEIRS:
    _class.__module__ = "pyconv.torch"  # where a pickle finds it


def replace(model: Model, *, algorithm: str = AUTO) -> Model:
    """Make every convolution of torch.nn in a model, or the model itself, pyconv's, with that algorithm. Returns the
    model.

    The modules stay the objects that they are, with their parameters, hooks and names: only their class changes. So
    optimizers and references go on. Modules of a class derived from torch.nn's are left as they are (lazy ones that
    have not seen an input, and parametrized ones, among them). TypeError where the model is no torch.nn.Module.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU())
    >>> weight = model[0].weight
    >>> type(replace(model)[0]) is Conv2d and model[0].weight is weight
    True
    """
    _check_model(model)
    theirs: list[Any] = [module for module in model.modules() if type(module) in OURS]
    for module in theirs:
        module.__class__, module.algorithm = OURS[type(module)], algorithm
    return model


def restore(model: Model) -> Model:
    """Make every convolution of pyconv in a model torch.nn's again, as `replace` made them pyconv's.

    One that was parametrized since stays as it is. ValueError where one has settings that torch.nn's have not: then
    none is changed. TypeError as there.
    """
    _check_model(model)
    ours = [(name, module) for name, module in model.named_modules() if type(module) in THEIRS]
    for name, module in ours:
        wrong = ", ".join(_beyond_nn(module))
        if wrong:
            raise ValueError(
                f"{name or 'model'} must have settings of torch.nn.{type(module).__name__}; got {wrong}")
    for _, module in ours:
        pads = all_pads(module.padding, (1,) * len(module.kernel_size), _spans(module), module.stride)
        module._reversed_padding_repeated_twice = [pad for pair in reversed(pads) for pad in pair]
        for name in BEYOND:
            vars(module).pop(name, None)
        module.__class__ = THEIRS[type(module)]
    return model


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")


def _beyond_nn(module: Any) -> Iterator[str]:
    """The settings that torch.nn's module does not take."""
    padding = module.padding
    if isinstance(padding, str):
        known = not module.transposed and (padding == "valid" or padding == "same" and set(module.stride) == {1})
    else:
        known = all(isinstance(pad, int) for pad in padding)
    if not known:
        yield f"padding={padding!r}"
    if module.padding_mode not in (MODES_OF_NN[:1] if module.transposed else MODES_OF_NN):
        yield f"padding_mode={module.padding_mode!r}"


def _spans(module: Any) -> tuple[int, ...]:
    """The cells that the kernel spans along each axis."""
    return tuple(d * (k - 1) + 1 for k, d in zip(module.kernel_size, module.dilation))
