"""The rooms of pieces and blocks: each product of the definition is made once, and no other but with padding."""

from collections import Counter
from itertools import product
from math import prod

import pytest

from problems import LAYERS
from pyconv import _blocking, _blocks, _edges, _phases, _pieces, _tiled, _ways
from pyconv._geometries import convolved
from pyconv._padding import Mode, held

GEOMETRIES = {
    "plain": ((2, 4, 5, 6), (4, 2, 3, 2), 1, 0, 1, 2),
    "padded": ((1, 2, 4, 5), (3, 2, 3, 3), 1, 2, 1, 1),
    "strided": ((1, 2, 7, 6), (1, 2, 3, 2), (2, 3), 1, 1, 1),
    "strided-and-dilated": ((1, 1, 9, 8), (2, 1, 2, 3), (4, 2), 2, (2, 3), 1),
    "stride-beyond-kernel": ((1, 2, 9, 9), (2, 2, 2, 1), (4, 3), 1, 1, 1),
    "patches": ((2, 2, 6, 4), (3, 2, 3, 2), (3, 2), 0, 1, 1),
    "patches-with-gaps": ((1, 2, 8, 7), (2, 2, 2, 2), 3, ((-1, 0), (0, 0)), 1, 1),
    "patches-dilated": ((1, 2, 10, 7), (2, 2, 2, 2), (5, 4), 0, (3, 2), 1),
    "kernel-is-input": ((3, 2, 3, 2), (4, 1, 3, 2), 1, 0, 1, 2),
    "kernel-nearly-input": ((2, 4, 7, 7), (2, 2, 6, 6), 1, 0, 1, 2),
    "kernel-nearly-input-strided": ((1, 1, 15, 9), (2, 1, 13, 8), (2, 3), ((1, 0), (0, 1)), 1, 1),
    "cropped": ((1, 2, 7, 6), (2, 2, 2, 2), 2, ((-2, 1), (0, -1)), 1, 1),
    "three-axes": ((1, 1, 3, 4, 3), (1, 1, 2, 2, 2), (2, 1, 2), 1, 1, 1),
    "whole-vectors": ((2, 32, 2, 3), (34, 16, 1, 1), 1, 0, 1, 2),
    "one-axis": ((2, 2, 9), (2, 1, 4), 3, 2, 2, 2),
}
MAPS = ("forward", "grad_input", "grad_weight")


def geometry_of(name):
    shape, weight, stride, padding, dilation, groups = GEOMETRIES[name]
    return convolved(len(shape) - 2, shape, weight, None, None, stride, padding, dilation, groups)[0]


def inside(cell, size):
    return all(0 <= c < n for c, n in zip(cell, size))


def flat(index, shape):
    at = 0
    for i, n in zip(index, shape, strict=True):
        at = at * n + i
    return at


def definition(g):
    """Every (x, w, y) of T, as flat indices: y[n, o, a] * w[o, i, k] * x[n, i, s*a + d*k - lo] where that cell is."""
    ins, outs = g.in_channels // g.groups, g.out_channels // g.groups
    for n, o, i in product(range(g.batch), range(g.out_channels), range(ins)):
        for a, k in product(product(*map(range, g.output_size)), product(*map(range, g.kernel_size))):
            cell = [s * p + d * t - lo for s, p, d, t, lo in zip(g.stride, a, g.dilation, k, g.padding)]
            if inside(cell, g.input_size):
                yield (flat((n, o // outs * ins + i, *cell), (g.batch, g.in_channels, *g.input_size)),
                       flat((o, i, *k), (g.out_channels, ins, *g.kernel_size)),
                       flat((n, o, *a), (g.batch, g.out_channels, *g.output_size)))


def made(g, piece, padded):
    """What a kernel does with a piece: every (source, weight, target); to `padded` the products with padding."""
    taps = [n for n, _ in piece.row_taps]
    for group, n, r, c in product(range(g.groups), range(piece.batch), range(piece.rows), range(piece.channels)):
        tap_of_row = r % prod(taps)
        of_row = (tap_of_row // (taps[1] * taps[2]), tap_of_row // taps[2] % taps[1], tap_of_row % taps[2])
        row = r // prod(taps) * piece.target.channel + sum(t * stride for t, (_, stride) in zip(of_row, piece.row_taps))
        for q, t in product(product(*(range(x.positions) for x in piece.axes)),
                            product(*(range(x.taps) for x in piece.axes))):
            cell = [x.step * p + x.offset + x.tap_step * k for x, p, k in zip(piece.axes, q, t)]
            if not inside(cell, [x.size for x in piece.axes]):
                padded.append(cell)
                continue
            source, weight, target = piece.source, piece.weight, piece.target
            yield (source.base + group * source.group + n * source.batch + c * source.channel
                   + sum(i * s for i, s in zip(cell, source.axes)),
                   weight.base + group * weight.group + r * weight.batch + c * weight.channel
                   + sum(k * s for k, s in zip(t, weight.axes)),
                   target.base + group * target.group + n * target.batch + row
                   + sum(p * s for p, s in zip(q, target.axes)))


@pytest.mark.parametrize("exact", [False, True], ids=["as-planned", "exact"])
@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_each_product_is_made_once(name, map, exact, monkeypatch):
    monkeypatch.setattr(_pieces, "TAPS", 4)  # so that these kernels are cut into boxes
    g, padded = geometry_of(name), []
    pieces = (_pieces.exact_pieces if exact else _pieces.pieces)(map, g)
    found = Counter(one for piece in pieces for one in made(g, piece, padded))
    swapped = _pieces.is_swapped(map, g) or map == "grad_weight" and not exact and _pieces.is_by_rows(g)
    roles = {"forward": "xwy", "grad_input": "wyx" if swapped else "ywx", "grad_weight": "ywx" if swapped else "xwy"}
    wanted = (dict(zip("xwy", one)) for one in definition(g))
    assert found == Counter(tuple(places[role] for role in roles[map]) for places in wanted)
    if exact:
        assert not padded
    else:
        assert bool(padded) == _pieces.touches_padding(map, g)


@pytest.mark.parametrize("map", ["forward", "grad_input"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_wave_writes_no_cell_twice_and_the_first_does_not_add(name, map, monkeypatch):
    monkeypatch.setattr(_pieces, "TAPS", 4)
    g = geometry_of(name)
    pieces = _pieces.pieces(map, g)
    size = g.input_size if map == "grad_input" else g.output_size
    cells = g.batch * (g.in_channels if map == "grad_input" else g.out_channels) * size[0] * size[1] * size[2]
    written = {}  # wave to cells
    for piece in pieces:
        every = piece._replace(channels=1, axes=tuple(x._replace(taps=1, size=10**9, offset=0) for x in piece.axes))
        written.setdefault(piece.wave, []).extend(target for _, _, target in made(g, every, []))
    assert all(len(targets) == len(set(targets)) for targets in written.values())
    assert {target for piece_targets in written.values() for target in piece_targets} == set(range(cells))
    assert all(piece.accumulate == (piece.wave > 1) for piece in pieces)


@pytest.mark.parametrize("itemsize, lanes", [(4, 16), (8, 8), (4, 4)])
@pytest.mark.parametrize("map", MAPS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_blocks_cover_the_positions_and_fit_scratch(name, map, itemsize, lanes):
    g, tile = geometry_of(name), _blocks.Tile(itemsize, lanes, 8, 3)
    for piece in _pieces.pieces(map, g):
        _, blocking = _ways.choose(map, piece, g.groups, tile, "gemm")
        assert 1 <= blocking.samples <= piece.batch
        assert all(1 <= n <= max(1, axis.positions) for n, axis in zip(blocking.extent, piece.axes))
        assert 1 <= blocking.channels <= max(1, piece.channels)
        block = blocking.samples, blocking.extent, blocking.shared
        size, *_ = _blocks.scratch_of(_blocks.streams_of(piece.axes), block, lanes)
        assert size * blocking.channels * blocking.groups * itemsize <= _blocking.SCRATCH


@pytest.mark.parametrize("channels, groups, direct",
                         [(384, 384, True), (128, 32, True), (64, 1, False), (64, 2, False)])
def test_many_small_groups_are_done_directly(channels, groups, direct):
    """Depthwise and groups of few channels, in any batch: a lane is a group, but not for weights of one channel."""
    of_weight = _blocks.CORRELATE_ROWS if channels == groups else _blocks.CORRELATE_DIRECT
    ways = (_blocks.GATHER_DIRECT, _blocks.GATHER_DIRECT, of_weight)
    for batch, (map, way) in product((1, 8), zip(MAPS, ways)):
        shapes = (batch, channels, 14, 14), (channels, channels // groups, 3, 3)
        g = convolved(2, *shapes, None, None, 1, 1, 1, groups)[0]
        assert {_ways.choose(map, x, groups, _blocks.Tile(4, 16, 8, 3), "gemm")[1].way == way
                for x in _pieces.pieces(map, g)} == {direct}


@pytest.mark.parametrize(("channels", "size", "batches", "by_rows"), [
    ((16, 32), 8, (1, 3, 64), True), ((32, 16), 8, (1, 3), False), ((32, 16), 2, (1, 2, 4), True),
    ((32, 16), 2, (5, 8, 64), False), ((24, 64), 8, (1, 3), False)])
def test_when_a_weight_s_gradient_is_stored_row_by_row(channels, size, batches, by_rows):
    """Input channels fill vectors, and are not many more; batches up to a power of two decide alike."""
    for batch in batches:
        for per_sample in (False, True):
            g, _ = convolved(
                2, (batch, channels[0], size, size), (channels[1], channels[0], 1, 1), None, None, 1, 0, 1, 1)
            alone = _pieces.is_by_rows(g._replace(batch=1))
            assert _pieces.is_by_rows(g._replace(per_sample=per_sample)) == (alone if per_sample else by_rows)


def test_only_one_sample_decides_the_order_of_sums():
    """forward and grad_input sum the same channels together whatever the batch."""
    shape, weight, *settings = GEOMETRIES["padded"]
    for batch in (1, 2, 7, 64):
        g = convolved(2, (batch, *shape[1:]), weight, None, None, *settings)[0]
        for map in ("forward", "grad_input"):
            for piece in _pieces.pieces(map, g):
                _, blocking = _ways.choose(map, piece, 1, _blocks.Tile(4, 16, 8, 3), "gemm")
                assert blocking.channels == piece.channels


@pytest.mark.parametrize("algorithm", ["auto", "gemm", "winograd"])
@pytest.mark.parametrize("map", ["forward", "grad_input"])
def test_how_many_tasks_are_wanted_decides_no_order_of_sums(map, algorithm):
    """Matrix products, flat or not, and broadcast cells sum alike: the same channels at a time."""
    alike = dict.fromkeys((_blocks.GATHER_FLAT, _blocks.GATHER_BROADCAST), _blocks.GATHER)
    cut = []
    for layer in LAYERS:
        shapes, settings = (layer.input_shape, layer.weight_shape), (layer.stride, layer.padding, layer.dilation)
        geometry, _ = convolved(
            layer.rank, *shapes, None, None, *settings, layer.groups, mode=Mode(layer.padding_mode))
        pieces = _pieces.pieces(map, geometry)
        found = [[blocking for _, blocking in _phases.choose_all(
            map, pieces, geometry.groups, _blocks.Tile(4, 16, 8, 3, tasks), algorithm)] for tasks in (2, 8, 40)]
        orders = {tuple((alike.get(x.way, x.way), x.channels) for x in blockings) for blockings in found}
        assert len(orders) == 1, layer
        cut.append(len({tuple((x.samples, x.extent, x.rows, x.groups) for x in blockings) for blockings in found}))
    assert sum(n > 1 for n in cut) > len(LAYERS) / 2


@pytest.mark.parametrize("tile", [(4, 16, 8, 3), (8, 4, 4, 3), (8, 2, 4, 2)])
@pytest.mark.parametrize("positions", [16, 63, 64, 65])
@pytest.mark.parametrize("channels, groups", [(249, 11), (130, 2), (600, 1)])
def test_a_lone_tap_decides_no_order_of_sums_of_phases(tile, positions, channels, groups):
    """Of two taps at a stride of two each phase has one; it reads rows that are whole, or some samples at once."""
    orders = set()
    for batch, tasks in product((1, 2, 8, 32), (2, 8, 64)):
        shapes = (batch, 2 * groups, 2 * positions - 1), (channels * groups, 2, 2)
        g = convolved(1, *shapes, None, None, 2, ((0, 1),), 1, groups)[0]
        found = _phases.choose_all(
            "grad_input", _pieces.pieces("grad_input", g), groups, _blocks.Tile(*tile, tasks), "auto")
        orders.add(tuple((x.way in (_blocks.GATHER_DIRECT, _blocks.GATHER_ROWS), x.channels) for _, x in found))
    assert len(orders) == 1


@pytest.mark.parametrize("name", GEOMETRIES)
def test_what_phases_have_together_is_all_that_each_reads(name):
    """Every tap of a phase is one of theirs, whole steps from the first."""
    phases = [piece for piece in _pieces.pieces("grad_input", geometry_of(name)) if piece.axes[2].taps]
    if not _phases.read_alike(phases):
        return
    whole = _phases.together(phases)
    assert all(whole.axes[a].positions >= piece.axes[a].positions for piece in phases for a in range(3))
    for piece in phases:
        for axis, all_of_it in zip(piece.axes, whole.axes):
            cells = [all_of_it.offset + all_of_it.tap_step * tap for tap in range(all_of_it.taps)]
            assert {axis.offset + axis.tap_step * tap for tap in range(axis.taps)} <= set(cells)


FIRST_LAYER = ((3, 28, 28), (90, 3, 5, 5), 1)
DEPTHWISE = ((64, 28, 28), (64, 1, 3, 3), 64)


def phases_of(layer, batch):
    shape, weight, groups = layer
    return _pieces.pieces("grad_input", convolved(2, (batch, *shape), weight, None, None, 2, 1, 1, groups)[0])


def chosen(layer, batch, algorithm="auto"):
    tile = _blocks.Tile(4, 16, 8, 3)
    return [blocking for _, blocking in _phases.choose_all(
        "grad_input", phases_of(layer, batch), layer[2], tile, algorithm)]


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
@pytest.mark.parametrize("stride", [2**14, 2**30])
def test_phases_without_taps_are_one(stride, mode):
    """Of 2**30 there would be no end."""
    geometry = convolved(1, (1, 1, 2**31 - 1), (1, 1, 3), None, None, stride, ((2, 1),), 5, 1, mode=Mode(mode))[0]
    found = _pieces.pieces("grad_input", geometry)
    assert len(found) <= 12 and not found[0].accumulate
    _pieces.touches_padding("grad_input", geometry)


def test_phases_of_which_one_lies_flat_have_no_cells_together():
    first, second, *_ = phases_of(FIRST_LAYER, 1)
    *others, x = second.axes
    assert _phases.read_alike([first, second])
    assert not _phases.read_alike([first, second._replace(axes=(*others, x._replace(size=2 * x.size)))])


LONE_TAP = (3, 112, 112), (32, 3, 3, 3), 1  # of one phase, whose cells could be read where they lie
LONE_TAP_OF_MANY = (24, 56, 56), (48, 24, 3, 3), 1


@pytest.mark.parametrize("layer, way", [
    (FIRST_LAYER, _blocks.GATHER), (LONE_TAP, _blocks.GATHER), (DEPTHWISE, _blocks.GATHER_DIRECT)])
def test_phases_with_few_rows_unroll_their_cells_once(layer, way):
    first, *others = chosen(layer, 4)
    assert (first.way, first.members, first.shares) == (way, 4, True) and all(other.members == 0 for other in others)
    assert {(x.samples, x.extent, x.shared, x.channels) for x in others} == {
        (first.samples, first.extent, first.shared, first.channels)}


def test_phases_of_more_rows_are_stored_in_pairs():
    """All of whose cells are unrolled then, of a lone tap too."""
    found = chosen(LONE_TAP_OF_MANY, 8)
    assert {x.way for x in found} == {_blocks.GATHER} and not any(x.shares for x in found)
    assert [(x.paired, x.members) for x in found] == [(True, 2), (False, 0)] * 2


@pytest.mark.parametrize("rank, input_shape, weight_shape, stride, rows", [
    (1, (1, 2, 48000), (402, 2, 400), 160, 320), (1, (8, 4, 480000), (64, 4, 500), 250, 1000),
    (2, (2, 3, 4096, 4096), (768, 3, 32, 32), 16, 768), (2, (2, 1, 224, 224), (64, 1, 16, 16), 8, 64)])
@pytest.mark.parametrize("tile", [_blocks.Tile(4, 16, 8, 3), _blocks.Tile(8, 8, 8, 3), _blocks.Tile(4, 8, 4, 3)])
def test_many_phases_unroll_their_cells_once(rank, input_shape, weight_shape, stride, rows, tile):
    """Whatever the size, the results of all are in L2 at once, and are parts enough for threads."""
    geometry = convolved(rank, input_shape, weight_shape, None, None, stride, 0, 1, 1)[0]
    first, *others = (blocking for _, blocking in _phases.choose_all(
        "grad_input", _pieces.pieces("grad_input", geometry), 1, tile, "auto"))
    assert (first.members, first.shares) == (1 + len(others), True) and first.members * first.rows == rows
    size = first.samples * prod(first.extent)
    assert rows * size * tile.itemsize <= 3 << 17
    assert prod(geometry.output_size) * geometry.batch >= 4 * size


def test_phases_sum_the_same_channels_at_a_time_in_any_batch_and_way():
    depths = {tuple(x.channels for x in chosen(FIRST_LAYER, batch, way))
              for batch in (1, 2, 7, 64) for way in ('auto', 'gemm')}
    assert len(depths) == 1 and len(set(*depths)) == 1


# shape of the input, shape of the weight, groups
GROUPED = (64, 28, 28), (64, 16, 3, 3), 4
GROUPED_FEW = (256, 56, 56), (256, 8, 3, 3), 32
DENSE = (128, 28, 28), (128, 128, 3, 3), 1
ODD = (128, 27, 29), (128, 128, 3, 3), 1


@pytest.mark.parametrize("layer, way", [
    (GROUPED, _blocks.GATHER_BROADCAST), (GROUPED_FEW, _blocks.GATHER_DIRECT), (DENSE, _blocks.GATHER_BROADCAST),
    (ODD, _blocks.GATHER_BROADCAST)])
def test_one_task_does_a_block_of_all_phases(layer, way):
    """Else two tasks would write each line of the input's gradient, in which phases alternate."""
    first, *others = found = chosen(layer, 8)
    assert {x.way for x in found} == {way} and not any(x.shares for x in found)
    assert first.members == 4 and not any(x.members for x in others)
    assert [x.paired for x in found] == [True, False, True, False]
    assert len({(x.samples, x.extent, x.rows, x.groups) for x in found}) == 1


@pytest.mark.parametrize("layer, packed_once", [(DENSE, True), (ODD, True), (GROUPED, False), (FIRST_LAYER, False)])
def test_phases_of_many_rows_pack_their_weights_once(layer, packed_once):
    """Squares of weights have as many rows as a vector has lanes."""
    assert {x.one_panel for x in chosen(layer, 8)} == {packed_once}


@pytest.mark.parametrize("cells, taps, packed_once", [(2, 9, False), (3, 9, True), (28, 9, True), (28, 4, False),
                                                      (28, 128, True), (28, 129, False)])
def test_phases_that_read_all_taps_pack_their_weights_once(cells, taps, packed_once):
    """Two cells lack those of the third phase; few taps are not turned in squares; and a table has room for so many."""
    g = convolved(1, (8, 128, cells), (128, 128, taps), None, None, 3, ((64, 64),), 1, 1)[0]
    found = _phases.choose_all(
        "grad_input", _pieces.pieces("grad_input", g), 1, _blocks.Tile(4, 8, 4, 3), "gemm")
    assert {x.one_panel for _, x in found if x.way == _blocks.GATHER_BROADCAST} == {packed_once}


def test_phases_whose_taps_lie_apart_pack_their_own():
    """Two cells along x read two of three taps, which then do not follow those of the row before them."""
    g = convolved(2, (8, 128, 5, 2), (128, 128, 3, 3), None, None, (1, 3), (1, 3), 1, 1)[0]
    found = _phases.choose_all("grad_input", _pieces.pieces("grad_input", g), 1, _blocks.Tile(4, 8, 4, 3), "gemm")
    assert [x.way for _, x in found] == [_blocks.GATHER_BROADCAST] * 2 and not any(x.one_panel for _, x in found)


def test_the_taps_of_all_phases_lie_where_each_phase_has_its_own():
    for layer in (DENSE, FIRST_LAYER):
        phases = phases_of(layer, 1)
        whole = _phases.of_all_taps(phases)

        def places(piece):
            return [piece.weight.base + sum(t * s for t, s in zip(taps, piece.weight.axes))
                    for taps in product(*(range(axis.taps) for axis in piece.axes))]

        assert sorted(sum(map(places, phases), [])) == places(whole) == list(range(prod(layer[1][2:])))


@pytest.mark.parametrize("layer", [GROUPED, GROUPED_FEW, DENSE, ODD, FIRST_LAYER, DEPTHWISE], ids=range(6))
def test_phases_sum_in_one_order_in_any_batch(layer):
    """A direct way sums all channels at once, the others so many at a time, each in any of their ways."""
    orders = {tuple((x.way == _blocks.GATHER_DIRECT, x.channels) for x in chosen(layer, batch))
              for batch in (1, 2, 3, 8, 64)}
    assert len(orders) == 1


def test_results_of_phases_fit_the_cache_together():
    for layer in (GROUPED, DENSE, ODD):
        first = chosen(layer, 64)[0]
        assert 4 * first.samples * prod(first.extent) * first.rows * 4 <= 2 * _blocking.RESULTS


def test_phases_in_tiles_share_nothing_with_those_that_are_not(monkeypatch):
    monkeypatch.setattr(_tiled, "tiling_pays", lambda name, piece: True)
    g = convolved(2, (2, 2, 3, 411), (2, 1, 3, 5), None, None, 2, (1, 2), 1, 2)[0]
    for tile in (_blocks.Tile(8, 2, 4, 2), _blocks.Tile(4, 16, 8, 3)):
        found = _phases.choose_all("grad_input", _pieces.pieces("grad_input", g), 2, tile, "auto")
        assert {blocking.way for _, blocking in found} > {_blocks.GATHER_WINOGRAD}
        assert all((blocking.way == _blocks.GATHER_WINOGRAD) == (max(piece.tile) > 1) for piece, blocking in found)


@pytest.mark.parametrize("size, kernel, stride, padding, dilation, goes_round", [
    (5, 3, 1, 1, 1, True), (5, 3, 1, (2, 0), 1, True), (4, 4, 1, (1, 2), 1, True), (3, 5, 1, (4, 4), 2, True),
    (5, 3, 1, 2, 1, False), (5, 3, 1, (1, 0), 1, False), (4, 2, 2, 2, 1, False)])
def test_circular_grad_input_goes_round_where_sizes_agree(size, kernel, stride, padding, dilation, goes_round):
    pads = (padding,) if isinstance(padding, tuple) else padding
    g = convolved(1, (1, 1, size), (1, 1, kernel), None, None, stride, pads, dilation, 1, mode=Mode("circular"))[0]
    found = _pieces.pieces("grad_input", g)
    assert (len(found) == 1) is goes_round
    assert {piece.edge for piece in found} == {"circular" if goes_round else "zeros"}
    [n], [lo] = g.output_size[2:], g.padding[2:]
    wanted = Counter(((stride * a + dilation * k - lo) % size, k, a) for a in range(n) for k in range(kernel))
    made = Counter()
    for piece in found:
        x = piece.axes[2]
        for q, t in product(range(x.positions), range(x.taps)):
            a = x.step * q + x.offset + x.tap_step * t
            if goes_round or 0 <= a < n:
                made[x.start + x.lattice * q, x.first + x.every * t, a % n] += 1
    assert made == wanted


@pytest.mark.parametrize("size, kernel, stride, padding, dilation", [
    (5, 3, 1, (1, 1), 1), (5, 3, 1, (2, 0), 1), (2, 4, 1, (5, 3), 1), (1, 3, 1, (1, 2), 1), (9, 3, 1, (-1, 2), 2),
    (4, 3, 2, (2, 1), 1)])
@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_grad_input_of_repeating_modes_makes_every_product_once(size, kernel, stride, padding, dilation, mode):
    """With folds each padded position of the one piece belongs to the cell that it stands for."""
    g = convolved(1, (1, 1, size), (1, 1, kernel), None, None, stride, (padding,), dilation, 1, mode=Mode(mode))[0]
    found = _pieces.pieces("grad_input", g)
    assert {piece.folded for piece in found if piece.channels} == {mode if stride == 1 else "zeros"}
    [n], [lo], cells = g.output_size[2:], g.padding[2:], g.input_size[2]
    wanted = Counter((held(mode, stride * a + dilation * k - lo, cells), k, a) for a in range(n) for k in range(kernel))
    made = Counter()
    for piece in found:
        x, (before, _) = piece.axes[2], piece.folds[2]
        for q, t in product(range(x.positions), range(x.taps)):
            a = x.step * q + x.offset + x.tap_step * t
            if 0 <= a < n:
                cell = x.start + x.lattice * (q - before)
                made[held(mode, cell, cells) if piece.folded == mode else cell, x.first + x.every * t, a] += 1
    assert made == wanted


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("padding", [((-2, 3), (4, -1)), ((1, -2), (0, 0)), ((2, 2), (-3, 1))])
@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_where_an_axis_is_cropped_and_filled_each_cell_of_the_array_is_stored_once(mode, padding, stride):
    """What is not x is cleared; of a stride that is wider than the kernel all is cleared before."""
    g = convolved(2, (1, 1, 7, 8), (1, 1, 2, 3), None, None, stride, padding, 1, 1, mode=Mode(mode))[0]
    found, stored = _pieces.pieces("grad_input", g), Counter()
    for piece in found[:1] if found[0].wave == 0 else found:
        assert piece.target.base == sum(
            (n + axis.start) * step for n, axis, step in zip(g.before, piece.axes, (56, 8, 1)))
        y, x = ([axis.start + axis.lattice * q for q in range(axis.positions - sum(fold))]
                for axis, fold in zip(piece.axes[1:], piece.folds[1:]))
        stored.update(product(y, x) if not piece.accumulate else ())
    _, above, left = g.before
    assert stored == Counter(product(range(-above, 7 - above), range(-left, 8 - left)))


@pytest.mark.parametrize("mode", ["circular", "replicate", "reflect"])
def test_a_single_cell_beyond_an_edge_has_the_order_that_tiles_want(mode):
    assert [cells.slope for first in (-1, 5) for cells in _edges.beyond(mode, first, first + 1, 5)] == [1, 1]


@pytest.mark.parametrize("algorithm", ["gemm", "winograd"])
@pytest.mark.parametrize("channels, groups", [(64, 1), (3, 1), (48, 48)])
@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_blocks_hold_the_cells_that_padded_ones_stand_for(mode, channels, groups, algorithm):
    tile = _blocks.Tile(4, 16, 8, 3)
    for size, (kernel, padding) in product(((1, 7), (56, 56), (57, 300), (224, 9), (31, 2000)), ((3, 1), (5, (0, 4)))):
        shapes = (2, channels, *size), (channels, channels // groups, kernel, kernel)
        pads = (padding, padding) if isinstance(padding, tuple) else padding
        g = convolved(2, *shapes, None, None, 1, pads, 1, groups, mode=Mode(mode))[0]
        found = _pieces.pieces("grad_input", g)
        [(piece, blocking)] = _phases.choose_all("grad_input", found, groups, tile, algorithm)
        for a in (1, 2):
            axis, (before, behind) = piece.axes[a], piece.folds[a]
            cells = axis.positions - before - behind
            for first in range(0, -(-axis.positions // piece.tile[a]), blocking.extent[a]):
                end = min(axis.positions, (first + blocking.extent[a]) * piece.tile[a])
                block = range(first * piece.tile[a] - before, end - before)
                assert {held(mode, cell, cells) for cell in block} <= {cell for cell in block if 0 <= cell < cells}
