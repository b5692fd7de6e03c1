"""A kernel and its constants, made straight source: what Numba compiles and what the tests run without a GPU.

A kernel is a Python function that is written once and read as prose; which type, tile and map it is for are names in
capitals. These are taken out of the syntax tree before it is compiled:

    NAME                            a constant becomes its value; so does an expression of constants
    NAME = expression               of constants alone makes another one
    for i in unrolled(4): ...       the body four times; i is a constant in it
    if / x if ... else y            of constants: the branch that is taken
    tuple(e for i in unrolled(4))   e four times, i a constant in it; the one e of unrolled(1), as primitives have it
    acc = registers()               acc[i, j] is then a variable for each i and j: only such ones stay in registers
    x: i32 = e                      x = i32(e)
    f(a, b) or x = f(a, b)          of a constant f that is a function: its body, its own names apart

What is left are assignments, loops with a count that all threads share, and calls of primitives (see `ptx`).
"""

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

# What is worked out where all parts are constants. Made a tree and compiled by Python, each took ten times as long.
SAFE: dict[str, Any] = {"min": min, "max": max, "len": len, "float": float}
BINARY: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor}
UNARY: dict[type, Any] = {ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert}
COMPARED: dict[type, Any] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many}


UNKNOWN = 0  # the line of a statement that is made: unparse asks for it where a comment might be kept


class Source:
    """A kernel for some constants: its name, the names of its arguments, and its text, made when it is asked for.

    `key` says all that the text follows from, so that a compiled kernel can be found without making it.
    """

    def __init__(
        self, kernel: Callable[..., Any], constants: Mapping[str, Any], primitives: Mapping[str, str]
    ) -> None:
        self.name = kernel.__name__
        self.arguments = tuple(inspect.signature(kernel).parameters)
        self._made_of = kernel, constants, primitives
        plain = {name: getattr(value, "__name__", value) for name, value in sorted(constants.items())}
        self.key = repr((self.name, plain, sorted(primitives.items())))

    @cached_property
    def text(self) -> str:
        """Straight Python source of one function."""
        kernel, constants, primitives = self._made_of
        body = _Walker(dict(constants), dict(primitives)).statements(_parsed(kernel).body)
        arguments = ast.arguments([], [ast.arg(name) for name in self.arguments], None, [], [], None, [])
        return ast.unparse(ast.FunctionDef(self.name, arguments, body, [], lineno=UNKNOWN))


@lru_cache(maxsize=256)
def _parsed(function: Callable[..., Any]) -> ast.FunctionDef:
    """The function's syntax tree, without its docstring. Nothing changes it."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return tree


@lru_cache(maxsize=256)
def _stored(function: Callable[..., Any]) -> frozenset[str]:
    """The names that the function assigns to, but for constants."""
    names = (part for part in ast.walk(_parsed(function)) if isinstance(part, ast.Name))
    return frozenset(name.id for name in names if isinstance(name.ctx, ast.Store) and not name.id.isupper())


class _Maker:
    """Makes new trees of syntax trees, which stay as they are: so the same node may be part of several.

    `own`: what makes a node of some kind. Other nodes are made of what their parts make.
    """

    own: dict[type, Callable[[Any], Any]]

    def make(self, node: Any) -> Any:
        """What stands for a node: a node; for a statement also a list of them, or None."""
        own = self.own.get(type(node))
        return self.of_parts(node) if own is None else own(node)

    def of_parts(self, node: Any) -> Any:
        if not node._fields:  # a word such as Load()
            return node
        return type(node)(*[self.of_part(getattr(node, name)) for name in node._fields])

    def of_part(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self.of_part(one) for one in part]
        return self.make(part) if isinstance(part, ast.AST) else part


def _all_constant(parts: Sequence[ast.expr]) -> bool:
    return all(isinstance(part, ast.Constant) for part in parts)


class _Walker(_Maker):
    def __init__(self, constants: dict[str, Any], primitives: dict[str, str]) -> None:
        self.functions = {name: value for name, value in constants.items() if inspect.isfunction(value)}
        self.constants = {name: value for name, value in constants.items() if name not in self.functions}
        self.primitives = primitives
        self.registers: set[str] = set()
        self.calls = 0
        self.own = {
            ast.BinOp: self.binary, ast.UnaryOp: self.unary, ast.Compare: self.comparison, ast.BoolOp: self.logical,
            ast.Tuple: self.several, ast.Name: self.name, ast.Subscript: self.element, ast.IfExp: self.choice,
            ast.If: self.branch, ast.For: self.loop, ast.AnnAssign: self.typed, ast.Assign: self.assignment,
            ast.Expr: self.statement, ast.Call: self.call}

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that stand for these."""
        made: list[ast.stmt] = []
        for statement in body:
            result = self.make(statement)
            made += result if isinstance(result, list) else [] if result is None else [result]
        return made

    def value(self, node: ast.expr) -> Any:
        """The value of an expression of constants; LookupError where it is not one."""
        result = self.make(node)
        if not isinstance(result, ast.Constant):
            raise LookupError(f"{ast.unparse(node)} is not constant")
        return result.value

    def binary(self, node: ast.BinOp) -> Any:
        left, right = self.make(node.left), self.make(node.right)
        if _all_constant((left, right)):
            return ast.Constant(BINARY[type(node.op)](left.value, right.value))
        return ast.BinOp(left, node.op, right)

    def unary(self, node: ast.UnaryOp) -> Any:
        operand = self.make(node.operand)
        if _all_constant((operand,)):
            return ast.Constant(UNARY[type(node.op)](operand.value))
        return ast.UnaryOp(node.op, operand)

    def comparison(self, node: ast.Compare) -> Any:
        parts = [self.make(part) for part in (node.left, *node.comparators)]
        if _all_constant(parts):
            return ast.Constant(all(COMPARED[type(word)](a.value, b.value)
                                    for word, (a, b) in zip(node.ops, pairwise(parts))))
        return ast.Compare(parts[0], node.ops, parts[1:])

    def logical(self, node: ast.BoolOp) -> Any:
        parts = [self.make(part) for part in node.values]
        if _all_constant(parts):
            stops = isinstance(node.op, ast.Or)
            return next((part for part in parts if bool(part.value) == stops), parts[-1])
        return ast.BoolOp(node.op, parts)

    def several(self, node: ast.Tuple) -> Any:
        parts = [self.make(part) for part in node.elts]
        if isinstance(node.ctx, ast.Load) and parts and _all_constant(parts):
            values: Any = tuple(part.value for part in parts)
            return ast.Constant(values)
        return ast.Tuple(parts, node.ctx)

    def name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.constants:
            return ast.Constant(self.constants[node.id])
        return ast.Name(self.primitives.get(node.id, node.id), node.ctx)

    def element(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self.registers:
            index = self.value(node.slice)
            places = index if isinstance(index, tuple) else (index,)
            return ast.Name("_".join([node.value.id, *map(str, places)]), node.ctx)
        of, place = self.make(node.value), self.make(node.slice)
        return ast.Constant(of.value[place.value]) if _all_constant((of, place)) else ast.Subscript(of, place, node.ctx)

    def choice(self, node: ast.IfExp) -> Any:
        test = self.make(node.test)
        if isinstance(test, ast.Constant):
            return self.make(node.body if test.value else node.orelse)
        return ast.IfExp(test, self.make(node.body), self.make(node.orelse))

    def branch(self, node: ast.If) -> Any:
        test = self.make(node.test)
        if isinstance(test, ast.Constant):
            return self.statements(node.body if test.value else node.orelse)
        return ast.If(test, self.statements(node.body) or [ast.Pass()], self.statements(node.orelse))

    def rounds(self, target: ast.expr, count: ast.expr) -> Iterator[None]:
        """The rounds of an unrolled loop, in each of which the target is a constant."""
        assert isinstance(target, ast.Name) and isinstance(count, ast.Call)
        for index in range(*map(self.value, count.args)):
            self.constants[target.id] = index
            yield
        self.constants.pop(target.id, None)

    def loop(self, node: ast.For) -> Any:
        call = node.iter
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id != "unrolled":
            return ast.For(node.target, self.make(call), self.statements(node.body), [], lineno=UNKNOWN)
        return [statement for _ in self.rounds(node.target, call) for statement in self.statements(node.body)]

    def elements(self, element: ast.expr, loops: list[ast.comprehension]) -> list[ast.expr]:
        """The element for every round of the loops, the first the outermost."""
        if not loops:
            return [self.make(element)]
        [loop, *inner] = loops
        return [part for _ in self.rounds(loop.target, loop.iter) for part in self.elements(element, inner)]

    def typed(self, node: ast.AnnAssign) -> Any:
        assert isinstance(node.annotation, ast.Name) and node.value is not None
        cast = ast.Call(ast.Name(node.annotation.id, ast.Load()), [node.value], [])
        return self.assignment(ast.Assign([node.target], cast))

    def assignment(self, node: ast.Assign) -> Any:
        [target], value = node.targets, node.value
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "registers":
                self.registers.add(target.id)
                return None
            if target.id.isupper():
                self.constants[target.id] = self.value(value)
                return None
        body, result = self.inlined(value) or ([], self.make(value))
        assert result is not None
        return [*body, ast.Assign([self.make(target)], result, lineno=UNKNOWN)]

    def statement(self, node: ast.Expr) -> Any:
        inlined = self.inlined(node.value)
        return self.of_parts(node) if inlined is None else inlined[0]

    def call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in self.functions:  # inside an expression
            [statement] = _parsed(self.functions[name]).body
            assert isinstance(statement, ast.Return) and statement.value is not None
            parameters = inspect.signature(self.functions[name]).parameters
            names = dict(zip(parameters, map(self.make, node.args), strict=True))
            return self.make(_Renamed(names).make(statement.value))
        if name == "tuple":
            [whole] = node.args
            assert isinstance(whole, ast.GeneratorExp)
            parts = self.elements(whole.elt, whole.generators)
            return self.make(ast.Tuple(parts, ast.Load())) if len(parts) > 1 else parts[0]
        made = self.of_parts(node)
        if name in SAFE and _all_constant(made.args):
            return ast.Constant(SAFE[name](*(part.value for part in made.args)))
        return made

    def inlined(self, call: ast.expr) -> tuple[list[ast.stmt], ast.expr | None] | None:
        """The body of a called function of the dialect and what it returns; None for any other expression."""
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        function = self.functions.get(call.func.id)
        if function is None:
            return None
        tree, self.calls = _parsed(function), self.calls + 1
        names: dict[str, ast.expr] = {
            name: ast.Name(f"{name}_in{self.calls}", ast.Load()) for name in _stored(function)}
        made: list[ast.stmt] = []
        for argument, given in zip(tree.args.args, call.args, strict=True):
            value = self.make(given)
            if not isinstance(value, ast.Name | ast.Constant):  # worked out once
                name = ast.Name(f"{argument.arg}_in{self.calls}", ast.Store())
                made.append(ast.Assign([name], value, lineno=UNKNOWN))
                value = ast.Name(f"{argument.arg}_in{self.calls}", ast.Load())
            names[argument.arg] = value
        body = [_Renamed(names).make(statement) for statement in tree.body]
        result = body.pop().value if isinstance(body[-1], ast.Return) else None
        made += self.statements(body)
        return made, None if result is None else self.make(result)


class _Renamed(_Maker):
    """Names replaced by expressions."""

    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self.names, self.own = names, {ast.Name: self.name}

    def name(self, node: ast.Name) -> ast.expr:
        found = self.names.get(node.id, node)
        return ast.Name(found.id, node.ctx) if isinstance(found, ast.Name) else found
