"""Sphinx's configuration: pages in Markdown, the reference from the docstrings, which are plain text and not reST.

`as_rest` turns a docstring's plain text into reST. The directive `door` gives a framework's page what its door says,
from the source where the framework is not installed; a door that is not there is an error.
"""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pyconv  # noqa: E402

project = "pyconv"
author = "the pyconv maintainers"
release = version = pyconv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100
default_role = "literal"
smartquotes = False  # docstrings quote code
nitpicky = False
html_theme = "furo"
html_title = f"pyconv {release}"
html_show_copyright = False
html_copy_source = False

INLINE = re.compile(r"`([^`]+)`")
HANGING = re.compile(r"(?P<term>[^\s>][^:]*): (?P<rest>.*)")


def inline(text):
    """A line of prose: what is in backticks is literal, and nothing else is markup."""
    parts = INLINE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", parts[place])
    return "".join(f"``{part}``" if place % 2 else part for place, part in enumerate(parts))


def blocks(lines):
    """The lines between empty lines; an indented line starts a block, unless it hangs from the line before."""
    block: list[str] = []
    for line in lines:
        starts = line.startswith(" ") and block and re.fullmatch(r"-+", block[-1])
        if not line.strip() or starts:
            if block:
                yield block
            block = []
        if line.strip():
            block.append(line.rstrip())
    if block:
        yield block


def items(block):
    """(term, text) for each line at the margin, where some lines hang from them; None for another kind of block."""
    if not any(line.startswith("    ") for line in block):
        return None
    found: list[tuple[str, list[str]]] = []
    for line in block:
        match = HANGING.match(line)
        if match:
            found.append((match["term"], [match["rest"]]))
        elif line.startswith("    ") and found:
            found[-1][1].append(line.strip())
        else:
            return None
    return found


def as_rest(lines):
    """The lines of a docstring as reST: indented blocks literal, hanging ones a list of definitions, the rest prose."""
    result = []
    for block in blocks(lines):
        if block[0].startswith(">>>"):
            result += block
        elif block[0].startswith(" "):
            result += ["::", "", *("    " + line for line in block)]
        elif len(block) > 1 and re.fullmatch(r"-+", block[1]):
            result += block[:2]
            if block[2:]:
                result += ["", *as_rest(block[2:])]
        elif items(block):
            for term, texts in items(block):
                result += [f"**{inline(term)}**", *("    " + inline(text) for text in texts), ""]
        else:
            result += map(inline, block)
        result.append("")
    return result


def process_docstring(app, what, name, obj, options, lines):
    """autodoc's hook."""
    if getattr(obj, "__module__", getattr(obj, "__name__", "")).startswith("pyconv"):
        lines[:] = as_rest(lines)


class Door(SphinxDirective):
    """``{door} torch``: the docstring of pyconv.torch and, where torch is installed, of all that it offers."""

    required_arguments = 1

    def run(self):
        name = self.arguments[0]
        folder = ROOT / "pyconv" / name
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if not path.exists():
            raise self.error(f"door must be a file or a folder in pyconv; got {name}")
        for source in folder.glob("*.py") if folder.is_dir() else [path]:
            self.env.note_dependency(str(source))
        try:
            import_module(f"pyconv.{name}")
        except ImportError as error:
            lines = as_rest((ast.get_docstring(ast.parse(path.read_text())) or "").splitlines())
            return self.parsed([*lines, "", f"What it offers is left out here: where this was built, {error}."])
        return self.parsed([f".. automodule:: pyconv.{name}", "   :members:", "   :imported-members:"])

    def parsed(self, lines):
        node = nodes.section()
        node.document = self.state.document
        lines = ["````{eval-rst}", *lines, "````"]
        self.state.nested_parse(StringList(lines, source=self.get_source_info()[0]), 0, node, match_titles=True)
        return node.children


def setup(app):
    app.connect("autodoc-process-docstring", process_docstring)
    app.add_directive("door", Door)
