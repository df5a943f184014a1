"""`rlfw check`: every part here is sound, and what the command says. That faults are caught is in test_mutants.py."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rlfw
from rlfw import registry
from rlfw.cli import main
from rlfw.testing import check, check_part
from rlfw.testing.battery import CHECKS, parts
from rlfw.testing.cases import distance, random_case
from rlfw.testing.frozen import Held, differences
from rlfw.testing.oracles import BANDIT, CHAIN
from rlfw.testing.report import WIDTH

pytestmark = pytest.mark.medium

registry.load_components()
HERE = ("env/cartpole", "env/pendulum", "env/copy")  # tests/envs answers for the other presets
VARIANTS = [  # other settings, which take other paths
    "regularizer.kl.estimator=k3+",
    "regularizer.kl.unbiased=true",
    "regularizer.kl.to=old",
    "regularizer.kl_old.estimator=k1",
    "regularizer.kl_cov.fraction=0.5",
    "normalize.group_std.scope=minibatch",
    "normalize.whiten.scope=minibatch",
    "normalize.batch_std.of=advantages",
    "ratio.sequence.source=behaviour",
    "weight.tis.level=geometric",
    "baseline.critic.clip=0.2",
    "sampler.episodes.no_signal=resample",
    "policy.causal_lm.temperature=0.7",
]


@pytest.mark.parametrize("part", [part for part in parts() if not part.startswith("env/") or part in HERE])
def test_part_is_sound(part: str):
    report = check_part(part)
    assert report.having("passed")


@pytest.mark.parametrize("override", VARIANTS)
def test_part_is_sound_under_other_settings(override: str):
    axis, name, setting = override.split(".", 2)
    key, _, value = setting.partition("=")
    report = check_part(f"{axis}/{name}", [override])
    assert str(report.keys[key]).lower() == value


# ------------------------------------------------------------------------------------------------ what it measures


def test_group_mean_has_three_quarters_of_the_gradient_and_leave_one_out_all_of_it():
    """(G - 1) / G for groups of four (arXiv:2402.14740); whatever is added to the rewards."""
    for name, factor in (("group_mean", "0.75"), ("leave_one_out", "1"), ("none", "1")):
        words = check(f"baseline/{name}")["bandit"].words
        for payment in ("0 and 1", "1 and 2, all positive", "-2 and -1, all negative"):
            assert f" {factor} ({payment})" in words


def test_kl_gradients_of_two_arms():
    """k2 has the gradient of the reverse KL, k3 that of the forward one: .2 / .177933 of it at (.7, .3), (.5, .5)."""
    for estimator, share in (("k2", "0.04 and"), ("k3", f"{0.04 * 0.2 / 0.177933:.3g} and")):
        words = check("regularizer/kl", [f"regularizer.kl.estimator={estimator}"])["pull"].words
        assert f"by {share}" in words


def test_true_gradients_of_the_oracles():
    """By hand: p (1 - p) for the better arm; J = p q for the chain, q the second choice in the state that pays."""
    torch.testing.assert_close(BANDIT.truth(5.0, 1.0), torch.tensor([[-0.21, 0.21]]).double())
    p, q = 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(0.4))  # state 0: logits (0, -.5); state 2: (.4, 0)
    first, second = p * (1 - p) * q, p * q * (1 - q)
    expected = [[-first, first], [0.0, 0.0], [-second, second]]
    torch.testing.assert_close(CHAIN.truth(0.0, 1.0), torch.tensor(expected).double())
    torch.testing.assert_close(CHAIN.values(1.0, 1.0)[3], torch.tensor([p * q + 1, q + 1, 0]).double())


def test_held_differences_leave_out_what_is_detached():
    """d/dx of sg(x) x is x with sg(x) held, 2 x without; the same for what no_grad makes."""

    def no_grad(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x * 1

    x = torch.tensor([3.0, -2.0], dtype=torch.float64)
    for stop in (torch.Tensor.detach, no_grad):
        held = Held()

        def f(y: torch.Tensor, stop=stop, held=held) -> float:
            with held:
                found = (stop(y) * y).sum()
            return found.item()

        f(x)
        torch.testing.assert_close(differences(f, x, torch.arange(2)), x)
        plain = differences(lambda y, stop=stop: (stop(y) * y).sum().item(), x, torch.arange(2))
        torch.testing.assert_close(plain, 2 * x)


def test_distance_of_nan_passes_no_tolerance():
    one = torch.tensor([0.0, torch.nan])
    assert not distance(one, torch.zeros(2)) <= 1e9
    assert distance(torch.tensor([100.0]), torch.tensor([101.0])) == pytest.approx(1 / 101)


def test_padding_and_order_keep_the_cells_of_a_case():
    """What is compared cell by cell is the same step: the rewards on the mask are those of the case itself."""
    case = random_case()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    for changed in (case.padded(empty_row=True), case.permuted(order)):
        found = dict(zip(changed.cells.tolist(), changed.batch.rewards[changed.batch.mask].tolist(), strict=True))
        expected = dict(zip(case.cells.tolist(), case.batch.rewards[case.batch.mask].tolist(), strict=True))
        assert found == expected


# ------------------------------------------------------------------------------------------------ the report


def test_check_part_raises_the_report_of_a_fault():
    """k1 in the loss regularises nothing, and the framework lets it through under force alone."""
    overrides = ["regularizer.kl.estimator=k1", "regularizer.kl.force=true"]
    with pytest.raises(AssertionError, match=r"FAIL pull .*no expected gradient") as raised:
        check_part("regularizer/kl", overrides)
    assert "regularizer/kl is NOT sound: pull failed" in str(raised.value)
    assert check("regularizer/kl", overrides).failures == ["pull"]


def test_page_is_narrow_and_ends_with_the_verdict():
    report = check("regularizer/clip")
    for why in (False, True):
        lines = report.text(why=why).splitlines()
        assert max(map(len, lines)) <= WIDTH
        assert lines[-1].startswith("regularizer/clip is sound: 17 passed, 0 not applicable")
    assert "clip(r, 1 - 0.2, 1 + 0.2)" in report.formula


def test_every_check_says_why():
    assert [check.__name__ for check, _ in CHECKS if len(check.__doc__ or "") < 60] == []


# ------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["regularizer/cilp"], "regularizer=cilp: no such part; did you mean clip?"),
        (["regularise/clip"], "no such axis: regularise; did you mean regularizer?"),
        (["clip"], "check takes AXIS/NAME, e.g. regularizer/clip; got clip: write reward/clip or regularizer/clip"),
        (["ppo"], "got ppo, a recipe: rlfw explain algorithm=ppo shows it"),
        (["algorithm=ppo"], "algorithm=ppo is a recipe: rlfw explain algorithm=ppo shows it"),
        (["mine.py"], "got mine.py: write plugins=[mine.py]"),
        ([], "check takes AXIS/NAME, e.g. regularizer/clip, or --all"),
        (["regularizer/clip", "regularizer.clip.lo=1"], "regularizer.clip.lo: no such key; did you mean low?"),
        (["regularizer/clip", "regularizer.clip.low=2"], "regularizer.clip.low=2.0: it must lie in [0, 1]"),
        (["regularizer/clip", "baseline.critic.coef=1"], "check sets the keys of regularizer=clip alone"),
        (["regularizer/clip", "--all"], "--all checks every part, regularizer/clip among them"),
        (["regularizer/clip", "regularizer/kl", "regularizer.kl.coef=1"], "keys go with one part"),
        (["env/gym"], "env.gym.id must be given"),
        (["plugins=[nowhere.py]"], "there is no file nowhere.py"),
    ],
)
def test_wrong_words_are_answered(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_axis_equals_name_is_a_part_and_json_holds_the_numbers(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "normalize=group_std", "normalize.group_std.ddof=0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["axis"], found["name"], found["sound"]) == ("normalize", "group_std", True)
    assert found["keys"]["ddof"] == 0
    assert {result["name"] for result in found["results"]} >= {"padding", "no_spread", "bandit"}


def test_several_parts_get_a_line_each_and_a_verdict(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "ratio/token", "aggregation/token_mean"]) == 0
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == ["ratio/token", "sound"]
    assert second.split()[:2] == ["aggregation/token_mean", "sound"]
    assert last.startswith("2 of 2 parts are sound")


PLUGIN = '''
from dataclasses import KW_ONLY, dataclass

from rlfw import functional as F
from rlfw import register
from rlfw.interfaces import Penalty, Surrogate


@register("regularizer", "soft_clip")
@dataclass
class SoftClip(Surrogate):
    """A clip that bends instead of breaking: A sigmoid(k (r - 1)) 4 / k."""

    _: KW_ONLY
    sharpness: float = 1.0
    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        ratio = F.exp_ratio(new.log_ratio)
        return batch.advantages * (self.sharpness * (ratio - 1)).sigmoid() * 4 / self.sharpness


@register("regularizer", "wrong_way")
@dataclass
class WrongWay(Penalty):
    """Drives the policy away from the reference."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        return -((new.logprobs - batch.ref_logprobs) ** 2)
'''


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, so that no other test sees the plugin."""
    line = [sys.executable, "-m", "rlfw.cli", "check", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_plugin_from_an_empty_folder(tmp_path: Path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    sound = command(tmp_path, "regularizer/soft_clip", "plugins=[mine.py]", "regularizer.soft_clip.sharpness=2")
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "regularizer/soft_clip is sound" in sound.stdout
    assert "sharpness=2.0" in sound.stdout
    both = command(tmp_path, "plugins=[mine.py]")
    assert (both.returncode, both.stderr) == (1, "")
    assert "a pull of -" in both.stdout
    assert both.stdout.splitlines()[-1].startswith("1 of 2 parts are sound")
    assert both.stdout.splitlines()[-1].endswith("NOT sound: regularizer/wrong_way")


def test_a_part_whose_file_lies_here_is_not_taken_for_a_slip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "dual_clipp.py").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["check", "regularizer/dual_clipp"]) == 2
    assert "if dual_clipp.py registers it, add plugins=[dual_clipp.py]" in capsys.readouterr().err


SLIPS = """
from dataclasses import dataclass
from rlfw import functional as F
from rlfw import register
from rlfw.interfaces import Surrogate

@register("regularizer", "reads_entropy")
@dataclass
class ReadsEntropy(Surrogate):
    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio) * batch.advantages * (1 + new.entropy.detach())

@register("regularizer", "reads_ratio")
@dataclass
class ReadsRatio(Surrogate):
    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio) * batch.advantages

@register("regularizer", "attached")
@dataclass
class Attached(Surrogate):
    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio) * batch.advantages * new.logprobs

@register("regularizer", "slip")
@dataclass
class Slip(Surrogate):
    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratios)

@register("regularizer", "row_sum")
@dataclass
class RowSum(Surrogate):
    def __call__(self, new, batch):
        return batch.on_mask(new.logprobs * batch.advantages).sum(1)

@register("regularizer", "counts")
@dataclass
class Counts(Surrogate):
    needs = frozenset({"ratio"})

    def __post_init__(self):
        self.calls = 0

    def __call__(self, new, batch):
        self.calls += 1
        return F.exp_ratio(new.log_ratio) * batch.advantages / self.calls
"""


def test_slips_of_a_first_part_are_told_in_words_that_lead_to_them(tmp_path: Path):
    (tmp_path / "mine.py").write_text(SLIPS)
    done = command(tmp_path, "plugins=[mine.py]", "--json")
    first = {}
    for report in json.loads(done.stdout):
        first[report["name"]] = next(result for result in report["results"] if result["verdict"] == "failed")
    for name, check_, words in (
        ("reads_entropy", "needs", 'reads new.entropy but does not declare it: add "entropy" to needs'),
        ("reads_ratio", "needs", 'reads new.log_ratio but does not declare it: add "ratio" to needs'),
        ("attached", "push", "what multiplies it carries a gradient: detach it"),
        ("slip", "shapes", "'Current' object has no attribute 'log_ratios'; at `return F.exp_ratio(new.log_ratios)`"),
        ("row_sum", "shapes", "return a number for each step"),
        ("counts", "memory", "its calls change self.calls"),
    ):
        assert first[name]["name"] == check_
        assert words in first[name]["words"]
    assert "raised an error" in first["slip"]["why"]


def test_plugin_that_fails_to_import_is_named_with_its_line(tmp_path: Path):
    (tmp_path / "broken.py").write_text("import rlfw\nrlfw.nothing\n")
    done = command(tmp_path, "regularizer/mine", "plugins=[broken.py]")
    assert done.returncode == 2
    assert "the plugin broken.py fails to import" in done.stderr
    assert "line 2" in done.stderr


def test_user_errors_reach_a_program():
    with pytest.raises(rlfw.UserError, match="no such part; did you mean clip"):
        check_part("regularizer/cilp")
