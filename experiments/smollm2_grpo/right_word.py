"""The reward of the experiment: whether the right word is there."""

import re


def right_word(completions: list[str], answers: list[str]) -> list[float]:
    """1 where the answer stands in the completion as a word of its own, else 0."""
    found = zip(completions, answers, strict=True)
    return [float(answer.lower() in re.findall(r"\w+", completion.lower())) for completion, answer in found]
