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
import textwrap
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

SAFE: dict[str, Any] = {"min": min, "max": max, "range": range, "len": len, "float": float}


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
        body = _Walker(dict(constants), dict(primitives)).statements(_function(kernel).body)
        arguments = ast.arguments([], [ast.arg(name) for name in self.arguments], None, [], [], None, [])
        made = ast.FunctionDef(name=self.name, args=arguments, body=body, decorator_list=[])
        return ast.unparse(ast.fix_missing_locations(ast.Module([made], [])))


def _function(function: Callable[..., Any]) -> ast.FunctionDef:
    """A copy of the function's syntax tree, without its docstring."""
    tree: ast.FunctionDef = _copied(_parsed(function))
    return tree


def _copied(node: Any) -> Any:
    """A syntax tree of its own, without its places in a file: copy.deepcopy took two fifths of a text's time."""
    if isinstance(node, list):
        return [_copied(part) for part in node]
    if not isinstance(node, ast.AST) or not node._fields:
        return node  # a literal's value, or a word such as Load()
    return type(node)(*[_copied(getattr(node, name)) for name in node._fields])


@lru_cache(maxsize=256)
def _parsed(function: Callable[..., Any]) -> ast.FunctionDef:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]
    return tree


class _Walker(ast.NodeTransformer):
    def __init__(self, constants: dict[str, Any], primitives: dict[str, str]) -> None:
        self.functions = {name: value for name, value in constants.items() if inspect.isfunction(value)}
        self.constants = {name: value for name, value in constants.items() if name not in self.functions}
        self.primitives = primitives
        self.registers: set[str] = set()
        self.calls = 0

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that stand for these."""
        made: list[ast.stmt] = []
        for statement in body:
            result = self.visit(statement)
            made += result if isinstance(result, list) else [] if result is None else [result]
        return made

    def value(self, node: ast.expr) -> Any:
        """The value of an expression of constants; LookupError where it is not one."""
        result = self.visit(_copied(node))
        if not isinstance(result, ast.Constant):
            raise LookupError(f"{ast.unparse(node)} is not constant")
        return result.value

    def folded(self, node: ast.expr, *parts: ast.expr) -> ast.expr:
        """The literal that the node is where all its parts are literals; else the node."""
        if not all(isinstance(part, ast.Constant) for part in parts):
            return node
        return ast.Constant(eval(compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval"), dict(SAFE)))

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        return self.folded(node, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return self.folded(node, node.operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        return self.folded(node, node.left, *node.comparators)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        return self.folded(node, *node.values)

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        self.generic_visit(node)
        values: Any = tuple(part.value for part in node.elts if isinstance(part, ast.Constant))
        if isinstance(node.ctx, ast.Load) and values and len(values) == len(node.elts):
            return ast.Constant(values)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.constants:
            return ast.Constant(self.constants[node.id])
        return ast.Name(self.primitives.get(node.id, node.id), node.ctx)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self.registers:
            index = self.value(node.slice)
            places = index if isinstance(index, tuple) else (index,)
            return ast.Name("_".join([node.value.id, *map(str, places)]), node.ctx)
        self.generic_visit(node)
        return self.folded(node, node.value, node.slice)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.statements(node.body if test.value else node.orelse)
        return ast.If(test, self.statements(node.body) or [ast.Pass()], self.statements(node.orelse))

    def visit_For(self, node: ast.For) -> Any:
        call = node.iter
        assert isinstance(node.target, ast.Name) and isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id != "unrolled":
            return ast.For(node.target, self.visit(call), self.statements(node.body), [])
        made = []
        for index in range(*map(self.value, call.args)):
            self.constants[node.target.id] = index
            made += self.statements(_copied(node.body))
        self.constants.pop(node.target.id, None)
        return made

    def elements(self, element: ast.expr, loops: list[ast.comprehension]) -> list[ast.expr]:
        """The element for every round of the loops, the first the outermost."""
        if not loops:
            return [self.visit(_copied(element))]
        [loop, *inner], made = loops, []
        assert isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call)
        for index in range(*map(self.value, loop.iter.args)):
            self.constants[loop.target.id] = index
            made += self.elements(element, inner)
        self.constants.pop(loop.target.id, None)
        return made

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        assert isinstance(node.annotation, ast.Name) and node.value is not None
        cast = ast.Call(ast.Name(node.annotation.id, ast.Load()), [node.value], [])
        return self.visit_Assign(ast.Assign([node.target], cast))

    def visit_Assign(self, node: ast.Assign) -> Any:
        [target], value = node.targets, node.value
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "registers":
                self.registers.add(target.id)
                return None
            if target.id.isupper():
                self.constants[target.id] = self.value(value)
                return None
        body, result = self.inlined(value) or ([], self.visit(value))
        assert result is not None
        return [*body, ast.Assign([self.visit(target)], result)]

    def visit_Expr(self, node: ast.Expr) -> Any:
        inlined = self.inlined(node.value)
        return self.generic_visit(node) if inlined is None else inlined[0]

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:  # inside an expression
            [statement] = _function(self.functions[node.func.id]).body
            assert isinstance(statement, ast.Return) and statement.value is not None
            parameters = inspect.signature(self.functions[node.func.id]).parameters
            names = dict(zip(parameters, map(self.visit, node.args), strict=True))
            return self.visit(_Renamed(names).visit(statement.value))
        if isinstance(node.func, ast.Name) and node.func.id == "tuple":
            [whole] = node.args
            assert isinstance(whole, ast.GeneratorExp)
            parts = self.elements(whole.elt, whole.generators)
            return self.visit(ast.Tuple(parts, ast.Load())) if len(parts) > 1 else parts[0]
        self.generic_visit(node)
        is_safe = isinstance(node.func, ast.Name) and node.func.id in SAFE and node.func.id != "range"
        return self.folded(node, *node.args) if is_safe else node

    def inlined(self, call: ast.expr) -> tuple[list[ast.stmt], ast.expr | None] | None:
        """The body of a called function of the dialect and what it returns; None for any other expression."""
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        function = self.functions.get(call.func.id)
        if function is None:
            return None
        tree, self.calls = _function(function), self.calls + 1
        stored = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        names: dict[str, ast.expr] = {
            name: ast.Name(f"{name}_in{self.calls}", ast.Load()) for name in stored if not name.isupper()}
        made: list[ast.stmt] = []
        for argument, given in zip(tree.args.args, call.args, strict=True):
            value = self.visit(given)
            if not isinstance(value, ast.Name | ast.Constant):  # worked out once
                made.append(ast.Assign([ast.Name(f"{argument.arg}_in{self.calls}", ast.Store())], value))
                value = ast.Name(f"{argument.arg}_in{self.calls}", ast.Load())
            names[argument.arg] = value
        body = [_Renamed(names).visit(statement) for statement in tree.body]
        result = body.pop().value if isinstance(body[-1], ast.Return) else None
        made += self.statements(body)
        return made, None if result is None else self.visit(result)


class _Renamed(ast.NodeTransformer):
    """Names replaced by expressions."""

    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found: ast.expr | None = _copied(self.names.get(node.id))
        if found is None:
            return node
        if isinstance(found, ast.Name):
            found.ctx = node.ctx
        return found

