"""No key that a person typed is silently ignored; those of an experiment wait for the words that choose their part."""

from pathlib import Path

import pytest

import rlfw
from rlfw import effects
from rlfw.cli import main
from rlfw.config import compose

GRPO, PPO = ["algorithm=grpo", "env=cartpole"], ["algorithm=ppo", "env=cartpole"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [*GRPO, "gamma=0.9"],
            "gamma has no effect: neither baseline=group_mean nor any other part or the env reads it; leave it away",
        ),
        ([*PPO, "baseline=batch_mean", "gamma=0.9"], "gamma has no effect: neither baseline=batch_mean"),
        ([*PPO, "evaluation.episodes=5"], "evaluation.episodes has no effect with evaluation.every=0: set"),
        ([*PPO, "evaluation={episodes: 5}"], "evaluation.episodes has no effect with evaluation.every=0"),
        (
            ["algorithm=grpo", "env=reverse", "warmup.steps=0", "warmup.lr=1"],
            "warmup.lr has no effect with warmup.steps=0: set",
        ),
        ([*PPO, "warmup.batch_size=2"], "warmup.batch_size has no effect with warmup.steps=0"),
        (
            [*GRPO, "sampler.episodes.max_rounds=3"],
            "sampler.episodes.max_rounds has no effect with sampler.episodes.no_signal=keep: set "
            "sampler.episodes.no_signal=resample",
        ),
        ([*PPO, "iterations=3", "dump=4"], "dump=4 has no effect: the last iteration is iterations=3"),
    ],
)
def test_a_typed_key_without_effect_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(rlfw.UserError) as error:
        effects.check(compose(words), words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        [*PPO, "gamma=0.9"],
        [*PPO, "baseline=none", "gamma=0.9"],
        [*GRPO, "gamma=0.9", "env.gym.normalize_rewards=true"],
        [*PPO, "evaluation.episodes=5", "evaluation.every=1"],
        ["algorithm=grpo", "env=reverse", "warmup.lr=1"],
        [*PPO, "iterations=3", "dump=3"],
        [*GRPO, "sampler.episodes.max_rounds=3", "sampler.episodes.no_signal=resample"],
        [*PPO, "dump=10000"],  # a budget in steps: how many iterations it holds shows in the end
        [*GRPO, "regularizer.kl.coef=0"],  # an ablation
    ],
)
def test_a_typed_key_with_an_effect_is_taken(words: list[str]) -> None:
    effects.check(compose(words), words)


def test_an_experiment_may_hold_keys_for_other_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.yaml").write_text("gamma: 0.9\nevaluation: {episodes: 5}\nwarmup: {lr: 1.0}\n")
    words = [*GRPO, "experiment=wide.yaml"]
    effects.check(compose(words), words)


def test_a_part_says_which_of_its_keys_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here epsilon, were it read by a whitening that shifts alone."""
    from rlfw.algorithms.normalize import Whiten

    monkeypatch.setattr(Whiten, "only_with", {"eps": ("shift", True)})
    words = [*PPO, "normalize.whiten.eps=0.1"]
    effects.check(compose(words), words)
    words.append("normalize.whiten.shift=false")
    with pytest.raises(rlfw.UserError) as error:
        effects.check(compose(words), words)
    assert str(error.value) == (
        "normalize.whiten.eps has no effect with normalize.whiten.shift=false: set normalize.whiten.shift=true"
    )


@pytest.mark.medium
def test_a_run_refuses_before_it_starts_and_says_in_the_end_what_never_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=8", "progress=false", "tensorboard=false"]
    words = ["train", *PPO, *small, f"out={tmp_path / 'run'}", "total_steps=32"]  # two iterations
    assert main([*words, "evaluation.episodes=5"]) == 2
    assert not (tmp_path / "run").exists()
    capsys.readouterr()
    assert main([*words, "dump=3", "evaluation.every=3", "checkpoint.every=3"]) == 0
    assert capsys.readouterr().err.splitlines()[:3] == [
        "rlfw: dump=3 wrote nothing: the run ended at iteration 2",
        "rlfw: evaluation.every=3 never evaluated: the run ended at iteration 2",
        "rlfw: checkpoint.every=3 saved nothing but the start and the end: the run ended at iteration 2",
    ]
