"""Ratios: their level, their gradient, and what they are a ratio to."""

import math

import pytest
import torch

import rlfw

MASK = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
NEW = torch.tensor([[0.3, 0.5, 0.14], [0.8, 0.1, 0.9]], dtype=torch.float64).log()
OLD = torch.tensor([[0.2, 0.5, 0.2], [0.2, 0.7, 0.3]], dtype=torch.float64).log()
PRODUCT = 1.5 * 1 * 0.7
LEVELS = {  # the ratio of each step; off the mask there is none
    "token": [1.5, 1, 0.7, 4],
    "sequence": [PRODUCT ** (1 / 3)] * 3 + [4],
    "product": [PRODUCT] * 3 + [4],
}


def probed(overrides: list[str], **given: object) -> rlfw.probe:
    words = ["baseline=none", "normalize=none", "regularizer=none", "aggregation=token_sum", *overrides]
    given = {"logprobs": NEW, "old_logprobs": OLD, "advantages": MASK.double(), **given}
    return rlfw.probe(words, rewards=[0, 0], mask=MASK, group=[0, 0], **given)


@pytest.mark.parametrize("level", LEVELS)
def test_level(level: str):
    found = probed([f"ratio={level}"])
    assert float(found.loss) == pytest.approx(-sum(LEVELS[level]))
    assert found.metrics["val/ratio"] == pytest.approx(sum(LEVELS[level]) / 4)


@pytest.mark.parametrize(("level", "share"), [("token", None), ("sequence", 1 / 3), ("product", 1)])
def test_row_ratios_have_their_true_gradient(level: str, share: float | None):
    """d s / d logprob is s / n for the geometric mean and s for the product; three steps carry the row's value."""
    gradient = -probed([f"ratio={level}"]).gradient
    row = LEVELS["token"][:3] if share is None else [3 * share * LEVELS[level][0]] * 3
    torch.testing.assert_close(gradient, torch.tensor([row, [4, 0, 0]], dtype=torch.float64))


def test_no_ratio_is_the_log_prob():
    found = probed(["ratio=none"])
    assert float(found.loss) == pytest.approx(-math.log(0.3 * 0.5 * 0.14 * 0.8))
    assert "val/ratio" not in found.metrics


@pytest.mark.parametrize("level", LEVELS)
def test_source_is_the_old_or_the_behaviour_policy(level: str):
    """The two differ where a sampler runs elsewhere or in another precision."""
    behaviour = {"behaviour_logprobs": NEW}
    assert float(probed([f"ratio={level}"], **behaviour).loss) == pytest.approx(-sum(LEVELS[level]))
    off = probed([f"ratio={level}", f"ratio.{level}.source=behaviour"], **behaviour)
    assert float(off.loss) == pytest.approx(-4)
    assert off.metrics["sampling/logp_difference_max"] == pytest.approx(math.log(4))


@pytest.mark.parametrize("level", LEVELS)
def test_unknown_source_is_refused(level: str):
    with pytest.raises(rlfw.UserError, match=rf"ratio\.{level}\.source=new: choose one of old, behaviour"):
        rlfw.build("ratio", {"part": level, "source": "new"})


@pytest.mark.parametrize(("level", "of_steps"), [("token", True), ("sequence", False), ("product", False)])
def test_formula_and_needs_follow_the_source(level: str, of_steps: bool):
    old, behaviour = (rlfw.build("ratio", {"part": level, "source": source}) for source in ("old", "behaviour"))
    assert ("ℓ_old" in old.formula, "ℓ_beh" in old.formula) == (True, False)
    assert ("ℓ_old" in behaviour.formula, "ℓ_beh" in behaviour.formula) == (False, True)
    assert ("old_logprobs" in old.needs, "old_logprobs" in behaviour.needs) == (True, False)
    assert old.of_steps == of_steps
