/* Every kernel, once. Included by an instruction set's file once per real type, with these defined:
     REAL, MASK      the element, and the integer of the same size (for shuffles)
     NAME(x)         x made unique to (real type, instruction set)
     BYTES           of a vector
     ROWS            rows of the largest tile; V8 V4 V2 V1: vectors that a tile of 8, 4, 2, 1 rows holds at most */

#include "tile.h"
#include "transpose.h"
#include "unroll.h"
#include "store.h"
#include "turn.h"
#include "plain.h"

const kernels_t NAME(kernels) = {
    LEVEL, sizeof(REAL), LANES, ROWS, WIDEST,
    NAME(layout), NAME(offsets), NAME(unroll), NAME(pack_weight), NAME(multiply), NAME(store),
    NAME(turn), NAME(compact), NAME(correlate), NAME(dot), NAME(store_weight),
    NAME(zero), NAME(add), NAME(sum), NAME(finite), NAME(unfold_tap), NAME(fold_row),
};
