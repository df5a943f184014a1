"""rlfw report, rlfw samples and rlfw compare."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlfw.errors import UserError, printable
from rlfw.report.folders import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORT = """\
Write report.html (one file, no network), report.md, figures/ and results.csv of a study's folder, or of any folder of
runs: there the arms are told from how the configurations differ, the seed aside. docs/studies.md says what it holds."""

SAMPLES = """\
Write samples.html (one file, no network) of what a run's language model wrote over its training: a table to sort and to
search, of iterations and samples evenly spaced and the highest and lowest rewards. rlfw sample lets it write anew."""

COMPARE = """\
Two or more runs, studies or folders of runs side by side: how their configurations differ, then their final numbers."""


EXTRA = ("matplotlib", "jinja2", "statsmodels")  # what the extra "report" installs


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what it takes")


def report(words: Sequence[str]) -> int:
    """An exit code; UserError where there is nothing to report."""
    parser = _parser("rlfw report", REPORT)
    parser.add_argument("dir", type=Path, metavar="DIR", help="a study's folder, or one that holds runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: into DIR)")
    parser.add_argument("--base", metavar="ARM", help="the arm that the others are compared with")
    _metric(parser)
    args = parser.parse_args(words)
    choice = _choice(args, args.base)
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise UserError(f"a report needs {', '.join(missing)}: pip install 'rlfw[report]'")
    from rlfw.report import content, page

    out = args.out or args.dir
    found = content.make(args.dir, choice)
    page.write(found, out)
    for sentence in found.caveats:
        print(f"- {printable(sentence)}")
    print(out / "report.html")
    return 0


def samples(words: Sequence[str]) -> int:
    """An exit code; UserError where the run wrote no samples."""
    parser = _parser("rlfw samples", SAMPLES)
    parser.add_argument("dir", type=Path, metavar="DIR", help="a run's folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write (default: samples.html in DIR)")
    parser.add_argument("--iterations", type=int, default=25, metavar="N", help="that are shown (default 25)")
    parser.add_argument("--rows", type=int, default=6, metavar="N", help="of each, evenly spaced (default 6)")
    args = parser.parse_args(words)
    if find_spec("jinja2") is None:
        raise UserError("a page of samples needs jinja2: pip install 'rlfw[report]'")
    from rlfw.report import over_training

    out = args.out or args.dir / "samples.html"
    over_training.write(args.dir, out, args.iterations, args.rows)
    print(out)
    return 0


def compare(words: Sequence[str]) -> int:
    """An exit code; UserError where there is nothing to compare."""
    parser = _parser("rlfw compare", COMPARE)
    parser.add_argument("dirs", type=Path, nargs="+", metavar="DIR", help="runs, studies, folders of runs")
    _metric(parser)
    args = parser.parse_args(words)
    from rlfw.report import text
    from rlfw.report.compare import compare as side_by_side

    print(text.printable_lines(side_by_side(args.dirs, _choice(args, None))))
    return 0


def _parser(prog: str, description: str) -> _Parser:
    return _Parser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def _metric(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metric", metavar="NAME", help="a column of metrics.jsonl, in place of the study's metric")
    parser.add_argument("--summary", metavar="HOW", help="final (the mean of the last ones), auc or steps_to")
    parser.add_argument("--last", type=int, metavar="K", help="how many of the last ones final takes")
    parser.add_argument("--threshold", type=float, metavar="X", help="of steps_to")
    parser.add_argument("--lower-is-better", action="store_true", help="of the metric")


def _choice(args: argparse.Namespace, base: str | None) -> Choice:
    if args.last is not None and args.last < 1:
        raise UserError(f"--last {args.last}: at least 1")
    return Choice(args.metric, args.summary, args.last, args.threshold, args.lower_is_better, base)
