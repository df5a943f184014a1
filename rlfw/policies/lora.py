"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: a model's weights stay as they are, small factors train.

A layer's weight is W + alpha / rank * B A, where B is zero at the start. peft is an extra, imported where it is needed.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlfw.checks import above, at_least
from rlfw.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

M = TypeVar("M", bound=nn.Module)
NAME = "default"  # peft's name of an adapter among several
FOLDER = "adapter"  # beside the model's own files: there, transformers would put the adapter on top of merged weights
WEIGHTS = "adapter_model.safetensors"  # peft's name


@dataclass(frozen=True)
class Lora:
    """How large an adapter is, and where: by default on every linear layer but the head."""

    rank: int
    alpha: float | None = None  # None: twice the rank
    targets: tuple[str, ...] = ()  # the ends of layers' names, e.g. q_proj

    @classmethod
    def of(cls, key: str, path: str | None, rank: int | None, alpha: float | None, targets: list[str]) -> Lora | None:
        """None where no ``rank`` is given; UserError for keys that cannot act."""
        if rank is None:
            for name, value in (("lora_alpha", alpha), ("lora_targets", targets)):
                if value:
                    raise UserError(f"{key}.{name}={value} has no effect: set {key}.lora_rank=N")
            return None
        at_least(f"{key}.lora_rank", rank, 1)
        if alpha is not None:
            above(f"{key}.lora_alpha", alpha, 0)
        if path is None:
            raise UserError(f"{key}.lora_rank={rank} adapts a model that is there: set {key}.path=DIR")
        if find_spec("peft") is None:
            raise UserError(f"{key}.lora_rank={rank} needs peft: pip install 'rlfw[lora]'")
        return cls(rank, alpha, tuple(targets))

    def attach(self, model: Any, path: str, seed: int, key: str) -> None:
        """Put adapters into ``model``, whose own weights take no gradient from here on."""
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=path,
            r=self.rank,
            lora_alpha=2 * self.rank if self.alpha is None else self.alpha,  # type: ignore[arg-type]
            target_modules=list(self.targets) or "all-linear",
            inference_mode=False,
        )
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
                torch.manual_seed(seed)
                inject_adapter_in_model(config, model, NAME)
        except ValueError as error:  # a name that no layer has, or a layer of another kind
            raise UserError(f"{key}.lora_targets={list(self.targets)}: {' '.join(str(error).split())}") from error
        if strange := [name for name, layer in layers(model).items() if NAME not in layer.lora_B]:
            raise UserError(f"{key}.lora_targets: {strange[0]} is no linear layer: name others")
        model.eval()


def layers(model: nn.Module) -> dict[str, Any]:
    """The layers that bear an adapter, by name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def leave_out_zeros(model: nn.Module) -> None:
    """Switch the adapter of a frozen model off where it is zero, which spares its products; on where it is not."""
    found = layers(model).values()
    on = any(bool(layer.lora_B[NAME].weight.any()) for layer in found)
    for layer in found:
        if layer.disable_adapters == on:
            layer.enable_adapters(on)
    model.requires_grad_(False)  # switching on asks for gradients


def sharing(module: M, *also: object) -> M:
    """A copy that shares what takes no gradient, and ``also``."""
    frozen = [p for p in module.parameters() if not p.requires_grad]
    return copy.deepcopy(module, {id(thing): thing for thing in (*frozen, *also)})


def trained(module: nn.Module) -> dict[str, Tensor]:
    """A state dict without the weights that take no gradient."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the same model without adapters: W + alpha / rank * B A, in float32."""
    found: dict[str, Tensor] = {}
    one: dict[int, Tensor] = {}  # tied weights stay one
    adapted = layers(model)
    for name, tensor in model.state_dict().items():
        layer, base, kind = name.rpartition(".base_layer.")
        if base and kind == "weight":
            tensor = tensor + adapted[layer].get_delta_weight(NAME)
        if ".lora_" not in name:
            found[f"{layer}.{kind}" if base else name] = one.setdefault(tensor.data_ptr(), tensor.float())
    return found


# ------------------------------------------------------------------------------------------------ files


def save_adapter(model: Any, folder: Path) -> None:
    """adapter/ in the form of peft, which loads it on top of the model that it was trained on."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    model.peft_config[NAME].save_pretrained(folder / FOLDER)
    state = {f"base_model.model.{name}": tensor.clone() for name, tensor in _factors(model).items()}
    save_file(state, folder / FOLDER / WEIGHTS, metadata={"base": _base(model)})


def load_adapter(model: Any, folder: Path) -> None:
    """Into the factors that there are; UserError where another model was adapted."""
    file = folder / FOLDER / WEIGHTS
    if not file.is_file():
        raise UserError(f"{folder} holds a model without an adapter; this run trains one")
    with safe_open(file, "pt") as content:
        if content.metadata()["base"] != _base(model):
            raise UserError(f"the adapter in {folder} was trained on another model than the one that is there now")
    state = {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(file).items()}
    there = _factors(model)
    if differing := sorted(there.keys() ^ state.keys()):
        raise UserError(f"the adapter in {folder} is on other layers than this run's, e.g. {differing[0]}")
    with torch.no_grad():
        for name, factor in there.items():
            factor.copy_(state[name])


def _factors(model: nn.Module) -> dict[str, Tensor]:
    """A and B of every layer, under peft's names in a file."""
    state = model.state_dict()
    return {name.replace(f".{NAME}.", "."): tensor for name, tensor in state.items() if ".lora_" in name}


def _base(model: nn.Module) -> str:
    """A checksum of the weights that the adapter stands on."""
    total = 0
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            total = zlib.crc32(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), total)
    return f"{total:08x}"
