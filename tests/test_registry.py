"""Parts by name: the signature is the configuration; clashes and unknown names say what is there."""

import copy
import inspect
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hydra.core.config_store import ConfigStore

import rlfw
from rlfw import registry
from rlfw.interfaces import Normalize, Penalty


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    registry.load_components()
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(parts) for axis, parts in registry._PARTS.items()})
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))


def a_part() -> type:
    @dataclass
    class Scaled(Normalize):
        """Scales by a factor.

        The rest is detail.
        """

        gamma: float
        _: KW_ONLY
        factor: float
        names: list[str] = field(default_factory=list)
        limit: int | None = None
        scope = "rollout"

        def __call__(self, advantages: Any, batch: Any) -> Any:
            return self.factor * advantages

    return Scaled


def test_signature_is_the_configuration():
    registry.register("normalize", "scaled")(a_part())
    entry = registry.entry("normalize", "scaled")
    assert entry.keys["factor"] == ("float", "???")
    assert entry.keys["limit"] == ("int | None", None)
    assert entry.keys["names"][1] == []
    assert set(entry.keys) == {"factor", "names", "limit"}
    assert entry.summary == "Scales by a factor."


def test_positional_parameters_are_wired_and_the_rest_is_configured():
    registry.register("normalize", "scaled")(a_part())
    part = rlfw.build("normalize", {"part": "scaled", "factor": 2.0}, gamma=0.5, max_steps=9)
    assert (part.gamma, part.factor, part.names, part.limit) == (0.5, 2.0, [], None)


def test_defaults_are_not_shared_between_parts():
    registry.register("normalize", "scaled")(a_part())
    one, two = (rlfw.build("normalize", {"part": "scaled", "factor": 1.0}, gamma=1.0) for _ in range(2))
    one.names.append("x")
    assert two.names == []


def test_second_name_with_other_defaults():
    part = a_part()
    registry.register("normalize", "scaled")(part)
    registry.register("normalize", "doubled", factor=2.0)(part)
    assert registry.entry("normalize", "doubled").keys["factor"] == ("float", 2.0)
    assert registry.entry("normalize", "scaled").keys["factor"] == ("float", "???")
    kl, kl_old = (registry.entry("regularizer", name).keys for name in ("kl", "kl_old"))
    assert (kl["to"][1], kl_old["to"][1]) == ("reference", "old")


def test_default_for_a_key_that_is_not_there():
    with pytest.raises(rlfw.UserError, match=r"normalize=scaled \(.*\): the default faktor is not a parameter"):
        registry.register("normalize", "scaled", faktor=2.0)(a_part())


def test_clash_names_both_places():
    line = inspect.currentframe().f_lineno + 2
    with pytest.raises(rlfw.UserError) as error:
        registry.register("regularizer", "clip")(a_part())
    assert "regularizer=clip is registered twice: rlfw.algorithms." in str(error.value)
    assert ".Clip (" in str(error.value)
    assert f"the part at {__file__}:{line};" in str(error.value)
    assert registry.entry("regularizer", "clip").part.__name__ == "Clip"


def test_a_part_takes_no_name_of_a_preset_or_of_several_parts():
    with pytest.raises(rlfw.UserError, match="env=cartpole is a preset; give the part at"):
        registry.register("env", "cartpole")(a_part())
    with pytest.raises(rlfw.UserError, match=r"regularizer=both stands for \[clip,kl\]; give the part at"):
        registry.register("regularizer", "both")(a_part())


def test_a_preset_takes_no_name_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same file twice is one preset."""
    monkeypatch.setattr(registry, "_PRESETS", {group: dict(found) for group, found in registry._PRESETS.items()})
    (tmp_path / "mine.yaml").write_text("# Mine\ngamma: 0.5\n")
    for _ in range(2):
        registry.store_presets("env", tmp_path)
    assert registry.presets("env")["mine"] == "Mine"
    (tmp_path / "mine.yaml").write_text("# Mine\ngamma: 0.6\n")
    with pytest.raises(rlfw.UserError, match=r"env=mine is there already: give .*mine\.yaml another name"):
        registry.store_presets("env", tmp_path)
    (tmp_path / "mine.yaml").rename(tmp_path / "gym.yaml")
    with pytest.raises(rlfw.UserError, match=r"env=gym is there already: give .*gym\.yaml another name"):
        registry.store_presets("env", tmp_path)


def test_unknown_axis():
    with pytest.raises(rlfw.UserError, match=r"there is no axis regulariser for mine \(.*\); did you mean regularizer"):
        registry.register("regulariser", "mine")
    with pytest.raises(rlfw.UserError, match=r"there is no axis loss for mine \(.*\); there are env, policy"):
        registry.register("loss", "mine")


@pytest.mark.parametrize("name", ["my-part", "my.part", "2nd", "", "nan", "True"])
def test_a_name_that_no_key_could_hold(name: str):
    with pytest.raises(rlfw.UserError, match="a part's name is made of letters, digits and _, and it is a word"):
        registry.register("reward", name)


def function(**keywords: Any) -> Any:
    """A part as a function whose keys have these annotations and defaults."""

    def part(**given: Any) -> Any:
        return given

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in keywords.items()
    ]
    part.__signature__ = inspect.Signature(parameters)
    return part


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"how": (Literal["a", "b"], "a")}, "its key how is a Literal['a', 'b']: a configuration holds bool, int"),
        ({"seen": (frozenset, frozenset())}, "its key seen is a frozenset: a configuration holds bool, int"),
        ({"coef": (float, None)}, "its key coef is a float: its default is None; write float | None"),
        ({"coef": (int, 0.5)}, "its key coef is a int: its default is 0.5"),
        ({"coef": (inspect.Parameter.empty, 0.5)}, "its key coef has no type: write coef: float = ..."),
        ({"coef": ("Tensor", None)}, "the type of its key coef, Tensor, is not known while the file is imported"),
        ({"needs": (frozenset, frozenset())}, "write needs = ... without a type: with one it becomes a key"),
    ],
)
def test_keys_that_a_configuration_cannot_hold(keys: dict[str, Any], message: str):
    with pytest.raises(rlfw.UserError) as error:
        registry.register("reward", "mine")(function(**keys))
    assert message in str(error.value)
    assert f"reward=mine ({__file__}:" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_type_that_stands_there_as_a_string_is_looked_up_where_it_is_written():
    part = function(names=("list[str] | None", None), coef=("float", 1.0))
    registry.register("env", "mine")(part)
    assert registry.entry("env", "mine").keys == {"names": ("list[str] | None", None), "coef": ("float", 1.0)}


def test_a_class_of_another_axis_is_no_part_of_this_one():
    with pytest.raises(
        rlfw.UserError, match=r"Scaled is no regularizer: derive it from rlfw\.interfaces\.Surrogate or"
    ):
        registry.register("regularizer", "scaled")(a_part())
    registry.register("reward", "made")(lambda: registry.build("normalize", {"part": "none"}))
    with pytest.raises(
        rlfw.UserError, match=r"reward=made: NoNormalize is no reward: derive it from rlfw\.interfaces\.R"
    ):
        registry.build("reward", {"part": "made"})


def test_a_class_without_its_axis_s_method():
    class Half(Penalty):
        """Nothing yet."""

    with pytest.raises(rlfw.UserError, match="it does not define __call__, which every regularizer has"):
        registry.register("regularizer", "half")(Half)


def test_needs_are_a_set():
    class Wordy(Penalty):
        """One word is no set."""

        needs = "ratio"

        def __call__(self, new: Any, batch: Any) -> Any:
            return batch.rewards

    with pytest.raises(rlfw.UserError, match=r"needs = 'ratio' is not a set: write needs = frozenset\(\{\.\.\.\}\)"):
        registry.register("regularizer", "wordy")(Wordy)


def test_the_dataclass_is_made_before_it_is_registered():
    with pytest.raises(rlfw.UserError, match="write @dataclass between @register and the class"):

        @registry.register("regularizer", "early")
        class Early(Penalty):
            """Its keys are not there yet."""

            _: KW_ONLY
            coef: float = 1.0

            def __call__(self, new: Any, batch: Any) -> Any:
                return batch.rewards


def test_what_a_part_reads():
    """gamma counts for gym where it normalises rewards, and for a baseline that takes it."""
    gym, critic, group_mean = (
        registry.entry(*path) for path in (("env", "gym"), ("baseline", "critic"), ("baseline", "group_mean"))
    )
    assert gym.reads("gamma", {"part": "gym", "normalize_rewards": True})
    assert not gym.reads("gamma", {"part": "gym", "normalize_rewards": False})
    assert critic.reads("gamma", {"part": "critic"})
    assert not group_mean.reads("gamma", {"part": "group_mean"})


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(rlfw.UserError, match=r"baseline=leave_one: no such part; did you mean leave_one_out\?"):
        registry.entry("baseline", "leave_one")
    with pytest.raises(rlfw.UserError, match="ratio=xyz: no such part; there are none, token, sequence, product"):
        rlfw.build("ratio", {"part": "xyz"})


def test_unknown_key_of_a_built_part():
    with pytest.raises(rlfw.UserError, match=r"regularizer=kl has no key coeff; did you mean coef\?"):
        rlfw.build("regularizer", {"part": "kl", "coeff": 1.0})


def test_every_part_has_a_sentence_and_every_key_a_type():
    for axis in registry.AXES:
        assert registry.names(axis)
        for name in registry.names(axis):
            entry = registry.entry(axis, name)
            assert entry.summary.strip(), f"{axis}={name} has no docstring"
            assert not entry.summary.startswith(entry.part.__name__ + "("), f"{axis}={name} has no docstring of its own"
            assert all(kind for kind, _ in entry.keys.values())


def test_every_preset_has_a_sentence():
    for group in registry.PRESETS:
        assert registry.presets(group)
        assert all(sentence.strip() for sentence in registry.presets(group).values())
