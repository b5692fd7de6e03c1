/* Every kernel, once. Included by instances.h once per real type of an instruction set's file, with these defined:
     REAL, MASK      the element, and the integer of the same size (for shuffles)
     WHOLE           if the element is a whole number, modulo a power of two: then there is no algorithm with fractions
     CELL            channels that it holds: 1, or several, as fewer bits: then there is but one way, that of pieces
                     without taps, and of 2 Winograd's with small tiles (see cells.h); of 4, WEIGHT_IS_SIGNED: whether the
                     weight's have a sign, or source's
     MATRIX          if products are those of matrices, of cells of several channels (see matrices.h), by the instruction
                     PRODUCTS; cells of 2 are brain floats then, whose sums are REAL
     SLICED          and if cells of 1 are floats, whose slices are multiplied (see slices.h)
     NAME(x)         x made unique to (real type, instruction set)
     LEVEL           the instruction set
     BYTES           of a vector
     ROWS            rows of the tile of most sums; V8 V4 V3 V2 V1: vectors that a tile of 8, 4, 3, 2, 1 rows holds at
                     most */

#include "vector.h"
#include "transpose.h"
#include "lanes.h"
#include "layout.h"
#include "unroll.h"
#include "runs.h"
#include "tile.h"
#include "plain.h"
#include "store.h"
#include "walk.h"
#include "store_weight.h"
#include "cells.h"
#include "stored.h"
#ifdef MATRIX
#include "matrices.h"
#include "matrix_panels.h"
#ifdef SLICED
#include "slices.h"
#else
#include "matrix_operands.h"
#endif
#if CELL == 2
#include "matrix_weight.h"
#endif
#else
#include "broadcast_panels.h"
#include "broadcast.h"
#endif
#if CELL == 1 && !defined(MATRIX)
#include "flat.h"
#include "dense.h"
#include "across.h"
#include "correlate.h"
#include "turn.h"
#include "direct.h"
#include "direct_weight.h"
#include "last.h"
#include "bands.h"
#include "rows.h"
#include "rows_weight.h"
#endif
#if CELL == 2 && defined(WHOLE) || CELL == 1 && !defined(WHOLE) && !defined(MATRIX)
#include "winograd.h"
#endif
#include "columns.h"
#include "patch_weight.h"
#include "operand.h"
#include "patch.h"
#include "pairs.h"

#undef TILE_ROWS
#ifdef MATRIX
#define TILE_ROWS OF_REGISTER
#else
#define TILE_ROWS ROWS
#endif
const kernels_t NAME(kernels) = {
    sizeof(REAL), LANES, TILE_ROWS, WIDEST, CELL,
    {
#if defined(SLICED)
        [GATHER_SLICES] = {NAME(layout_slices), NAME(offsets), NAME(unroll_slices), NAME(pack_slices),
                             NAME(multiply_matrices), NAME(store_slices)},
#elif defined(MATRIX)
        [GATHER_MATRICES] = {NAME(layout), NAME(offsets), NAME(unroll_matrices), NAME(pack_matrices),
                             NAME(multiply_matrices), NAME(store_matrices)},
#ifndef WHOLE
        [CORRELATE_MATRICES] = {NAME(layout_numbers), NAME(offsets), NAME(unroll_numbers), NAME(turn_numbers),
                                NAME(correlate_matrices), NAME(store_weight)},
#endif
#else
        [GATHER] = {NAME(layout), NAME(offsets), NAME(unroll), NAME(pack), NAME(multiply), NAME(store)},
        [GATHER_BROADCAST] = {NAME(layout_broadcast), NAME(offsets_broadcast), NAME(unroll_broadcast),
                              NAME(pack_broadcast), NAME(multiply_broadcast), NAME(store_broadcast)},
#endif
#if CELL == 1 && !defined(MATRIX)
        [GATHER_FLAT] = {NAME(layout_flat), NAME(offsets_flat), NAME(unroll_flat), NAME(pack_flat),
                         NAME(multiply_flat), NAME(store)},
        [GATHER_DENSE] = {NAME(layout_dense), NAME(offsets_rows), NAME(unroll_broadcast), NAME(see_last),
                          NAME(multiply_dense), NAME(store_samples)},
        [GATHER_ACROSS] = {NAME(layout_across), NAME(offsets_across), NAME(unroll_broadcast), NAME(pack_across),
                           NAME(multiply_across), NAME(store_across)},
        [CORRELATE] = {NAME(layout_correlate), NAME(offsets_broadcast), NAME(unroll_broadcast), NAME(turn),
                       NAME(correlate), NAME(store_weight)},
        [CORRELATE_UNROLLED] = {NAME(layout_correlate_unrolled), NAME(offsets), NAME(unroll), NAME(turn),
                                NAME(correlate_unrolled), NAME(store_weight)},
        [CORRELATE_FEW] = {NAME(layout_few), NAME(offsets), NAME(unroll), NAME(compact), NAME(dot),
                           NAME(store_weight)},
        [CORRELATE_FLAT] = {NAME(layout_few_flat), NAME(offsets_flat), NAME(unroll_broadcast), NAME(see_last),
                            NAME(dot_flat), NAME(store_weight)},
        [GATHER_DIRECT] = {NAME(layout_direct), NAME(offsets_direct), NAME(unroll_direct), NAME(pack_direct),
                           NAME(multiply_direct), NAME(store_direct)},
        [GATHER_LAST] = {NAME(layout_last), NAME(offsets_rows), NAME(unroll_broadcast), NAME(pack_last),
                         NAME(multiply_last), NAME(store_in_last)},
        [GATHER_ROWS] = {NAME(layout_rows), NAME(offsets_rows), NAME(unroll_ends), NAME(pack_rows),
                         NAME(multiply_rows), NAME(store)},
        [CORRELATE_DIRECT] = {NAME(layout_direct_turned), NAME(offsets_direct), NAME(unroll_direct),
                              NAME(turn_direct), NAME(correlate_direct), NAME(store_weight_direct)},
        [CORRELATE_LAST] = {NAME(layout_last_turned), NAME(offsets_rows), NAME(unroll_broadcast), NAME(see_last),
                            NAME(correlate_last), NAME(store_weight_last)},
        [CORRELATE_ROWS] = {NAME(layout_rows_turned), NAME(offsets_rows), NAME(unroll_ends), NAME(see_last),
                            NAME(correlate_in_rows), NAME(store_weight_rows)},
#endif
#if CELL == 2 && defined(WHOLE) || CELL == 1 && !defined(WHOLE) && !defined(MATRIX)
        [GATHER_WINOGRAD] = {NAME(layout_winograd), NAME(offsets_winograd), NAME(unroll_winograd),
                             NAME(pack_winograd), NAME(multiply_winograd), NAME(store_winograd)},
#endif
#if !defined(WHOLE) && CELL == 1 && !defined(MATRIX)
        [CORRELATE_WINOGRAD] = {NAME(layout_winograd_turned), NAME(offsets_winograd), NAME(unroll_winograd),
                                NAME(turn_winograd), NAME(correlate_winograd), NAME(store_weight_winograd)},
#endif
    },
    NAME(patch), NAME(turn_in), NAME(turn_out), NAME(fold_patch), NAME(fold_result), NAME(interleave), NAME(zero),
    NAME(add), NAME(sum), NAME(finite_stored), NAME(see), NAME(unfold_tap), NAME(fold_rows),
    NAME(write_row),
};
