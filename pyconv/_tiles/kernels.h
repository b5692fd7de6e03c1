/* The contract between the frame (_cpu.pyx) and the kernels: what a piece of a convolution is, and the functions that
   one (real type, instruction set) offers. No Python.h here or in any file that includes this. */
#ifndef PYCONV_KERNELS_H
#define PYCONV_KERNELS_H

#include <stddef.h>

typedef ptrdiff_t index_t;

/* One spatial axis. Position q under tap t reads source cell  step * q + offset + tap_step * t,  or nothing when that
   is outside [0, size). Taps whose offsets agree modulo `step` read the same cells shifted by whole positions, so they
   can share a stream: tap t is in stream t % streams, at `unit` positions more than the tap `streams` before it. */
typedef struct {
    index_t size, step, offset, tap_step, taps;
    index_t streams, unit;
} axis_t;

/* A piece: a box of positions times a box of taps. All strides count elements.
   source  is read through the axes: forward's input, grad_input's grad_output, grad_weight's input;
   target  has one cell a position: forward's output, grad_input's grad_input (a lattice when strided) and, being read,
           grad_weight's grad_output;
   weight  has one cell for each (row = channel of target, channel of source, tap).
   Where no two taps of a convolution meet in a cell, grad_input takes the taps as rows: row_taps of them a channel.
   turned: the channels of a cell lie side by side, in source and target; then positions have the x axis alone. */
typedef struct {
    axis_t axis[3];
    index_t count[3];
    index_t source_base, source_batch, source_channel, source_stride[3];
    index_t target_base, target_batch, target_channel, target_stride[3];
    index_t weight_base, weight_row, weight_channel, weight_stride[3];
    index_t row_taps[3], row_stride[3];
    int turned;
} piece_t;

/* A block: the positions of one piece that one thread works on at a time, flattened (sample, z, y, x), x fastest.
   `shared` is the axis whose taps share streams (3: none); the axes before it, samples included, have extent 1. */
typedef struct {
    index_t sample, samples, start[3], extent[3];
    int shared;
} block_t;

/* Where the unrolled source of a block lies in scratch: stream after stream, each `pitch` long, channel by channel. */
typedef struct {
    index_t positions, pitch, streams[3], channel;
} layout_t;

/* The kernels of one (real type, instruction set); arrays are void so that the frame needs no real type. */
typedef struct {
    const char *level;
    int itemsize, lanes, rows, vectors;
    void (*layout)(const piece_t *, const block_t *, layout_t *);
    /* offset[channel][tap]: where in scratch the positions that it reads begin */
    void (*offsets)(const piece_t *, const block_t *, const layout_t *, index_t channels, index_t *offset);
    /* scratch <- `channels` channels of source, unrolled; nothing outside [begin, limit) is read */
    void (*unroll)(const piece_t *, const block_t *, const layout_t *, const void *source, const void *begin,
                   const void *limit, index_t channels, void *scratch);
    /* panels [rows][k][rows of a tile] <- weight, for `channels` channels from `weight` */
    void (*pack_weight)(const piece_t *, const void *weight, index_t row, index_t rows, index_t channels, void *panels);
    /* result[rows][pitch] (+)= panels . scratch, over depth = channels * taps whose streams start at offset[] */
    void (*multiply)(index_t rows, index_t positions, index_t depth, const void *panels, const index_t *offset,
                     const void *scratch, void *result, index_t pitch, int accumulate);
    /* target <- result of a block, rows from `row` (+ bias of the channel) (+ target); may change result */
    void (*store)(const piece_t *, const block_t *, void *result, index_t pitch, index_t row, index_t rows,
                  const void *bias, void *target, int accumulate);
    /* turned[panels of columns][positions][columns of a panel] <- target, its channels as columns */
    void (*turn)(const piece_t *, const block_t *, const void *target, index_t columns, void *turned);
    /* compact[columns][pitch] <- target */
    void (*compact)(const piece_t *, const block_t *, const void *target, index_t columns, void *compact,
                    index_t pitch);
    /* result[rows][pitch] (+)= sum over positions of scratch[offset[row] + position] * turned[position][column] */
    void (*correlate)(index_t rows, index_t columns, index_t positions, const index_t *offset, const void *scratch,
                      const void *turned, void *result, index_t pitch, int accumulate);
    /* the same from `compact`, for few columns */
    void (*dot)(index_t rows, index_t columns, index_t positions, const index_t *offset, const void *scratch,
                const void *compact, index_t compact_pitch, void *result, index_t pitch, int accumulate);
    /* weight <- transpose of result[channels * taps][pitch] (+ weight) */
    void (*store_weight)(const piece_t *, const void *result, index_t pitch, index_t columns, index_t channels,
                         void *weight, int accumulate);
    void (*clear)(index_t n, void *to);
    void (*add)(index_t n, const void *from, void *to);
    double (*sum)(index_t n, const void *from);
    int (*finite)(index_t n, const void *from);
    /* columns <- one plane (channel of a sample) under one tap; one row of a plane <- the sum of its columns */
    void (*unfold_tap)(const piece_t *, index_t tap, const void *plane, void *columns);
    void (*fold_row)(const piece_t *, index_t z, index_t y, const void *columns, void *row);
} kernels_t;

/* The which-th best kernels for this itemsize that the processor can run, or NULL. */
const kernels_t *pyconv_kernels(int itemsize, int which);

#endif
