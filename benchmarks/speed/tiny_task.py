"""The text task of text_grpo.py as a plugin: prompts of 16 characters, the reward is the share of digits."""

import random
import string

from rlfw.envs.text import TextEnv, TextTask
from rlfw.registry import register
from rlfw.seeding import Streams

CHARACTERS = string.digits + string.ascii_letters + " +-*/=?.,:()\n"


def digits(completions: list[str]) -> list[float]:
    """The share of digits."""
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]


@register("env", "compute")
def compute(streams: Streams, *, max_new_tokens: int = 32) -> TextEnv:
    """Compute 1+2 now: and 511 prompts like it."""
    draw = random.Random(streams.seed)
    prompts = [f"Compute {draw.randint(0, 9)}+{draw.randint(0, 9)} now:" for _ in range(512)]
    task = TextTask(prompts, digits, max_new_tokens=max_new_tokens, alphabet=CHARACTERS)
    return TextEnv(streams, task, name="compute")
