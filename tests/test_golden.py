"""Published numbers and numbers worked out by hand: advantages, losses and gradients, through rlfw.probe."""

import json
import math
from pathlib import Path

import pytest
import torch

import rlfw

GOLDEN = json.loads((Path(__file__).parent / "fixtures" / "golden.json").read_text())
MASK = torch.tensor(GOLDEN["mask"])  # [2, 3]: rows of 3 steps and of 1
STEPS = {"mask": MASK, "group": [0, 0]}
POLICIES = {
    "logprobs": torch.tensor(GOLDEN["p_new"]).double().log(),
    "old_logprobs": torch.tensor(GOLDEN["p_old"]).double().log(),
    "ref_logprobs": torch.tensor(GOLDEN["p_ref"]).double().log(),
}
GRPO = ["baseline=group_mean", "normalize=group_std", "normalize.group_std.eps=0", "ratio=token", "regularizer=[clip]"]
GSPO = [*GRPO, "ratio=sequence", "aggregation=sequence_mean"]
UNIT = ["normalize=none", "ratio=token", "aggregation=token_mean"]  # with advantages of 1 and -1
LENGTH = "aggregation.constant.length=8"
REINFORCE = ["normalize=none", "ratio=none", "regularizer=[]"]

# The composition, and the advantages of the two rows where no registered part gives them.
COMPOSITIONS = {
    "ppo_clip": (["normalize=none", "ratio=token", "regularizer=clip", "aggregation=token_mean"], [1, -1]),
    "grpo": ([*GRPO, "aggregation=sequence_mean"], None),
    "grpo_kl": ([*GRPO, "aggregation=sequence_mean", "regularizer=both", "regularizer.kl.coef=0.04"], None),
    "dr_grpo": (
        ["baseline=group_mean", "normalize=none", "regularizer=clip", "aggregation=constant", LENGTH],
        None,
    ),
    "dapo": ([*GRPO, "regularizer.clip.high=0.28", "aggregation=token_mean"], None),
    "rloo": ([*REINFORCE, "baseline=leave_one_out", "aggregation=sequence_sum"], None),
    "rloo_product": (
        ["baseline=leave_one_out", "normalize=none", "ratio=product", "regularizer=clip", "aggregation=sequence_mean"],
        None,
    ),
    "reinforce_pp": (["baseline=none", "normalize=whiten", "regularizer=clip", "aggregation=token_mean"], None),
    "reinforce_pp_baseline": (
        [
            *["baseline=group_mean", "normalize=whiten", "regularizer=[clip,kl]", "aggregation=token_mean"],
            *["regularizer.kl.estimator=k2", "regularizer.kl.coef=0.01"],
        ],
        None,
    ),
    "remax": ([*REINFORCE, "baseline=greedy", "aggregation=sequence_sum"], None),
    "opo": ([*REINFORCE, "baseline=length_weighted", "aggregation=sequence_sum"], None),
    "gpg": ([*REINFORCE, "baseline=group_mean", "aggregation=token_mean"], None),
    "maxrl": ([*REINFORCE, "baseline=group_mean", "normalize=group_mean", "aggregation=sequence_mean"], None),
    "gspo": ([*GSPO, "regularizer.clip.low=0.0003", "regularizer.clip.high=0.0004"], None),
    "gspo_wide": ([*GSPO, "regularizer.clip.high=0.28"], None),
    "dual_clip": ([*UNIT, "regularizer=dual_clip"], [1, -1]),
    "two_sided": ([*UNIT, "regularizer=two_sided", "regularizer.two_sided.cap=2"], [1, -1]),
    "gmpo": ([*GRPO, "regularizer=gmpo", "aggregation=sequence_mean"], None),
    "cispo": ([*GRPO, "regularizer=cispo", "regularizer.cispo.max=1.28", "aggregation=token_mean"], None),
    "cispo_wide": ([*GRPO, "regularizer=cispo", "aggregation=token_mean"], None),
    "sapo": ([*GRPO, "regularizer=sapo", "aggregation=sequence_mean"], None),
    "dppo": ([*GRPO, "regularizer=dppo", "regularizer.dppo.delta=0.05", "aggregation=token_mean"], None),
    "topr": ([*UNIT, "regularizer=topr"], [1, -1]),
    "kl_cov": ([*UNIT, "regularizer=kl_cov", "regularizer.kl_cov.fraction=0.5"], [1, -1]),
}


def close(found: torch.Tensor | float, expected: object, tolerance: float = 1e-6) -> None:
    found = torch.as_tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def on_every_step(rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).double()[:, None].expand(MASK.shape) * MASK


def test_every_composition_with_published_numbers_is_here():
    assert COMPOSITIONS.keys() == GOLDEN["compositions"].keys()


@pytest.mark.parametrize("name", GOLDEN["compositions"])
def test_loss_and_gradient_of_published_compositions(name: str):
    overrides, rows = COMPOSITIONS[name]
    given = {} if rows is None else {"advantages": on_every_step(rows)}
    given["greedy_returns"] = [0, 0]
    probed = rlfw.probe(["baseline=none", *overrides], rewards=GOLDEN["rewards"], **STEPS, **POLICIES, **given)
    expected = GOLDEN["compositions"][name]
    close(probed.loss, expected["loss"])
    close(probed.gradient[MASK], expected["gradient"])


# Objective -> the loss under each aggregation, advantages +1 on the first row and -1 on the second.
AGGREGATES = {
    ("regularizer=clip",): (0.275, 1.516667, 0.55, 0.06875),
    ("regularizer=clip", "regularizer.clip.high=0.28"): (0.255, 1.503333, 0.51, 0.06375),
    ("regularizer=none", "ratio=token"): (0.2, 1.466667, 0.4, 0.05),
    ("regularizer=none", "ratio=none"): (0.910022, 0.532300, 1.820045, 0.227506),
    ("regularizer=dual_clip",): (0.025, 1.016667, 0.05, 0.00625),
    ("regularizer=two_sided", "regularizer.two_sided.cap=2"): (-0.225, 0.516667, -0.45, -0.05625),
    ("regularizer=cispo", "regularizer.cispo.max=1.28"): (0.831222, 0.458940, 1.662444, 0.207805),
    ("regularizer=cispo", "regularizer.cispo.max=1.28", "regularizer.cispo.min=0.8"): (0.880375, 0.491709),
    ("regularizer=cispo", "regularizer.cispo.max=5"): (0.745703, 0.199610),
    ("regularizer=sapo",): (-0.634770, 0.794482),
    ("regularizer=dro",): (1.186701, 1.037055),
    ("regularizer=vespo", "ratio=product"): (0.907635, 0.593290),
}


@pytest.mark.parametrize("objective", AGGREGATES)
def test_loss_under_each_aggregation(objective: tuple[str, ...]):
    aggregations = {
        "token_mean": ["aggregation=token_mean"],
        "sequence_mean": ["aggregation=sequence_mean"],
        "sequence_sum": ["aggregation=sequence_sum"],
        "constant": ["aggregation=constant", LENGTH],
    }
    for aggregation, expected in zip(aggregations.values(), AGGREGATES[objective], strict=False):
        overrides = ["algorithm=ppo", "baseline=none", "normalize=none", *objective, *aggregation]
        probed = rlfw.probe(overrides, rewards=[0, 0], advantages=on_every_step([1, -1]), **STEPS, **POLICIES)
        close(probed.loss, expected)


def test_metrics_of_the_update():
    overrides = ["algorithm=ppo", "baseline=none", "normalize=none", "regularizer=clip"]
    found = rlfw.probe(overrides, rewards=[0, 0], advantages=on_every_step([1, -1]), **STEPS, **POLICIES).metrics
    close(found["policy/clipfrac_avg"], 0.25)
    close(found["policy/clipfrac_high"], 0.25)
    close(found["policy/clipfrac_low"], 0)
    close(found["policy/approxkl_k1"], -0.358771)
    close(found["policy/approxkl_avg"], 0.441229)
    close(found["val/ratio"], (1.5 + 1 + 0.7 + 4) / 4)
    close([found["val/ratio_min"], found["val/ratio_max"]], [0.7, 4])


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", 0.101366), ("k2", 0.140663), ("k3", 0.143033), ("abs", 0.447940)]
)
def test_kl_to_the_reference_is_reported_without_its_coefficient(estimator: str, expected: float):
    overrides = ["algorithm=reinforce", "regularizer=kl", f"regularizer.kl.estimator={estimator}"]
    overrides += ["regularizer.kl.force=true"] * (estimator == "k1") + ["regularizer.kl.coef=7"]
    found = rlfw.probe([*overrides, "aggregation=token_mean"], rewards=[0, 0], **STEPS, **POLICIES)
    close(found.metrics["loss/kl_avg"], expected)
    close(found.loss, 7 * expected, 1e-5)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", -0.358771), ("k2", 0.276679), ("k3", 0.441229)])
def test_kl_to_the_old_policy_of_four_steps(estimator: str, expected: float):
    overrides = ["algorithm=reinforce", "regularizer=kl_old", f"regularizer.kl_old.estimator={estimator}"]
    found = rlfw.probe([*overrides, "aggregation=token_mean"], rewards=[0, 0], **STEPS, **POLICIES)
    close(found.metrics["loss/kl_old_avg"], expected)
    close(found.loss, expected)


def test_kl_to_the_old_policy_is_that_of_the_metrics():
    """KL(old || new): log-ratios .1, -.2, .3 give k1 = -1/15 and k3 = (e^.1 + e^-.2 + e^.3) / 3 - 1 - 1/15."""
    log_ratio = torch.tensor([[0.1, -0.2, 0.3]]).double()
    steps = {"rewards": [0], "mask": torch.ones(1, 3), "group": [0], "old_logprobs": torch.zeros(1, 3).double()}
    for estimator, expected in {"k1": -0.066667, "k2": 0.023333, "k3": 0.024587}.items():
        overrides = ["algorithm=reinforce", "regularizer=kl_old", f"regularizer.kl_old.estimator={estimator}"]
        found = rlfw.probe(overrides, logprobs=log_ratio, **steps).metrics
        close(found["loss/kl_old_avg"], expected)
        close(found["policy/approxkl_k1"], -0.066667)
        close(found["policy/approxkl_avg"], 0.024587)


# ------------------------------------------------------------------------------------------------ advantages


def row_advantages(overrides: list[str], rewards: list[float], lengths: list[int], group: list[int]) -> list[float]:
    """Each row's advantage, which all of its steps share; the reward lies on the last step."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    zeros = torch.zeros(mask.shape).double()
    rewards_given = torch.tensor(rewards, dtype=torch.float64)
    probed = rlfw.probe(
        ["ratio=none", "regularizer=[]", *overrides],
        **{"rewards": rewards_given, "mask": mask, "group": group, "logprobs": zeros, "old_logprobs": zeros},
    )
    first = probed.advantages[:, 0]
    close(probed.advantages, first[:, None] * mask, 1e-12)
    return first.tolist()


GROUP_STD = ["baseline=group_mean", "normalize=group_std"]
TWO_GROUPS = {  # rewards 1, 0, 0, 0 and 1, 1, 0, 0: the advantage of a 1 and of a 0 in each
    "centred": (["baseline=group_mean", "normalize=none"], (0.75, -0.25), (0.5, -0.5)),
    "ddof 1": ([*GROUP_STD, "normalize.group_std.eps=0"], (1.5, -0.5), (math.sqrt(3) / 2, -math.sqrt(3) / 2)),
    "eps 1e-6": ([*GROUP_STD, "normalize.group_std.eps=1e-6"], (1.499997, -0.499999), (0.866024, -0.866024)),
    "eps 1e-4": ([*GROUP_STD, "normalize.group_std.eps=1e-4"], (1.499700, -0.499900), (0.865875, -0.865875)),
    "ddof 0": ([*GROUP_STD, "normalize.group_std.ddof=0", "normalize.group_std.eps=0"], (1.732051, -0.577350), (1, -1)),
    "leave one out": (["baseline=leave_one_out", "normalize=none"], (1, -1 / 3), (2 / 3, -2 / 3)),
    "LitePPO": (["baseline=group_mean", "normalize=batch_std"], (1.448858, -0.482953), (0.965905, -0.965905)),
    "batch std of advantages": (
        [
            *["baseline=group_mean", "normalize=batch_std", "normalize.batch_std.of=advantages"],
            *["normalize.batch_std.ddof=0", "normalize.batch_std.eps=0"],
        ],
        (1.603567, -0.534522),
        (1.069045, -1.069045),
    ),
    "REINFORCE++": (["baseline=none", "normalize=whiten"], (1.695582, -0.565194), (1.695582, -0.565194)),
    "REINFORCE++, population variance": (
        ["baseline=none", "normalize=whiten", "normalize.whiten.ddof=0"],
        (1.732051, -0.577350),
        (1.732051, -0.577350),
    ),
    "REINFORCE++ with the group's mean": (
        ["baseline=group_mean", "normalize=whiten"],
        (2.041241, -0.408248),
        (1.428869, -1.020621),
    ),
    "batch mean": (["baseline=batch_mean", "normalize=none"], (0.625, -0.375), (0.625, -0.375)),
    "none": (["baseline=none", "normalize=none"], (1, 0), (1, 0)),
}


@pytest.mark.parametrize("name", TWO_GROUPS)
def test_advantages_of_two_groups(name: str):
    overrides, (one, zero), (second_one, second_zero) = TWO_GROUPS[name]
    found = row_advantages(overrides, [1, 0, 0, 0, 1, 1, 0, 0], [2, 4, 4, 6, 3, 1, 2, 2], [0] * 4 + [1] * 4)
    close(found, [one, zero, zero, zero, second_one, second_one, second_zero, second_zero])


EIGHT = {  # 3 of 8 right
    "ddof 1": ([*GROUP_STD, "normalize.group_std.eps=0"], 1.207615, -0.724569),
    "ddof 0": ([*GROUP_STD, "normalize.group_std.ddof=0", "normalize.group_std.eps=0"], 1.290994, -0.774597),
    "centred": (["baseline=group_mean", "normalize=none"], 0.625, -0.375),
    "leave one out": (["baseline=leave_one_out", "normalize=none"], 0.714286, -0.428571),
}


@pytest.mark.parametrize("name", EIGHT)
def test_advantages_of_a_group_of_eight(name: str):
    overrides, right, wrong = EIGHT[name]
    close(row_advantages(overrides, [1] * 3 + [0] * 5, [1] * 8, [7] * 8), [right] * 3 + [wrong] * 5)


@pytest.mark.parametrize(("eps", "expected"), [("0", 0.866025), ("1e-6", 0.738171), ("1e-4", 0.047271)])
def test_eps_decides_what_a_near_tie_is_worth(eps: str, expected: float):
    found = row_advantages([*GROUP_STD, f"normalize.group_std.eps={eps}"], [1, 1, 1.00001, 1.00001], [1] * 4, [0] * 4)
    close(found, [-expected, -expected, expected, expected])


@pytest.mark.parametrize(("ddof", "expected"), [(1, (1.16190, 0.38730)), (0, (1.34164, 0.44721))])
def test_whitened_advantages_of_one_to_four(ddof: int, expected: tuple[float, float]):
    overrides = ["baseline=none", "normalize=whiten", f"normalize.whiten.ddof={ddof}"]
    far, near = expected
    close(row_advantages(overrides, [1, 2, 3, 4], [1] * 4, [0] * 4), [-far, -near, near, far], 1e-5)


# ------------------------------------------------------------------------------------------------ critic


def with_critic(overrides: list[str], mask: list[list[int]], **given: object) -> rlfw.probe:
    zeros = torch.zeros(len(mask), len(mask[0])).double()
    given = {"group": list(range(len(mask))), **given}
    critic = ["algorithm=ppo", "baseline=critic", "regularizer=clip", "normalize=none"]
    return rlfw.probe([*critic, *overrides], mask=mask, logprobs=zeros, old_logprobs=zeros, **given)


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [(1, (0.5, 0.4, 0.3, 0.2)), (0.95, (0.456725, 0.3755, 0.29, 0.2)), (0, (0.1, 0.1, 0.1, 0.2))],
)
def test_gae_of_one_reward_at_the_end(gae_lambda: float, expected: tuple[float, ...]):
    values = torch.tensor([[0.5, 0.6, 0.7, 0.8]]).double()
    overrides = [f"baseline.critic.gae_lambda={gae_lambda}"]
    found = with_critic(overrides, [[1, 1, 1, 1]], rewards=[[0, 0, 0, 1]], values=values)
    close(found.advantages[0], expected)
    assert found.returns is not None
    close(found.returns[0], values[0] + torch.tensor(expected))


@pytest.mark.parametrize(
    ("shift", "expected"),
    [("true", (1.141837, 0.406745, -0.367037, -1.181545)), ("false", (1.472394, 0.737301, -0.036481, -0.850988))],
)
def test_whitened_gae(shift: str, expected: tuple[float, ...]):
    overrides = ["normalize=whiten", f"normalize.whiten.shift={shift}", "baseline.critic.gae_lambda=0.95"]
    values = torch.tensor([[0.5, 0.6, 0.7, 0.8]]).double()
    found = with_critic(overrides, [[1, 1, 1, 1]], rewards=[[0, 0, 0, 1]], values=values)
    close(found.advantages[0], expected, 2e-6)


def test_gae_carries_over_observation_tokens():
    values = torch.tensor([[0.5, 0.6, 9, 9, 0.8]]).double()
    overrides = ["baseline.critic.gae_lambda=0.95"]
    found = with_critic(overrides, [[1, 1, 0, 0, 1]], rewards=[[0, 0, 0, 0, 1]], values=values)
    close(found.advantages[0], [0.4705, 0.39, 0, 0, 0.2])


@pytest.mark.parametrize(("gamma", "expected"), [(1, (1.3, 1.2, 0, 0, 1)), (0.9, (1.09, 1.1, 0, 0, 1))])
def test_returns_carry_over_observation_tokens(gamma: float, expected: tuple[float, ...]):
    zeros = torch.zeros(1, 5).double()
    steps = {"rewards": [[0.1, 0.2, 0, 0, 1]], "mask": [[1, 1, 0, 0, 1]], "group": [0]}
    found = rlfw.probe(["algorithm=reinforce", f"gamma={gamma}"], logprobs=zeros, old_logprobs=zeros, **steps)
    close(found.advantages[0], expected)


ROWS_OF_TWO_AND_ONE = {"mask": [[1, 1], [1, 0]], "rewards": [[1, 1], [1, 0]]}  # an episode ends at its second step
ONE_ROW = {"mask": [[1, 1, 1]], "rewards": [[1, 1, 1]], "values": [[0.5, 0.4, 0.3, 0.2]], "terminated": [False]}
GAE = {  # gamma 0.9; rewards 1, values 0.5, 0.4, 0.3 and then 0.2
    "no end": (0.8, ONE_ROW, (1.942592, 1.5036, 0.88), (2.442592, 1.9036, 1.18)),
    "terminated": (
        0.8,
        {**ROWS_OF_TWO_AND_ONE, "values": [[0.5, 0.4, 9], [0.3, 9, 0.2]], "terminated": [True, False]},
        (1.292, 0.6, 0.88),
        (1.792, 1.0, 1.18),
    ),
    "truncated, V of the final observation 0.7": (
        0.8,
        {
            **{**ROWS_OF_TWO_AND_ONE, "values": [[0.5, 0.4, 0.7], [0.3, 9, 0.2]]},
            **{"terminated": [False, False], "truncated": [True, False]},
        },
        (1.7456, 1.23, 0.88),
        (2.2456, 1.63, 1.18),
    ),
    "lambda 1": (1, ONE_ROW, (2.3558, 1.662, 0.88), (2.8558, 2.062, 1.18)),
    "lambda 0": (0, ONE_ROW, (0.86, 0.87, 0.88), (1.36, 1.27, 1.18)),
}


@pytest.mark.parametrize("name", GAE)
def test_gae_at_the_ends_of_episodes(name: str):
    gae_lambda, given, advantages, returns = GAE[name]
    found = with_critic(["gamma=0.9", f"baseline.critic.gae_lambda={gae_lambda}"], **given)
    mask = torch.tensor(given["mask"]).bool()
    close(found.advantages[mask], advantages)
    assert found.returns is not None
    close(found.returns[mask], returns)


@pytest.mark.parametrize(
    ("old", "new", "target", "loss", "gradient"),
    [(0.5, 0.9, 1, 0.045, 0), (1, 2, 3, 1.62, 0), (1, 2, 1.1, 0.405, 0.9), (0, 1, 1, 0.32, 0), (0, 0, 1, 0.5, -1)],
)
def test_clipped_value_loss(old: float, new: float, target: float, loss: float, gradient: float):
    found = with_critic(
        ["baseline.critic.clip=0.2", "baseline.critic.coef=1"],
        **{"mask": [[1]], "rewards": [[0]], "advantages": [[0]], "returns": [[target]]},
        **{"values": [[old]], "new_values": [[new]]},
    )
    assert found.critic_loss is not None
    assert found.value_gradient is not None
    close(found.critic_loss, loss)
    close(found.value_gradient, [[gradient]])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [(1.5, 1, -1.2, 0), (0.5, 1, -0.5, -0.5), (1.5, -1, 1.5, 1.5), (0.5, -1, 0.8, 0), (1.1, 2, -2.2, -2.2)],
)
def test_clipped_objective_on_both_sides(ratio: float, advantage: float, loss: float, gradient: float):
    found = rlfw.probe(
        ["algorithm=ppo", "baseline=none", "normalize=none", "regularizer=clip"],
        **{"mask": [[1]], "group": [0], "rewards": [0], "advantages": [[advantage]]},
        **{"logprobs": [[math.log(ratio)]], "old_logprobs": [[0]]},
    )
    close(found.loss, loss)
    close(found.gradient, [[gradient]])
    close(found.metrics["policy/clipfrac_avg"], float(gradient == 0))
