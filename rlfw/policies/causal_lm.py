"""Any transformers causal language model as a policy over tokens, with its critic.

    B rows   T completion tokens   P distinct prompts   L tokens of the longest prompt
    N scored tokens   D width of a hidden state

transformers takes seconds to import, so nothing here imports it before a model is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlfw.checks import one_of
from rlfw.context import Prompts
from rlfw.errors import UserError
from rlfw.interfaces import EnvSpec, Scored, TextPolicy, TextSpec
from rlfw.policies import lora, packaged, precision, vocabulary
from rlfw.policies.language_models import device as device_named
from rlfw.policies.language_models import end_of_sequence, initialised, loaded
from rlfw.policies.layout import Layout, why_padded
from rlfw.policies.prompts import PromptFormat
from rlfw.policies.recomputation import recompute_layers
from rlfw.policies.shaping import Shaping
from rlfw.policies.tokenizer import task_tokenizer
from rlfw.registry import register
from rlfw.rollout import ABSENT
from rlfw.seeding import Streams  # noqa: TC001  the registry reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlfw.interfaces import TextActor
    from rlfw.rollout import Context

KEY = "policy.causal_lm"
CRITIC_FILE = "critic.safetensors"
BUILT = ("architecture", "hidden_size", "num_layers", "num_heads", "config")  # what a model that is built here is like


@register("policy", "causal_lm")
class CausalLM(TextPolicy):
    """A transformers causal LM: a folder, or one that is configured here and starts from random weights.

    ``path``: a folder with a model and its tokenizer, as save_pretrained writes it, or a GGUF file, or its folder;
    smollm2 is a model that a package brings. Nothing is downloaded. ``chat``: a prompt is the user's turn in the
    model's chat template, after the message ``system``. ``lora_rank``: a low-rank adapter trains and the model stays
    as it is, also as the reference; ``lora_alpha`` over the rank scales it (null: twice the rank), ``lora_targets``
    name its layers (none: every linear one but the head).

    Without a path a model of ``architecture`` (llama, gpt2, qwen3, ...; ``hidden_size``, ``num_layers``,
    ``num_heads``; ``config``: further keys of its transformers config) is built over the task's own characters, or
    words. ``temperature``, ``top_k`` and ``top_p`` shape sampling and scoring alike. Dropout is off at all times.
    ``dtype``: float32, or bfloat16 to run the model in; what trains, and log-probs, are float32 either way. ``device``:
    auto (a GPU where torch sees one), cpu, cuda or cuda:N.
    ``activation_checkpointing``: in the update layers are computed twice and keep their inputs alone: less memory.
    """

    memoryless = False
    only_with: ClassVar = dict.fromkeys(BUILT, ("path", None)) | {"system": ("chat", True)}

    def __init__(
        self,
        env_spec: EnvSpec,
        streams: Streams,
        *,
        path: str | None = None,
        chat: bool = False,
        system: str | None = None,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        lora_targets: list[str] = [],  # noqa: B006
        architecture: str = "llama",
        hidden_size: int = 96,
        num_layers: int = 3,
        num_heads: int = 4,
        config: dict[str, Any] = {},  # noqa: B006
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        dtype: str = "float32",
        device: str = "auto",
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(env_spec, TextSpec):
            raise UserError("policy=causal_lm writes text; this env takes actions: choose policy=mlp or a text env")
        one_of(f"{KEY}.dtype", dtype, ("float32", "bfloat16"))
        where = device_named(device)
        self.shaping = Shaping(temperature, top_k, top_p).check(KEY)
        self.lora = lora.Lora.of(KEY, path, lora_rank, lora_alpha, list(lora_targets))
        further: Any = OmegaConf.to_container(OmegaConf.create(config))  # plain dicts, however deep
        if path is None:
            sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads}
            self.tokenizer = task_tokenizer(env_spec)
            self.model = initialised(architecture, sizes, further, len(self.tokenizer), env_spec, streams)
        else:
            self.model, self.tokenizer = loaded(packaged.folder_of(path))
            if self.lora is not None:
                self.lora.attach(self.model, path, streams.integer("adapter weights"), KEY)
        self.format = PromptFormat(self.tokenizer, chat, system).check(KEY)
        own = ("character", "alphabet") if env_spec.vocabulary is None else ("word", "vocabulary")
        self.strict = own if path is None else None  # what a token is and where it stands, where no other may come
        self.eos = end_of_sequence(self.model, self.tokenizer)
        self.critic: Critic | None = None
        self.frozen = False  # True: a reference
        self.encode_prompts(list(env_spec.prompts), room=env_spec.max_steps)
        self.eval()
        self.model.to(where)
        if activation_checkpointing:
            recompute_layers(self.model, f"{KEY}.activation_checkpointing")
        self._settle(dtype)

    def train(self, mode: bool = True) -> Self:
        """Without effect: log-probs are those of the policy that sampled only while dropout is off."""
        return super().train(False)

    def _settle(self, dtype: str) -> None:
        """How the model is run: with which attention, in which layout, in which number format."""
        from rlfw.policies import attention

        attention.install(self.model)
        self.apart = vocabulary.comes_apart(self.model)
        body, _ = vocabulary.body_and_head(self.model, apart=self.apart)
        self.padded = why_padded(self.model, body)  # None: rows can be packed
        if self.padded is not None:
            name = type(self.model).__name__
            self.notes = (f"policy=causal_lm: {name} is scored in padded rows, which is slower: {self.padded}",)
        self.halved: precision.Half | None = None
        if dtype == "bfloat16":
            precision.store_frozen_in_half(self.model)
            self.halved = precision.Half(self.model)

    @property
    def runs(self) -> Any:
        """The model as it is run, in the policy's number format, with the present weights."""
        model = self.model if self.halved is None else self.halved.fresh()
        if self.frozen and self.lora is not None:
            lora.leave_out_zeros(model)
        return model

    # -------------------------------------------------------------------------------------------- text <-> tokens

    @property
    def context_size(self) -> int | None:
        """The most tokens that the model takes, prompt and completion together; None: no limit of its own."""
        size = getattr(self.model.config, "max_position_embeddings", None)  # not every architecture has one
        return size if isinstance(size, int) and size > 0 else None

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    def encode_prompts(self, prompts: list[str], room: int) -> tuple[Tensor, Tensor]:
        """ids [P, L], right-padded, and lengths [P]; UserError for a prompt without ``room`` tokens behind it."""
        if not prompts:
            return torch.zeros(0, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        tokens = self.format(prompts)
        for prompt, ids in zip(prompts, tokens, strict=True):
            self._check_prompt(prompt, ids, room, "shorten it or lower max_new_tokens")
        return _padded(tokens)

    def _check_prompt(self, prompt: str, ids: list[int], room: int, remedy: str) -> None:
        if not ids:
            raise UserError(f"the prompt {prompt!r} has no tokens: the model needs at least one to go on from")
        if self.strict is not None and self.tokenizer.unk_token_id in ids:
            raise UserError(f"the prompt {self._unknown(prompt, ids)}")
        if self.context_size is not None and len(ids) + room > self.context_size:
            where = " in the model's chat template" if self.format.chat else ""
            raise UserError(
                f"the prompt {_short(prompt)} has {len(ids)} tokens{where}; with {room} new tokens that is more than "
                f"the model's context of {self.context_size}: {remedy}"
            )

    def _unknown(self, text: str, ids: list[int]) -> str:
        """What ``text`` has that no token stands for."""
        if self.strict is None:
            return f"{_short(text)} has something that the model's tokenizer has no token for"
        places = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        start, end = places[ids.index(self.tokenizer.unk_token_id)]
        token, all_tokens = self.strict
        return f"{text!r} has the {token} {text[start:end]!r}, which the task's {all_tokens} lacks"

    def encode(self, pairs: list[tuple[str, str]]) -> tuple[Prompts, Tensor, Tensor]:
        prompts = self.format([prompt for prompt, _ in pairs])
        answers = self.tokenizer([answer for _, answer in pairs], add_special_tokens=False)["input_ids"]
        end = int(self.eos[0])
        for (prompt, answer), before, ids in zip(pairs, prompts, answers, strict=True):
            longer = "" if self.strict is None else ", or raise max_new_tokens"  # what the model is built for
            self._check_prompt(prompt, before, len(ids) + 1, f"shorten it or its answer{longer}")
            if self.tokenizer.unk_token_id in ids and self.tokenizer.unk_token_id not in self.eos:
                raise UserError(f"the answer {self._unknown(answer, ids)}")
            if not set(ids).isdisjoint(self.eos.tolist()):
                raise UserError(f"the answer {_short(answer)} has the token that ends a completion within: take it out")
        ids, length = _padded(prompts)
        actions, lengths = _padded([[*ids, end] for ids in answers])
        mask = torch.arange(actions.shape[1]) < lengths[:, None]
        return Prompts(ids, length, torch.arange(len(pairs))), actions, mask

    def decode(self, actions: Tensor, lengths: Tensor) -> list[str]:
        """The text of the first ``lengths`` [B] tokens of each row of ``actions`` [B, T], without special tokens."""
        rows = [ids[:length] for ids, length in zip(actions.tolist(), lengths.tolist(), strict=True)]
        return list(self.tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # -------------------------------------------------------------------------------------------- acting, scoring

    def actor(self, streams: Streams) -> TextActor:
        from rlfw.policies.generation import CausalLMActor

        return CausalLMActor(self, streams.torch("policy sampling"))

    def score(
        self, context: Context, actions: Tensor, mask: Tensor, *, entropy: bool = False, values: bool = False
    ) -> Scored:
        model = self.runs
        layout = self._layout(context, actions, torch.nn.functional.pad(mask, (0, 1)))
        body, head = vocabulary.body_and_head(model, apart=self.apart)
        hidden = layout.run(body, model.device)  # [N, D]
        tokens = actions[layout.row, layout.step].to(model.device)  # [N]
        logprobs, entropies = vocabulary.scores(head, hidden, tokens, self.shaping, self.vocab_size, entropy=entropy)

        def rectangle(cells: Tensor) -> Tensor:
            return torch.zeros(mask.shape).index_put((layout.row, layout.step), cells.cpu())

        if values and self.critic is not None and self.critic.body is not None:
            hidden = layout.run(self.critic.runs, model.device)
        return Scored(
            logprobs=rectangle(logprobs),
            entropy=rectangle(entropies) if entropy else ABSENT,
            values=rectangle(self.critic_head(hidden)) if values else ABSENT,
        )

    def values(self, context: Context, actions: Tensor, mask: Tensor) -> Tensor:
        B, T = mask.shape
        step = torch.arange(T + 1)
        length = (mask * step[1:]).amax(1, keepdim=True)  # [B, 1]
        layout = self._layout(context, actions, torch.nn.functional.pad(mask, (0, 1)) | (step == length))
        values = self.critic_head(layout.run(self.critic_body, self.model.device)).cpu()
        column = layout.step.where(layout.step < length[layout.row, 0], T)  # after the last token: column T
        return values.new_zeros(B, T + 1).index_put((layout.row, column), values)

    def _layout(self, context: Context, actions: Tensor, cells: Tensor) -> Layout:
        assert isinstance(context, Prompts)
        return Layout.of(context, actions, cells, packed=self.padded is None)

    # -------------------------------------------------------------------------------------------- critic, copies

    def add_critic(self, network: str) -> None:
        one_of("baseline.critic.network", network, ("own", "head"))
        if not self.apart:
            raise UserError(
                f"baseline=critic: {type(self.model).__name__} does not show its hidden states: take another"
            )
        body = lora.sharing(self.model.base_model) if network == "own" else None
        self.critic = Critic(body, self.model.get_output_embeddings().weight.shape[1], halved=self.halved is not None)
        self.critic.eval().to(self.model.device)

    @property
    def critic_body(self) -> Any:
        """What turns tokens into the critic's hidden states, as it is run."""
        assert self.critic is not None
        return self.runs.base_model if self.critic.body is None else self.critic.runs

    def critic_head(self, hidden: Tensor) -> Tensor:
        """[N, width] -> values [N]."""
        assert self.critic is not None
        value: Tensor = self.critic.head(hidden.float())
        return value[:, 0]

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        assert self.critic is not None
        return (p for p in self.critic.parameters() if p.requires_grad)

    def reference(self) -> CausalLM:
        critic, self.critic = self.critic, None
        twin = lora.sharing(self, self.tokenizer).requires_grad_(False)
        twin.frozen = True
        self.critic = critic
        return twin

    def save(self, folder: Path) -> None:
        """A folder that transformers loads, adapter merged; the adapter itself and the critic lie beside.

        Of a reference that shares its model it is the adapter alone.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.lora is not None:
            lora.save_adapter(self.model, folder)
        if self.lora is None or not self.frozen:
            weights = self.model.state_dict() if self.lora is None else lora.merged(self.model)
            self.model.save_pretrained(folder, state_dict=_own_storage(weights))
            self.tokenizer.save_pretrained(folder)
        if self.critic is not None:
            save_file(_own_storage(lora.trained(self.critic)), folder / CRITIC_FILE)

    def load(self, folder: Path) -> None:
        """Into the parameters that there are: views of them stay valid."""
        if self.lora is None:
            self.model.load_state_dict(loaded(str(folder))[0].state_dict())
        else:
            lora.load_adapter(self.model, folder)
        if self.critic is not None:
            if not (folder / CRITIC_FILE).is_file():
                raise UserError(f"{folder} holds a policy without a critic; this run's baseline needs one")
            frozen = self.critic.state_dict() | load_file(folder / CRITIC_FILE)
            self.critic.load_state_dict(frozen)


class Critic(nn.Module):
    """A scalar head, zero at the start, on a body of its own (a copy of the policy's) or on the policy's body."""

    def __init__(self, body: nn.Module | None, width: int, *, halved: bool) -> None:
        super().__init__()
        self.body = body
        self.halved = precision.Half(body) if halved and body is not None else None
        self.head = nn.utils.skip_init(nn.Linear, width, 1)  # draws nothing from the global random state
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def runs(self) -> Any:
        """The own body in the policy's number format, with the present weights."""
        return self.body if self.halved is None else self.halved.fresh()


def _padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Right-padded ids [P, L] and lengths [P]."""
    lengths = torch.tensor([len(row) for row in rows])
    L = int(lengths.max())
    return torch.tensor([row + [0] * (L - len(row)) for row in rows]), lengths


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}... ({len(text)} characters)"


def _own_storage(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict in which no two tensors share memory but those that are one (tied weights)."""
    clones: dict[int, Tensor] = {}
    return {name: clones.setdefault(tensor.data_ptr(), tensor.clone()) for name, tensor in weights.items()}
