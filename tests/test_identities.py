"""Compositions that are one and the same: equal losses or gradients on random numbers, through rlfw.probe."""

import pytest
import torch

import rlfw
from rlfw.composition import Composition
from rlfw.config import compose
from rlfw.seeding import Streams

B, T = 6, 4


def numbers(*, on_policy: bool = False) -> dict[str, object]:
    """Two groups of three ragged rows."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(T) < torch.tensor([4, 2, 1, 3, 4, 1])[:, None]
    new = -2 * random(B, T)
    return {
        "rewards": random(B, T),
        "mask": mask,
        "logprobs": new,
        "old_logprobs": new if on_policy else -2 * random(B, T),
        "ref_logprobs": -2 * random(B, T),
        "values": random(B, T + 1),
        "new_values": random(B, T),
        "entropy": random(B, T),
        "group": [0, 0, 0, 1, 1, 1],
    }


def assert_same(first: list[str], second: list[str], *, loss: bool = True, on_policy: bool = False) -> None:
    given = numbers(on_policy=on_policy)
    one, two = rlfw.probe(first, **given), rlfw.probe(second, **given)
    assert bool(one.gradient.any()), "the gradient is zero everywhere: nothing is compared"
    torch.testing.assert_close(one.gradient, two.gradient, rtol=1e-12, atol=1e-12)
    if loss:
        torch.testing.assert_close(one.loss, two.loss, rtol=1e-12, atol=1e-12)
    if one.value_gradient is not None and two.value_gradient is not None:
        torch.testing.assert_close(one.value_gradient, two.value_gradient, rtol=1e-12, atol=1e-12)


def test_a2c_is_ppo_with_one_epoch_and_one_minibatch():
    """Before the first step the ratio is 1, the clip idle: arXiv:2205.09123."""
    ppo = ["algorithm=ppo", "epochs=1", "num_minibatches=1", "normalize=none", "baseline.critic.gae_lambda=1"]
    assert_same(["algorithm=a2c"], ppo, loss=False, on_policy=True)


def test_a2c_differs_from_ppo_once_the_policy_has_moved():
    moved = numbers()
    ppo = rlfw.probe(["algorithm=ppo", "normalize=none", "baseline.critic.gae_lambda=1"], **moved)
    assert not torch.allclose(rlfw.probe(["algorithm=a2c"], **moved).gradient, ppo.gradient)


NO_CLIP = ["regularizer.clip.low=1", "regularizer.clip.high=1e9"]
PLAIN = ["algorithm=grpo", "normalize=none"]


def test_clip_without_bounds_is_plain_importance_sampling():
    assert_same([*PLAIN, "regularizer=clip", *NO_CLIP], [*PLAIN, "regularizer=none"])


def test_both_without_a_kl_coefficient_is_clip():
    assert_same([*PLAIN, "regularizer=both", "regularizer.kl.coef=0"], [*PLAIN, "regularizer=clip"])


def test_both_without_clip_bounds_is_kl():
    assert_same([*PLAIN, "regularizer=both", *NO_CLIP], [*PLAIN, "regularizer=kl"])


def test_both_is_the_list_of_clip_and_kl():
    assert_same([*PLAIN, "regularizer=both"], [*PLAIN, "regularizer=[kl,clip]"])


def test_kl_with_two_coefficients_is_kl_with_their_sum():
    two = ["+regularizer@regularizer.far=kl", "regularizer.far.coef=0.5", "regularizer.kl.coef=0.25"]
    assert_same([*PLAIN, "regularizer=[kl]", *two], [*PLAIN, "regularizer=kl", "regularizer.kl.coef=0.75"])


def test_kl_to_the_old_policy_is_kl_with_another_target():
    kl = ["regularizer=kl", "regularizer.kl.to=old", "regularizer.kl.coef=1"]
    assert_same([*PLAIN, *kl], [*PLAIN, "regularizer=kl_old"])


def test_a_cap_that_no_ratio_reaches_leaves_the_clip():
    for part in ("dual_clip", "two_sided"):
        assert_same([*PLAIN, f"regularizer={part}", f"regularizer.{part}.cap=1e6"], [*PLAIN, "regularizer=clip"])


def test_dual_clip_is_the_two_sided_clip_where_the_cap_lies_beyond_the_clip():
    two = ["regularizer=two_sided", "regularizer.two_sided.cap=1.5"]
    assert_same([*PLAIN, "regularizer=dual_clip", "regularizer.dual_clip.cap=1.5"], [*PLAIN, *two])


def test_cispo_without_a_cap_is_plain_importance_sampling():
    assert_same([*PLAIN, "regularizer=cispo", "regularizer.cispo.max=1e6"], [*PLAIN, "regularizer=none"], loss=False)


def test_dro_without_its_penalty_is_reinforce():
    assert_same([*PLAIN, "regularizer=dro", "regularizer.dro.beta=0"], [*PLAIN, "regularizer=none", "ratio=none"])


def test_gmpo_without_bounds_is_the_geometric_mean_ratio():
    wide = ["regularizer=gmpo", "regularizer.gmpo.low=1e6", "regularizer.gmpo.high=1e6"]
    assert_same([*PLAIN, *wide], [*PLAIN, "regularizer=none", "ratio=sequence"])


def test_dppo_without_a_bound_is_plain_importance_sampling():
    assert_same([*PLAIN, "regularizer=dppo", "regularizer.dppo.delta=1"], [*PLAIN, "regularizer=none"])


def test_kl_cov_on_every_step_is_an_absolute_log_ratio():
    kl = ["regularizer=kl_old", "regularizer.kl_old.estimator=abs", "regularizer.kl_old.coef=0.5"]
    cov = ["regularizer=kl_cov", "regularizer.kl_cov.fraction=1", "regularizer.kl_cov.coef=0.5"]
    assert_same([*PLAIN, *cov], [*PLAIN, *kl])


def test_length_undoes_the_row_means():
    """n times the mean over n steps is their sum."""
    one = [*PLAIN, "regularizer=clip", "weight=length", "aggregation=sequence_mean"]
    assert_same(one, [*PLAIN, "regularizer=clip", "aggregation=sequence_sum"])


def test_importance_weights_of_a_sampler_that_is_the_policy_are_one():
    for weight in ("tis", "mis", "icepop", "sequence_mask", "off_policy_mask"):
        assert_same([*PLAIN, f"weight={weight}"], PLAIN)


def test_tis_without_a_cap_is_the_ratio_to_the_behaviour_policy():
    given = {**numbers(), "behaviour_logprobs": numbers()["ref_logprobs"]}
    tis = rlfw.probe([*PLAIN, "regularizer=none", "weight=tis", "weight.tis.cap=1e6"], **given)
    behaviour = rlfw.probe([*PLAIN, "regularizer=none", "ratio.token.source=behaviour"], **given)
    torch.testing.assert_close(tis.gradient, behaviour.gradient, rtol=1e-12, atol=1e-12)


def test_critic_that_says_zero_is_no_baseline():
    given = {**numbers(), "values": torch.zeros(B, T + 1).double(), "new_values": torch.zeros(B, T).double()}
    common = ["gamma=0.9", "normalize=none", "regularizer=none", "ratio=token", "aggregation=token_mean"]
    critic = rlfw.probe(["baseline=critic", "baseline.critic.gae_lambda=1", *common], **given)
    none = rlfw.probe(["baseline=none", *common], **given)
    torch.testing.assert_close(critic.advantages, none.advantages, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(critic.gradient, none.gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(critic.policy_loss, none.policy_loss, rtol=1e-12, atol=1e-12)


def test_leave_one_out_is_the_group_mean_times_three_halves_in_groups_of_three():
    given = numbers()
    common = ["normalize=none", "regularizer=none", "aggregation=token_mean"]
    mean = rlfw.probe(["baseline=group_mean", *common], **given).gradient
    torch.testing.assert_close(rlfw.probe(["baseline=leave_one_out", *common], **given).gradient, 1.5 * mean)


def test_group_mean_of_one_group_is_the_batch_mean():
    given = {**numbers(), "group": [5] * B}
    common = ["normalize=none", "regularizer=none", "aggregation=token_mean"]
    mean = rlfw.probe(["baseline=group_mean", *common], **given).advantages
    torch.testing.assert_close(rlfw.probe(["baseline=batch_mean", *common], **given).advantages, mean)


def test_prompt_mean_of_one_group_is_the_token_mean():
    given = {**numbers(), "group": [5] * B}
    one = rlfw.probe([*PLAIN, "aggregation=prompt_mean"], **given)
    two = rlfw.probe([*PLAIN, "aggregation=token_mean"], **given)
    torch.testing.assert_close(one.gradient, two.gradient, rtol=1e-12, atol=1e-12)


OBJECTIVES = {
    "log-probs": ["ratio=none", "regularizer=none"],
    "ratio": ["ratio=token", "regularizer=none"],
    "clip": ["ratio=token", "regularizer=clip"],
    "dual_clip": ["ratio=token", "regularizer=dual_clip"],
    "two_sided": ["ratio=token", "regularizer=two_sided"],
    "cispo": ["ratio=token", "regularizer=cispo"],
    "cispo with a cap of 1": ["ratio=token", "regularizer=cispo", "regularizer.cispo.max=1"],
    "sapo": ["ratio=token", "regularizer=sapo"],
    "dppo": ["ratio=token", "regularizer=dppo"],
    "topr": ["ratio=token", "regularizer=topr"],
    "gmpo": ["ratio=token", "regularizer=gmpo"],
    "dro": ["ratio=token", "regularizer=dro"],
    "vespo": ["ratio=product", "regularizer=vespo"],
    "sequence ratio": ["ratio=sequence", "regularizer=none"],
    "clipped sequence ratio": ["ratio=sequence", "regularizer=clip"],
    "behaviour ratio": ["ratio=token", "ratio.token.source=behaviour", "regularizer=clip"],
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_all_objectives_have_the_gradient_of_reinforce(name: str):
    """With one advantage a row and the mean over rows of row means."""
    common = ["algorithm=grpo", "aggregation=sequence_mean"]
    assert_same([*common, *OBJECTIVES["log-probs"]], [*common, *OBJECTIVES[name]], loss=False, on_policy=True)


@pytest.mark.parametrize("name", ["ratio", "clip", "dual_clip", "cispo", "sapo", "dppo", "topr", "dro"])
def test_on_policy_objectives_per_step_agree_under_every_aggregation(name: str):
    for aggregation in ("token_mean", "sequence_sum", "prompt_mean", "token_sum"):
        common = ["algorithm=grpo", f"aggregation={aggregation}"]
        assert_same([*common, *OBJECTIVES["log-probs"]], [*common, *OBJECTIVES[name]], loss=False, on_policy=True)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=grpo", "regularizer=clip"],
        ["algorithm=ppo", "regularizer=clip"],
        ["algorithm=rloo", "reward=none", "ratio=token", "aggregation=sequence_mean"],
    ],
)
def test_on_policy_ratios_are_one_and_the_centred_policy_loss_is_zero(overrides: list[str]):
    """A loss near zero at the first step is right, and no measure of progress."""
    probed = rlfw.probe(overrides, **numbers(on_policy=True))
    assert float(probed.policy_loss) == pytest.approx(0, abs=1e-12)
    assert bool(probed.gradient.any())
    for name, value in {"val/ratio_min": 1, "val/ratio_max": 1, "policy/approxkl_avg": 0}.items():
        assert probed.metrics[name] == value
    if "policy/clipfrac_avg" in probed.metrics:
        assert probed.metrics["policy/clipfrac_avg"] == 0


@pytest.mark.parametrize("part", ["baseline=group_mean", "baseline=leave_one_out", "normalize=group_std"])
def test_groups_of_one_are_refused(part: str):
    cfg = compose(["algorithm=reinforce", part, "sampler=episodes", "sampler.episodes.group_size=1"])
    with pytest.raises(rlfw.UserError, match=r"within a group: set .*group_size >= 2"):
        Composition(cfg, gamma=1.0, max_steps=None, streams=Streams(0)).check_sampler()
