"""What to know before reading: everything by which a number on the page could mislead, in plain sentences."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rlfw.errors import printable
from rlfw.report import arms, statistics
from rlfw.report.folders import INFERRED
from rlfw.report.text import number
from rlfw.watch import warned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlfw.report.arms import Row, Scores
    from rlfw.report.provenance import Origin
    from rlfw.report.results import Result
    from rlfw.study.records import Records

FEW = 10  # seeds, below which a difference of one standard deviation is missed more often than it is found
UNEQUAL = 0.01  # of the longest run: a rollout's end overshoots a budget by less


def caveats(
    records: Records, results: Sequence[Result], rows: Sequence[Row], origins: Sequence[Origin], *, chosen: bool
) -> list[str]:
    """The sentences. ``chosen``: the metric was given to the report, in place of the study's own."""
    return [
        *_metric(records, chosen=chosen),
        *_few(rows),
        *_failed(records, results, rows),
        *_warned(results),
        *_open(results),
        *_empty(rows),
        *_unequal(rows),
        *_lengths(results),
        *_points(records, results),
        *_no_test(rows),
        *_repeated(results),
        *_origins(origins),
    ]


def _metric(records: Records, *, chosen: bool) -> Iterator[str]:
    if chosen and records.mode != INFERRED:
        yield "The metric was chosen for this report, not by the study in advance: look at it as an exploration."
    if records.mode == INFERRED:
        yield (
            f"No study named a metric, a base or the arms in advance. The metric is {arms.described(records.metric)}; "
            f"the base is the arm that ran first ({records.base}), unless --base says otherwise."
        )


def _few(rows: Sequence[Row]) -> Iterator[str]:
    tests = sum(row.less_base is not None for row in rows)
    for env, mine in arms.by_env(rows).items():
        n = [row.n for row in mine if row.n]
        if not n or min(n) >= FEW:
            continue
        several = f"{min(n)}" if min(n) == max(n) else f"{min(n)} to {max(n)}"
        start = f"On {env} an arm has {several} run{'s' * (max(n) > 1)}, which is fewer than {FEW}."
        spread = arms.spread(mine, env)
        if min(n) < 2 or len(n) < 2 or not spread:
            yield f"{start} That is too few to tell a difference from chance."
            continue
        alone = statistics.visible(min(n), min(n))
        strict = statistics.visible(min(n), min(n), 0.05 / tests)
        yield (
            f"{start} With the spread seen here (standard deviation {number(spread)}) so few find a difference of "
            f"{number(alone * spread)} ({alone:.1f} standard deviations) in four studies of five, and one of "
            f"{number(strict * spread)} under Holm's strictest step over {tests} comparisons. A smaller true "
            "difference is more likely missed than found: no difference shown here means no evidence, not no effect."
        )


def _failed(records: Records, results: Sequence[Result], rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        mine = [r for r in results if (r.run.arm, r.run.env) == (row.arm, row.env)]
        failed = [r for r in mine if r.outcome == "failed"]
        if not failed:
            continue
        seeds = ", ".join(str(r.run.seed) for r in failed)
        reasons = Counter(printable(r.why or "") for r in failed)
        why = "; ".join(reason if times == 1 else f"{reason} ({times} times)" for reason, times in reasons.items())
        own = np.array([r.score for r in mine if r.outcome == "finished"], dtype=float)
        if not row.n:
            yield f"{row.arm} on {row.env}: {len(failed)} runs failed (seeds {seeds}: {why}), and none finished."
            continue
        worst = number(float(row.scores.min() if _high(records) else row.scores.max()))
        without = f"; without them its mean would be {number(float(own.mean()))}" if len(own) else ""
        yield (
            f"{row.arm} on {row.env}: {len(failed)} of {len(mine)} runs failed (seed {seeds}: {why}). Each counts as "
            f"the worst score of any finished run on {row.env}, {worst}{without}."
        )


def _warned(results: Sequence[Result]) -> Iterator[str]:
    kinds: dict[tuple[str, str], list[set[str]]] = {}
    for r in results:
        if r.run.state != "missing":
            kinds.setdefault((r.run.arm, r.run.env), []).append(warned(r.run.path))
    for (arm, env), runs in kinds.items():
        if counts := Counter(kind for run in runs for kind in sorted(run)):
            told = ", ".join(f"{kind} {times}" for kind, times in counts.most_common())
            yield (
                f"{arm} on {env}: {sum(map(bool, runs))} of {len(runs)} runs gave a warning while training ({told}). "
                "Each stands in the run's warnings.jsonl."
            )


def _high(records: Records) -> bool:
    return records.metric.higher_is_better and records.metric.summary != "steps_to"


def _open(results: Sequence[Result]) -> Iterator[str]:
    states: dict[tuple[str, str], Counter[str]] = {}
    for r in results:
        if r.outcome == "open":
            states.setdefault((r.run.arm, r.run.env), Counter())[r.run.state] += 1
    for (arm, env), counts in states.items():
        told = ", ".join(f"{times} {state}" for state, times in counts.items())
        yield f"{arm} on {env}: {told}. These runs do not count yet: the numbers are of a study that is not finished."


def _empty(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.n - row.failed <= 0:
            yield f"{row.arm} on {row.env} has no finished run: there is nothing to compare."


def _unequal(rows: Sequence[Row]) -> Iterator[str]:
    for env, mine in arms.by_env(rows).items():
        n = {row.n for row in mine}
        if len(n) > 1:
            told = ", ".join(f"{row.arm}: {row.n}" for row in mine)
            yield f"On {env} the arms have different numbers of runs ({told})."


def _lengths(results: Sequence[Result]) -> Iterator[str]:
    for env in dict.fromkeys(r.run.env for r in results):
        finished = [r for r in results if r.run.env == env and r.outcome == "finished"]
        budgets = [r.budget for r in finished]
        if not budgets or max(budgets) - min(budgets) <= UNEQUAL * max(budgets):
            continue
        shorter = sorted({r.run.arm for r in finished if r.budget < (1 - UNEQUAL) * max(budgets)})
        yield (
            f"On {env} finished runs end between {number(min(budgets))} and {number(max(budgets))} steps (shorter: "
            f"{', '.join(shorter)}). Their scores are at their own ends; the curves stop where the shortest run does."
        )


def _points(records: Records, results: Sequence[Result]) -> Iterator[str]:
    metric = records.metric
    for env in dict.fromkeys(r.run.env for r in results):
        finished = [r for r in results if r.run.env == env and r.outcome == "finished"]
        counts = {len(r.values) for r in finished}
        short = sum(r.short for r in finished)
        if len(counts) > 1:
            fewest, most = min(counts), max(counts)
            if most - fewest > max(1, UNEQUAL * most):
                yield (
                    f"On {env} runs logged {metric.name} {fewest} to {most} times: an evaluation is missing, or no "
                    "episode ended in a rollout; curves and areas interpolate there."
                )
        if short:
            yield (
                f"On {env} {short} run(s) logged {metric.name} fewer than {metric.last} times: their score is the mean "
                "of what there is."
            )
        if bound := sum(r.censored for r in finished):
            yield (
                f"On {env} {bound} run(s) never reached {metric.threshold:g}: each counts with its whole budget, which "
                "is a lower bound; means and differences understate what separates such arms."
            )
        if holes := sum(not np.isfinite(r.values).all() for r in finished):
            yield f"On {env} {holes} finished run(s) logged a {metric.name} that is not finite; curves leave it out."
    if broken := sum(r.broken > 0 for r in results):
        yield f"{broken} run(s) have lines in metrics.jsonl that cannot be read; they are left out."


def _no_test(rows: Sequence[Row]) -> Iterator[str]:
    for env, mine in arms.by_env(rows).items():
        still = [row.arm for row in mine if row.n >= 2 and np.ptp(row.scores) == 0]
        if still:
            yield (
                f"On {env} all runs of {', '.join(still)} have one score: the interval has no width, which says "
                "nothing of the spread of further seeds, and two such arms cannot be tested."
            )


def _repeated(results: Sequence[Result]) -> Iterator[str]:
    if repeated := [r for r in results if r.outcome == "repeated"]:
        told = sorted({f"{r.run.arm} seed {r.run.seed}" for r in repeated})
        yield (
            f"{len(repeated)} run(s) repeat another's configuration and seed ({', '.join(told[:5])}"
            f"{', ...' if len(told) > 5 else ''}): only the last of each counts, a copy is no further evidence."
        )


def _origins(origins: Sequence[Origin]) -> Iterator[str]:
    for what in ("commit", "versions", "platform"):
        found = {getattr(origin, what) for origin in origins}
        if len(found) > 1:
            yield f"The runs were not all made with the same {what}: see the end of the page."
    if any("not committed" in origin.commit for origin in origins):
        yield "Some runs were made from a working tree with changes that were not committed."


def scale(scores: Scores) -> str:
    """How several envs are put on one scale."""
    envs = len({env for _, env in scores})
    return (
        f"Over {envs} envs scores are normalised: 0 is the worst run of an env and 1 its best, over all arms; "
        "an env counts by its runs."
    )
