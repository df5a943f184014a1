"""Losses and gradients equal those of stable-baselines3's PPO and TRL's GRPO on the same numbers.

tests/fixtures/ holds their numbers and the scripts that made them.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import rlfw
from rlfw.config import compose
from rlfw.context import Observations
from rlfw.rollout import Batch
from rlfw.run import RunFolder
from rlfw.trainer import Trainer

FIXTURES = Path(__file__).parent / "fixtures"
SB3 = json.loads((FIXTURES / "sb3_ppo.json").read_text())
TRL = json.loads((FIXTURES / "trl_grpo.json").read_text())

# TRL's loss_type and settings -> the composition. Both have beta and coef 0.04 where there is a KL.
COMPOSITIONS = {
    "grpo": ["algorithm=grpo"],
    "dr_grpo": ["algorithm=dr_grpo", f"aggregation.constant.length={TRL['max_completion_length']}"],
    "bnpo": ["algorithm=grpo", "aggregation=token_mean"],
    "dapo": ["algorithm=grpo", "regularizer=[clip]", "regularizer.clip.high=0.28", "aggregation=token_mean"],
    "gspo": ["algorithm=grpo", "regularizer=[clip]", "ratio=sequence"],
}


def close(found: torch.Tensor, expected: object, tolerance: float) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", COMPOSITIONS)
def test_loss_and_gradient_are_those_of_trl(case: str):
    mask = torch.tensor(TRL["mask"])  # [B, T]
    probed = rlfw.probe(
        COMPOSITIONS[case],
        rewards=torch.zeros(mask.shape),  # unused: the advantages are given
        mask=mask,
        logprobs=torch.tensor(TRL["logprobs"]).double(),
        old_logprobs=TRL["old_logprobs"],
        ref_logprobs=TRL["ref_logprobs"],
        group=TRL["group"],
        advantages=torch.tensor(TRL["advantages"])[:, None].expand(mask.shape) * mask,
    )
    expected = TRL["cases"][case]
    close(probed.loss, expected["loss"], 1e-6)
    close(probed.gradient, expected["gradient"], 1e-6)


# The value loss is (v - R)^2 / 2 here and (v - R)^2 there.
PPO = [
    "algorithm=ppo",
    f"regularizer.clip.low={SB3['settings']['clip_range']}",
    f"regularizer.clip.high={SB3['settings']['clip_range']}",
    f"regularizer.entropy.coef={SB3['settings']['ent_coef']}",
    f"baseline.critic.coef={2 * SB3['settings']['vf_coef']}",
]


def column(name: str) -> torch.Tensor:
    """[S] -> [S, 1]: every step is a row of its own."""
    return torch.tensor(SB3[name])[:, None]


def test_loss_and_its_parts_are_those_of_stable_baselines3():
    steps = column("logprobs")
    probed = rlfw.probe(
        PPO,
        rewards=torch.zeros_like(steps),  # unused: advantages and returns are given
        mask=torch.ones_like(steps),
        logprobs=steps,
        group=torch.arange(len(steps)),
        **{name: column(name) for name in ("old_logprobs", "values", "entropy", "advantages", "returns")},
    )
    settings = SB3["settings"]
    close(probed.loss, SB3["loss"], 1e-5)
    close(probed.policy_loss, SB3["policy_loss"] + settings["ent_coef"] * SB3["entropy_loss"], 1e-5)
    close(probed.critic_loss, settings["vf_coef"] * SB3["value_loss"], 1e-5)


# stable-baselines3's linear layers in the order of ours: the policy's, then the critic's.
LAYERS = [
    "mlp_extractor.policy_net.0",
    "mlp_extractor.policy_net.2",
    "action_net",
    "mlp_extractor.value_net.0",
    "mlp_extractor.value_net.2",
    "value_net",
]


def ours(policy: nn.Module, tensors: dict[str, list]) -> dict[str, torch.Tensor]:
    """stable-baselines3's tensors under the names of our parameters."""
    names = [name for name, module in policy.named_modules() if isinstance(module, nn.Linear)]
    pairs = list(zip(names, LAYERS, strict=True))
    return {
        f"{name}.{kind}": torch.tensor(tensors[f"{sb3}.{kind}"]) for name, sb3 in pairs for kind in ("weight", "bias")
    }


def test_gradients_of_all_parameters_are_those_of_stable_baselines3(tmp_path: Path):
    """Through the trainer's own backward pass, with stable-baselines3's weights in our policy."""
    trainer = Trainer(compose([*PPO, "env=cartpole", "policy.mlp.hidden_sizes=[8,8]", "progress=false"]))
    trainer.prepare(RunFolder(tmp_path))
    trainer.policy.load_state_dict(ours(trainer.policy, SB3["weights"]))
    steps = len(SB3["actions"])
    mask = torch.ones(steps, 1, dtype=torch.bool)
    never = torch.zeros(steps, dtype=torch.bool)
    minibatch = Batch(
        context=Observations(torch.tensor(SB3["observations"]), None, mask, single=True),
        actions=column("actions"),
        logprobs=column("old_logprobs"),
        rewards=torch.zeros(steps, 1),  # unused: advantages and returns are given
        mask=mask,
        terminated=never,
        truncated=never,
        group=torch.arange(steps),
        episode=torch.arange(steps),
        old_values=column("values"),
        old_logprobs=column("old_logprobs"),
        advantages=column("advantages"),
        returns=column("returns"),
    )
    (loss,) = trainer.backward(minibatch)
    close(loss.new.logprobs.detach(), column("logprobs").tolist(), 1e-5)
    close(loss.total.detach(), SB3["loss"], 1e-5)
    expected = ours(trainer.policy, SB3["gradients"])
    found = {name: p.grad for name, p in trainer.policy.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    trainer.close()
