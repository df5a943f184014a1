"""The loop, run for real on small settings: relations that hold whatever the numbers are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rlfw
from rlfw.errors import RunError, UserError

pytestmark = pytest.mark.medium

QUIET = ["progress=false", "tensorboard=false"]
PPO = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_envs=4", "sampler.steps.num_steps=32", "iterations=3"]
GRPO = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=16", "iterations=3"]
TEXT = [
    "env=reverse",
    "warmup.steps=3",
    "warmup.batch_size=8",
    "sampler.episodes.num_episodes=16",
    "policy.causal_lm.hidden_size=16",
    "policy.causal_lm.num_layers=1",
    "policy.causal_lm.num_heads=2",
    "iterations=2",
]


def train(folder: Path, *words: str) -> Path:
    return rlfw.train([*words, *QUIET, f"out={folder}"])


def metrics(run: Path) -> list[dict[str, float]]:
    """The metrics that do not measure time."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("timing_s", "perf"))} for row in rows]


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the last checkpoint's policy."""
    folder = sorted((run / "checkpoints").iterdir())[-1] / "policy"
    return {f"{file.name}:{k}": v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def assert_equal_weights(a: Path, b: Path, atol: float = 0.0) -> None:
    one, two = weights(a), weights(b)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("words", [PPO, GRPO, ["algorithm=grpo", *TEXT], ["algorithm=ppo", *TEXT]])
def test_same_seed_same_run(words: list[str], tmp_path: Path) -> None:
    a, b = (train(tmp_path / name, *words) for name in "ab")
    assert metrics(a) == metrics(b)
    assert_equal_weights(a, b)
    c = train(tmp_path / "c", *words, "seed=7")
    assert metrics(a) != metrics(c)


@pytest.mark.parametrize("words", [PPO, ["algorithm=grpo", *TEXT]])
def test_evaluation_logging_and_saving_change_nothing(words: list[str], tmp_path: Path) -> None:
    a = train(tmp_path / "a", *words)
    b = rlfw.train(
        [
            *words,
            "progress=false",
            f"out={tmp_path / 'b'}",
            "evaluation.every=1",
            "evaluation.episodes=3",
            "checkpoint.every=1",
        ]
    )
    plain = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in metrics(b)]
    assert metrics(a) == plain
    assert "eval/return" in metrics(b)[0] or "eval/score" in metrics(b)[0]
    assert_equal_weights(a, b)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "rloo", "reinforce", "a2c", "dr_grpo"])
def test_first_minibatch_is_on_policy(algorithm: str, tmp_path: Path) -> None:
    """Before any step pi = pi_old: ratio 1, approximate KL 0, nothing clipped, KL to the reference 0."""
    run = train(
        tmp_path / "run", f"algorithm={algorithm}", "env=cartpole", "iterations=1", "epochs=1", "num_minibatches=1"
    )
    row = metrics(run)[0]
    assert row.get("policy/approxkl_avg", 0.0) == pytest.approx(0, abs=1e-9)
    assert row.get("val/ratio_max", 1.0) == pytest.approx(1, abs=1e-6)
    assert row.get("val/ratio_min", 1.0) == pytest.approx(1, abs=1e-6)
    assert row.get("policy/clipfrac_avg", 0.0) == 0
    assert row.get("objective/kl_per_token", 0.0) == pytest.approx(0, abs=1e-9)
    assert row.get("sampling/logp_difference_max", 0.0) < 1e-5


@pytest.mark.parametrize("words", [PPO, GRPO, ["algorithm=grpo", *TEXT], ["algorithm=ppo", *TEXT]])
def test_learning_rate_zero_moves_nothing(words: list[str], tmp_path: Path) -> None:
    a = train(tmp_path / "a", *words, "lr=0", "iterations=1")
    b = train(tmp_path / "b", *words, "lr=0", "iterations=3", "epochs=3")
    assert_equal_weights(a, b)
    for row in metrics(b):
        assert row["policy/approxkl_avg"] == pytest.approx(0, abs=1e-9)
        assert row.get("policy/clipfrac_avg", 0.0) == 0


@pytest.mark.parametrize("rows", [1, 3, 5, 16])
@pytest.mark.parametrize("words", [GRPO, ["algorithm=grpo", *TEXT], ["algorithm=ppo", *TEXT, "optimizer=sgd"]])
def test_micro_batches_do_not_matter(words: list[str], rows: int, tmp_path: Path) -> None:
    """Plain SGD, which hides no constant factor: any split of the optimizer batch gives the same step."""
    words = [*words, "optimizer=sgd", "lr=0.1", "iterations=2"]
    a = train(tmp_path / "a", *words)
    b = train(tmp_path / "b", *words, f"micro_batch_rows={rows}")
    assert_equal_weights(a, b, atol=2e-6)
    for one, two in zip(metrics(a), metrics(b), strict=True):
        assert one["loss/total"] == pytest.approx(two["loss/total"], abs=1e-5)
        assert one["optim/grad_norm"] == pytest.approx(two["optim/grad_norm"], rel=1e-4, abs=1e-6)


def test_a2c_is_ppo_with_one_epoch_and_one_minibatch(tmp_path: Path) -> None:
    """arXiv:2205.09123: at the first and only step the ratio is 1, so the clipped gradient is the policy gradient."""
    a = train(tmp_path / "a", "algorithm=a2c", "env=cartpole", "sampler.steps.num_steps=5", "iterations=5")
    words = [
        "algorithm=ppo",
        "env=cartpole",
        "epochs=1",
        "num_minibatches=1",
        "sampler.steps.num_steps=5",
        "normalize=none",
        "baseline.critic.gae_lambda=1.0",
        "optimizer=rmsprop",
        "controller=[]",
    ]
    b = train(tmp_path / "b", *words, "iterations=5")
    assert_equal_weights(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (["regularizer=both", "regularizer.kl.coef=0.0"], ["regularizer=clip"]),
        (["regularizer=both", "regularizer.clip.low=1.0", "regularizer.clip.high=1e6"], ["regularizer=kl"]),
        (["regularizer=clip", "regularizer.clip.low=1.0", "regularizer.clip.high=1e6"], ["regularizer=none"]),
    ],
)
def test_composition_identities_hold_through_training(words: list[str], other: list[str], tmp_path: Path) -> None:
    base = [*GRPO, "epochs=3", "num_minibatches=2"]
    a, b = train(tmp_path / "a", *base, *words), train(tmp_path / "b", *base, *other)
    assert_equal_weights(a, b, atol=1e-6)


def test_a_dumped_minibatch_fed_to_probe_gives_its_loss(tmp_path: Path) -> None:
    cases = {
        "grpo": ["algorithm=grpo", *TEXT, "dump=2"],
        "ppo": [*PPO, "dump=3"],
        "rows": [*GRPO, "epochs=2", "num_minibatches=3", "regularizer=[clip,kl,entropy]", "dump=2"],
    }
    for name, words in cases.items():
        run = train(tmp_path / name, *words)
        loss = json.loads((run / "minibatch.json").read_text())["loss"]
        found = rlfw.probe(words, **load_file(run / "minibatch.safetensors"))
        assert float(found.loss) == pytest.approx(loss, abs=1e-6), name


def test_target_kl_ends_the_epochs(tmp_path: Path) -> None:
    words = [*PPO, "epochs=10", "controller=[target_kl]"]
    wild = train(tmp_path / "wild", *words, "lr=0.1")
    still = train(tmp_path / "still", *words, "lr=0")
    assert metrics(wild)[0]["optim/num_steps"] < 10
    assert metrics(still)[0]["optim/num_steps"] == 40
    assert all(row["policy/approxkl_avg"] >= 0 for row in metrics(wild))


def test_annealed_learning_rate_starts_full_and_never_reaches_zero(tmp_path: Path) -> None:
    run = train(tmp_path / "run", *PPO, "iterations=4", "lr=0.001")
    assert [row["optim/lr"] for row in metrics(run)] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_any_number_of_a_part_can_be_annealed(tmp_path: Path) -> None:
    words = ["controller=[anneal]", "controller.anneal.knob=regularizer.clip.high"]
    run = train(tmp_path / "run", *PPO, *words)
    assert metrics(run)[0]["optim/lr"] == metrics(run)[-1]["optim/lr"]
    with pytest.raises(UserError, match=r"regularizer\.clip\.hihg.*did you mean regularizer\.clip\.high"):
        train(tmp_path / "typo", *PPO, "controller=[anneal]", "controller.anneal.knob=regularizer.clip.hihg")


def test_critic_with_coefficient_zero_stays_and_policy_with_rate_zero_stays(tmp_path: Path) -> None:
    a = train(tmp_path / "a", *PPO, "baseline.critic.coef=0.0", "optimizer=sgd", "iterations=1")
    b = train(tmp_path / "b", *PPO, "baseline.critic.coef=0.0", "optimizer=sgd", "iterations=3")
    moved = {name for name in weights(a) if not torch.equal(weights(a)[name], weights(b)[name])}
    assert moved
    assert not [name for name in moved if "critic" in name]
    c = train(tmp_path / "c", *PPO, "lr=0", "baseline.critic.lr=0.01", "iterations=1")
    d = train(tmp_path / "d", *PPO, "lr=0", "baseline.critic.lr=0.01", "iterations=3")
    moved = {name for name in weights(c) if not torch.equal(weights(c)[name], weights(d)[name])}
    assert moved
    assert all("critic" in name for name in moved)


def test_compiled_update_equals_eager(tmp_path: Path) -> None:
    a = train(tmp_path / "a", *PPO)
    b = train(tmp_path / "b", *PPO, "update=compile")
    assert_equal_weights(a, b, atol=1e-5)


def test_a_gradient_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    words = [*PPO, "iterations=50", "checkpoint.every=1", "max_grad_norm=inf", "optimizer=sgd", "lr=1e30"]
    with pytest.raises(RunError, match=r"not finite|must be finite"):
        train(tmp_path / "run", *words)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    for tensor in weights(tmp_path / "run").values() if (tmp_path / "run" / "checkpoints").is_dir() else ():
        assert tensor.isfinite().all()
