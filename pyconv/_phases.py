"""Pieces worked on together: the phases of a stride, which read the same cells and write between one another."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from math import prod

from pyconv._blocking import PANEL, RESULTS, ROW_BLOCKS, broadcast_blocking, many_rows_blocking, unrolled_blocking
from pyconv._blocks import (
    GATHER,
    GATHER_ACROSS,
    GATHER_BROADCAST,
    GATHER_DIRECT,
    GATHER_FLAT,
    GATHER_LAST,
    GATHER_ROWS,
    GATHER_WINOGRAD,
    PADDED,
    Blocking,
    Tile,
    even_part,
    power_of_two,
    up_to,
)
from pyconv._depthwise import direct_blocking
from pyconv._geometry import Geometry
from pyconv._lattices import in_lone_tiles
from pyconv._piece import Piece, Strides
from pyconv._pieces import pieces
from pyconv._tiled import in_whole_tiles
from pyconv._ways import choose, forget_first, in_tiles, outputs_of_tiles
from pyconv._winograd import is_lone

Choice = tuple[Piece, Blocking]
Known = tuple[Piece, int, Blocking]  # what pieces alike have in common, a tile's outputs, the blocks
NOWHERE = Strides(0, 0, 0, ())
PANEL_TAPS = 128  # most taps of phases that have one panel: as in kernels.h
# rows of a phase, and of all, that at most unroll their cells once; of a phase with more, ROW_BLOCKS[0] of all
VERY_FEW, ROWS_OF_ALL = 4, 1024
PHASES = 16  # times the depth that a panel of all phases may have
ROUND = 32  # sizes from one power of two to the next that have blocks of their own, but for the first 2 * ROUND


def choose_rounded(
    map: str, g: Geometry, found: list[Piece], groups: int, tile: Tile, algorithm: str, may_exchange: bool
) -> list[Choice]:
    """As `choose_all` for the pieces of a geometry, in the blocks of the next round size: a search that sizes nearby
    share, since it takes longer than all else that is done for a size which has not come before.
    """
    z, y, x = (up_to(n, max(1, power_of_two(n) // (2 * ROUND))) for n in g.output_size)
    is_cut = len(found) == 1 and bool(in_lone_tiles(map, found[0]))  # which of a cell more it may not be
    if (z, y, x) != g.output_size and g.padding_mode == "zeros" and not is_cut:
        depth, height, width = (n + s * (m - k) for n, s, m, k in zip(g.input_size, g.stride, (z, y, x), g.output_size))
        whole = g._replace(output_size=(z, y, x), input_size=(depth, height, width))
        known: tuple[Known, ...] = ()
        if all(ROUND * (n - m) <= m for n, m in zip(whole.input_size, g.input_size)):
            known = _found(map, whole, groups, tile, algorithm, may_exchange)
        # else one has more phases, or fewer; and rows must fill a vector in their last block too
        if [alike for alike, _, _ in known] == [_alike(piece) for piece in found] and all(
                blocking.way != GATHER_ROWS for _, _, blocking in known):
            return [(in_tiles(piece, outputs), blocking) for piece, (_, outputs, blocking) in zip(found, known)]
    return choose_all(map, found, groups, tile, algorithm)


@lru_cache(maxsize=1024)
def _found(
    map: str, g: Geometry, groups: int, tile: Tile, algorithm: str, may_exchange: bool
) -> tuple[Known, ...]:
    found = pieces(map, g, may_exchange, tile.lanes)
    chosen = choose_all(map, found, groups, tile, algorithm)
    if len(chosen) > len(found) or any(is_lone(piece) for piece, _ in chosen):  # in parts of this size
        return ()
    return tuple((_alike(piece), max(made.tile), blocking) for piece, (made, blocking) in zip(found, chosen))


def forget() -> None:
    """Keep no choice: for tests, which change what it follows from."""
    _found.cache_clear()
    unrolled_blocking.cache_clear()
    forget_first()


def _alike(piece: Piece) -> Piece:
    """The piece but for how many positions it has, and the cells that these read."""
    axes = tuple(axis._replace(positions=0, size=axis.size - axis.step * axis.positions if axis.taps else 0)
                 for axis in piece.axes)
    return piece._replace(axes=axes, source=NOWHERE, target=NOWHERE, weight=NOWHERE,
                          row_taps=tuple((n, 0) for n, _ in piece.row_taps))


def choose_all(map: str, pieces: list[Piece], groups: int, tile: Tile, algorithm: str) -> list[Choice]:
    """The choice for every piece; two phases of a stride of 2 along x get the same blocks, to be stored together."""
    chosen: list[Choice] = []
    outputs = outputs_of_tiles(map, algorithm)
    for phases in _phases(pieces):
        if len(phases) == 1 and outputs:
            parts = in_lone_tiles(map, phases[0]) or in_whole_tiles(map, phases[0], outputs)
            if len(parts) > 1 or is_lone(parts[0]):
                chosen += [choose(map, part, groups, tile, algorithm) for part in parts]
                continue
        most_taps = _most_taps(map, phases, groups, tile, algorithm)
        found = [choose(map, piece, groups, tile, algorithm, most_taps) for piece in phases]
        if len(phases) > 1 and max(found, key=_taps_of)[1].way in (GATHER, GATHER_FLAT, GATHER_BROADCAST):
            others = GATHER_DIRECT, GATHER_LAST, GATHER_ROWS  # which sum in another order
            found = [choose(map, piece, groups, tile, algorithm, most_taps, False)
                     if blocking.way in others else (piece, blocking) for piece, blocking in found]
        chosen += _shared(found, groups, tile)
    for i in range(len(chosen) - 1):
        (first, blocking), (second, other) = chosen[i:i + 2]
        if not in_between(first, second):
            continue
        if GATHER_DIRECT in (blocking.way, other.way) and blocking.members == 1:  # both, where that is possible
            blocking, other = (direct_blocking(piece, groups, tile, True) or block
                               for piece, block in ((first, blocking), (second, other)))
            chosen[i:i + 2] = (first, blocking), (second, other)
        alone = blocking.members == 1
        if alone and {blocking.way, other.way} == {GATHER, GATHER_FLAT}:
            blocking, other = blocking._replace(way=GATHER), other._replace(way=GATHER)
        able = (GATHER, GATHER_DIRECT) if alone else (GATHER, GATHER_DIRECT, GATHER_BROADCAST)  # in blocks for several
        if blocking.way == other.way and blocking.way in able:
            if alone and blocking.way == GATHER:
                blocking = _of_two(blocking, tile)
            chosen[i] = first, blocking._replace(paired=True, members=2 if alone else blocking.members)
            chosen[i + 1] = second, other._replace(
                samples=blocking.samples, extent=blocking.extent, rows=blocking.rows, groups=blocking.groups, members=0)
    return chosen


def unpadded(chosen: list[Choice], groups: int, tile: Tile) -> list[Choice] | None:
    """The choice without a padded product and with every sum in the same order, one piece after the other; None where a
    way sums as no other does.
    """
    found = []
    for piece, blocking in chosen:
        is_empty = not piece.channels or any(0 in (axis.taps, axis.positions) for axis in piece.axes)
        if blocking.way in PADDED and not is_empty:
            other = None
            if blocking.way == GATHER and not piece.turned and all(axis.lattice for axis in piece.axes):
                _, other = broadcast_blocking(piece, groups, blocking.channels, tile)
            if other is None:
                return None
            blocking = other._replace(rows=up_to(other.rows, piece.parts))  # no element's parts in two blocks
        found.append((piece, blocking._replace(paired=False, members=1, shares=False, one_panel=False)))
    return found


def _of_two(blocking: Blocking, tile: Tile) -> Blocking:
    """The blocks of one phase made for two, whose results are in L2 at once: half of the rows where there are many."""
    size = blocking.samples * prod(blocking.extent) * blocking.groups * tile.itemsize
    half = -(-blocking.rows // (2 * tile.rows)) * tile.rows
    return blocking._replace(rows=half) if half < blocking.rows and 2 * size * blocking.rows > RESULTS else blocking


def _taps(piece: Piece) -> int:
    return prod(axis.taps for axis in piece.axes)


def _taps_of(choice: Choice) -> int:
    return _taps(choice[0])


def _phases(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """The pieces, one by one but for the phases of a stride."""
    for _, wave in groupby(pieces, key=lambda piece: piece.wave):
        phases = list(wave)
        yield from [phases] if read_alike(phases) else ([piece] for piece in phases)


def _are_few(phases: list[Piece]) -> bool:
    """Whether phases have so few rows that they may unroll their cells once for all."""
    rows = phases[0].rows
    return len(phases) * rows <= (ROWS_OF_ALL if rows <= VERY_FEW else ROW_BLOCKS[0])


def _most_taps(map: str, phases: list[Piece], groups: int, tile: Tile, algorithm: str) -> int:
    """The taps for which phases sum equally many channels at a time, if they do: those of few rows, and those that may
    have one panel. One sample decides that, on any number of threads: it decides the order of their sums."""
    most = max(phases, key=_taps)
    if _are_few(phases):
        return _taps(most)
    all_taps = _taps_of_panel(phases, tile)
    if not all_taps:
        return 0
    taps = max(_taps(most), -(-all_taps // PHASES))
    alone = choose(map, most._replace(batch=1), groups, tile.deciding, algorithm, taps)
    return taps if alone[1].way == GATHER_BROADCAST else 0


def _shared(chosen: list[Choice], groups: int, tile: Tile) -> list[Choice]:
    """The choice for such phases: the same blocks if the one of most taps is direct or broadcasts its cells, or if all
    unroll them."""
    phases, blocking = [piece for piece, _ in chosen], None
    if len(chosen) == 1 or any(other.way == GATHER_WINOGRAD for _, other in chosen):
        return chosen
    whole = together(phases)
    one, most = max(chosen, key=_taps_of)
    count = len(phases)
    if most.way in (GATHER_BROADCAST, GATHER_ACROSS):
        axes = tuple(axis._replace(positions=x.positions) for axis, x in zip(one.axes, whole.axes))
        _, blocking = broadcast_blocking(
            one._replace(axes=axes), groups, most.channels, tile, count, by_taps=most.by_taps)
        if not blocking:
            return chosen
        equal = all(other.channels == most.channels for _, other in chosen)
        taps = _taps_of_panel(phases, tile) if most.way == GATHER_BROADCAST and equal else 0
        if taps:
            blocking = _in_one_panel(blocking, one.rows, taps, tile)
        return _side_by_side(chosen, blocking._replace(way=most.way))
    if any(piece.source_last or piece.target_last for piece in phases):
        return chosen
    if most.way == GATHER_DIRECT:
        if _are_few(phases):
            blocking = direct_blocking(whole._replace(rows=count * whole.rows), groups, tile, True)
        if not blocking:
            own = [direct_blocking(piece, groups, tile, True) or other for piece, other in chosen]
            alike = all(block.way == GATHER_DIRECT for block in own)
            return _side_by_side(list(zip(phases, own)), most) if alike else chosen
    elif _are_few(phases) and all(other.way in (GATHER, GATHER_FLAT) and other.groups == 1 for _, other in chosen) and (
            _taps(whole) <= sum(map(_taps, phases))):  # a dilation's taps may be far apart
        if count * whole.rows < ROW_BLOCKS[0]:
            blocking = unrolled_blocking(whole, groups, most.channels, tile)[1]._replace(way=GATHER, groups=1)
        else:
            blocking = many_rows_blocking(whole, count * whole.rows, groups, most.channels, tile)
    if not blocking:
        return chosen
    blocking = blocking._replace(rows=whole.rows, members=0)
    leading = blocking._replace(members=count, shares=True)
    return [(piece, blocking if i else leading) for i, piece in enumerate(phases)]


def _side_by_side(chosen: list[Choice], blocking: Blocking) -> list[Choice]:
    """The choice for phases in equal blocks: one task does a block of all, so that a line of target, in which they
    alternate, is written once."""
    (largest, _), count = chosen[0], len(chosen)
    if any(x.positions > y.positions for piece, _ in chosen for x, y in zip(piece.axes, largest.axes)):
        return chosen
    return [(piece, blocking._replace(channels=other.channels, by_taps=other.by_taps, members=0 if i else count))
            for i, (piece, other) in enumerate(chosen)]


def _in_one_panel(blocking: Blocking, rows: int, taps: int, tile: Tile) -> Blocking:
    """The blocks with weights packed once for all phases, of no more rows than a panel of so many taps has room for."""
    room = PANEL // (blocking.channels * taps * tile.itemsize) // tile.lanes * tile.lanes
    if room < min(rows, tile.vectors * tile.lanes):
        return blocking
    return blocking._replace(rows=min(blocking.rows, up_to(even_part(rows, room), tile.lanes)), one_panel=True)


def _taps_of_panel(phases: list[Piece], tile: Tile) -> int:
    """The taps of all phases, if these may have their weights packed at once where they are done together: they read
    the same cache lines, and need all that lies there. 0 else: few rows or taps are not turned in squares."""
    if len(phases) == 1 or phases[0].rows <= tile.lanes:
        return 0
    whole = of_all_taps(phases)
    _, height, width = (axis.taps for axis in whole.axes)
    lie_apart = [stride for axis, stride, dense in zip(whole.axes, whole.weight.axes, (height * width, width, 1))
                 if axis.taps > 1 and stride != dense]
    taps = _taps(whole)
    able = sum(map(_taps, phases)) == taps and tile.lanes < 2 * taps <= 2 * PANEL_TAPS and not lie_apart
    return taps if able else 0


def in_between(first: Piece, second: Piece) -> bool:
    """Whether the second's positions lie between the first's along x: the two phases of a stride of 2."""
    x, y = first.axes[2], second.axes[2]
    return x.lattice == y.lattice == 2 and (x.start, y.start) == (0, 1) and x.positions - y.positions in (0, 1) and (
        y.positions > 0 and first.wave == second.wave and not first.accumulate
        and (first.rows, first.channels, first.tile) == (second.rows, second.channels, second.tile)
        and all((a.start, a.lattice, a.positions) == (b.start, b.lattice, b.positions)
                for a, b in zip(first.axes[:2], second.axes[:2]))
        and not (first.turned or first.source_last or first.target_last or any(first.patched)
                 or first.folded != "zeros" or any(n > 1 for n, _ in first.row_taps)))


def read_alike(pieces: list[Piece]) -> bool:
    """Whether the pieces are phases of a stride that differ in their positions and taps alone."""
    same = {(x.wave, x.rows, x.channels, x.source, x.target.axes, tuple(axis.size for axis in x.axes)) for x in pieces}
    return len(same) == 1 and not any(
        x.accumulate or x.turned or any(x.patched) or x.row_taps != ((1, 0),) * 3
        or x.folded != "zeros" or any(axis.step != 1 for axis in x.axes) for x in pieces)


def of_all_taps(pieces: list[Piece]) -> Piece:
    """A piece with the taps of all phases of a stride, in the order in which they lie in the weight."""
    axes, base, strides = [], pieces[0].weight.base, []
    for phases, stride in zip(zip(*(piece.axes for piece in pieces)), pieces[0].weight.axes):
        stride //= phases[0].every
        base -= phases[0].first * stride
        strides.append(stride)
        axes.append(phases[0]._replace(
            first=0, every=1, taps=1 + max(x.first + x.every * (x.taps - 1) for x in phases)))
    return pieces[0]._replace(axes=tuple(axes), weight=pieces[0].weight._replace(base=base, axes=tuple(strides)))


def together(pieces: list[Piece]) -> Piece:
    """Phases of a stride as one piece, whose taps are the cells from the first to the last that any of them reads."""
    axes = []
    for phases in zip(*(piece.axes for piece in pieces)):
        first = max(max(x.offset, x.offset + x.tap_step * (x.taps - 1)) for x in phases)
        last = min(min(x.offset, x.offset + x.tap_step * (x.taps - 1)) for x in phases)
        axes.append(phases[0]._replace(
            positions=max(x.positions for x in phases), offset=first, tap_step=-1, taps=first - last + 1))
    return pieces[0]._replace(axes=tuple(axes))
