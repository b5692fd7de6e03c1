"""pyconv: convolution and every one of its gradients, as plain functions of arrays in main memory or on a GPU.

    conv1d, conv2d, conv3d                                  convolution
    conv1d_input, conv2d_input, conv3d_input                its gradient to the input
    conv1d_weight, conv2d_weight, conv3d_weight             its gradient to the weight
    conv_bias                                               its gradient to the bias
    conv_transpose1d, conv_transpose2d, conv_transpose3d    transposed convolution
    convolution, convolution_backward,                      all of these for any number of axes, transposed or not,
    convolution_double_backward                             and the gradients of the gradients
    conv_jvp                                                its derivative in a direction (forward mode)
    unfold, fold                                            the columns of an input, and their sum
    workspace                                               how much scratch memory a call can use
    set_num_threads, get_num_threads, num_threads           threads
    show_config, python -m pyconv                           configuration and self-test

    pyconv.torch                                            differentiable functions of torch tensors
    pyconv.jax, pyconv.autograd, pyconv.pytensor            and of these frameworks' arrays
    pyconv.dask                                             functions of dask arrays in chunks
    pyconv.onnx                                             ONNX's convolutions, and their attributes as arguments

Names and orders of arguments are torch's. One trilinear form gives all: with s the stride, d the dilation, lo the
leading padding, T(x, w, y) = sum of y[n, o, a] * w[o, i, k] * x[n, i, s*a + d*k - lo], and the convolution, its
gradient to the input and its gradient to the weight are the derivatives of T with respect to y, x and w. A transposed
convolution is the gradient to the input under another name, so its own gradients are these same three.

Arguments that functions share
------------------------------
input, weight, grad_output and other arrays: of a dtype in the table below, all of one, a bias of the result's; in any
    memory layout and byte order; they are never changed. A nested list takes the dtype of the other arrays; a subclass
    counts as a plain array, but one with a mask is refused. The batch axis of input and grad_output may be missing, and
    is then missing in the result. A batch may hold 0 samples. Or GPU arrays, all on one device: see below.
stride, dilation: an int, or one for each spatial axis. groups: an int. numpy integers too; no bools, no floats.
padding: an int >= 0, or one for each axis, added on both sides; pairs (lo, hi) for each axis, in which a negative
    number crops; 'valid' (none); 'same' (output size = size / stride, rounded up; an odd cell goes behind) and
    'same_lower' (in front); 'causal' (all in front); 'full' (every position that touches the input). (1, 2) is one int
    for each of two axes, ((1, 2),) a pair for the only one.
padding_mode, padding_value: what the padded cells hold, see below. Nothing, unless said otherwise: a NaN in the weight
    does not meet them.
dtype: what integers are summed in and returned as, int32 or int64, of uint64 operands also uint64; None of others. By
    its name, or as a dtype of NumPy or of the arrays' library.
out: an array of the result's shape and dtype to write to, returned. It must not overlap an operand; the bounds of
    memory decide, so two views that interleave count as overlapping. Any layout will do; one that is C-contiguous, or
    that has the channels last in memory (of a weight those of the input; the exceptions are those under finput), costs
    no copy, nor do samples of 2**16 elements and more that are each C-contiguous (as in some channels of a larger
    array). Of others as many samples are copied at a time as have 2**20 elements, or one; what has no samples, as a
    whole. For a function that returns a tuple: a tuple, None where a result is masked or no array is supplied.
accumulate: True adds a result to what `out` holds, without an array for it where out would cost no copy (but for what
    is listed below); out must be given then, of a tuple every entry that is not masked. unfold has no such argument.
finput, fgrad_input: arrays of workspace's dtype to use as scratch, finput for what conv and conv_weight unroll of the
    input, fgrad_input for what conv_input and conv_transpose unroll. `workspace` names the sizes. Contents are neither
    read nor kept, results do not depend on them, their size limits the scratch; None or an empty array: allocated
    inside. One buffer may serve all layers and both roles, but not two calls at once. With buffers and out, a call
    allocates nothing of array size, where its arrays are C-contiguous, aligned and in native byte order, or so with the
    channels as last axis (images as they come, seen through numpy.moveaxis); NumPy copies other operands first, and a
    weight with its channels last that is not float32 or float64, has more than three spatial axes, covers the whole
    input (but for one group of an input that lies so too) or has far more taps than there are positions, or no two of
    whose taps meet a cell in the gradient to an input. Where operands are not finite or have the channels last, up to
    4 MB are allocated if the buffer is too small for the way that they take. Halves that a call adds up in several
    steps (with four axes and more, with more than 512 taps, with a weight that is not finite, in the gradient to an
    input that its padding repeats, or with a bias added to out where some cells meet no tap) are summed in float32:
    2**18 of them at a time, or eight channels
    of a sample, or a group of several, or all that a sample has where they lie last in several groups; the weights of
    these channels are copied. That is not so in the gradient to a weight, but for one over four axes and more with
    padding of constants, whose sums are kept as a whole. The gradient to an input that its padding repeats a hundred
    times and more takes 2**18 elements, or one position, of its columns at a time; of halves also the sums of a
    sample. Over four axes and more a call lists which volumes meet, some ten numbers for each position and tap of the
    outer axes.
algorithm: 'auto', 'gemm' or, but for integers, 'winograd'. Kernels of three taps at stride 1 with enough channels are
    multiplied as Winograd's F(2, 3) by 'auto' (errors as of sums of products; on AVX2 integers of 8 bits too, which
    stay exact), as F(4, 3) by 'winograd' (2.25 times fewer multiplications once more where two axes have three taps,
    errors about three times those, denormal numbers are lost); 'gemm' makes every product of the definition. Results
    that are not finite are computed again as sums of products, where they are many with all of their sample; with
    accumulate a sample that holds 2**32 and more (in float64 2**256) is added with 'gemm', as are all where the
    weight, or what a weight's gradient sums, does. Where the processor has AMX, 'auto' takes its products of bfloat16,
    but for samples, or weights, with numbers so small that it would take some sum of theirs for zero (products below
    2**-112 may have such): these go by float32's products, as all do with 'gemm'. And it multiplies float32 in forward
    and in gradients to inputs as three slices of 8 bits, which hold all of a number, with errors below those of sums
    of products; samples with numbers below 2**-103, or products below 2**-96, go by float32's, where a sum may come
    near infinity what of the result is not finite. 'tf32x3', of float32 and complex64
    on a GPU alone, makes each product as three of TF32, right but for 2**-22 of it; errors are below float32's. GPUs of
    capability 9.0 have two more, which 'auto' takes where they are faster and 'gemm' never: 'wgmma', of float16 and
    bfloat16 and, with allow_tf32, of float32, makes products by warpgroups, but not for float32's gradients to
    weights, nor for those to inputs of which no cell has two taps; 'm16n8k16', of float64 and complex128, in pieces of
    that size.
allow_tf32: whether a GPU may round float32 operands to TF32's 11 bits before it multiplies them. No effect elsewhere.
stream: the CUDA stream to run on, as a handle or as an object of torch, CuPy, Numba or cuda.core; None in main memory.

Padding modes
-------------
    padding_mode    1 2 3 4 padded by 2     numpy.pad's    a padded cell
    'zeros'         . . 1 2 3 4 . .                        holds nothing
    'constant'      v v 1 2 3 4 v v         constant       holds padding_value and is multiplied like any other cell
    'circular'      3 4 1 2 3 4 1 2         wrap           is the cell that comes next when the axis is a circle
    'replicate'     1 1 1 2 3 4 4 4         edge           is the nearest cell
    'reflect'       3 2 1 2 3 4 3 2         reflect        is the cell seen in a mirror at the outermost cell

scipy.ndimage's names are others: its 'mirror' is 'reflect', its 'nearest' 'replicate', its 'wrap' 'circular'; its
'reflect', which is numpy.pad's symmetric, is none of these. Any amount is legal, also one that goes round several
times. Negative padding crops first: what is left is repeated, and there has to be a cell of it. No padded or cropped
copy of the input is made; a block of results has the padded cells that it reaches in scratch, and on a GPU tiles have
all that the mode fills: in finput, and what goes back to them in fgrad_input (fold, in memory of its own). What goes
back to a padded cell, in conv_input, conv_transpose, fold and the gradients, is added to the cell that it came from;
with 'zeros' and 'constant' it is dropped. In a direction (grad_grad_input, input_tangent) a constant is nothing: it has
no derivative. padding_value is of the operands' kind: an int for integers, else a real number or, for complex operands,
any.

Types
-----
    operands                                  summed as           results, bias        finput, fgrad_input
    float16, bfloat16                         float32             as operands          float32
    float32, float64                          as operands         as operands          as operands
    complex64, complex128                     as operands         as operands          float32, float64
    int8, uint8                               as results          int32 or `dtype`     as results
    int16, int32, int64, uint16, uint32       as results          int64 or `dtype`     as results
    uint64                                    as results          uint64 or `dtype`    as results

On a GPU finput and fgrad_input have the operands' dtype, whatever it is. Over four axes and more they also hold the
float32 sums of halves, those of one volume of a result, which its last three axes span; fold allocates its own.
bfloat16 is ml_dtypes'. Halves are rounded once, when a result is stored (once for each term that is added to it).
Complex numbers are multiplied as they are, with no conjugate in any gradient. Sums of integers wrap modulo 2 to the
number of the result's bits. Columns have the operands' dtype; fold sums them to the results'.

Arrays of other libraries in main memory
----------------------------------------
torch's CPU tensors, array_api_strict's arrays and all others with DLPack are read where they lie, whatever their
strides. The operands of a call are of one library (lists go with any), and its results are arrays of that library on
the first operand's device, over the memory that was written; they are NumPy's where no from_dlpack is known for the
operand's class. out, finput and fgrad_input may be of any library. A gradient that a tensor requires is not recorded:
pyconv.torch does that. While torch records gradients, a tensor that requires one is no out and no scratch; autograd
knows of what is written to any other. To a type checker results, out and scratch are NumPy's arrays: others
want a cast there.

GPU arrays
----------
This was run on an H100 on 2026-11-27, on no other GPU.

torch's CUDA tensors, CuPy's and Numba's arrays and every other array with __cuda_array_interface__ (version 2 or 3) or
DLPack on a CUDA device are read where they lie, whatever their strides. They have the types of arrays in main memory,
and float16 and bfloat16 accumulate in float32. The operands of a call are all torch's, all CuPy's or all others', which
count as Numba's; out, finput and fgrad_input are GPU arrays then, of any kind, on the same device. A result comes from
the allocator of the first operand's framework, on its device. Of torch and CuPy that is an array of theirs, of
everything else a Numba device array. A gradient that a tensor requires is not recorded: pyconv.torch does that.

Nothing waits for the GPU, but for what Numba's allocation and freeing may. A call runs on `stream`; without it, on the
current stream of the first operand's framework, or the one that its __cuda_array_interface__ names, or the default
stream. It waits on the device for every other stream that an array's protocol names and, where no stream is given, for
the current streams of the other arrays' frameworks, and then all these streams wait for the call. A stream that is
given has to come after what torch and CuPy do with the arrays elsewhere, and before what they do next with what is
written. What has only DLPack is asked for on the stream that is given, else on the legacy default stream. Arrays other
than torch's, CuPy's and Numba's must be kept until the stream has done the work, and CuPy's too where a stream is
given; torch is told that a stream that is given uses its tensors' memory, so that this stream must exist until they are
freed. DLPack older than version 1 does not say whether an array is read-only: it is taken as such.

On a GPU algorithm is 'auto', 'gemm', 'tf32x3', 'wgmma' or 'm16n8k16', the number of threads plays no part, and
workspace takes device='cuda' (which is 'cuda:0') or 'cuda:1' and so on.

Results
-------
Results are C-contiguous, whatever the operands' memory order (give `out` for another; pyconv.torch answers tensors in
channels_last with such), in native byte order, with the same bits for any number of threads and any size of scratch.
Another memory order of the operands or of `out` may be summed in another order.

Errors
------
A wrong kind of argument (dtype, bool for an int, None for an array) is a TypeError, a wrong value or shape a
ValueError, both raised before anything is allocated, and both read `{name} must {rule}; got {value}`. Arrays on two
devices, or in main memory and on a GPU, are a TypeError. A GPU without memory for a result, for scratch or for a
kernel's code is a MemoryError that says how many bytes were wanted; where the driver finds none for itself, one that
says what it was to do.
"""

from pyconv._any_rank import conv_jvp, convolution, convolution_backward, convolution_double_backward
from pyconv._columns import Workspace, fold, unfold, workspace
from pyconv._config import __version__, show_config
from pyconv._ops import (
    conv1d,
    conv1d_input,
    conv1d_weight,
    conv2d,
    conv2d_input,
    conv2d_weight,
    conv3d,
    conv3d_input,
    conv3d_weight,
    conv_bias,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from pyconv._threads import get_num_threads, num_threads, set_num_threads

__all__ = [
    "Workspace",
    "__version__",
    "conv1d",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_input",
    "conv3d_weight",
    "conv_bias",
    "conv_jvp",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "convolution_backward",
    "convolution_double_backward",
    "fold",
    "get_num_threads",
    "num_threads",
    "set_num_threads",
    "show_config",
    "unfold",
    "workspace",
]
