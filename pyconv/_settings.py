"""How a call goes about its problem: its settings, as the user gives them and as its dtype takes them."""

from typing import Any, NamedTuple

from pyconv._arguments import check_algorithm, check_flag, check_stream, exact_mode
from pyconv._dtypes import FLOAT32, FLOAT64, DType, is_integer, result_dtype
from pyconv._padding import ZEROS, Mode

AUTO = "auto"


class Settings(NamedTuple):
    """The scratch that the caller lends, how products are made and summed."""

    finput: Any = None
    fgrad_input: Any = None
    algorithm: str = "auto"
    allow_tf32: bool = False
    stream: Any = None
    accumulate: bool = False  # add the results to what their `out` holds
    mode: Mode = ZEROS
    result: Any = None  # what products of integers are summed in; None of other types, or where nobody says


DEFAULTS = Settings()


def settings_of(
    finput: Any = None, fgrad_input: Any = None, algorithm: Any = AUTO, allow_tf32: Any = False, stream: Any = None,
    accumulate: Any = False, padding_mode: Any = ZEROS.name, padding_value: Any = ZEROS.value, dtype: Any = None,
) -> Settings:
    """The settings of a call, not yet checked; DEFAULTS itself where they are that."""
    if (
        finput is fgrad_input is stream is dtype is None and allow_tf32 is accumulate is False and algorithm is AUTO
        and padding_mode is ZEROS.name and padding_value is ZEROS.value
    ):
        return DEFAULTS
    mode = ZEROS
    if padding_mode is not ZEROS.name or padding_value is not ZEROS.value:
        mode = Mode(padding_mode, padding_value)
    return Settings(finput, fgrad_input, algorithm, allow_tf32, stream, accumulate, mode, dtype)


def told(settings: Settings) -> tuple[Any, ...] | None:
    """What tells a call in main memory with these settings from others, beside its buffers; None where it is not kept.
    """
    if settings is DEFAULTS:
        return ()
    if not (settings.stream is settings.result is None and settings.allow_tf32 is False) or (
            type(settings.accumulate) is not bool):
        return None
    if settings.mode is ZEROS and settings.algorithm is AUTO and not settings.accumulate:
        return ()
    name, value = settings.mode
    if type(value) not in (int, float):
        return None
    number = value.hex() if type(value) is float else value  # which tells -0.0 from 0.0
    return settings.algorithm, +settings.accumulate, name, number


def checked(settings: Settings, dtype: DType) -> Settings:
    """The settings that arrays of that dtype are treated with; the buffers are checked in their turn.

    TypeError or ValueError where they cannot be treated so.
    """
    if settings is DEFAULTS and (dtype is FLOAT32 or dtype is FLOAT64):
        return settings
    result = result_dtype(dtype, settings.result) if is_integer(dtype) or settings.result is not None else None
    if settings is DEFAULTS:
        return settings if result is None else settings._replace(result=result)
    if settings.allow_tf32 is not False:
        check_flag("allow_tf32", settings.allow_tf32)
    if settings.algorithm is not AUTO:  # what is the default itself is right for every dtype
        check_algorithm(settings.algorithm, dtype, bool(settings.allow_tf32))
    if settings.stream is not None:
        check_stream(settings.stream, dtype)
    if settings.accumulate is not False:
        check_flag("accumulate", settings.accumulate)
    accumulate = bool(settings.accumulate)
    mode = settings.mode if settings.mode is ZEROS else exact_mode(settings.mode, dtype)
    if accumulate is settings.accumulate and mode is settings.mode and result is settings.result:
        return settings
    return settings._replace(accumulate=accumulate, mode=mode, result=result)


def written(dtype: DType, settings: Settings) -> DType:
    """The dtype of the results of operands of that dtype."""
    return dtype if settings.result is None else settings.result
