"""What kernels call, in PTX: a primitive is a Numba intrinsic, typed once, whatever integers or floats it is given, and
lowered to LLVM or to a few lines of PTX.

Global addresses are i64, shared addresses i32, both in bytes; `ok` is a boolean, and where it is false no memory is
touched. `barrier` and the waits order shared memory; so nothing that reads or writes it may be moved over them, and
what only computes (mma, conversions) may be moved, merged or dropped. A float product and a sum in one expression may
be rounded once or twice, as the compiler likes: kernels write fma.
"""

import re
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import numpy

if not hasattr(numpy, "row_stack"):
    setattr(numpy, "row_stack", numpy.vstack)  # gone since NumPy 2.5; numba-cuda 0.30 names it when it compiles first

from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils, errors
from numba.cuda.extending import intrinsic

# What a letter in a primitive's signature stands for: Numba's type, LLVM's, and the constraint of inline PTX.
_TYPES = {
    "b": types.boolean, "i": types.int32, "u": types.uint32, "l": types.int64, "f": types.float32, "d": types.float64}
_LLVM = {"b": ir.IntType(32), "i": ir.IntType(32), "u": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType(),
         "d": ir.DoubleType()}
_CONSTRAINTS = {"b": "r", "i": "r", "u": "r", "l": "l", "f": "f", "d": "d"}
_SHARED = 3  # LLVM's address space

Generate = Callable[[ir.IRBuilder, list[Any]], list[Any]]


def _type(letters: str) -> Any:
    """No letter: nothing; one: a scalar; more: a tuple of equal scalars."""
    if len(letters) > 1:
        return types.UniTuple(_TYPES[letters[0]], len(letters))
    return _TYPES[letters] if letters else types.void


def _primitive(name: str, arguments: str, results: str, generate: Generate) -> Any:
    """An intrinsic. `arguments`: its signature, a word of letters for each; `generate`: values to results, all flat."""
    words = arguments.split()
    signature = _type(results)(*map(_type, words))  # Numba casts what it is given to these types

    def lower(context: Any, builder: Any, _: Any, values: Sequence[Any]) -> Any:
        flat: list[Any] = []
        for word, value in zip(words, values):
            flat += cgutils.unpack_tuple(builder, value, len(word)) if len(word) > 1 else [value]
        found = generate(builder, flat)
        if len(results) > 1:
            return cgutils.pack_array(builder, found)
        return found[0] if results else context.get_dummy_value()

    def typed(*_: Any) -> Any:
        return signature, lower

    names = ["context", *(f"argument{i}" for i in range(len(words)))]
    # Numba counts by it; a function's type does not know it
    setattr(typed, "__signature__", Signature([Parameter(n, Parameter.POSITIONAL_ONLY) for n in names]))
    typed.__name__ = typed.__qualname__ = name
    return intrinsic(typed)


def _assembly(
    name: str, arguments: str, results: str, text: str, effect: str = "", in_place: bool = False
) -> Any:
    """A primitive made of PTX. In the text $0, $1, ... are the results, then the arguments, flat; a boolean is 0 or 1.

    effect: '' for a function of its arguments; 'volatile' for what stays in its place among the volatile ones; 'memory'
    for what, besides, no other access to memory may be moved over. in_place: the results are in the registers of as
    many first arguments.
    """
    inputs = arguments.replace(" ", "")
    # & since a text of several instructions may write a result before it has read all arguments
    constraints = [f"={'' if in_place else '&'}{_CONSTRAINTS[letter]}" for letter in results]
    constraints += [str(i) if in_place and i < len(results) else _CONSTRAINTS[c] for i, c in enumerate(inputs)]
    constraints += ["~{memory}"] if effect == "memory" else []
    outputs = [_LLVM[letter] for letter in results]
    result = outputs[0] if len(outputs) == 1 else ir.LiteralStructType(outputs) if outputs else ir.VoidType()
    function = ir.FunctionType(result, [_LLVM[letter] for letter in inputs])
    assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=bool(effect))

    def generate(builder: Any, values: list[Any]) -> list[Any]:
        values = [builder.zext(v, ir.IntType(32)) if letter == "b" else v for v, letter in zip(values, inputs)]
        found = builder.call(assembly, values)
        return [builder.extract_value(found, i) for i in range(len(results))] if len(results) > 1 else [found]

    return _primitive(name, arguments, results, generate)


# Casts, positions in the grid, barrier

def _cast(name: str, letter: str) -> Any:
    return _primitive(name, letter, letter, lambda builder, values: values)


def _register(name: str, special: str) -> Any:
    def generate(builder: Any, _: Any) -> list[Any]:
        read = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.IntType(32), ()), f"llvm.nvvm.read.ptx.sreg.{special}")
        return [builder.call(read, ())]

    return _primitive(name, "", "i", generate)


i32, u32, i64, f32, f64 = (_cast(name, letter) for name, letter in zip(("i32", "u32", "i64", "f32", "f64"), "iulfd"))
thread = _register("thread", "tid.x")
block_x, block_y, block_z = (_register(f"block_{axis}", f"ctaid.{axis}") for axis in "xyz")
barrier = cuda.syncthreads


# Arithmetic

@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def select(_: Any, ok: Any, a: Any, b: Any) -> Any:
    """a where ok, else b, both of one type (an integer literal takes the other's); never a branch."""
    one, other = types.unliteral(a), types.unliteral(b)
    if isinstance(a, types.IntegerLiteral) and isinstance(other, types.Integer):
        one = other
    elif isinstance(b, types.IntegerLiteral) and isinstance(one, types.Integer):
        other = one
    if one != other:
        raise errors.TypingError(f"select must be given two values of one type; got {one} and {other}")
    return one(types.boolean, one, one), lambda context, builder, signature, values: builder.select(*values)


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    if a not in (types.float32, types.float64) or not a == b == c:
        raise errors.TypingError(f"fma must be given three f32 or three f64; got {a}, {b} and {c}")
    return a(a, a, a), lambda context, builder, signature, values: builder.fma(*values)


def _divide(builder: Any, values: list[Any]) -> list[Any]:
    n, magic, shift = values
    wide = builder.mul(builder.sext(n, ir.IntType(64)), magic)
    return [builder.trunc(builder.ashr(wide, shift), ir.IntType(32))]


def _bits(letter: str) -> Generate:
    return lambda builder, values: [builder.bitcast(values[0], _LLVM[letter])]


along = _assembly("along", "l i i", "l", "mad.wide.s32 $0, $2, $3, $1;")
divide = _primitive("divide", "i l l", "i", _divide)
bits_f32 = _primitive("bits_f32", "u", "f", _bits("f"))
f32_bits = _primitive("f32_bits", "f", "u", _bits("u"))
number_f32 = _primitive("number_f32", "l", "f", lambda builder, values: [
    builder.bitcast(builder.trunc(values[0], ir.IntType(32)), ir.FloatType())])
number_f64 = _primitive("number_f64", "l", "d", _bits("d"))
number_i32 = _primitive("number_i32", "l", "i", lambda builder, values: [builder.trunc(values[0], ir.IntType(32))])
number_i64 = _cast("number_i64", "l")
# two floats as 16 bits each in a word, the first the lower half
pair_f16 = _assembly("pair_f16", "f f", "i", "cvt.rn.f16x2.f32 $0, $2, $1;")
pair_bf16 = _assembly("pair_bf16", "f f", "i", "cvt.rn.bf16x2.f32 $0, $2, $1;")
# the value of the lane beside: 2k and 2k + 1 change theirs; of a whole warp
neighbour = _assembly("neighbour", "i", "i", "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "volatile")
round_tf32 = _assembly("round_tf32", "u", "u", "cvt.rna.tf32.f32 $0, $1;")
# cvt.rna is half a unit added to the magnitude, and a test for NaN and infinity, which the low part is spared
split_tf32 = _assembly(
    "split_tf32", "u", "uu",
    "{ .reg .f32 x, h, l; .reg .pred p; mov.b32 x, $2; cvt.rna.tf32.f32 $0, x; mov.b32 h, $0; sub.f32 l, x, h;"
    " mov.b32 $1, l; add.u32 $1, $1, 0x1000; and.b32 $1, $1, 0xffffe000;"
    " testp.finite.f32 p, h; selp.b32 $1, $1, 0, p; }")


# Global memory. What a launch loads and never writes goes the read-only way (.nc); such loads are volatile only to stay
# where the kernel has them: early, before the arithmetic that hides their latency. What it writes, and adds to, it
# reloads: between the stores, else the values to add, loaded all at once, would need as many registers as the sums.

def _load(name: str, result: str, width: str, convert: str, way: str = ".nc") -> Any:
    text = (f"{{ .reg .pred p; .reg .b{width} v; mov.b{width} v, 0; setp.ne.s32 p, $2, 0;"
            f" @p ld.global{way}.b{width} v, [$1]; {convert} }}")
    return _assembly(name, "l b", result, text, "volatile" if way else "memory")


def _load_widened(name: str, result: str, kind: str, way: str = ".nc") -> Any:
    """An integer of fewer bits than its register."""
    bits = {"i": 32, "l": 64}[result]
    text = f"{{ .reg .pred p; mov.b{bits} $0, 0; setp.ne.s32 p, $2, 0; @p ld.global{way}.{kind} $0, [$1]; }}"
    return _assembly(name, "l b", result, text, "volatile" if way else "memory")


def _load_side(side: str) -> Any:
    """Numbers of 16 or 32 bits side by side, from a multiple of their bytes on: 'f16x4' are four of float16."""
    count, (letter, width, convert) = int(side[-1]), _LOADS[side[:-2]]
    words = [f"w{i}" for i in range(count * int(width) // 32)]
    values = [f"v{i}" for i in range(count)] if width == "16" else words
    halves = [f".reg .b16 v{i}, v{i + 1}; mov.b32 {{v{i}, v{i + 1}}}, w{i // 2};" for i in range(0, count, 2)]
    vector, group = (f".v{len(words)}", f"{{{', '.join(words)}}}") if len(words) > 1 else ("", "w0")
    text = " ".join([
        "{ .reg .pred p;", *(f".reg .b32 {word}; mov.b32 {word}, 0;" for word in words),
        f"setp.ne.s32 p, ${count + 1}, 0; @p ld.global.nc{vector}.b32 {group}, [${count}];", *halves * (width == "16"),
        *(re.sub(r"\bv\b", value, convert.replace("$0", f"${i}")) for i, value in enumerate(values)), "}"])
    return _assembly(f"load_{side}", "l b", letter * count, text, "volatile")


def _store(name: str, value: str, width: str, convert: str, space: str = "global") -> Any:
    text = (f"{{ .reg .pred p; .reg .b{width} v; {convert} setp.ne.s32 p, $1, 0; @p st.{space}.b{width} [$0], v; }}")
    return _assembly(name, f"{'l' if space == 'global' else 'i'} b {value}", "", text, "memory")


_LOADS = {"f16": ("f", "16", "cvt.f32.f16 $0, v;"), "bf16": ("f", "16", "mov.b32 $0, {0, v};"),
          "f32": ("f", "32", "mov.b32 $0, v;"), "f64": ("d", "64", "mov.b64 $0, v;"),
          "i32": ("i", "32", "mov.b32 $0, v;"), "i64": ("l", "64", "mov.b64 $0, v;")}
_WIDENED = {"i8": ("i", "s8"), "u8": ("i", "u8"), "i16": ("i", "s16"), "u16": ("i", "u16"), "u32": ("l", "u32")}
load_f16, load_bf16, load_f32, load_f64, load_i32, load_i64 = (
    _load(f"load_{name}", *how) for name, how in _LOADS.items())
reload_f16, reload_bf16, reload_f32, reload_f64, reload_i32, reload_i64 = (
    _load(f"reload_{name}", *how, "") for name, how in _LOADS.items())
load_i8, load_u8, load_i16, load_u16, load_u32 = (
    _load_widened(f"load_{name}", *how) for name, how in _WIDENED.items())
reload_i8, reload_u8, reload_i16, reload_u16, reload_u32 = (
    _load_widened(f"reload_{name}", *how, "") for name, how in _WIDENED.items())
store_f16 = _store("store_f16", "f", "16", "cvt.rn.f16.f32 v, $2;")
store_bf16 = _store("store_bf16", "f", "16", "cvt.rn.bf16.f32 v, $2;")
store_f32 = _store("store_f32", "f", "32", "mov.b32 v, $2;")
store_f64 = _store("store_f64", "d", "64", "mov.b64 v, $2;")
store_i32 = _store("store_i32", "i", "32", "mov.b32 v, $2;")
store_i64 = _store("store_i64", "l", "64", "mov.b64 v, $2;")
store_i16 = _store("store_i16", "i", "16", "cvt.u16.u32 v, $2;")
store_i8 = _assembly(
    "store_i8", "l b i", "", "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p st.global.b8 [$0], $2; }", "memory")
load_b32x4 = _assembly(
    "load_b32x4", "l b", "iiii",
    "{ .reg .pred p; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; setp.ne.s32 p, $5, 0;"
    " @p ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4]; }", "volatile")
store_b32x2, store_f32x2, store_f64x2 = (
    _assembly(f"store_{kind}x2", f"l b {letter} {letter}", "",
              f"{{ .reg .pred p; setp.ne.s32 p, $1, 0; @p st.global.v2.{kind} [$0], {{$2, $3}}; }}", "memory")
    for kind, letter in (("b32", "i"), ("f32", "f"), ("f64", "d")))
store_b32x4 = _assembly(
    "store_b32x4", "l b i i i i", "",
    "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p st.global.v4.b32 [$0], {$2, $3, $4, $5}; }", "memory")


# Shared memory. Its loads are LLVM's own, which know barriers, stores and 'memory' texts for what they are.

@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def shared_base(_: Any) -> Any:
    """The address of the block's dynamic shared memory, a multiple of 1024."""
    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        name = "pyconv_shared"
        memory = builder.module.globals.get(name)
        if memory is None:
            memory = ir.GlobalVariable(builder.module, ir.ArrayType(ir.IntType(8), 0), name, addrspace=_SHARED)
            memory.linkage, memory.align = "external", 1024
        return builder.ptrtoint(memory, ir.IntType(32))

    return types.int32(), lower


def _shared(name: str, results: str) -> Any:
    element = _LLVM[results[0]]

    def generate(builder: Any, values: list[Any]) -> list[Any]:
        whole = ir.VectorType(element, len(results)) if len(results) > 1 else element
        found = builder.load(builder.inttoptr(values[0], ir.PointerType(whole, _SHARED)))
        found.align = {"i": 4, "u": 4, "f": 4, "d": 8, "l": 8}[results[0]] * len(results)
        if len(results) == 1:
            return [found]
        return [builder.extract_element(found, ir.IntType(32)(i)) for i in range(len(results))]

    return _primitive(name, "i", results, generate)


def _matrices(name: str, order: str) -> Any:
    text = f"ldmatrix.sync.aligned.m8n8.x4{order}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    return _assembly(name, "i", "uuuu", text, "memory")


shared_f32 = _shared("shared_f32", "f")
shared_f64 = _shared("shared_f64", "d")
shared_b32 = _shared("shared_b32", "u")
shared_i32 = _shared("shared_i32", "i")
shared_i64 = _shared("shared_i64", "l")
shared_f32x4 = _shared("shared_f32x4", "ffff")
shared_f64x2 = _shared("shared_f64x2", "dd")
put_f32 = _store("put_f32", "f", "32", "mov.b32 v, $2;", "shared")
put_f64 = _store("put_f64", "d", "64", "mov.b64 v, $2;", "shared")
put_b32 = _store("put_b32", "u", "32", "mov.b32 v, $2;", "shared")
put_i32 = _store("put_i32", "i", "32", "mov.b32 v, $2;", "shared")
put_i64 = _store("put_i64", "l", "64", "mov.b64 v, $2;", "shared")
ldmatrix = _matrices("ldmatrix", "")
ldmatrix_transposed = _matrices("ldmatrix_transposed", ".trans")


# Copies from global to shared memory that no register and no thread waits for

def _copy(size: int) -> Any:
    cache = "cg" if size == 16 else "ca"  # 16 bytes can pass the L1 cache by, less cannot
    text = (f"{{ .reg .pred p; .reg .b32 n; setp.ne.s32 p, $2, 0; selp.b32 n, {size}, 0, p;"
            f" cp.async.{cache}.shared.global [$0], [$1], {size}, n; }}")
    return _assembly(f"copy{size}", "i l b", "", text, "memory")


def _wait(instruction: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
    def wait(_: Any, n: Any) -> Any:
        """Wait until at most n groups of copies are under way."""
        # Numba asks for any int64 first, and comes back with the literal when refused
        if not isinstance(n, types.IntegerLiteral) or n.literal_value < 0:
            raise errors.TypingError(f"wait must be given a literal n >= 0; got {n}")
        text = instruction.format(n.literal_value)

        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            if text:
                builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), ()), text, "~{memory}", side_effect=True), ())
            return context.get_dummy_value()

        return types.void(n), lower

    return wait


copy4, copy8, copy16 = map(_copy, (4, 8, 16))
commit = _assembly("commit", "", "", "cp.async.commit_group;", "memory")
# The next kernel of the stream may begin, as far as it waits for nothing. A comment where nothing comes early.
NEXT = "// the next kernel may begin"
let_next_begin = _assembly("let_next_begin", "", "", NEXT, "memory")
wait = _wait("cp.async.wait_group {};")


# Tensor cores

def _mma(name: str, shape: str, operands: str, c: str, a: str, b: str) -> Any:
    """c + a b for a warp, each lane holding its fragments."""
    first, second, third = len(c), 2 * len(c), 2 * len(c) + len(a)
    registers = [", ".join(f"${i}" for i in range(start, start + len(word)))
                 for start, word in ((0, c), (second, a), (third, b), (first, c))]
    text = f"mma.sync.aligned.{shape}.row.col.{operands} " + ", ".join(f"{{{group}}}" for group in registers) + ";"
    return _assembly(name, f"{c} {a} {b}", c, text)


mma_f16 = _mma("mma_f16", "m16n8k16", "f32.f16.f16.f32", "ffff", "uuuu", "uu")
mma_bf16 = _mma("mma_bf16", "m16n8k16", "f32.bf16.bf16.f32", "ffff", "uuuu", "uu")
mma_tf32 = _mma("mma_tf32", "m16n8k8", "f32.tf32.tf32.f32", "ffff", "uuuu", "uu")
mma_f64 = _mma("mma_f64", "m8n8k4", "f64.f64.f64.f64", "dd", "d", "d")


# Hopper alone: larger products of float64; copies of boxes that a mbarrier counts, products that a warpgroup of 128
# threads starts and waits for. The latter two go through the asynchronous proxy: what other instructions have written
# to shared memory it sees only behind fence_async of the threads that wrote, and a barrier.

def _wgmma(kind: str, columns: int, across: bool) -> Any:
    """c + a b of 64 rows and so many columns, over 32 bytes of the reduction: a, b lie in shared memory as descriptors
    say; done at wgmma_wait.

    `across`: lines of both lie across the reduction, not along it; there is no such product of tf32.
    """
    n, depth, turned = columns // 2, 8 if kind == "tf32" else 16, "" if kind == "tf32" else f", {across:d}, {across:d}"
    text = ("{ .reg .pred p; setp.eq.u32 p, 0, 0; "
            f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{kind}.{kind} "
            f"{{{', '.join(f'${i}' for i in range(n))}}}, ${2 * n}, ${2 * n + 1}, p, 1, 1{turned}; }}")
    return _assembly(
        f"wgmma_{kind}_{columns}{'_across' * across}", f"{'f' * n} l l", "f" * n, text, "memory", in_place=True)


def _wgmma_results(columns: int) -> Any:
    """Wait for all products; the sums as values, so that nothing that reads them is moved before."""
    sums = "f" * (columns // 2)
    return _assembly(f"wgmma_results_{columns}", sums, sums, "wgmma.wait_group.sync.aligned 0;", "memory", True)


_WGMMA_COLUMNS = (64, 128, 256)
HOPPER: dict[str, Any] = {
    "fence_async": _assembly("fence_async", "", "", "fence.proxy.async.shared::cta;", "memory"),
    # (mbarrier, how many arrivals make a phase, ok)
    "mbarrier_init": _assembly(
        "mbarrier_init", "i i b", "",
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p mbarrier.init.shared::cta.b64 [$0], $1; }", "memory"),
    # (mbarrier, bytes, ok): an arrival, and so many bytes more to come before the phase ends
    "mbarrier_expect": _assembly(
        "mbarrier_expect", "i i b", "",
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1; }", "memory"),
    # (mbarrier, parity): until the phase of that parity has ended
    "mbarrier_wait": _assembly(
        "mbarrier_wait", "i i", "",
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra.uni again; }", "memory"),
    # (shared address, address of a tensor map, first element along its two axes, mbarrier, ok)
    "copy_box": _assembly(
        "copy_box", "i l i i i b", "",
        "{ .reg .pred p; setp.ne.s32 p, $5, 0; @p cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::"
        "complete_tx::bytes [$0], [$1, {$2, $3}], [$4]; }", "memory"),
    "wgmma_fence": _assembly("wgmma_fence", "", "", "wgmma.fence.sync.aligned;", "memory"),
    "wgmma_commit": _assembly("wgmma_commit", "", "", "wgmma.commit_group.sync.aligned;", "memory"),
    "wgmma_wait": _wait("wgmma.wait_group.sync.aligned {};"),
    "mma_f64_m16n8k16": _mma("mma_f64_m16n8k16", "m16n8k16", "f64.f64.f64.f64", "dddd", "dddddddd", "dddd"),
    **{f"wgmma_{kind}_{n}{'_across' * across}": _wgmma(kind, n, across)
       for kind in ("f16", "bf16", "tf32") for n in _WGMMA_COLUMNS for across in (False, True)[:1 + (kind != "tf32")]},
    **{f"wgmma_results_{n}": _wgmma_results(n) for n in _WGMMA_COLUMNS},
}


# Chips before sm_80 copy through registers, at once, where 16-bit floats are widened, and round to bfloat16 by hand

def _copy_at_once(size: int) -> Any:
    n = size // 4
    registers, vector = [f"v{i}" for i in range(n)], f".v{n}" if n > 1 else ""
    group = "{" + ", ".join(registers) + "}" if n > 1 else registers[0]
    clear = " ".join(f"mov.b32 {v}, 0;" for v in registers)
    text = (f"{{ .reg .pred p; .reg .b32 {', '.join(registers)}; {clear} setp.ne.s32 p, $2, 0;"
            f" @p ld.global.nc{vector}.b32 {group}, [$1]; st.shared{vector}.b32 [$0], {group}; }}")
    return _assembly(f"copy{size}", "i l b", "", text, "memory")


def _copy_widened(kind: str, convert: str) -> Any:
    """8 bytes, four 16-bit floats, that become 16 of float32."""
    widened = " ".join(convert.format(i) for i in range(4))
    text = ("{ .reg .pred p; .reg .b32 a, b; .reg .b16 h0, h1, h2, h3; .reg .f32 v0, v1, v2, v3; mov.b32 a, 0;"
            " mov.b32 b, 0; setp.ne.s32 p, $2, 0; @p ld.global.nc.v2.b32 {a, b}, [$1]; mov.b32 {h0, h1}, a;"
            f" mov.b32 {{h2, h3}}, b; {widened} st.shared.v4.f32 [$0], {{v0, v1, v2, v3}}; }}")
    return _assembly(f"copy16_{kind}", "i l b", "", text, "memory")


# To nearest even by adding just less than half, and the last bit kept; a NaN (p) would carry over into an infinity.
_ROUND_BF16 = (
    "{ .reg .pred q; .reg .b32 x, y; mov.b32 x, $2; testp.notanumber.f32 q, $2; bfe.u32 y, x, 16, 1; add.u32 y, y, x;"
    " add.u32 y, y, 32767; selp.b32 y, 0x7fffffff, y, q; shr.u32 y, y, 16; cvt.u16.u32 v, y; }")
BEFORE_SM80 = {
    "copy4": _copy_at_once(4), "copy8": _copy_at_once(8), "copy16": _copy_at_once(16),
    "copy16_f16": _copy_widened("f16", "cvt.f32.f16 v{0}, h{0};"),
    "copy16_bf16": _copy_widened("bf16", "mov.b32 v{0}, {{0, h{0}}};"),
    "commit": _primitive("commit", "", "", lambda builder, values: []), "wait": _wait(""),
    "store_bf16": _store("store_bf16", "f", "16", _ROUND_BF16),
}

PRIMITIVES: dict[str, Any] = {name: globals()[name] for name in (
    "i32 u32 i64 f32 f64 thread block_x block_y block_z barrier select divide along fma load_f16 load_bf16 load_f32 "
    "load_f64 load_i8 load_u8 load_i16 load_u16 load_i32 load_u32 load_i64 reload_f16 reload_bf16 reload_f32 "
    "reload_f64 reload_i8 reload_u8 reload_i16 reload_u16 reload_i32 reload_u32 reload_i64 store_f16 store_bf16 "
    "store_f32 store_f64 store_i8 store_i16 store_i32 store_i64 load_b32x4 store_b32x2 store_f32x2 store_f64x2 "
    "store_b32x4 pair_f16 pair_bf16 neighbour number_f32 number_f64 number_i32 number_i64 shared_i32 shared_i64 "
    "put_i32 put_i64 shared_base shared_f32 shared_f64 shared_b32 shared_f32x4 shared_f64x2 put_f32 put_f64 put_b32 "
    "copy4 copy8 copy16 commit let_next_begin wait ldmatrix ldmatrix_transposed mma_f16 mma_bf16 mma_tf32 mma_f64 "
    "round_tf32 split_tf32 bits_f32 f32_bits").split()} | {
    f"load_{side}": _load_side(side) for side in "f16x2 f16x4 bf16x2 bf16x4 f32x2".split()}
