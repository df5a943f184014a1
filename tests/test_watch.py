"""Warnings while training: trouble is said once, with its numbers and the remedy; a sound run hears nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

import rlfw
from rlfw.policies.mlp import MLPPolicy
from rlfw.registry import register
from rlfw.report import results
from rlfw.report.caveats import caveats
from rlfw.run import RunFolder, checkpoints
from rlfw.study.records import Arm, Metric, Record, Records
from rlfw.watch import DETECTORS, Course, Watch

N = 20  # iterations of the courses written by hand
TEXT = {"rewards/right/mean": 0.5}
SOUND = {  # a small language model on a toy task, as measured; [start, end]
    "objective/scores": [0.65, 0.92],
    "objective/scores_std": [0.48, 0.27],
    "group/pass@1": [0.65, 0.92],
    "objective/kl_per_token": [0.0, 0.25],
    "policy/approxkl_avg": [0.001, 0.03],
    "objective/entropy": [0.6, 0.04],
    "response_length/mean": [5.1, 4.9],
    "response_length/clip_ratio": [0.01, 0.02],
    "group/frac_reward_zero_std": [0.3, 0.9],
    "group/n_used": [256, 256],
    "group/n_generated": [256, 256],
    "sampling/logp_difference_mean": [1e-7, 1e-6],
    "val/ratio_first_gap": [0.0, 1e-6],
}


def course(changed: Mapping[str, Sequence[float]] = {}, *, text: bool = True) -> list[dict[str, float]]:
    """N rows: the sound course with other [start, end], or whole columns, for some metrics; no values: no metric."""
    rows: list[dict[str, float]] = [{"iteration": t + 1, **(TEXT if text else {})} for t in range(N)]
    for name, values in (SOUND | dict(changed)).items():
        for t, row in enumerate(rows if values else []):
            row[name] = values[t] if len(values) == N else values[0] + (values[1] - values[0]) * t / (N - 1)
    return rows


def heard(rows: list[dict[str, float]]) -> dict[str, str]:
    """Every kind that some row shows -> the first sentence of it."""
    seen, found = Course(), dict[str, str]()
    for row in rows:
        seen.add(row)
        for kind, detector in DETECTORS.items():
            if kind not in found and (sentence := detector(seen)) is not None:
                found[kind] = sentence
    return found


def leap(before: float, after: float, length: int) -> list[float]:
    """A column that leaps at the sixteenth row and falls back after ``length`` rows."""
    return [before] * 15 + [after] * length + [before] * (N - 15 - length)


SCORE, SPREAD, RIGHT = "objective/scores", "objective/scores_std", "group/pass@1"
KL, ENTROPY, SILENT = "objective/kl_per_token", "objective/entropy", "group/frac_reward_zero_std"
GAMED = {RIGHT: [], SCORE: [0.02, 0.99], SPREAD: [0.14, 0.1]}  # a keyword is counted as the reward
STUCK = {RIGHT: [0.7, 0.7], SCORE: [0.7, 0.7], SILENT: [0.3, 0.75]}
WARNED = {  # kind -> a course that shows it and nothing else, and what the sentence must name
    "update_kl": (course({"policy/approxkl_avg": leap(0.01, 0.9, 1)}), ["0.9 nats a step", "lr", "target_kl"]),
    "kl_spike": (course({KL: leap(0.01, 0.35, 5)}), ["from 0.01 to 0.35 nats", "lr", "reward.kl.coef"]),
    "reward_hacking": (
        course({**GAMED, KL: [0.0, 6.1], ENTROPY: [1.38, 1.06]}),
        ["the reward is up from 0.0", "reward.kl.coef", "samples.jsonl"],
    ),
    "entropy_collapse": (
        course({**STUCK, ENTROPY: [0.6] * 5 + [0.02] * 15}),
        ["the entropy fell from 0.6 to 0.02", "stands at 0.7", "regularizer.clip.high", "regularizer.entropy"],
    ),
    "length_collapse": (course({"response_length/mean": [6.6, 0.0]}), ["completions shrank from 6", "reward"]),
    "length_cap": (course({"response_length/clip_ratio": [0.01, 1.0]}), ["cut by the limit", "overlong"]),
    "no_signal": (
        course({RIGHT: [0.1, 0.1], SCORE: [0.1, 0.1], SILENT: [0.9, 0.95], ENTROPY: [0.6, 0.5]}),
        ["% of groups carry no signal", "no_signal=resample"],
    ),
    "sampler_gap": (
        course({"sampling/logp_difference_mean": [0.0, 0.1]}),
        ["sampler and trainer differ by 0.05", "weight=[tis]"],
    ),
    "ratio_gap": (course({"val/ratio_first_gap": [0.05, 0.05]}), ["off by 0.05 on the first minibatch", "dropout"]),
}


def test_every_detector_has_a_course_that_shows_it() -> None:
    assert WARNED.keys() == DETECTORS.keys()


@pytest.mark.parametrize("kind", WARNED)
def test_trouble_is_said_with_its_numbers_and_the_remedy(kind: str) -> None:
    rows, words = WARNED[kind]
    found = heard(rows)
    assert kind in found
    assert found.keys() <= {kind, "kl_spike"}  # a KL that runs away leaps too
    for word in words:
        assert word in found[kind]


def test_a_sound_run_hears_nothing() -> None:
    assert heard(course()) == {}


def test_a_policy_that_knows_its_only_answer_is_no_trouble() -> None:
    """CartPole: always 500, deterministic, all rows alike, all cut by the limit; a text task: solved."""
    cartpole = {
        RIGHT: [],
        SCORE: [20.0, 500.0],
        SPREAD: [10.0, 0.0],
        ENTROPY: [0.69, 0.0],
        KL: [0.0, 3.0],
        "response_length/mean": [20.0, 500.0],
        "response_length/clip_ratio": [0.0, 1.0],
        SILENT: [0.0, 1.0],
    }
    assert heard(course(cartpole, text=False)) == {}
    assert heard(course({SCORE: [0.7, 1.0], RIGHT: [0.7, 1.0], SILENT: [0.5, 1.0], ENTROPY: [0.6, 0.0]})) == {}


def test_a_model_that_starts_from_nothing_may_leave_its_reference() -> None:
    """Where the reference is uniform over 5 tokens, KL + entropy of any policy are ln 5 = 1.61 nats."""
    assert heard(course({**GAMED, KL: [0.0, 1.3], ENTROPY: [1.6, 0.3]})) == {}


def test_one_unlikely_token_is_no_spike() -> None:
    """k3 of a token that the reference gives e^7 times the probability is 1089 nats: 0.85 over 1280 tokens, once."""
    assert heard(course({KL: leap(0.05, 0.85, 1)})) == {}
    assert "kl_spike" in heard(course({KL: leap(0.05, 0.85, 2)}))


def test_a_rise_at_the_start_is_a_spike_where_it_costs_what_the_policy_knew() -> None:
    """A learning rate five times too high, as measured: 0.26, 0.49, 0.45 nats, and of right rows 0.49 to 0.2."""
    rise = [0.0, 0.26, 0.49, 0.45, *[0.5] * (N - 4)]
    assert heard(course({KL: rise})) == {}
    lost = [0.49, 0.21, 0.1, 0.25, *[0.3] * (N - 4)]
    sentence = heard(course({KL: rise, SCORE: lost, RIGHT: lost, ENTROPY: [0.55, 0.5]}))["kl_spike"]
    assert "to 0.45 nats within 2 iterations" in sentence
    assert "the score fell from 0.49 to 0.187" in sentence


def test_groups_that_the_sampler_left_out_have_no_signal() -> None:
    """Drawing anew drops silent groups, so that none of those used is silent: 1 of 10 rows is used."""
    hard = {RIGHT: [], SCORE: [0.02, 0.02], SPREAD: [0.14, 0.14]}
    rows = course({**hard, SILENT: [0.0, 0.0], "group/n_generated": [2560, 2560]})
    assert "90% of groups carry no signal" in heard(rows)["no_signal"]


def test_an_iteration_without_anything_to_learn_from_is_no_trouble() -> None:
    assert heard([{"iteration": t, "group/n_used": 0, "group/n_generated": 64, **TEXT} for t in range(N)]) == {}


# ---------------------------------------------------------------------------------------------------- real runs

WILD = ["algorithm=ppo", "env=cartpole", "lr=1", "sampler.steps.num_envs=2", "sampler.steps.num_steps=32"]
WILD += ["progress=false", "tensorboard=false", "checkpoint.every=1", "checkpoint.keep=-1"]


def warned(run: Path) -> list[tuple[int, str]]:
    file = run / "warnings.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(row["iteration"], row["kind"]) for row in rows]


def test_a_run_says_it_once_on_stderr_and_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learning rate of 1 throws the policy away at the first update, and does so again."""
    run = rlfw.train([*WILD, "iterations=1", f"out={tmp_path / 'run'}"])
    said = capsys.readouterr().err
    assert said.count("rlfw: warning: iteration 1: an update moved the policy by ") == 1
    assert warned(run) == [(1, "update_kl")]
    rlfw.train([f"resume={run}", "iterations=2"])  # not again where the run goes on
    assert "warning" not in capsys.readouterr().err
    assert warned(run) == [(1, "update_kl")]
    for checkpoint in checkpoints(run)[1:]:  # but again where the iteration itself is done again
        shutil.rmtree(checkpoint)
    rlfw.train([f"resume={run}"])
    assert capsys.readouterr().err.count("warning") == 1
    assert warned(run) == [(1, "update_kl")]


def test_a_short_sound_run_has_no_warnings(tmp_path: Path) -> None:
    words = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=16", "iterations=12", "progress=false"]
    run = rlfw.train([*words, f"out={tmp_path / 'run'}"])
    assert not (run / "warnings.jsonl").exists()


def test_noise_in_the_scoring_is_seen_at_the_first_minibatch_and_against_the_sampler(tmp_path: Path) -> None:
    """As dropout that is left on: what acted, what scored and what is trained are three policies."""

    @register("policy", "noisy")
    class Noisy(MLPPolicy):
        """An MLP that sees its observations through noise, but for when it acts."""

        def prepare(self, observations: torch.Tensor) -> torch.Tensor:
            clear = super().prepare(observations)
            return clear + 3 * torch.randn(clear.shape)

    torch.manual_seed(0)
    words = [*WILD, "lr=1e-2", "policy=noisy", "iterations=8", f"out={tmp_path / 'run'}"]
    assert {kind for _, kind in warned(rlfw.train(words))} == {"sampler_gap", "ratio_gap"}


def test_another_temperature_in_the_scoring_is_seen_against_the_sampler_alone(tmp_path: Path) -> None:
    """Sampled at temperature 1, trained at a third: every ratio of the trainer's own is 1 nevertheless."""

    @register("policy", "cold")
    class Cold(MLPPolicy):
        """An MLP that scores at a temperature other than the one it acts at."""

        def build_body(self, rng: torch.Generator) -> tuple[torch.nn.Sequential, int]:
            body, width = super().build_body(rng)
            body.register_forward_hook(lambda module, inputs, output: 3 * output)
            return body, width

    words = [*WILD, "lr=5e-3", "policy=cold", "iterations=8", f"out={tmp_path / 'run'}"]
    assert {kind for _, kind in warned(rlfw.train(words))} == {"sampler_gap"}


def test_a_single_step_update_holds_the_sampler_against_the_trainer_too(tmp_path: Path) -> None:
    words = ["algorithm=a2c", "env=cartpole", "iterations=1", "progress=false", f"out={tmp_path / 'run'}"]
    row = json.loads((rlfw.train(words) / "metrics.jsonl").read_text())
    assert row["optim/num_steps"] == 1
    assert 0 <= row["sampling/logp_difference_mean"] < 1e-6
    assert row["val/ratio_first_gap"] == 0


def test_rows_that_were_there_are_read_and_not_said(tmp_path: Path) -> None:
    rows = WARNED["kl_spike"][0]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []
    watch = Watch(RunFolder(tmp_path), said.append)
    watch.see(rows[-1])
    assert not said
    assert not (tmp_path / "warnings.jsonl").exists()


def test_a_report_counts_the_runs_that_were_warned(tmp_path: Path) -> None:
    runs = []
    for seed, kinds in enumerate([["kl_spike", "length_cap"], ["kl_spike"], []]):
        run = tmp_path / str(seed)
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"iteration": 1, "global_step": 9, "objective/scores": 1.0}\n')
        if kinds:
            (run / "warnings.jsonl").write_text("".join(f'{{"kind": "{kind}"}}\n' for kind in kinds) + '{"kin')
        runs.append(Record(run, "plain", "reverse", seed, "done", None, 1.0))
    metric = Metric("objective/scores", "final", 1, None, True)
    records = Records("s", "Why?", metric, "plain", "arms", {}, [Arm("plain", [], {}, None)], runs)
    sentences = caveats(records, results.read(records), [], [], chosen=False)
    (found,) = [sentence for sentence in sentences if "warning" in sentence]
    assert "plain on reverse: 2 of 3 runs gave a warning while training (kl_spike 2, length_cap 1)" in found
