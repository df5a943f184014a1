"""What the policies over arrays share: acting in numpy, scoring flat observations, the critic, the files.

N parallel environments   K calls of act   S steps   B rows   T steps a row   F features   W outputs
"""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlfw.errors import UserError
from rlfw.interfaces import ControlSpec, Policy, Scored, StepActor
from rlfw.rollout import ABSENT

from .distributions import Distribution, distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rlfw.context import Observations
    from rlfw.interfaces import EnvSpec
    from rlfw.rollout import Context
    from rlfw.seeding import Streams

MAX_NOISE = 128  # steps of noise drawn at once, at most
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class ControlPolicy(Policy):
    """A body (observations -> F features), a linear layer (-> W outputs) and a distribution over the actions.

    Weights are orthogonal, of gain sqrt 2 in the body, 0.01 before the actions, 1 before the value; biases are 0.
    """

    memoryless: ClassVar[bool] = True
    name: ClassVar[str]

    def __init__(self, env_spec: EnvSpec, streams: Streams) -> None:
        super().__init__()
        if not isinstance(env_spec, ControlSpec):
            raise UserError(f"policy={self.name} acts on arrays and this env speaks text: write policy=causal_lm")
        self.env_spec = env_spec
        self.distribution: Distribution = distribution(env_spec.action_space, f"policy={self.name}")
        rng = streams.torch("policy init")
        self.body, self._features = self.build_body(rng)
        self.output = linear(self._features, self.distribution.width, 0.01, rng)
        self.critic: nn.ModuleDict | None = None  # body (only "own") and output
        self._critic_seed = streams.integer("critic init")

    @abstractmethod
    def build_body(self, rng: torch.Generator) -> tuple[nn.Sequential, int]:
        """A network from float observations [S, ...] to features [S, F], and F."""

    @abstractmethod
    def numpy_outputs(self) -> Callable[[np.ndarray], np.ndarray]:
        """The function from observations [N, ...] to outputs [N, W], with a copy of the present weights."""

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The keys that shape the network."""

    def prepare(self, observations: Tensor) -> Tensor:
        """Images as floats from 0 to 1; everything else as it is."""
        return observations.float() / 255 if observations.dtype == torch.uint8 else observations

    def outputs(self, observations: Tensor) -> Tensor:
        """[S, ...] -> [S, W]."""
        found: Tensor = self.output(self.body(self.prepare(observations)))
        return found

    def actor(self, streams: Streams) -> ControlActor:
        return ControlActor(self.numpy_outputs(), copy.deepcopy(self.distribution), streams.numpy("policy"))

    # -------------------------------------------------------------------------------------------- scoring

    def score(
        self, context: Context, actions: Tensor, mask: Tensor, *, entropy: bool = False, values: bool = False
    ) -> Scored:
        seen: Observations = context  # type: ignore[assignment]
        observations = self.prepare(seen.flat)
        features = self.body(observations)
        logprobs, entropies = self.distribution.score(self.output(features), seen.gather(actions), entropy)
        return Scored(
            seen.scatter(logprobs),
            seen.scatter(entropies) if entropy else ABSENT,
            seen.scatter(self._values(observations, features)) if values else ABSENT,
        )

    def values(self, context: Context, actions: Tensor, mask: Tensor) -> Tensor:
        seen: Observations = context  # type: ignore[assignment]
        assert seen.final is not None
        observations = self.prepare(torch.cat([seen.flat, seen.final]))
        flat = self._values(observations, None)
        steps = len(seen.flat)
        return torch.cat([seen.scatter(flat[:steps]), flat[steps:, None]], 1)

    def _values(self, observations: Tensor, features: Tensor | None) -> Tensor:
        """[S]. ``features`` of the policy's body, where they are known already."""
        assert self.critic is not None
        if "body" in self.critic:
            features = self.critic["body"](observations)
        elif features is None:
            features = self.body(observations)
        values: Tensor = self.critic["output"](features)
        return values.squeeze(1)

    # -------------------------------------------------------------------------------------------- critic, reference

    def add_critic(self, network: str) -> None:
        rng = torch.Generator().manual_seed(self._critic_seed)
        parts: dict[str, nn.Module] = {"body": self.build_body(rng)[0]} if network == "own" else {}
        self.critic = nn.ModuleDict({**parts, "output": linear(self._features, 1, 1.0, rng)})

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return iter(()) if self.critic is None else self.critic.parameters()

    def reference(self) -> Policy:
        twin = copy.deepcopy(self)
        twin.critic = None
        return twin.requires_grad_(False)

    # -------------------------------------------------------------------------------------------- files

    def save(self, folder: Path) -> None:
        """policy.safetensors, the critic under ``critic.``; policy.json says what it is."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: x.detach().clone().contiguous() for key, x in self.state_dict().items()}, folder / WEIGHTS)
        (folder / "policy.json").write_text(json.dumps(self._card(), indent=2) + "\n")

    def load(self, folder: Path) -> None:
        """Into the present parameters, in place. A critic in the file is left out where this policy has none."""
        weights = load_file(folder / WEIGHTS)
        mine = self.state_dict()
        wanted = {key: x for key, x in weights.items() if key in mine or not key.startswith("critic.")}
        shapes = [{key: tuple(x.shape) for key, x in state.items()} for state in (wanted, mine)]
        if shapes[0] != shapes[1]:
            differing = sorted(dict(shapes[0].items() ^ shapes[1].items()))
            raise UserError(f"{folder / WEIGHTS} is of another network than this policy: {', '.join(differing)} differ")
        self.load_state_dict(wanted)

    def _card(self) -> dict[str, Any]:
        return {
            "policy": self.name,
            **self.config,
            "critic": None if self.critic is None else "own" if "body" in self.critic else "head",
            "observation_shape": list(self.env_spec.observation_shape),
            "observation_dtype": self.env_spec.observation_dtype,
            "action_space": str(self.env_spec.action_space),
        }


WEIGHTS = "policy.safetensors"


class ControlActor(StepActor):
    """Acts with the weights it was made with; noise is drawn for many steps at once."""

    def __init__(
        self, outputs: Callable[[np.ndarray], np.ndarray], distribution: Distribution, rng: np.random.Generator
    ) -> None:
        self._outputs_of, self._distribution, self._rng = outputs, distribution, rng
        self._noise = np.zeros((0, 0, 0), np.float32)  # [steps drawn, N, W]
        self._next = 0
        self._outputs: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []

    def act(self, observations: np.ndarray, *, greedy: bool = False) -> np.ndarray:
        outputs = self._outputs_of(observations)
        if greedy:
            actions = self._distribution.mode(outputs)
        else:
            if self._next == len(self._noise):
                steps = min(max(2 * self._next, 8), MAX_NOISE)
                self._noise, self._next = self._distribution.noise(self._rng, (steps, len(observations))), 0
            actions = self._distribution.mode(outputs + self._noise[self._next])
            self._next += 1
        self._outputs.append(outputs)
        self._actions.append(actions)
        return actions

    def logprobs(self) -> np.ndarray:
        with torch.inference_mode():
            logprobs, _ = self._distribution.score(
                torch.from_numpy(np.stack(self._outputs)), torch.from_numpy(np.stack(self._actions))
            )
        self._outputs, self._actions = [], []
        return logprobs.numpy()


def linear(inputs: int, outputs: int, gain: float, rng: torch.Generator) -> nn.Linear:
    layer: nn.Linear = torch.nn.utils.skip_init(nn.Linear, inputs, outputs)
    return orthogonal(layer, gain, rng)


Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float, rng: torch.Generator) -> Layer:
    """The layer with orthogonal weights of this gain, from ``rng`` alone, and biases 0."""
    nn.init.orthogonal_(layer.weight, gain, generator=rng)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
