"""From words to a settled configuration: what a person may type, and what the refusal of the rest says."""

import copy
import itertools
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

import rlfw
from rlfw import registry
from rlfw.config import compose

registry.load_components()


def parts(words: list[str], axis: str) -> list[str]:
    return list(compose(words)[axis])


def refused(words: list[str], message: str) -> None:
    with pytest.raises(rlfw.UserError) as error:
        compose(words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


GRPO = "algorithm=grpo"


# ------------------------------------------------------------------------------------------------ choices


@pytest.mark.parametrize("axis", [axis for axis in registry.SINGLE if axis not in ("env", "policy")])
def test_one_word_swaps_a_part(axis: str):
    """From a preset that sets keys of other parts on this axis: they leave no trace."""
    for name in registry.names(axis):
        assert parts([GRPO, f"{axis}={name}"], axis) == [name]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("none", []),
        ("[]", []),
        ("clip", ["clip"]),
        ("kl", ["kl"]),
        ("both", ["clip", "kl"]),
        ("[clip,kl]", ["clip", "kl"]),
        ("[clip,kl,entropy,kl_old]", ["clip", "kl", "entropy", "kl_old"]),
        ("[both,entropy]", ["clip", "kl", "entropy"]),
    ],
)
def test_regularizers_by_word_and_by_list(word: str, expected: list[str]):
    assert sorted(parts([GRPO, f"regularizer={word}"], "regularizer")) == sorted(expected)


def test_reward_stages_keep_their_order():
    assert parts([GRPO, "reward=[kl,clip]"], "reward") == ["kl", "clip"]
    assert parts([GRPO, "reward=[clip,kl]"], "reward") == ["clip", "kl"]


@pytest.mark.parametrize("axis", registry.LISTS)
def test_no_part_on_a_list_axis_is_none(axis: str):
    assert parts(["algorithm=ppo", f"{axis}=none"], axis) == []


def test_further_instance_of_a_part():
    words = [GRPO, "+regularizer@regularizer.kl_far=kl", "regularizer.kl_far.coef=9"]
    found = compose(words).regularizer
    assert {name: node.part for name, node in found.items()} == {"clip": "clip", "kl": "kl", "kl_far": "kl"}
    assert (found.kl.coef, found.kl_far.coef) == (0.04, 9)
    refused([*words, "regularizer.kl_far.coeff=9"], "regularizer.kl_far.coeff: no such key; did you mean coef?")
    refused([*words, "regularizer.kl_far.coef=x"], "regularizer.kl_far.coef: Value 'x'")
    refused([GRPO, words[1].removeprefix("+")], "a further instance reads +regularizer@regularizer.kl_far=NAME")


@pytest.mark.medium
def test_all_presets_compose_with_each_other():
    algorithms, envs = registry.presets("algorithm"), registry.presets("env")
    pairs = {*itertools.product(algorithms, ("cartpole", "reverse")), *itertools.product(("ppo", "grpo"), envs)}
    for algorithm, env in sorted(pairs):
        cfg = compose([f"algorithm={algorithm}", f"env={env}"])
        for axis in registry.SINGLE:
            assert len(cfg[axis]) == 1
        for axis in registry.AXES:
            assert all(node.part in registry.names(axis) for node in cfg[axis].values())


def test_keys_of_a_preset_hold_whatever_env_is_chosen():
    for env in ("cartpole", "reverse"):
        assert compose([GRPO, f"env={env}"]).regularizer.kl.coef == 0.04
        assert compose([GRPO, f"env={env}", "regularizer.kl.coef=3"]).regularizer.kl.coef == 3
        assert compose(["regularizer.kl.coef=3", f"env={env}", GRPO]).regularizer.kl.coef == 3


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # names
        (["baseline=leave_on_out"], "baseline=leave_on_out: no such choice; did you mean leave_one_out?"),
        (["regularizer=[clip,entropie]"], "regularizer=entropie: no such choice; did you mean entropy?"),
        (["algorithm=grop"], "algorithm=grop: no such choice; did you mean grpo?"),
        (["experiment=nothing_like_it"], "experiment=nothing_like_it: no such file"),
        # keys
        (["gama=0.9"], "gama: no such key; did you mean gamma?"),
        (["+gama=0.9"], "gama: no such key; did you mean gamma?"),
        (["regularizer.clip.hi=0.3"], "regularizer.clip.hi: no such key; did you mean high?"),
        (["+regularizer.clip.hi=0.3"], "regularizer.clip.hi: no such key; did you mean high?"),
        (["+regularizer.clp.high=0.3"], "regularizer=clp: no such part; did you mean clip?"),
        (["warmup.step=3"], "warmup.step: no such key; did you mean steps?"),
        (["+warmup.step=3"], "warmup.step: no such key; did you mean steps?"),
        # types
        (["lr=fast"], "lr: Value 'fast'"),
        (["epochs=1.5"], "epochs: Value '1.5'"),
        (["tensorboard=maybe"], "tensorboard: Value 'maybe'"),
        (["regularizer.clip.high=off"], "regularizer.clip.high: Value 'off'"),
        # none and null
        (["baseline=null"], "baseline=null: name a part, or write baseline=none"),
        (["regularizer=null"], "regularizer=null: name a part, or write regularizer=none"),
        (["baseline=true"], "baseline=true: a part is chosen by its name"),
        (["regularizer=[clip,nan]"], "regularizer=nan: a part is chosen by its name"),
        (["regularizer=[clip,1]"], "regularizer=1: a part is chosen by its name"),
        (["baseline=off"], "baseline=off: no such choice; there are"),
        (["regularizer.clip.high=null"], "regularizer.clip.high"),
        # what has no effect
        (
            [GRPO, "regularizer=clip", "regularizer.kl.coef=.2"],
            "regularizer.kl.coef has no effect: regularizer=kl is not",
        ),
        ([GRPO, "regularizer=clip", "regularizer.kl.coef=.2"], "write regularizer=[clip,kl]"),
        ([GRPO, "regularizer=clip", "regularizer={kl: {coef: .2}}"], "regularizer.kl.coef has no effect"),
        (
            ["algorithm=ppo", "regularizer.kl.coef=.2"],
            "regularizer.kl.coef has no effect: regularizer=kl is not chosen",
        ),
        (["algorithm=ppo", "regularizer=clip", "regularizer.kl.coef=.2"], "write regularizer=[clip,kl]"),
        (["algorithm=ppo", "baseline=none", "baseline.critic.coef=1"], "write baseline=critic"),
        ([GRPO, "baseline.critic.gae_lambda=.9"], "baseline=critic is not chosen; write baseline=critic"),
        ([GRPO, "baseline.group_mean.part=none"], "cannot be set: choose a part with baseline=NAME"),
        # how many
        (["regularizer=[clip,clip]"], "regularizer=[clip,clip] names clip twice"),
        (["regularizer=[both,kl]"], "regularizer=[both,kl] names kl twice"),
        (["regularizer=[clip,none]"], "regularizer=[clip,none]: none stands alone"),
        (["baseline=[critic,none]"], "baseline takes one part, got critic, none"),
        ([GRPO, "+baseline@baseline.second=critic"], "baseline takes one part, got group_mean, second"),
        # sweeps
        (["seed=0,1"], "seed has several values: a sweep needs -m"),
        (["regularizer=clip,kl"], "regularizer has several values: a sweep needs -m"),
        (["lr=choice(1,2)"], "lr has several values: a sweep needs -m"),
        # words
        (["seed"], "an override reads key=value"),
    ],
)
def test_refusals_name_the_thing_and_the_remedy(words: list[str], message: str):
    refused(words, message)


def test_stub_of_a_preset_is_dropped_with_its_part():
    assert list(compose([GRPO, "regularizer=clip"]).regularizer.clip) == ["part", "low", "high"]
    assert parts([GRPO, "regularizer=clip"], "regularizer") == ["clip"]


def test_yaml_spellings_of_numbers_on_the_command_line():
    assert compose(["lr=1e-5"]).lr == 1e-5
    assert compose(["lr=.5"]).lr == 0.5
    assert compose(["lr=1"]).lr == 1.0
    assert compose(["tensorboard=no"]).tensorboard is False
    assert compose(["tensorboard=off"]).tensorboard is False
    assert compose(["baseline.critic.clip=null"]).baseline.critic.clip is None


def test_names_within_a_mapping_are_the_users_own():
    words = ["reward=weighted", "reward.weighted.weights={right: 1, short: 0.5}"]
    assert compose(words).reward.weighted.weights == {"right": 1.0, "short": 0.5}
    assert compose(["reward=weighted", "reward.weighted.weights.right=2"]).reward.weighted.weights == {"right": 2.0}
    refused(["reward=weighted", "reward.weighted.weights={right: much}"], "reward.weighted.weights.right: Value 'much'")


def test_budget_in_iterations_replaces_a_presets_budget_in_steps():
    cfg = compose(["env=cartpole", "iterations=3"])
    assert (cfg.iterations, cfg.total_steps) == (3, None)
    assert compose(["env=cartpole", "iterations=3", "total_steps=5"]).total_steps == 5  # left to the check of the run


def test_of_two_budgets_the_typed_one_holds_then_the_experiments(folder: Path):
    (folder / "experiments" / "short.yaml").write_text("iterations: 4\n")
    (folder / "experiments" / "long.yaml").write_text("total_steps: 999\n")

    def budget(*words: str) -> tuple[int | None, int | None]:
        cfg = compose(["env=cartpole", *words])
        return cfg.total_steps, cfg.iterations

    assert budget("experiment=short") == (None, 4)
    assert budget("experiment=long") == (999, None)
    assert budget("experiment=short", "total_steps=7") == (7, None)
    assert budget("experiment=long", "iterations=7") == (None, 7)
    assert budget("experiment=long", "total_steps=null", "iterations=7") == (None, 7)


# ------------------------------------------------------------------------------------------------ experiments


EXPERIMENT = """\
# A smaller step
defaults:
  - override /algorithm: grpo
  - override /regularizer: [kl]
lr: 1e-5
tensorboard: off
regularizer: {kl: {coef: 7}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with experiments/ in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    return tmp_path


@pytest.mark.parametrize("word", ["small", "small.yaml", "experiments/small.yaml"])
def test_experiment_by_name_and_by_path(word: str, folder: Path):
    (folder / "experiments" / "small.yaml").write_text(EXPERIMENT)
    cfg = compose([f"experiment={word}", "env=cartpole"])
    assert (cfg.lr, cfg.tensorboard) == (1e-5, False)
    assert list(cfg.regularizer) == ["kl"]
    assert cfg.regularizer.kl.coef == 7
    assert list(cfg.baseline) == ["group_mean"]
    assert compose([f"experiment={word}", "lr=2", "regularizer.kl.coef=8"]).regularizer.kl.coef == 8


def test_experiment_by_absolute_path(folder: Path):
    (folder / "elsewhere.yaml").write_text(EXPERIMENT)
    assert compose([f"experiment={folder / 'elsewhere.yaml'}"]).regularizer.kl.coef == 7


def test_experiment_with_a_further_instance(folder: Path):
    text = "defaults:\n  - /regularizer@regularizer.far: kl\nregularizer: {far: {coef: 3}}\n"
    (folder / "experiments" / "far.yaml").write_text(text)
    assert compose(["experiment=far", GRPO]).regularizer.far.coef == 3


def test_misspelt_experiment_suggests_its_neighbour(folder: Path):
    (folder / "experiments" / "small.yaml").write_text(EXPERIMENT)
    refused(["experiment=smal"], "experiment=smal: no such file; did you mean small?")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1", "learning_rate: no such key"),
        ("regularizer: {clip: {hi: 1}}", "regularizer.clip.hi: no such key; did you mean high?"),
        ("lr: fast", "lr: Value 'fast'"),
        ("regularizer: {kl: {coeff: 1}}", "coeff"),  # of a part that is not chosen
        ("plugins: [mine.py]", "plugins are read from the command line alone"),
        ("total_steps: 9\niterations: 9", "wrong.yaml: the budget is total_steps: N or iterations: N, not both"),
        ("baseline: none", "baseline: parts are chosen under defaults, as - override /baseline: NAME"),
        ("defaults: [override /baseline: off]", "override /baseline: YAML reads off, no and on as true or false"),
        ("defaults: [override /baseline: null]", "baseline takes one part, got none"),
        ("defaults: [override /baseline: nothing]", "baseline=nothing: no such choice"),
        ("defaults: [override /regularizer: [clip, clip]]", "regularizer=[clip,clip] names clip twice"),
        ("defaults: [override /reward: kl, /weight: truncated]", "overrides come last under defaults"),
        ("defaults: [regularizer@regularizer.far: kl]", "a group of the root reads /regularizer@regularizer.far"),
    ],
)
def test_mistakes_in_an_experiment(text: str, message: str, folder: Path):
    (folder / "experiments" / "wrong.yaml").write_text(text + "\n")
    refused(["algorithm=ppo", "experiment=wrong"], message)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [1", "broken.yaml is no YAML"), ("- a", "broken.yaml holds no keys")]
)
def test_experiment_that_is_no_mapping(text: str, message: str, folder: Path):
    (folder / "experiments" / "broken.yaml").write_text(text)
    refused(["experiment=broken"], message)


def test_empty_experiment_changes_nothing(folder: Path):
    (folder / "experiments" / "empty.yaml").write_text("# nothing yet\n")
    assert compose(["experiment=empty"]) == compose([])


# ------------------------------------------------------------------------------------------------ plugins

PLUGIN = '''\
from dataclasses import KW_ONLY, dataclass

from rlfw import register
from rlfw.interfaces import Normalize


@register("normalize", "halved")
@dataclass
class Halved(Normalize):
    """Advantages times a factor."""

    _: KW_ONLY
    factor: float = 0.5
    scope = "rollout"

    def __call__(self, advantages, batch):
        return self.factor * advantages
'''


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(found) for axis, found in registry._PARTS.items()})
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))


@pytest.mark.usefixtures("forgotten")
def test_part_of_a_plugin_is_used_by_name(folder: Path):
    (folder / "mine.py").write_text(PLUGIN)
    words = ["plugins=[mine.py]", "baseline=none", "ratio=none", "regularizer=none", "normalize=halved"]
    given = {"mask": [[1]], "group": [0], "rewards": [3], "logprobs": [[0.0]], "old_logprobs": [[0.0]]}
    assert float(rlfw.probe(words, **given).advantages) == 1.5
    assert float(rlfw.probe([*words, "normalize.halved.factor=2"], **given).advantages) == 6
    refused([*words, "normalize.halved.faktor=2"], "normalize.halved.faktor: no such key; did you mean factor?")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import nothing_of_this_name",
            "mine.py, line 1): ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        ("def f(:", "mine.py, line 1): SyntaxError: invalid syntax"),
        (
            PLUGIN.replace('"halved"', '"whiten"'),
            "normalize=whiten is registered twice: rlfw.algorithms.normalize.Whiten (",
        ),
        (PLUGIN.replace('"normalize"', '"normalise"'), "there is no axis normalise"),
    ],
)
def test_plugin_that_does_not_import_stops_the_run(text: str, message: str, folder: Path):
    (folder / "mine.py").write_text(text)
    refused(["plugins=[mine.py]"], message)


def test_a_part_whose_file_is_not_named(folder: Path):
    (folder / "halved.py").write_text(PLUGIN)
    refused(["normalize=halved"], "normalize=halved: no such choice; halved.py lies here: add plugins=[halved.py]")


@pytest.mark.parametrize("value", ["mine.py", "null"])
def test_plugins_are_a_list(value: str):
    refused([f"plugins={value}"], "it takes a list, plugins=[FILE]")


def test_plugin_that_is_not_there(folder: Path):
    refused(["plugins=[mine.py]"], "plugins: there is no file mine.py")
