"""The file that declares a study: its ``study:`` key; what stands beside it is the base's own experiment."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from rlfw import config
from rlfw.errors import UserError
from rlfw.registry import suggest
from rlfw.study.records import SUMMARIES, Metric

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from rlfw.study.space import Search

MODES = ("grid", "one_at_a_time", "leave_one_out", "arms", "search")
KEYS = ("question", "base", "mode", "factors", "with", "skip", "arms", "envs", "seeds", "metric", "curves", "against")
SEARCH = ("space", "trials", "batch", "sampler")  # keys of mode: search
METRIC_KEYS = ("name", "summary", "last", "threshold", "higher_is_better")
OWN = {  # keys of a run that the study sets itself
    "seed": "seeds: N says how many",
    "out": "--out says where",
    "resume": "a second call goes on by itself",
    "threads": "--threads says how many",
    "progress": "the study has a table of its own",
    "plugins": "no file names code to run: rlfw study FILE plugins=[FILE]",
}


@dataclass(frozen=True)
class Env:
    """What the arms are tried on: its name and the words that make it."""

    name: str
    words: list[str]


@dataclass(frozen=True)
class Study:
    """A declaration, checked as far as it can be without composing anything."""

    question: str
    base: list[str]
    experiment: dict[str, Any]  # the file's other keys, as in an experiment
    mode: str
    factors: dict[str, list[str]]
    coupled: dict[str, list[str]]  # "a=b c=d" -> the words that come along where both are chosen
    skip: list[list[str]]
    arms: dict[str, list[str]]
    envs: list[Env]  # a single one without words where the declaration names none
    seeds: int
    metric: Metric
    curves: list[str]  # columns that the report draws beside the metric
    against: list[tuple[str, str]]  # columns x and y: where each arm goes, y over x
    search: Search | None = None  # of mode: search
    typed: list[str] = field(default_factory=list)  # of the base's words those of the command line: they may name code


def read(file: Path) -> Study:
    """The study that ``file`` declares; UserError with the key for whatever cannot be one."""
    found = _load(file)
    at = f"{file}: study"
    body = found.pop("study", None)
    if not isinstance(body, dict):
        raise UserError(f"{file} declares no study: it has no key study with question, base, mode, ...")
    _known(at, body, (*KEYS, *SEARCH))
    for name in ("question", "mode", "seeds", "metric"):
        if name not in body:
            raise UserError(f"{at}.{name} is missing")
    mode, metric = body["mode"], _metric(f"{at}.metric", body["metric"])
    if mode not in MODES:
        raise UserError(f"{at}.mode: {mode}: no such mode{suggest(str(mode), MODES)}")
    base = _words(f"{at}.base", body.get("base", []))
    if found and any(word.startswith("experiment=") for word in base):
        raise UserError(
            f"{at}.base names an experiment and {file} holds keys of one ({', '.join(map(str, found))}): keep one"
        )
    return Study(
        question=_text(f"{at}.question", body["question"]),
        base=base,
        experiment=found,
        mode=mode,
        factors=_factors(at, mode, body),
        coupled={str(key): _words(f"{at}.with.{key}", words) for key, words in _mapping(at, body, "with").items()},
        skip=[_words(f"{at}.skip", words) for words in _list(f"{at}.skip", body.get("skip", []))],
        arms=_arms(at, mode, body),
        envs=_envs(f"{at}.envs", body.get("envs"), base),
        seeds=count(f"{at}.seeds", body["seeds"]),
        metric=metric,
        curves=_curves(f"{at}.curves", body.get("curves", []), metric),
        against=_against(f"{at}.against", body.get("against", [])),
        search=_search(at, mode, body),
    )


def count(at: str, number: Any) -> int:
    """A number of something; UserError for any other value."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise UserError(f"{at}: {number}: it must be a whole number, at least 1")
    return number


def _load(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; a study is a YAML file with a key study")
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} holds no keys: a study reads study: {{question: ..., base: [...], ...}}")
    return found


def _search(at: str, mode: str, body: Mapping[str, Any]) -> Search | None:
    from rlfw.study import space  # it reads its keys with what stands below

    if mode == "search":
        return space.read(at, body)
    for name in SEARCH:
        if name in body:
            raise UserError(f"{at}.{name} has no effect with mode: {mode}; it belongs to mode: search")
    return None


def _factors(at: str, mode: str, body: Mapping[str, Any]) -> dict[str, list[str]]:
    found = _mapping(at, body, "factors")
    if mode == "search":
        return {}
    if mode == "arms":
        if found:
            raise UserError(f"{at}.factors has no effect with mode: arms; name the arms under arms")
        return {}
    if not found:
        raise UserError(f"{at}.factors is empty: mode: {mode} varies factors, each with a list of levels")
    factors = {}
    for key, levels in found.items():
        where = f"{at}.factors.{key}"
        several = levels if isinstance(levels, list) else [levels]
        if not several:
            raise UserError(f"{where} is empty: list its levels")
        words = [written(level) for level in several]
        if twice := [word for word, times in Counter(words).items() if times > 1]:
            raise UserError(f"{where} lists {twice[0]} twice")
        if mode == "leave_one_out" and len(words) != 1:
            raise UserError(
                f"{where}: leave_one_out takes one level a factor, with which it is in; several at once read "
                f'["[{",".join(words)}]"]'
            )
        _words(where, [f"{key}={word}" for word in words])
        factors[str(key)] = words
    return factors


def _arms(at: str, mode: str, body: Mapping[str, Any]) -> dict[str, list[str]]:
    found = _mapping(at, body, "arms")
    if mode != "arms":
        if found:
            raise UserError(f"{at}.arms has no effect with mode: {mode}; write mode: arms, or factors alone")
        return {}
    if not found:
        raise UserError(f"{at}.arms is empty: mode: arms takes name: [words] for each arm")
    return {str(name): _words(f"{at}.arms.{name}", words) for name, words in found.items()}


def _envs(at: str, found: Any, base: list[str]) -> list[Env]:
    if found is None:
        return [Env(_env_name(base) or "base", [])]
    several = [_words(at, words) for words in _list(at, found)]
    if not several:
        raise UserError(f"{at} is empty: list the envs, each a list of words, or leave the key away")
    names = [_env_name(words) or " ".join(words) for words in several]
    unique = [name if names.count(name) == 1 else " ".join(words) for name, words in zip(names, several, strict=True)]
    if len(set(unique)) < len(unique):
        raise UserError(f"{at} lists one env twice")
    return [Env(name, words) for name, words in zip(unique, several, strict=True)]


def _env_name(words: list[str]) -> str | None:
    given = dict(word.split("=", 1) for word in words)
    return given.get("env.gym.id", given.get("env"))


def _metric(at: str, found: Any) -> Metric:
    if not isinstance(found, dict):
        raise UserError(f"{at} takes keys: {', '.join(METRIC_KEYS)}")
    _known(at, found, METRIC_KEYS)
    if "name" not in found:
        raise UserError(f"{at}.name is missing: a column of metrics.jsonl, as eval/return or objective/scores")
    summary = found.get("summary", "final")
    if summary not in SUMMARIES:
        raise UserError(f"{at}.summary: {summary}: no such summary{suggest(str(summary), SUMMARIES)}")
    threshold = found.get("threshold")
    if (summary == "steps_to") != (threshold is not None):
        needed = "is missing: steps_to counts the steps to it" if threshold is None else "belongs to summary: steps_to"
        raise UserError(f"{at}.threshold {needed}")
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise UserError(f"{at}.threshold: {threshold}: it must be a number")
    if "last" in found and summary != "final":
        raise UserError(f"{at}.last has no effect with summary: {summary}")
    higher = found.get("higher_is_better", True)
    if not isinstance(higher, bool):
        raise UserError(f"{at}.higher_is_better: {higher}: true or false")
    last = count(f"{at}.last", found.get("last", 1))
    return Metric(_text(f"{at}.name", found["name"]), summary, last, threshold, higher)


def _curves(at: str, found: Any, metric: Metric) -> list[str]:
    names = [_text(at, name) for name in _list(at, found)]
    if metric.name in names:
        raise UserError(f"{at}: {metric.name} is the metric, whose curves are drawn anyway: leave it away")
    _once(at, names)
    return names


def _against(at: str, found: Any) -> list[tuple[str, str]]:
    pairs = []
    for pair in _list(at, found):
        if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
            raise UserError(f"{at}: {pair}: it takes pairs of two columns, the one along x first: [[X, Y], ...]")
        pairs.append((_text(at, pair[0]), _text(at, pair[1])))
    _once(at, [f"[{x}, {y}]" for x, y in pairs])
    return pairs


def _once(at: str, names: list[str]) -> None:
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{at} lists {twice[0]} twice")


# ------------------------------------------------------------------------------------------------ values


def written(level: Any) -> str:
    """A level as a word of the command line has it."""
    if isinstance(level, bool):
        return str(level).lower()
    if isinstance(level, list):
        return f"[{','.join(map(written, level))}]"
    return "null" if level is None else str(level)


def _words(at: str, found: Any) -> list[str]:
    words = [written(word) for word in _list(at, found)]
    check_words(at, words)
    return words


def check_words(at: str, words: Sequence[str]) -> None:
    """UserError for what is no word, or none that a file may hold. A module to import is found once it is composed."""
    for word in words:
        if "=" not in word or re.fullmatch(r"\s*|-.*", word.partition("=")[0].lstrip("+")):
            raise UserError(f"{at}: {word}: a word reads key=value")
        try:
            ((key, _),) = config.typed_overrides([word])  # as it will be read: plugins@x=[FILE] names plugins, too
        except UserError as error:
            raise UserError(f"{at}: {error}") from error
        if key in OWN:
            raise UserError(f"{at}: {key} is not set here: {OWN[key]}")


def _mapping(at: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = body.get(key) or {}
    if not isinstance(found, dict):
        raise UserError(f"{at}.{key} takes names and their values, not {found!r}")
    return found


def _list(at: str, found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise UserError(f"{at} takes a list, not {found!r}")
    return found


def _text(at: str, found: Any) -> str:
    if not isinstance(found, str) or not found.strip():
        raise UserError(f"{at}: {found!r}: it must be text")
    return found


def _known(at: str, found: Mapping[str, Any], keys: Collection[str]) -> None:
    for key in found:
        if key not in keys:
            raise UserError(f"{at}.{key}: no such key{suggest(str(key), keys)}")
