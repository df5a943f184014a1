"""The loop, run for real on small settings: relations that hold whatever the numbers are."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    return [{k: v for k, v in row.items() if not k.startswith(("time", "timing_s", "perf"))} for row in rows]


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
        "weighed": [*GRPO, "num_minibatches=3", "weight=[length,top_entropy,truncated]", "dump=1"],
        "greedy": ["algorithm=remax", *TEXT, "dump=1"],
        "named": ["algorithm=gdpo", *TEXT, "reward.decoupled.weights={exact: 1}", "dump=1"],
        "longest": ["algorithm=dr_grpo", *TEXT, "dump=1"],
    }
    for name, words in cases.items():
        run = train(tmp_path / name, *words)
        loss = json.loads((run / "minibatch.json").read_text())["loss"]
        found = rlfw.probe(words, **load_file(run / "minibatch.safetensors"))
        assert float(found.loss) == pytest.approx(loss, abs=1e-6), name


def test_a_sequence_of_one_step_has_a_kl_to_the_reference(tmp_path: Path) -> None:
    """Rows that are whole episodes of one step each, beside the layout of single steps."""
    words = ["algorithm=grpo", *(word for word in TEXT if not word.startswith("warmup")), "warmup.steps=0"]
    run = train(tmp_path / "run", *words, "env.tasks.max_new_tokens=1", "num_minibatches=2")
    assert all("objective/kl" in row for row in metrics(run))


def test_a_recipe_of_named_rewards_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reward=decoupled reads reward functions by name and env=.* has none"):
        train(tmp_path / "run", "algorithm=gdpo", "env=cartpole", "iterations=1")


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


# ---------------------------------------------------------------------------------------------------- controllers

LETTERS = [
    f"plugins=[{Path(__file__).parent / 'fixtures' / 'letters.py'}]",
    "env=letters",
    "policy=causal_lm",
    "sampler.episodes.num_episodes=16",
    *(word for word in TEXT if word.startswith("policy.")),
]
BOTH = [[*GRPO, "policy.mlp.hidden_sizes=[8]"], ["algorithm=grpo", *LETTERS]]


def checkpoint_states(run: Path) -> list[dict[str, Any]]:
    """The state of every checkpoint, oldest first."""
    return [json.loads((folder / "state.json").read_text()) for folder in sorted((run / "checkpoints").iterdir())]


@pytest.mark.parametrize("words", BOTH)
@pytest.mark.parametrize(
    ("unit", "metric"), [("per_token", "objective/kl_per_token"), ("per_sequence", "objective/kl")]
)
def test_adaptive_kl_in_training(words: list[str], unit: str, metric: str, tmp_path: Path) -> None:
    """The logged coefficient is the one in force; the next one follows from the iteration's KL and its 16 rows."""
    keys = ["target=0.001", f"unit={unit}", "horizon=100", "knob=regularizer.kl.coef"]
    words = [*words, "controller=[adaptive_kl]", *(f"controller.adaptive_kl.{key}" for key in keys), "lr=0.01"]
    words.append("aggregation=token_mean")  # one optimizer step from single steps on gym: no row is whole in the update
    run = train(tmp_path / "run", *words, "iterations=4", "checkpoint.every=1", "checkpoint.keep=-1")
    rows = metrics(run)
    expected = 0.04
    for row, state in zip(rows, checkpoint_states(run)[1:], strict=True):
        assert row["objective/kl_coef"] == pytest.approx(expected)
        expected *= 1 + min(max(row[metric] / 0.001 - 1, -0.2), 0.2) * 16 / 100
        assert state["knobs"]["regularizer.kl.coef"] == pytest.approx(expected)  # a checkpoint is taken after control
    assert len({row["objective/kl_coef"] for row in rows}) == 4


def test_doubling_kl_in_training(tmp_path: Path) -> None:
    words = [*PPO, "regularizer=[kl_old]", "controller=[doubling_kl]", "iterations=6", "lr=0.003"]
    rows = metrics(train(tmp_path / "run", *words, "controller.doubling_kl.target=0.002"))
    expected = 1.0
    for row in rows:
        assert row["objective/kl_coef"] == expected
        kl = row["policy/approxkl_avg"]
        expected *= 0.5 if kl < 0.002 / 1.5 else 2 if kl > 0.002 * 1.5 else 1
    assert expected != 1
    with pytest.raises(UserError, match=r"doubling_kl reads the KL to the old policy.*epochs or num_minibatches >= 2"):
        train(tmp_path / "once", *words, "epochs=1", "num_minibatches=1")


def test_kl_guard_scales_an_annealed_learning_rate(tmp_path: Path) -> None:
    guard = ["to=old", "spike=1.2", "floor=0.0", "backoff=0.25", "recover=2.0"]
    words = [*PPO, "controller=[anneal,kl_guard]", *(f"controller.kl_guard.{key}" for key in guard)]
    rows = metrics(train(tmp_path / "run", *words, "iterations=12", "lr=0.01"))
    scale, spikes, kls = 1.0, 0, []
    for i, row in enumerate(rows):
        assert (row["kl_guard/scale"], row["kl_guard/spikes"]) == (scale, spikes)
        assert row["optim/lr"] == pytest.approx(0.01 * (1 - i / 12) * scale)
        kl, weights = row["policy/approxkl_avg"], [0.9 ** (i - 1 - k) for k in range(i)]
        if kls and kl > 1.2 * sum(w * x for w, x in zip(weights, kls, strict=True)) / sum(weights):
            scale, spikes = scale / 4, spikes + 1
        else:
            scale = min(2 * scale, 1.0)
        kls.append(kl)
    assert rows[-1]["kl_guard/spikes"] > 0
    assert any(b["kl_guard/scale"] > a["kl_guard/scale"] for a, b in pairwise(rows))


@pytest.mark.parametrize("words", BOTH)
def test_a_synchronised_reference_is_the_policy_of_the_iteration_before(words: list[str], tmp_path: Path) -> None:
    """rate=1 every=2: KL 0 at the start of iterations 1, 3 and 5, and not between."""
    sync = ["controller=[ref_sync]", "controller.ref_sync.rate=1.0", "controller.ref_sync.every=2"]
    rows = metrics(train(tmp_path / "run", *words, *sync, "iterations=5", "epochs=2", "lr=0.01"))
    kls = [row["objective/kl_per_token"] for row in rows]
    assert kls[0::2] == pytest.approx([0, 0, 0], abs=1e-9)
    assert all(kl > 1e-8 for kl in kls[1::2])
    assert [row["ref_sync/syncs"] for row in rows] == [0, 0, 1, 1, 2]
    with pytest.raises(UserError, match=r"ref_sync moves the reference, and no part reads one"):
        train(tmp_path / "none", *words, *sync, "regularizer=clip", "iterations=1")


def test_adaptive_entropy_in_training(tmp_path: Path) -> None:
    words = ["algorithm=grpo", *TEXT, "regularizer=[clip,entropy]", "controller=[adaptive_entropy]", "iterations=5"]
    entropy = metrics(train(tmp_path / "fixed", *words[:-2], "iterations=1"))[0]["objective/entropy"]
    for name, target, step in (("above", entropy / 2, -0.005), ("below", 2 * entropy, 0.005)):
        rows = metrics(train(tmp_path / name, *words, f"controller.adaptive_entropy.target={target}"))
        kept = [max(0.01 + step * i, 0.0) for i in range(5)]
        acts = [i == 0 or step > 0 for i in range(5)]
        expected = [c if a else 0.0 for c, a in zip(kept, acts, strict=True)]
        assert [row["objective/entropy_coef"] for row in rows] == pytest.approx(expected)


def test_critic_warmup_moves_the_critic_alone(tmp_path: Path) -> None:
    warm = ["controller=[anneal,critic_warmup]", "controller.critic_warmup.iterations=2", "baseline.critic.lr=0.01"]
    words = [*PPO, *warm, "iterations=4", "lr=0.004", "checkpoint.every=1", "checkpoint.keep=-1"]
    run = train(tmp_path / "run", *words)
    assert [row["optim/lr"] for row in metrics(run)] == pytest.approx([0, 0, 0.002, 0.001])
    start, first, second, third, _ = (
        load_file(folder / "policy" / "policy.safetensors") for folder in sorted((run / "checkpoints").iterdir())
    )
    moved = [
        {name.startswith("critic.") for name in a if not torch.equal(a[name], b[name])}
        for a, b in ((start, first), (first, second), (second, third))
    ]
    assert moved == [{True}, {True}, {True, False}]
    with pytest.raises(UserError, match=r"no critic has one of its own: set baseline=critic and baseline\.critic\.lr"):
        train(tmp_path / "follows", *words, "baseline.critic.lr=null")


def test_two_instances_report_beside_each_other(tmp_path: Path) -> None:
    words = [*PPO, "regularizer=[clip,entropy,kl_old]", "controller=[kl_guard]", "controller.kl_guard.to=old"]
    second = ["+controller@controller.press=kl_guard", "controller.press.to=old", "controller.press.backoff=2.0"]
    words = [*words, *second, "controller.press.knob=regularizer.kl_old.coef"]
    row = metrics(train(tmp_path / "run", *words, "iterations=1"))[0]
    assert {key for key in row if key.startswith("kl_guard/")} == {
        "kl_guard/scale",
        "kl_guard/spikes",
        "kl_guard/scale/press",
        "kl_guard/spikes/press",
    }


PPO_CONTROLLED = [
    *PPO,
    "regularizer=[clip,entropy,kl_old]",
    "baseline.critic.lr=0.01",
    "controller=[anneal,kl_guard,doubling_kl,adaptive_entropy,critic_warmup]",
    *(f"controller.kl_guard.{key}" for key in ("to=old", "spike=1.01", "floor=0.0")),
    *("controller.critic_warmup.iterations=2", "controller.adaptive_entropy.target=0.68"),
]
GRPO_CONTROLLED = [
    *("algorithm=grpo", *LETTERS, "sampler.episodes.group_size=2", "sampler.episodes.no_signal=resample"),
    "controller=[adaptive_kl,ref_sync,kl_guard]",
    *("controller.adaptive_kl.knob=regularizer.kl.coef", "controller.adaptive_kl.target=0.001"),
    *("controller.ref_sync.every=2", "controller.kl_guard.spike=1.01", "controller.kl_guard.floor=0.0", "epochs=2"),
]


@pytest.mark.parametrize("words", [PPO_CONTROLLED, GRPO_CONTROLLED])
def test_controllers_go_on_where_they_were(words: list[str], tmp_path: Path) -> None:
    every = ["checkpoint.every=1", "checkpoint.keep=-1", "iterations=5", "lr=0.01"]
    whole = train(tmp_path / "whole", *words, *every)
    assert metrics(whole)[-1]["kl_guard/spikes"] > 0
    for last in (1, 2, 3):
        part = tmp_path / f"cut{last}"
        shutil.copytree(whole, part)
        for folder in sorted((part / "checkpoints").iterdir())[last + 1 :]:
            shutil.rmtree(folder)
        rlfw.train([f"resume={part}", *(word for word in words if word.startswith("plugins="))])
        assert metrics(part) == metrics(whole)
        assert_equal_weights(part, whole)
        assert checkpoint_states(part)[-1] == checkpoint_states(whole)[-1]


# ---------------------------------------------------------------------------------------------------- samplers


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "rloo"])
@pytest.mark.parametrize("no_signal", ["drop", "resample"])
@pytest.mark.parametrize("env", ["gym", "text"])
def test_no_signal_at_all_is_no_update(algorithm: str, no_signal: str, env: str, tmp_path: Path) -> None:
    own = ["env=cartpole", "env.gym.max_episode_steps=5"]  # no pole falls within 5 steps: every return is 5
    own = own if env == "gym" else [*LETTERS, "env.letters.always=true"]
    rounds = 3 if no_signal == "resample" else 1
    keys = ["num_episodes=8", "group_size=4", f"no_signal={no_signal}", *(["max_rounds=3"] if rounds > 1 else [])]
    words = [f"algorithm={algorithm}", "sampler=episodes", *own, *(f"sampler.episodes.{key}" for key in keys)]
    run = train(tmp_path / "run", *words, "iterations=2", "checkpoint.every=1", "checkpoint.keep=-1")
    for i, row in enumerate(metrics(run)):
        assert row["optim/num_steps"] == row["group/n_used"] == 0
        assert row["group/n_generated"] == 8 * rounds
        assert row.get("group/rounds", 1) == rounds
        assert row["global_step"] == (i + 1) * 8 * rounds * (5 if env == "gym" else 1)
        assert all(value == value for value in row.values())
        assert not {"objective/rlhf_reward", "advantage/mean", "objective/kl"} & row.keys()
    before, *_, after = (
        {
            f"{file.name}:{k}": v
            for file in (folder / "policy").glob("*.safetensors")
            for k, v in load_file(file).items()
        }
        for folder in sorted((run / "checkpoints").iterdir())
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("words", BOTH)
def test_resampling_fills_the_rollout_with_groups_that_carry_a_signal(words: list[str], tmp_path: Path) -> None:
    keys = ["num_episodes=8", "group_size=2"]
    resample = ["sampler.episodes.no_signal=resample", "sampler.episodes.max_rounds=50"]
    cut = ["env.gym.max_episode_steps=12"] if "env=cartpole" in words else []
    words = [*words, *cut, *(f"sampler.episodes.{key}" for key in keys), "iterations=3"]
    kept = metrics(train(tmp_path / "keep", *words))
    found = metrics(train(tmp_path / "resample", *words, *resample))
    assert any(row["group/frac_reward_zero_std"] > 0 for row in kept)
    for row in found:
        assert row["group/n_used"] == 8
        assert row["group/frac_reward_zero_std"] == 0
        assert row["group/n_generated"] >= 8 + 2 * (row["group/rounds"] - 1)
    assert sum(row["group/rounds"] for row in found) > 3
    assert found[-1]["episode"] == sum(row["group/n_generated"] for row in found) > 24


@pytest.mark.parametrize("words", BOTH)
def test_a_baseline_of_greedy_episodes_in_training(words: list[str], tmp_path: Path) -> None:
    words = [*words, "baseline=greedy", "normalize=none", "regularizer=clip", "iterations=3"]
    keys = ["sampler.episodes.num_episodes=8", "sampler.episodes.group_size=2"]
    rows = metrics(train(tmp_path / "run", *words, *keys))
    text = "env=letters" in words
    for i, row in enumerate(rows):
        assert row["group/n_used"] == row["group/n_generated"] == 8
        if text:
            assert row["global_step"] == (i + 1) * (8 + 4)
        else:
            sampled = sum(8 * each["response_length/mean"] for each in rows[: i + 1])
            assert row["global_step"] >= sampled + 4 * 8 * (i + 1)  # a pole stands for 8 steps at least
    resampled = [*words, *keys, "sampler.episodes.no_signal=resample"]
    assert metrics(train(tmp_path / "resampled", *resampled))[-1]["group/n_used"] > 0


def test_greedy_episodes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    words = ["algorithm=reinforce", "env=cartpole", "baseline=greedy", "iterations=1"]
    with pytest.raises(UserError, match=r"set sampler=episodes"):
        train(tmp_path / "steps", *words, "sampler=steps")
    with pytest.raises(UserError, match=r"set env\.gym\.normalize_rewards=false"):
        train(tmp_path / "normalised", *words, "env.gym.normalize_rewards=true")
