# cython: language_level=3
"""XLA's C interface of foreign functions: the handler that compiled programs of pyconv.jax call.

XLA hands over a call frame: addresses, types and sizes of operands and results, and the attributes that a program was
compiled with. The handler makes arrays of them over XLA's own memory and gives them to a Python function, which writes
the result. XLA gets whatever that raises as its own error. A callback of ctypes would not do: what a signal raises
before the first line of its function is lost, and XLA takes for an answer what the memory holds.

The declarations are xla/ffi/api/c_api.h's, version 0.3, as far as they are read here; no file of XLA's is needed. An
XLA that does not take that version says so, with both numbers, when the handler is registered.
"""

from traceback import format_exception

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetInterrupt
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uint32_t

cimport numpy as cnp

cnp.import_array()

cdef enum:
    MAJOR = 0  # version
    MINOR = 3
    METADATA = 1  # kind of extension
    STRING = 4  # type of attribute
    INTERNAL = 13  # code of error


cdef struct extension_t:
    size_t size
    int kind
    extension_t *next


cdef struct version_t:
    size_t size
    extension_t *extensions
    int major_version
    int minor_version


cdef struct metadata_t:
    size_t size
    version_t version
    uint32_t traits


cdef struct metadata_extension_t:
    extension_t base
    metadata_t *metadata


cdef struct failure_t:
    size_t size
    extension_t *extensions
    const char *message
    int code


cdef struct api_t:
    size_t size
    extension_t *extensions
    version_t version
    const void *internal
    void *(*fail)(failure_t *) noexcept nogil


cdef struct buffer_t:
    size_t size
    extension_t *extensions
    int dtype
    void *data
    int64_t rank
    int64_t *shape


cdef struct span_t:
    const char *start
    size_t length


cdef struct buffers_t:
    size_t size
    extension_t *extensions
    int64_t count
    int *types
    buffer_t **buffers


cdef struct attributes_t:
    size_t size
    extension_t *extensions
    int64_t count
    int *types
    span_t **names
    void **values


cdef struct frame_t:
    size_t size
    extension_t *extensions
    const api_t *api
    void *context
    int stage
    buffers_t operands
    buffers_t results
    attributes_t attributes


NUMBERS = {"float16": 10, "bfloat16": 16, "float32": 11, "float64": 12, "complex64": 15, "complex128": 18}

cdef object _call = None
cdef dict _numpys = {}  # NumPy's number of a type of elements, by XLA's


def handler(call, dtypes):
    """The handler in a capsule; it calls call(attribute, first, second, out), one function in a process.

    attribute: the program's one attribute, a string, as bytes. The arrays are C-contiguous, of any of the dtypes, the
    operands read-only. Their memory is XLA's, and theirs during the call alone.
    """
    global _call
    _numpys.update({NUMBERS[dtype.name]: dtype.num for dtype in dtypes})
    _call = call
    return PyCapsule_New(<void *>_handle, NULL, NULL)


cdef void *_handle(frame_t *frame) noexcept with gil:
    """NULL, or XLA's error."""
    cdef failure_t failure
    if frame.extensions != NULL and frame.extensions.kind == METADATA:  # a question before any program
        _describe((<metadata_extension_t *>frame.extensions).metadata)
        return NULL
    try:
        _run(frame)
        return NULL
    except BaseException as error:
        message = _words(error)
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()  # raised again where Python goes on, whoever catches XLA's error
    failure.size, failure.extensions = sizeof(failure_t), NULL
    failure.message, failure.code = PyBytes_AS_STRING(message), INTERNAL
    return frame.api.fail(&failure)


cdef void _describe(metadata_t *metadata) noexcept:
    metadata.version.major_version, metadata.version.minor_version = MAJOR, MINOR
    metadata.traits = 0


cdef bytes _words(error):
    """What XLA is told; raises nothing."""
    try:
        return "".join(format_exception(error)).encode()
    except BaseException:
        return b"an exception that cannot be told"


cdef int _run(frame_t *frame) except -1:
    cdef attributes_t *attributes = &frame.attributes
    if frame.size < sizeof(frame_t):
        raise ValueError(f"frame must have at least {sizeof(frame_t)} bytes; got {frame.size}")
    if frame.operands.count != 2 or frame.results.count != 1 or attributes.count != 1 or attributes.types[0] != STRING:
        raise ValueError("program must call pyconv with two operands, one result and one string; got others")
    text = <span_t *>attributes.values[0]
    _call(PyBytes_FromStringAndSize(text.start, text.length), _array(frame.operands.buffers[0], False),
          _array(frame.operands.buffers[1], False), _array(frame.results.buffers[0], True))
    return 0


cdef _array(const buffer_t *buffer, bint writeable):
    number = _numpys[buffer.dtype]
    array = cnp.PyArray_SimpleNewFromData(<int>buffer.rank, <cnp.npy_intp *>buffer.shape, number, buffer.data)
    if not writeable:
        cnp.PyArray_CLEARFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)
    return array
