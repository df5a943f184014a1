"""The user's own prompts, from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rlfw.errors import UserError
from rlfw.registry import register
from rlfw.seeding import Streams  # noqa: TC001  the registry reads the annotations

from .named_rewards import named_rewards
from .reward_signature import RESERVED
from .table import Table, read_table
from .text import TextEnv, TextTask

if TYPE_CHECKING:
    from rlfw.interfaces import TextActor

PROMPT, ANSWER = "prompt", "answer"  # columns; all others are handed to the reward functions by name


@register("env", "prompts")
class Prompts(TextEnv):
    """Prompts from a file of your own, rewarded by functions of your own.

    ``file``: JSONL or CSV with the column prompt, answer where there are right ones, and any others. ``rewards``: by
    name, functions of the files in plugins=[FILE], or exact, sentiment. ``weights``: of rewards, 1 by default.
    ``reward_models``: name -> the folder of a transformers sequence classifier with one output. ``eval_file``: the
    prompts of evaluation, none of them in ``file``. ``workers``: calls of reward functions at a time; ``timeout``:
    seconds for each. ``alphabet``: characters for completions that the file lacks, for a policy made for the task.
    """

    files: ClassVar[tuple[str, ...]] = ("file", "eval_file", "reward_models")

    def __init__(
        self,
        streams: Streams,
        *,
        file: str,
        rewards: list[str] = [],  # noqa: B006
        weights: dict[str, float] = {},  # noqa: B006
        reward_models: dict[str, str] = {},  # noqa: B006
        eval_file: str | None = None,
        max_new_tokens: int = 64,
        workers: int = 1,
        timeout: float | None = None,
        alphabet: str = "",
    ) -> None:
        functions = named_rewards(list(rewards), reward_models)
        table = read_table("env.prompts.file", file)
        others = None if eval_file is None else read_table("env.prompts.eval_file", eval_file)

        def task(table: Table) -> TextTask:
            return TextTask(
                **_columns(table),
                rewards=functions,
                weights=weights,
                max_new_tokens=max_new_tokens,
                alphabet=alphabet,
                workers=workers,
                timeout=timeout,
            )

        if others is not None:
            _check_held_out(table, others)
        self.sha256 = table.sha256
        self.source = table.source
        self.num_held_out = 0 if others is None else len(others)
        super().__init__(streams, task(table), name="prompts", held_out=None if others is None else task(others))

    def check_evaluation(self, num_episodes: int) -> None:
        if self.num_held_out == 0:
            raise UserError("an evaluation needs prompts that are not trained on: set env.prompts.eval_file=FILE")
        if num_episodes > self.num_held_out:
            raise UserError(
                f"an evaluation of {num_episodes} greedy completions would ask some of the {self.num_held_out} prompts "
                "of env.prompts.eval_file twice: take as many as there are, or fewer"
            )

    def evaluate(
        self, actor: TextActor, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        self.check_evaluation(num_episodes if greedy else 1)
        return super().evaluate(actor, num_episodes, streams, greedy=greedy)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sha256": self.sha256}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["sha256"] != self.sha256:
            raise UserError(f"{self.source} is not what the run began with: bring that file back")
        super().load_state_dict(state)


def _columns(table: Table) -> dict[str, Any]:
    """A task's prompts, answers and columns; UserError for a column that cannot be one."""
    others = {name: values for name, values in table.columns.items() if name not in (PROMPT, ANSWER)}
    if taken := [name for name in others if name in RESERVED]:
        raise UserError(
            f"{table.source}: the column {taken[0]} has the name of what reward functions are given anyway: rename it"
        )
    answers = table.text(ANSWER, empty=True) if ANSWER in table.columns else None
    return {"prompts": table.text(PROMPT, empty=False), "answers": answers, "columns": others}


def _check_held_out(table: Table, others: Table) -> None:
    """UserError where evaluation would ask what is trained on, or its reward functions would miss a column."""
    if set(table.columns) != set(others.columns):
        raise UserError(
            f"{others.source} has the columns {', '.join(others.columns)} and {table.source} has "
            f"{', '.join(table.columns)}: both have the same"
        )
    trained = {repr(sorted(table.row(i).items())): table.lines[i] for i in range(len(table))}
    for i, line in enumerate(others.lines):
        if (same := trained.get(repr(sorted(others.row(i).items())))) is not None:
            raise UserError(
                f"{others.source}, line {line} is line {same} of {table.source} too: an evaluation on what is "
                "trained on says nothing; take it out of one of them"
            )
