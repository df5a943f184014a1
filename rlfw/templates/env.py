"""A text task of your own: env=my_part policy=causal_lm."""

from rlfw import register
from rlfw.envs.text import TextEnv, TextTask
from rlfw.seeding import Streams

PROMPTS = ["a", "b", "ab", "ba"]


def right(prompts: list[str], completions: list[str]) -> list[float]:
    """The share of the first characters that repeat the prompt: a number for each completion."""
    pairs = zip(prompts, completions, strict=True)
    return [sum(a == b for a, b in zip(p, c, strict=False)) / max(len(p), len(c)) for p, c in pairs]


@register("env", "my_part")
def my_part(streams: Streams, *, max_new_tokens: int = 2) -> TextEnv:
    """Repeat the prompt (fill in: what yours pays for)."""
    task = TextTask(prompts=PROMPTS, answers=PROMPTS, rewards=right, max_new_tokens=max_new_tokens)
    return TextEnv(streams, task, name="my_part")
