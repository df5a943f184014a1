"""From a prompt's text to the tokens that a model goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlfw.errors import UserError


@dataclass
class PromptFormat:
    """A prompt as it stands, or as the user's turn of a conversation, formatted once by the model's own template."""

    tokenizer: Any
    chat: bool = False
    system: str | None = None  # the conversation's first message; None: what the template puts there

    def check(self, key: str) -> PromptFormat:
        """UserError where the tokenizer cannot format so; ``key`` is the policy's."""
        if not self.chat and self.system is not None:
            raise UserError(f"{key}.system has no effect with {key}.chat=false: set {key}.chat=true")
        if self.chat and not self.tokenizer.chat_template:
            raise UserError(f"{key}.chat=true: this model has no chat template; set {key}.chat=false")
        if self.chat:
            self._check_template(key)
        return self

    def _check_template(self, key: str) -> None:
        try:
            one, other = self.text("a"), self.text("b")
        except Exception as error:  # a template raises what it likes, e.g. for a system message
            raise UserError(f"{key}.chat=true: the model's template fails: {error!r:.300}") from error
        if one == other:
            raise UserError(f"{key}.chat=true: the model's template leaves the user's message out")
        if self.system is not None and one == PromptFormat(self.tokenizer, chat=True).text("a"):
            raise UserError(f"{key}.system has no effect: the model's template leaves it out, or has it anyway")

    def text(self, prompt: str) -> str:
        """What the model reads, special tokens spelt out."""
        if not self.chat:
            return prompt
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        turns = [*system, {"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    def __call__(self, prompts: list[str]) -> list[list[int]]:
        """The tokens of each; what the tokenizer puts before a text, a template or a prompt that has it gets once."""
        bare = self.tokenizer([self.text(prompt) for prompt in prompts], add_special_tokens=False)["input_ids"]
        lead = [] if self.chat else self._lead
        return [ids if lead and ids[: len(lead)] == lead else [*lead, *ids] for ids in bare]

    @cached_property
    def _lead(self) -> list[int]:
        """What the tokenizer puts before a text, e.g. a begin-of-sequence token; what it would put behind is left."""
        whole, bare = self.tokenizer("a")["input_ids"], self.tokenizer("a", add_special_tokens=False)["input_ids"]
        return next(whole[:i] for i in range(len(whole) + 1) if whole[i : i + len(bare)] == bare)
