"""What goes wrong in a run, said once, in plain words and with the remedy.

A detector looks at the rows of metrics that a run logs and at nothing else: it costs no step, turns no knob and knows
no part. The rows are its whole memory, so a run that goes on reads them again and says nothing twice.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rlfw.run import RunFolder

START = 3  # rows at the beginning of a run: their mean is where a metric started
NOW = 5  # rows at the end: their mean is where it stands
FALL = 3  # rows whose mean score is held against the first row's
BEFORE = 10  # rows before the newest two, with which a spike is compared

UPDATE_KL = 0.2  # nats a step, k3, old policy to new: usual are 0.001 to 0.05, also without a clip
SPIKE_KL = 0.2  # nats a token, k3, policy to reference: below it no rise is a spike
SPIKE = 4.0  # times the median before
FAR_KL = 0.5  # nats a token, k3, policy to reference: a leash usually holds it below 0.2
FAR_SURPRISE = 2.0  # times: nats a token of the reference on what the policy writes, over those on its own writing
ENTROPY_LEFT = 0.1  # share of the start's entropy
LENGTH_LEFT = 1 / 3  # share of the start's mean length
CUT = 0.5  # share of completions that a limit cuts
CUT_AT_START = 0.25  # where more were cut from the start, it is how the task is made
NO_SIGNAL = 0.8  # share of groups whose rows all have the same total
SOLVED = 0.9  # share of right rows, where a row is right or wrong: groups without a signal are good news then
GAIN = 0.25  # standard deviations of a score at the start: less above it is no gain, more below the best a loss
HIGH_GAIN = 0.5  # the same, from where on a reward counts as up, or as fallen
SAMPLER_GAP = 0.05  # nats a step, a probability 5 % off: what NeMo RL asks of its recipes, with samplers in bf16
RATIO_GAP = 0.03  # of the ratio; in float32 it is 1e-6

KL, UPDATE, ENTROPY = "objective/kl_per_token", "policy/approxkl_avg", "objective/entropy"
SCORE, SPREAD, RIGHT = "objective/scores", "objective/scores_std", "group/pass@1"
LENGTH, CLIPPED, SILENT = "response_length/mean", "response_length/clip_ratio", "group/frac_reward_zero_std"
USED, GENERATED = "group/n_used", "group/n_generated"
SAMPLER, FIRST_RATIO = "sampling/logp_difference_mean", "val/ratio_first_gap"


class Course:
    """A run so far: its first rows, its newest ones, and the best score between them."""

    def __init__(self) -> None:
        self.first: list[Mapping[str, float]] = []
        self.newest: deque[Mapping[str, float]] = deque(maxlen=BEFORE + 2)
        self.best = -float("inf")  # of the mean score over NOW rows
        self.text = False

    def add(self, row: Mapping[str, float]) -> None:
        """One more row. A row of an iteration from which nothing could be learnt has few metrics."""
        if len(self.first) < START:
            self.first.append(row)
        self.newest.append(row)
        self.text = self.text or any(name.startswith("rewards/") for name in row)  # reward functions judge texts
        if (score := self.now(SCORE)) is not None:
            self.best = max(self.best, score)

    def start(self, name: str) -> float | None:
        return _mean([row[name] for row in self.first if name in row])

    def now(self, name: str, rows: int = NOW) -> float | None:
        """The mean over the newest rows that have it; None while there are fewer."""
        found = [row[name] for row in self.newest if name in row][-rows:]
        return _mean(found) if len(found) == rows else None

    def last(self, name: str) -> float | None:
        return self.newest[-1].get(name)

    def gain(self) -> tuple[float, float] | None:
        """How far the score is above the start's and below the best, in the start's standard deviations."""
        start, now, spread = self.start(SCORE), self.now(SCORE), self.start(SPREAD)
        if start is None or now is None or spread is None:
            return None
        unit = spread or abs(start) or 1.0
        return (now - start) / unit, (self.best - now) / unit

    def learning(self) -> bool | None:
        """Whether the score is well above where it started and near its best; of right and wrong, nearly all right."""
        if (right := self.now(RIGHT)) is not None:
            return right >= SOLVED
        if (found := self.gain()) is None:
            return None
        gain, lost = found
        return gain > GAIN and lost < GAIN


def update_kl(course: Course) -> str | None:
    """An update moved the policy far."""
    found = course.last(UPDATE)
    if found is None or found <= UPDATE_KL:
        return None
    return (
        f"an update moved the policy by {found:.3g} nats a step ({UPDATE}; 0.001 to 0.05 is usual): lower lr or "
        "epochs, or stop updates early (controller=[target_kl])"
    )


def kl_spike(course: Course) -> str | None:
    """The KL to the reference leapt, or rose while the score fell.

    Two rows in a row bear it out: one unlikely token makes a row's k3 leap. At the start every KL rises from 0; there
    it is a spike only where it costs what the policy knew.
    """
    found = [row[KL] for row in course.newest if KL in row]
    if not course.text or len(found) < FALL or min(found[-2:]) <= SPIKE_KL:
        return None
    before = sorted(found[:-2])[(len(found) - 2) // 2]
    leapt = len(found) == BEFORE + 2 and min(found[-2:]) > SPIKE * before
    first, now, spread = course.first[0].get(SCORE), course.now(SCORE, FALL), course.first[0].get(SPREAD)
    fell = first is not None and now is not None and spread is not None and first - now > HIGH_GAIN * spread
    if not leapt and not fell:
        return None
    fall = f" and the score fell from {first:.3g} to {now:.3g}" if fell else ""
    return (
        f"KL per token rose from {before:.3g} to {found[-1]:.3g} nats within {len(found) - 2} iterations ({KL}){fall}: "
        "lower lr, raise the KL penalty (reward.kl.coef or regularizer.kl.coef), or back off by itself "
        "(controller=[kl_guard])"
    )


def reward_hacking(course: Course) -> str | None:
    """The score rises while the policy writes what the reference finds odd.

    KL + entropy are the reference's nats on what the policy writes; where it knows nothing they do not rise.
    """
    kl, entropy, before, gains = course.now(KL), course.now(ENTROPY), course.start(ENTROPY), course.gain()
    if not course.text or kl is None or entropy is None or before is None or gains is None:
        return None
    if kl <= FAR_KL or kl + entropy <= FAR_SURPRISE * before or gains[0] <= HIGH_GAIN:
        return None
    return (
        f"the reward is up from {course.start(SCORE):.3g} to {course.now(SCORE):.3g} while the KL to the reference ran "
        f"away to {kl:.3g} nats a token ({KL}): read samples.jsonl, the policy may exploit the reward; repair "
        "the reward, or raise the KL penalty (reward.kl.coef or regularizer.kl.coef)"
    )


def entropy_collapse(course: Course) -> str | None:
    """The policy of a text has nearly one answer left to each prompt, and no reward to show for it."""
    now, before = course.now(ENTROPY), course.start(ENTROPY)
    if not course.text or now is None or before is None or now >= ENTROPY_LEFT * before:
        return None
    if course.learning() is not False:
        return None
    return (
        f"the entropy fell from {before:.3g} to {now:.3g} nats a token ({ENTROPY}) and the score stands at "
        f"{course.now(SCORE):.3g}, {course.best:.3g} at best: lower lr, raise the clip's upper bound "
        "(regularizer.clip.high), or add an entropy bonus (regularizer.entropy)"
    )


def length_collapse(course: Course) -> str | None:
    """Completions became short."""
    now, before = course.now(LENGTH), course.start(LENGTH)
    if not course.text or now is None or before is None or now >= LENGTH_LEFT * before:
        return None
    return (
        f"completions shrank from {before:.3g} to {now:.3g} tokens ({LENGTH}): unless that is the aim, look whether "
        "the reward pays for short ones, or raise the KL penalty (reward.kl.coef or regularizer.kl.coef)"
    )


def length_cap(course: Course) -> str | None:
    """Completions grew into the limit."""
    now, before = course.now(CLIPPED), course.start(CLIPPED)
    if not course.text or now is None or before is None or before >= CUT_AT_START or now <= CUT:
        return None
    return (
        f"{now:.0%} of completions are cut by the limit of new tokens, {before:.0%} at the start ({CLIPPED}): look "
        "whether the reward pays for long ones, charge for length (reward=[overlong] or [missing_eos]), or raise the "
        "limit of the env"
    )


def no_signal(course: Course) -> str | None:
    """Most groups teach nothing: their rows all got the same total. Groups that the sampler left out count as such."""
    rows = [row for row in course.newest if SILENT in row][-BEFORE:]
    if len(rows) < BEFORE or course.learning() is not False:
        return None
    silent = sum(1 - (1 - row[SILENT]) * row[USED] / max(row[GENERATED], 1) for row in rows) / BEFORE
    if silent <= NO_SIGNAL:
        return None
    return (
        f"{silent:.0%} of groups carry no signal, their rows all got the same reward ({SILENT}): take starts of "
        "middling difficulty, a reward of finer steps or larger groups, or draw such groups again "
        "(sampler.episodes.no_signal=resample)"
    )


def sampler_gap(course: Course) -> str | None:
    """What acted and what is trained give the same step different probabilities."""
    found = course.last(SAMPLER)
    if found is None or found <= SAMPLER_GAP:
        return None
    return (
        f"sampler and trainer differ by {found:.3g} nats a step on the actions taken ({SAMPLER}; near 0 is right): "
        "look for another precision, temperature or weights that are out of date in the sampler, or correct for it "
        "(weight=[tis])"
    )


def ratio_gap(course: Course) -> str | None:
    """Before the first step of an update the policy is the old one, and its ratio 1."""
    found = course.last(FIRST_RATIO)
    if found is None or found <= RATIO_GAP:
        return None
    return (
        f"the ratio to the old policy is off by {found:.3g} on the first minibatch, where it must be 1 "
        f"({FIRST_RATIO}): scoring and update differ; look for dropout, noise or batch statistics in the "
        "policy, or another precision"
    )


DETECTORS: dict[str, Callable[[Course], str | None]] = {
    detector.__name__: detector
    for detector in (
        update_kl,
        kl_spike,
        reward_hacking,
        entropy_collapse,
        length_collapse,
        length_cap,
        no_signal,
        sampler_gap,
        ratio_gap,
    )
}


class Watch:
    """Looks at every row of a run, and says each kind of trouble once: on stderr and in warnings.jsonl."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None]) -> None:
        self.folder, self.say, self.course = folder, say, Course()
        self.said: set[str] = set()
        with (folder.path / "metrics.jsonl").open() as rows:
            for line in rows:
                list(self.found(json.loads(line)))

    def see(self, row: Mapping[str, float]) -> None:
        """The row of the iteration that ends."""
        for kind, sentence in self.found(row):
            self.say(f"rlfw: warning: iteration {row['iteration']}: {sentence}")
            self.folder.warn({"iteration": row["iteration"], "kind": kind, "warning": sentence})

    def found(self, row: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """What this row is the first to show: kind and sentence."""
        self.course.add(row)
        for kind, detector in DETECTORS.items():
            if kind not in self.said and (sentence := detector(self.course)) is not None:
                self.said.add(kind)
                yield kind, sentence


def warned(run: Path) -> set[str]:
    """The kinds of trouble that the run in ``run`` has said so far."""
    file = run / "warnings.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return {json.loads(line)["kind"] for line in lines if line.endswith("\n")}  # a killed run may leave half a line


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
