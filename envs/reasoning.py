"""The procedural tasks of reasoning-gym, each with its own scorer (arXiv:2505.24760)."""

from __future__ import annotations

import importlib.util
import string
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.registry import register, suggest
from rlfw.seeding import Streams  # noqa: TC001  the registry reads the annotations

from .text import Example, TextEnv, TextTask

if TYPE_CHECKING:
    import numpy as np

KEY = "env.reasoning_gym"
LOOKED_AT = 20  # prompts that are drawn to see how long they are, and of which characters


class ReasoningTask(TextTask):
    """Questions of a data set of reasoning-gym; the reward is its own score of the answer, mostly 0 to 1."""

    def __init__(self, dataset: Any, entries: list[dict[str, Any]], max_new_tokens: int) -> None:
        """``entries``: some that show how long its questions are, and of which characters."""
        self.dataset = dataset

        def answer_score(completion: str, entry: dict[str, Any]) -> float:
            try:
                return float(dataset.score_answer(completion.strip(), entry))
            except Exception:  # some of its scorers raise for what they cannot read, e.g. words in place of a number
                return 0.0

        texts = [text for entry in entries for text in (entry["question"], entry["answer"]) if text is not None]
        super().__init__(
            rewards=answer_score,
            max_new_tokens=max_new_tokens,
            alphabet="".join({*string.printable}.union(*texts)),
            max_prompt_chars=2 * max(len(entry["question"]) for entry in entries),
        )

    def draw(self, rng: np.random.Generator) -> Example:
        entry = self.dataset[int(rng.integers(len(self.dataset)))]
        return Example(entry["question"], entry["answer"], {"entry": entry})


@register("env", "reasoning_gym")
def reasoning_gym(
    streams: Streams,
    *,
    task: str,
    config: dict[str, Any] = {},  # noqa: B006
    size: int = 10000,
    max_new_tokens: int = 64,
) -> TextEnv:
    """A task of reasoning-gym, scored by its own rules: pip install 'rlfw[reasoning-gym]'.

    ``task``: its name, e.g. spell_backward. ``config``: the task's own keys, e.g. {min_word_len: 3}. ``size``: how many
    prompts there are to draw from, and as many others for evaluation; the run's seed decides on them. (Of its tasks
    list_functions alone draws some prompts from no seed: two runs of it differ.)
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("env=reasoning_gym needs the package reasoning-gym: pip install 'rlfw[reasoning-gym]'")
    at_least(f"{KEY}.size", size, 1)
    given: Any = OmegaConf.to_container(OmegaConf.create(config))
    seed = streams.integer("reasoning_gym")
    # Prompt i of a data set follows from seed + i: the two sets share no draw.
    asked, held_out = (_dataset(task, given, size, first) for first in (seed, seed + size))
    entries = [asked[i] for i in range(min(LOOKED_AT, size))]
    tasks = [ReasoningTask(dataset, entries, max_new_tokens) for dataset in (asked, held_out)]
    return TextEnv(streams, tasks[0], name="reasoning_gym", held_out=tasks[1])


def _dataset(task: str, config: dict[str, Any], size: int, seed: int) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset

    if task not in DATASETS:
        raise UserError(f"{KEY}.task={task}: reasoning-gym has no such task{suggest(task, DATASETS)}")
    known = [field.name for field in fields(DATASETS[task][1]) if field.name not in ("seed", "size")]
    for key in config:
        if key not in known:
            said = f"write {KEY}.size" if key == "size" else f"{task} has no such key{suggest(key, known)}"
            raise UserError(f"{KEY}.config.{key}: {said.removeprefix('; ')}")
    try:
        return create_dataset(task, seed=seed, size=size, **config)
    except Exception as error:  # its configurations check themselves by assertions
        raise UserError(f"{KEY}.task={task} with config={config}: {str(error) or repr(error)}") from error
