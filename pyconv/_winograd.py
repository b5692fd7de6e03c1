"""Pieces as Winograd's algorithm has them: in tiles along the axes that have three taps. Standard library only."""

from pyconv._piece import Piece

LARGEST_TAP_STEP = {2: 16, 4: 4}  # by outputs of a tile: so many tiles side by side fit the transforms' arrays


def is_in_rows(piece: Piece) -> bool:
    """Whether it has rows of cells, one sample after the other, and a channel of target for each row of the weight."""
    return not (piece.turned or piece.swapped or piece.woven) and all(n == 1 for n, _ in piece.row_taps)


def ends_in_zeros(piece: Piece) -> bool:
    """Whether there is nothing beyond the edges of source and target."""
    return (piece.edge, piece.folded) == ("zeros", "zeros")


def is_lone(piece: Piece) -> bool:
    """Whether the piece is in lone tiles (see _lattices)."""
    return min(piece.tile) < 1


def ascending(piece: Piece) -> Piece:
    """The same piece with taps that read forwards along every axis."""
    axes, weight = list(piece.axes), piece.weight
    for a, axis in enumerate(axes):
        if axis.tap_step < 0:
            axes[a] = axis._replace(offset=axis.offset + axis.tap_step * (axis.taps - 1), tap_step=-axis.tap_step)
            strides = list(weight.axes)
            strides[a] = -strides[a]
            weight = weight._replace(base=weight.base + weight.axes[a] * (axis.taps - 1), axes=tuple(strides))
    return piece._replace(axes=tuple(axes), weight=weight)


def of_tiles(piece: Piece, outputs: int) -> Piece | None:
    """The same piece in tiles of so many outputs along the axes that have three taps, if the others suit that.

    A tile lies in one of the lattices that the tap step makes of an axis (see kernels.h).
    """
    piece = ascending(piece)
    z, *others = piece.axes
    three = [axis.taps == 3 for axis in others]
    if not is_in_rows(piece) or not any(three) or is_lone(piece):
        return None
    if any(axis.step != 1 for axis in piece.axes) or any(axis.taps not in (1, 3) for axis in others):
        return None
    others = [axis if axis.taps == 3 else axis._replace(tap_step=1) for axis in others]
    if others[1].tap_step > LARGEST_TAP_STEP[outputs] or (
            any(axis.tap_step > 1 for axis in others) and not ends_in_zeros(piece)) or (
            any(axis.lattice < 1 for axis in piece.axes)):
        return None
    # a tile must not see what no position reads
    others = [axis._replace(size=max(0, min(axis.size, axis.positions + axis.offset + axis.tap_step * (axis.taps - 1))))
              if axis.taps == 3 else axis for axis in others]
    return piece._replace(axes=(z, *others), tile=(1, *(outputs if n else 1 for n in three)))


def of_frequency(piece: Piece) -> Piece:
    """The piece that the products of one frequency are: its positions are tiles, in each lattice of the tap step."""
    return piece._replace(axes=tuple(
        axis if n == 1 else axis._replace(
            positions=axis.tap_step * -(-axis.positions // (axis.tap_step * n)) if n > 1 else
            axis.positions + (n + 1) * axis.tap_step, taps=1)
        for axis, n in zip(piece.axes, piece.tile)))
