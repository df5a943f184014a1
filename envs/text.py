"""Text tasks: prompts in, completions out, rewards from the user's own functions.

B rows (completions)   P prompts   T new tokens
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlfw.errors import RunError, UserError
from rlfw.interfaces import Env, EpisodeGroups, TextSpec
from rlfw.rollout import Episodes, Rollout

from .reward_functions import RewardFunction, RewardFunctions
from .reward_signature import RESERVED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rlfw.interfaces import Completions, Request, TextActor
    from rlfw.seeding import Streams


@dataclass(frozen=True)
class Example:
    """One prompt with what its reward functions may look at."""

    prompt: str
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class TextTask:
    """Prompts and one reward function or several. A subclass that overrides ``draw`` makes its prompts as it goes.

    A reward function is called by keyword with what its signature names. One that names ``prompt``, ``completion`` or
    ``answer`` is called once a completion and returns a number; any other is called once with lists, ``prompts``,
    ``completions`` and ``answers``, and returns a list of numbers. Both may name ``ids``, ``finish`` and the columns.
    It may be async. None or NaN: this function has no opinion on this completion. The reward is the weighted sum of
    the numbers that were given.
    """

    prompts: Sequence[str] = ()
    rewards: RewardFunction | Sequence[RewardFunction] | Mapping[str, RewardFunction] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # by the function's name; 1 where it is not named
    answers: Sequence[str] | None = None  # the right completion of each prompt, where there is one
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # further data of each prompt
    max_new_tokens: int = 16
    alphabet: str = ""  # characters that completions may need beside those of prompts and answers
    max_prompt_chars: int = 0  # of a prompt that is drawn
    workers: int = 1  # calls of reward functions at a time
    timeout: float | None = None  # seconds that such a call may take

    def __len__(self) -> int:
        """The number of fixed prompts; 0: they are drawn."""
        return len(self.prompts)

    def __getitem__(self, i: int) -> Example:
        columns = {name: column[i] for name, column in self.columns.items()}
        return Example(self.prompts[i], None if self.answers is None else self.answers[i], columns)

    def draw(self, rng: np.random.Generator) -> Example:
        """A fresh example; here one of the fixed prompts, each as likely as any other."""
        return self[int(rng.integers(len(self)))]

    def spec(self) -> TextSpec:
        characters = set(self.alphabet).union(*self.prompts, *(self.answers or ()))
        return TextSpec(
            alphabet="".join(sorted(characters)),
            max_prompt_chars=max([self.max_prompt_chars, *map(len, self.prompts)]),
            max_steps=self.max_new_tokens,
            prompts=tuple(self.prompts),
        )

    def check(self, source: str) -> None:
        """UserError, naming ``source``, for a task that cannot work."""
        if not self.prompts and type(self).draw is TextTask.draw:
            raise UserError(f"{source} has no prompts")
        if strange := [p for p in self.prompts if not isinstance(p, str)]:
            raise UserError(f"{source}: a prompt is {strange[0]!r}; prompts are strings")
        beside = {"answers": self.answers} | dict(self.columns)
        for name, column in beside.items():
            if column is not None and len(column) != len(self):
                raise UserError(f"{source}: {len(column)} {name} for {len(self)} prompts")
        if taken := [name for name in self.columns if name in RESERVED]:
            raise UserError(f"{source}: a column cannot be called {taken[0]}")
        if self.max_new_tokens < 1:
            raise UserError(f"{source}: max_new_tokens={self.max_new_tokens}: it must be at least 1")


class TextEnv(Env):
    """Completions of a task's prompts as rollouts: one row a completion, its reward on the last step.

    Prompt number i of a run is a function of the run's seed and i alone, so the state is one number. Fixed prompts
    are shuffled anew each epoch, and each is seen exactly once an epoch. Every prompt that is asked is a group of its
    own, whatever its text.
    """

    unit = "completions"
    whole_episodes_only = True

    def __init__(
        self, streams: Streams, task: TextTask, *, name: str = "text", held_out: TextTask | None = None
    ) -> None:
        """``held_out``: what evaluation asks instead of the task's own prompts; its reward functions are the task's."""
        task.check(f"env={name}")
        self.task, self.name, self.spec = task, name, task.spec()
        self.held_out = task if held_out is None else held_out
        if held_out is not None:
            self.spec = _for_both(self.spec, held_out.spec())
        example = task[0] if len(task) else task.draw(np.random.default_rng(0))
        limits = (task.workers, task.timeout)
        self.rewards = RewardFunctions(task.rewards, task.weights, example, f"env={name}", *limits)
        self.score_names = tuple(self.rewards.functions)
        self._streams = streams
        self._num_asked = 0  # prompts so far

    # -------------------------------------------------------------------------------------------- rollouts

    def collect(self, request: Request, actor: TextActor) -> Rollout:
        if not isinstance(request, EpisodeGroups):
            raise UserError(f"env={self.name} gives whole completions: set sampler=episodes")
        num_prompts, size = request.num_episodes // request.group_size, request.group_size
        first, self._num_asked = self._num_asked, self._num_asked + num_prompts
        examples = _examples(self.task, self._streams, first, num_prompts)
        asked = [example for example in examples for _ in range(size)]  # [B]
        done = actor.complete([e.prompt for e in examples], group_size=size, max_new_tokens=self.task.max_new_tokens)
        scores, reward = self.rewards(asked, done)
        scored, greedy, spent = reward.isfinite(), None, len(asked)
        if request.greedy:
            greedy, spent = self._greedy(examples, actor).repeat_interleave(size), spent + num_prompts
            scored = scored & greedy.isfinite()  # a group is compared with its greedy completion, or not at all
        kept = scored.nonzero()[:, 0]
        if not len(kept):
            raise RunError(f"env={self.name}: no reward function gave a number for any of {len(asked)} completions")
        mask, ended, lengths = done.mask[kept], done.ended[kept], done.mask[kept].sum(1)
        rewards = torch.zeros(mask.shape).scatter(1, lengths[:, None] - 1, reward[kept, None].float())
        return Rollout(
            context=done.context.rows(kept),
            actions=done.ids[kept],
            logprobs=done.logprobs[kept],
            rewards=rewards,
            mask=mask,
            terminated=ended,
            truncated=~ended,
            group=first + kept // size,
            episode=first * size + kept,
            episodes=Episodes(returns=reward[kept].float(), lengths=lengths),
            scores={name: values[kept].float() for name, values in scores.items()},
            samples=[{**_written(asked[b], done, b), **_earned(scores, reward, b)} for b in kept.tolist()],
            greedy_returns=None if greedy is None else greedy[kept].float(),
            spent=spent,
            num_generated=len(asked),
        )

    def _greedy(self, examples: list[Example], actor: TextActor) -> Tensor:
        """[P] the reward of each prompt's greedy completion, NaN where nothing scored it. It draws nothing."""
        prompts = [example.prompt for example in examples]
        done = actor.complete(prompts, group_size=1, max_new_tokens=self.task.max_new_tokens, greedy=True)
        return self.rewards(examples, done)[1]

    def evaluate(
        self, actor: TextActor, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        """``score`` (the reward), each reward function by name, ``length`` in tokens; unscored completions left out."""
        examples = _examples(self.held_out, streams, 0, num_episodes)
        prompts = [example.prompt for example in examples]
        done = actor.complete(prompts, group_size=1, max_new_tokens=self.task.max_new_tokens, greedy=greedy)
        scores, reward = self.rewards(examples, done)
        columns = {"score": reward, **scores, "length": done.mask.sum(1).double()}
        return {name: [x for x in column.tolist() if not math.isnan(x)] for name, column in columns.items()}

    def samples(
        self,
        actor: TextActor,
        num_prompts: int,
        streams: Streams,
        *,
        group_size: int = 1,
        max_new_tokens: int | None = None,
        greedy: bool = False,
    ) -> list[dict[str, Any]]:
        distinct = min(num_prompts, len(self.held_out) or num_prompts)
        examples = _examples(self.held_out, streams, 0, distinct)
        room = self.task.max_new_tokens if max_new_tokens is None else max_new_tokens
        prompts = [example.prompt for example in examples]
        done = actor.complete(prompts, group_size=group_size, max_new_tokens=room, greedy=greedy)
        asked = [example for example in examples for _ in range(group_size)]
        found = [_written(example, done, b) for b, example in enumerate(asked)]
        if self.rewards.functions:
            scores, reward = self.rewards(asked, done)
            found = [{**record, **_earned(scores, reward, b)} for b, record in enumerate(found)]
        return found

    def check_training(self) -> None:
        self.rewards.check()

    def fixed_pairs(self) -> list[tuple[str, str]]:
        examples = [self.task[i] for i in range(len(self.task))]
        return [(example.prompt, example.answer) for example in examples if example.answer is not None]

    def warmup_pairs(self, num_pairs: int, rng: np.random.Generator) -> list[tuple[str, str]] | None:
        examples = [self.task.draw(rng) for _ in range(num_pairs)]
        pairs = [(example.prompt, example.answer) for example in examples if example.answer is not None]
        return pairs if len(pairs) == num_pairs else None

    def state_dict(self) -> dict[str, Any]:
        return {"num_asked": self._num_asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_asked = state["num_asked"]

    def close(self) -> None:
        self.rewards.close()


def _examples(task: TextTask, streams: Streams, first: int, num: int) -> list[Example]:
    """Prompts number first, first + 1, ... of ``streams``."""
    wanted = range(first, first + num)
    if not len(task):
        return [task.draw(np.random.default_rng(streams.sequence("prompts", i))) for i in wanted]
    orders: dict[int, np.ndarray] = {}
    examples = []
    for epoch, place in (divmod(i, len(task)) for i in wanted):
        if epoch not in orders:
            orders[epoch] = np.random.default_rng(streams.sequence("prompts", epoch)).permutation(len(task))
        examples.append(task[int(orders[epoch][place])])
    return examples


def _for_both(one: TextSpec, other: TextSpec) -> TextSpec:
    """What a policy must be able to read for both."""
    return replace(
        one,
        alphabet="".join(sorted({*one.alphabet, *other.alphabet})),
        max_prompt_chars=max(one.max_prompt_chars, other.max_prompt_chars),
        prompts=(*one.prompts, *other.prompts),
    )


def _written(example: Example, done: Completions, b: int) -> dict[str, Any]:
    """Of a sample's record what the policy wrote in row ``b``; its length in tokens, the one that ended it included."""
    return {
        "prompt": example.prompt,
        "completion": done.texts[b],
        "finish": "stop" if done.ended[b] else "length",
        "length": int(done.mask[b].sum()),
    }


def _earned(scores: Mapping[str, Tensor], reward: Tensor, b: int) -> dict[str, Any]:
    """And what that was worth; None: no opinion."""
    told = {name: _or_none(float(values[b])) for name, values in scores.items()}
    return {"scores": told, "reward": _or_none(float(reward[b]))}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
