/* The contract between the frame (_cpu.pyx) and the kernels: what a piece of a convolution is, and the functions that
   one (real type, instruction set) offers. No Python.h here or in any file that includes this. */
#ifndef PYCONV_KERNELS_H
#define PYCONV_KERNELS_H

#include <stddef.h>
#include <stdint.h>

typedef ptrdiff_t index_t;

/* One spatial axis. Position q under tap t reads source cell  step * q + offset + tap_step * t,  or nothing when that
   is outside [0, size). Taps whose offsets agree modulo `step` read the same cells shifted by whole positions, so they
   can share a stream: tap t is in stream t % streams, at `unit` positions more than the tap `streams` before it. */
typedef struct {
    index_t size, step, offset, tap_step, taps;
    index_t streams, unit;
} axis_t;

/* The type of an operand's elements in memory; the operands; what the cells of a source beyond its edge are. */
enum {
    STORED_REAL, STORED_HALF, STORED_BRAIN, STORED_INT8, STORED_UINT8, STORED_INT16, STORED_UINT16, STORED_INT32,
    STORED_UINT32, STORED_INT64, STORED_UINT64, STORED_TYPES
};
enum { SOURCE, TARGET, WEIGHT };
enum {
    FOLDED_CELLS = 1024, /* most cells whose columns are summed at a time */
    PANEL_TAPS = 128,    /* most taps of phases that have one panel */
    CONVERTED = 256,     /* numbers of columns in another type that are converted at a time: even, for whole cells */
};
enum { EDGE_NONE, EDGE_CONSTANT, EDGE_CIRCULAR, EDGE_REPLICATE, EDGE_REFLECT };
/* What vectors at the ends of a row have put into them: with positions beside target, zeros beside the cells. */
enum { NO_ENDS, ZEROS_BESIDE, CELLS_BESIDE, POSITIONS_BESIDE };

/* A piece: a box of positions times a box of taps. All strides count elements.
   source  is read through the axes: forward's input, grad_input's grad_output, grad_weight's input;
   target  has one cell a position: forward's output, grad_input's grad_input (a lattice when strided) and, being read,
           grad_weight's grad_output; a group of it has `rows` channels;
   weight  has one cell for each (row = channel of target, channel of source, tap).
   Where no two taps of a convolution meet in a cell, grad_input takes the taps as rows: row_taps of them a channel, one
   after the other; or rows_by_tap, which are all channels of a tap and then those of the next.
   turned: the channels of a cell lie side by side, in source and target; then positions have the x axis alone.
   tile: with Winograd's algorithm, outputs of a tile along each axis, 1 where that is not transformed; blocks then
   count tiles. Such an axis has 3 taps, step 1 and a tap_step of d >= 1: d lattices of positions that each read a
   lattice of their own. Tiles lie in one lattice; along y they are counted lattice after lattice, along x first the d
   tiles, one of each lattice, that lie side by side, which no block separates. Where an operand has patches, a block is
   of one lattice along y too, and the piece that it is given is that lattice, without its steps.
   Less than 0: of a lone tile, which is a lattice as a whole, with no cell beside its own (offset -tap_step, as many
   cells as positions). Along x the lattices lie side by side and others may lie between one tile's cells: positions
   and cells reach from the first to the last. Along y tap_step is 1 and z has the lattices.
   parts: real numbers of an element, 2 of a complex one. Rows and channels count them; strides lead from element to
   element, and from one channel's real part to the next one's.
   stored: the types of source, target and weight, where they are not computed in; strides then count such elements.
   edge: what source has beyond its edge, and the constant; only_edges: nothing but this keeps it from being read as it
   lies.
   source_last: source's channels lie last in memory, wherever a block's are copied to: it decides the order of sums.
   close: of source and target, whether the channels of a block that is copied lie last there too.
   several: of source's channels in a group, where several of them are one cell, how many there are as stored; strides
   of channels lead to the next cell's. 0 where each is a cell.
   woven: channels of each of the small groups that one vector holds where channels lie last, 0 where it holds but one.
   They count as one group, whose rows are those of all; weight_woven leads from one to the next in weight.
   panel_taps: where the phases of a stride have one panel of weights, how many taps of a channel it has: those of all
   phases, of which panel_before are in front of this one's; 0 where a piece has a panel of its own.
   every: of the piece with all of their taps, which is packed: phases have every so many along each axis. Else 0.
   by_taps: whether cells are broadcast tap after tap (see broadcast.h), or a product of matrices sums one cell under all
   taps of a row (see matrices.h).
   summed: else, how many cells of a group such a product sums, of sliced floats how many pairs of channels.
   folded: what stand for positions beyond the edges of target, of which there are so many before and behind each axis:
   cells of target that lie in the same block. Where there are none, those that cells of source have products for are
   summed with these cells (see rows.h). */
typedef struct {
    axis_t axis[3];
    index_t count[3], rows;
    index_t source_base, source_group, source_batch, source_channel, source_stride[3];
    index_t target_base, target_group, target_batch, target_channel, target_stride[3];
    index_t weight_base, weight_group, weight_row, weight_channel, weight_stride[3];
    index_t row_taps[3], row_stride[3];
    int turned, rows_by_tap;
    index_t tile[3];
    int parts, stored[3], edge, only_edges, source_last, close[2];
    index_t several, woven, weight_woven;
    index_t panel_taps, panel_before, every[3];
    int by_taps;
    index_t summed;
    long long edge_value[2]; /* its bytes, as stored */
    int folded;
    index_t before[3], behind[3];
} piece_t;

/* A block: the positions of one piece that one thread works on at a time, x fastest.
   `shared` has bit a set where the taps of axis a share streams. */
typedef struct {
    index_t sample, samples, start[3], extent[3];
    int shared;
} block_t;

/* A part of the weight: some rows (target's channels) and some of source's channels, of one group or of several. */
typedef struct {
    index_t group, groups, row, rows, channel, channels;
} part_t;

/* Where the unrolled source of a block lies in scratch: group by group (`set` apart), channel by channel, stream after
   stream, each `stream` long. Position (sample, z, y, x) is  sample * batch + z * axis[0] + y * axis[1] + x  in each
   array of `positions` elements: along a shared axis a row also has the cells that only later taps reach, so between
   two rows of positions there are some that are computed with the others and belong to nothing.
   Results lie in rows `pitch` apart or, of the ways that keep channels side by side, positions `cell` apart; those of
   the block begin with position `first`, once what is beyond target's edges was added to others. `cut`: rows lie in
   target and end within a vector, where nothing else may be written. The last four are how many elements the arrays
   take, and how many of the result's are sums. */
typedef struct {
    index_t positions, batch, axis[2], stream, streams[3], channel, set, pitch, cell, first, cut;
    index_t scratch, panel, result, sums;
} layout_t;

/* Of numbers other than zero, twice the bits of the least one's magnitude, less one, and of the greatest one's, as those
   of a float: 0xffffffff and 0 where there are none. */
typedef struct {
    uint32_t least, greatest;
} seen_t;

/* What a kernel works on. seen: where floats are sliced (see slices.h), those of the weight and then of each sample. */
typedef struct {
    const piece_t *piece;
    block_t block;
    part_t part;
    layout_t layout;
    seen_t *seen;
} work_t;

/* One way to do the work: what the frame calls for one block. `other` is the operand that is not unrolled and `out` the
   result: the weight and target, in grad_weight target and the weight. Arrays are void: the frame has no real type. */
typedef struct {
    void (*layout)(work_t *);
    /* offset[channel][tap]: where in scratch the positions that it reads begin */
    void (*offsets)(const work_t *, index_t *offset);
    /* scratch <- the part's channels of source; nothing outside [begin, limit) is read */
    void (*unroll)(const work_t *, const void *source, const void *begin, const void *limit, void *scratch);
    /* panel <- the part's rows of other */
    void (*pack)(const work_t *, const void *other, void *panel);
    /* result (+)= panel . scratch, summed over channels and taps, in grad_weight over positions; may change scratch */
    void (*multiply)(const work_t *, const void *panel, const index_t *offset, void *scratch, void *result,
                     int accumulate);
    /* out <- result (+ bias of target's channels) (+ out); may change result. doubtful[sample] is set where Winograd's
       result is not finite, for the definition's may be. */
    void (*store)(const work_t *, void *result, const void *bias, void *out, int accumulate, char *doubtful);
} way_t;

enum {
    GATHER, GATHER_FLAT, GATHER_DENSE, GATHER_BROADCAST, GATHER_ACROSS, CORRELATE, CORRELATE_UNROLLED, CORRELATE_FEW,
    CORRELATE_FLAT, GATHER_DIRECT, GATHER_LAST, GATHER_ROWS, GATHER_MATRICES, GATHER_SLICES, CORRELATE_DIRECT,
    CORRELATE_LAST, CORRELATE_ROWS, CORRELATE_MATRICES, GATHER_WINOGRAD, CORRELATE_WINOGRAD, WAYS
};

/* The kernels of one (real type, instruction set). */
typedef struct {
    int itemsize, lanes, rows, vectors, cell; /* the last: channels of a cell */
    way_t ways[WAYS];
    /* For operands (SOURCE, TARGET, WEIGHT) that do not lie as a way wants them (see patch.h): elements of the patch of
       the largest block; patch <- the block's box or part of it, seen as the whole operand; operand (+)= patch. */
    index_t (*patch)(const work_t *, int which);
    void *(*turn_in)(const work_t *, int which, const void *operand, void *patch, piece_t *seen);
    void (*turn_out)(const work_t *, int which, void *patch, void *operand, int accumulate);
    /* For a target with positions beyond its edges, which are added to the cells that stand for them: its patch, to
       which the bias is added too; or the result, of which the block's cells remain. */
    void (*fold_patch)(const work_t *, void *patch, const void *bias);
    void (*fold_result)(work_t *, void *result, int direct);
    /* to <- the results of the two phases of a stride of 2 along x, of register tiles or direct, as those of one */
    void (*interleave)(const work_t *even, const void *even_result, const work_t *odd, const void *odd_result,
                       const work_t *whole, void *to, int direct);
    void (*clear)(index_t n, void *to);
    void (*add)(index_t n, const void *from, void *to);
    double (*sum)(index_t n, const void *from);
    /* whether all are, or even so small that no sum of Winograd's is not */
    int (*finite)(int stored, index_t n, const void *from, int small);
    /* seen <- what it is with these numbers, of brain floats or of floats */
    void (*see)(index_t n, const void *from, seen_t *seen);
    /* columns <- one plane (channel of a sample) under one tap; some cells of some rows, `across` elements apart, += the
       sum of their columns; cells `step` apart (+)= such sums */
    void (*unfold_tap)(const piece_t *, index_t tap, const void *plane, void *columns);
    void (*fold_rows)(const piece_t *, index_t z, index_t y, index_t rows, index_t first, index_t count,
                      const void *columns, index_t pitch, void *sums, index_t across);
    void (*write)(int stored, const void *sums, index_t n, void *to, index_t step, int accumulate);
} kernels_t;

/* The name of the which-th best instruction set that the processor can run, or NULL. */
const char *pyconv_level(int which);

/* Its kernels, of whole numbers modulo 2**(8 * itemsize) or of floats. */
const kernels_t *pyconv_kernels(int whole, int itemsize, int which);

/* Those of float32, and the ways that slice floats; NULL where there are none. */
const kernels_t *pyconv_kernels_of_slices(int which);

/* Those of them that sum products of a type, as it is stored, in 32 bits, several at a time, for forward and grad_input:
   the best, and with `other` those that take what these do not; NULL where there are none. */
const kernels_t *pyconv_kernels_of_cells(int stored, int which, int other);

/* Bytes of the second-level cache of a processor, 0 where the system does not tell. */
long pyconv_second_level(void);

#endif
