"""Parts by name: the signature is the configuration; clashes and unknown names say what is there."""

import copy
from dataclasses import KW_ONLY, dataclass, field

import pytest
from hydra.core.config_store import ConfigStore

import rlfw
from rlfw import registry


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    registry.load_components()
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(parts) for axis, parts in registry._PARTS.items()})
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))


def a_part() -> type:
    @dataclass
    class Scaled:
        """Scales by a factor.

        The rest is detail.
        """

        gamma: float
        _: KW_ONLY
        factor: float
        names: list[str] = field(default_factory=list)
        limit: int | None = None

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
    with pytest.raises(ValueError, match="normalize=scaled: the default faktor is not a parameter"):
        registry.register("normalize", "scaled", faktor=2.0)(a_part())


def test_clash_names_the_part_that_is_there():
    with pytest.raises(ValueError, match=r"regularizer=clip is already rlfw\.algorithms\.regularizer\.Clip"):
        registry.register("regularizer", "clip")(a_part())
    assert registry.entry("regularizer", "clip").part.__name__ == "Clip"


def test_unknown_axis():
    with pytest.raises(ValueError, match="there is no axis regulariser; there are env, policy"):
        registry.register("regulariser", "mine")


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(rlfw.UserError, match=r"baseline=leave_one: no such part; did you mean leave_one_out\?"):
        registry.entry("baseline", "leave_one")
    with pytest.raises(rlfw.UserError, match="ratio=xyz: no such part; there are none, token, sequence, product"):
        rlfw.build("ratio", {"part": "xyz"})


def test_unknown_key_of_a_built_part():
    with pytest.raises(TypeError, match="coeff"):
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
