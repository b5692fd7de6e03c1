"""Build the documentation: python docs/build.py runs the examples of its pages, then writes docs/_build/index.html.

    --pictures    draw docs/pictures again first
    --no-tests    do not run the examples

The exit status is 1 where an example does not do what its page says, or Sphinx has something to warn of.
"""

import argparse
import doctest
import importlib
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)


def missing(page: Path) -> str | None:
    """Why the examples of a page cannot run: a framework that is not there, or the door to it."""
    if page.parent.name != "frameworks" or page.stem == "other":
        return None
    try:
        importlib.import_module(f"pyconv.{page.stem}")
    except ImportError as error:
        return str(error)
    return None


def run_examples(page: Path) -> int:
    """How many examples of a page fail; what they print is shown."""
    failed, _ = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(DOCS)]
    if arguments.pictures:
        import pictures

        pictures.draw_all(DOCS / "pictures")
    if not arguments.no_tests:
        for page in PAGES:
            reason = missing(page)
            if reason:
                print(f"{page.relative_to(DOCS)}: not run: {reason}")
            elif run_examples(page):
                return 1
        print("the examples of all other pages do what they say")
    from sphinx.cmd.build import build_main

    status = build_main(["-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(DOCS / "_build")])
    if not status:
        print("written: docs/_build/index.html")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
