"""What a check found, and the page that a person reads."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "not applicable"
WIDTH = 100
_SIGNS = {PASSED: "ok", FAILED: "FAIL", SKIPPED: "-"}


@dataclass(frozen=True)
class Result:
    """One check on one part."""

    name: str
    verdict: str  # passed, failed or not applicable
    words: str  # one sentence, with the numbers
    why: str = ""  # which real fault the check catches


def passed(words: str) -> Result:
    return Result("", PASSED, words)


def failed(words: str) -> Result:
    return Result("", FAILED, words)


def skipped(words: str) -> Result:
    """Not applicable, with the reason."""
    return Result("", SKIPPED, words)


@dataclass(frozen=True)
class Report:
    """All checks on one part."""

    axis: str
    name: str
    keys: dict[str, Any]  # the settings that it was checked under
    needs: tuple[str, ...]
    formula: str
    results: tuple[Result, ...]
    seconds: float

    def having(self, verdict: str) -> list[Result]:
        return [result for result in self.results if result.verdict == verdict]

    @property
    def failures(self) -> list[str]:
        """The names of the checks that failed."""
        return [result.name for result in self.having(FAILED)]

    @property
    def sound(self) -> bool:
        return not self.failures

    def __getitem__(self, name: str) -> Result:
        """The result of one check."""
        return next(result for result in self.results if result.name == name)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}

    @property
    def verdict(self) -> str:
        """One line: the part, whether it is sound, the counts."""
        counts = f"{len(self.having(PASSED))} passed, {len(self.having(SKIPPED))} not applicable"
        if self.sound:
            return f"{self.axis}/{self.name} is sound: {counts}; {self.seconds:.1f} s"
        return (
            f"{self.axis}/{self.name} is NOT sound: {', '.join(self.failures)} failed, {counts}; {self.seconds:.1f} s"
        )

    @property
    def line(self) -> str:
        """The same in columns, for a list of parts."""
        word = "sound" if self.sound else "FAIL"
        counts = f"{len(self.having(PASSED)):>2} passed  {len(self.having(SKIPPED)):>2} not applicable"
        return f"{f'{self.axis}/{self.name}':<32} {word:<6} {counts}  {self.seconds:4.1f} s"

    def text(self, *, why: bool = False) -> str:
        """The page. ``why``: with the reason of every check, not of the failed ones alone."""
        head = [f"{self.axis}/{self.name}"]
        if self.formula:
            head += _wrapped("formula  ", self.formula)
        if self.keys:
            head += _wrapped("keys     ", "  ".join(f"{key}={value}" for key, value in self.keys.items()))
        if self.needs:
            head += _wrapped("needs    ", ", ".join(self.needs))
        lines = [*head, ""]
        for result in self.results:
            lines += _wrapped(f"{_SIGNS[result.verdict]:<5}{result.name:<20}", result.words)
            if result.why and (why or result.verdict == FAILED):
                lines += _wrapped(f"{'':25}why: ", result.why)
        return "\n".join([*lines, "", self.verdict])


def _wrapped(label: str, words: str) -> list[str]:
    """``label`` and ``words``, further lines under the words."""
    label = f"  {label}"
    indent = " " * len(label)
    return textwrap.wrap(
        " ".join(words.split()), WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    ) or [label.rstrip()]


def summary(reports: list[Report], left_out: int = 0) -> str:
    """What failed, then the verdict on all."""
    bad = [report for report in reports if not report.sound]
    lines, told = [], set()
    for report in bad:
        lines += ["", f"{report.axis}/{report.name}"]
        for result in report.having(FAILED):
            lines += _wrapped(f"{_SIGNS[FAILED]:<5}{result.name:<20}", result.words)
            if result.name not in told:
                lines += _wrapped(f"{'':25}why: ", result.why)
            told.add(result.name)
    verdict = f"{len(reports) - len(bad)} of {len(reports)} parts are sound"
    verdict += f", {left_out} not checked" * (left_out > 0) + f"; {sum(report.seconds for report in reports):.0f} s"
    if bad:
        verdict += f". NOT sound: {', '.join(f'{report.axis}/{report.name}' for report in bad)}"
    return "\n".join([*lines, "", *textwrap.wrap(verdict, WIDTH)])
