"""Reward functions by the names that a configuration has for them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError
from rlfw.registry import plugin_modules, suggest

from .reward_model import RewardModel
from .sentiment import sentiment_reward
from .tasks import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from .reward_functions import RewardFunction

BUILT_IN: dict[str, Callable[[], RewardFunction]] = {"exact": lambda: exact, "sentiment": sentiment_reward}
KEY = "env.prompts.rewards"


def named_rewards(names: list[str], models: Mapping[str, str]) -> dict[str, RewardFunction]:
    """The functions of these names, and the reward model in each folder of ``models`` under its own name."""
    found = {name: _find(name) for name in names}
    if len(found) < len(names):
        raise UserError(f"{KEY}=[{','.join(names)}] names a function twice")
    for name, folder in models.items():
        if name in found:
            raise UserError(f"{KEY} and env.prompts.reward_models both have {name}: give one another name")
        found[name] = RewardModel(folder, key=f"env.prompts.reward_models.{name}")
    return found


def _find(name: str) -> RewardFunction:
    """A function that a plugin file defines, or one of ours. Code is named by plugins=[FILE] alone."""
    if ".py" in name:
        file, _, function = name.rpartition(":") if ":" in name else (name, "", "NAME")
        raise UserError(f"{KEY}: {name}: a file is named by plugins=[{file}], its function by {KEY}=[{function}]")
    modules = plugin_modules()
    own = [module for module in modules if name in _defined(module)]
    if len(own) > 1:
        files = " and ".join(str(module.__file__) for module in own)
        raise UserError(f"{KEY}: {files} both define {name}: rename one")
    if not own and any(inspect.isclass(vars(module).get(name)) for module in modules):
        raise UserError(f"{KEY}: {name} is a class: name an object of it, as in {name.lower()} = {name}()")
    if not own and name not in BUILT_IN:
        known = [*(name for module in modules for name in _defined(module)), *BUILT_IN]
        remedy = "" if modules else "; one of your own stands in a file, which is named too: plugins=[FILE]"
        raise UserError(f"{KEY}: there is no reward function {name}{suggest(name, known)}{remedy}")
    return _defined(own[0])[name] if own else BUILT_IN[name]()


def _defined(module: ModuleType) -> dict[str, Any]:
    """What can be called and is made in ``module``: nothing that it imports, which a configuration must not reach."""
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value)
        and not inspect.isclass(value)
        and (not inspect.isroutine(value) or value.__module__ == module.__name__)
        and not name.startswith("_")
    }
