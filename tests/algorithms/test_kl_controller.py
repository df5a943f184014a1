"""Controllers that go by a KL: published numbers, and made-up series of KLs worked out by hand."""

from types import SimpleNamespace

import pytest

import rlfw
from rlfw.knobs import Controls, Knobs

REFERENCE = SimpleNamespace()  # that there is one is all that these controllers ask for
TOKEN, SEQUENCE, OLD = "objective/kl_per_token", "objective/kl", "policy/approxkl_avg"


def knobs_of(**numbers: float) -> tuple[Knobs, dict[str, float]]:
    """Knobs, and the numbers that they turn: what a part would read."""
    knobs, read = Knobs(), dict(numbers)
    for name in numbers:
        knobs.add(name, lambda name=name: read[name], lambda value, name=name: read.update({name: value}))
    return knobs, read


def started(part: str, knobs: Knobs, *, reference: object = REFERENCE, single_step: bool = False, **keys: object):
    controller = rlfw.build("controller", {"part": part, **keys})
    controller.start(Controls(knobs, reference, single_step))
    return controller


# ---------------------------------------------------------------------------------------------------- coefficients


@pytest.mark.parametrize(("kl", "expected"), [(9.0, 0.201024), (6.3, 0.200256), (1.0, 0.198976)])
def test_adaptive_kl_of_the_paper(kl: float, expected: float):
    """Coefficient .2, target 6 nats a sequence, 256 rows, horizon 10,000: .2 (1 + clip(KL / 6 - 1, -.2, .2) .0256)."""
    knobs, read = knobs_of(coef=0.2)
    controller = started("adaptive_kl", knobs, knob="coef", target=6.0, unit="per_sequence")
    controller.after_iteration({SEQUENCE: kl, TOKEN: 123.0, "group/n_used": 256.0})
    assert read["coef"] == pytest.approx(expected, abs=5e-7)


def test_adaptive_kl_per_token():
    """verl's defaults: .001 (1 - .2 * 1024 / 10,000)."""
    knobs, read = knobs_of(coef=0.001)
    controller = started("adaptive_kl", knobs, knob="coef", target=0.1)
    controller.after_iteration({SEQUENCE: 123.0, TOKEN: 0.05, "group/n_used": 1024.0})
    assert read["coef"] == pytest.approx(0.00097952, abs=5e-9)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.0066, 0.5), (0.0067, 1.0), (0.01, 1.0), (0.0149, 1.0), (0.0151, 2.0), (9.0, 2.0)]
)
def test_doubling_kl_of_the_paper(kl: float, expected: float):
    """beta / 2 below target / 1.5, 2 beta above 1.5 target, nothing between."""
    knobs, read = knobs_of(coef=1.0)
    started("doubling_kl", knobs, knob="coef", target=0.01).after_iteration({OLD: kl})
    assert read["coef"] == expected


@pytest.mark.parametrize("part", ["adaptive_kl", "doubling_kl"])
def test_coefficients_are_reported_as_the_iteration_had_them(part: str):
    knobs, _ = knobs_of(coef=1.0)
    controller = started(part, knobs, knob="coef", target=1.0)
    controller.before_iteration(0.0)
    assert controller.report() == {"objective/kl_coef": 1.0}
    controller.after_iteration({TOKEN: 9.0, OLD: 9.0, "group/n_used": 10_000.0})
    expected = 1.2 if part == "adaptive_kl" else 2.0
    assert controller.report() == {"objective/kl_coef": pytest.approx(expected)}


@pytest.mark.parametrize("part", ["adaptive_kl", "doubling_kl"])
def test_an_iteration_without_an_update_turns_nothing(part: str):
    knobs, read = knobs_of(coef=1.0)
    started(part, knobs, knob="coef", target=1.0).after_iteration({"group/n_used": 0.0, "optim/num_steps": 0.0})
    assert read["coef"] == 1.0


# ---------------------------------------------------------------------------------------------------- guard

SERIES = [0.02, 0.02, 0.1, 0.02, 0.02, 0.02, 0.02, 0.02]  # a leap to five times the mean in the third iteration
SCALES = [1, 1, 1, 0.5, 0.625, 0.78125, 0.9765625, 1]  # halved after it, then times 1.25 until 1 is reached


def run(controllers: list, read: dict[str, float], kls: list[float], name: str = "lr") -> list[float]:
    """The number in force in each iteration of a run whose KLs are these."""
    found = []
    for i, kl in enumerate(kls):
        for controller in controllers:
            controller.before_iteration(i / len(kls))
        found.append(read[name])
        for controller in controllers:
            controller.after_iteration({TOKEN: kl, OLD: 77.0})
    return found


def test_guard_backs_off_after_a_spike_and_lets_go_again():
    knobs, read = knobs_of(lr=0.4)
    guard = started("kl_guard", knobs, recover=1.25)
    assert run([guard], read, SERIES) == pytest.approx([0.4 * scale for scale in SCALES])
    assert guard.report() == {"kl_guard/scale": 1.0, "kl_guard/spikes": 1}


@pytest.mark.parametrize("order", ["anneal first", "guard first"])
def test_guard_scales_the_course_that_another_sets(order: str):
    knobs, read = knobs_of(lr=0.4)
    parts = [started("anneal", knobs), started("kl_guard", knobs, recover=1.25)]
    found = run(parts if order == "anneal first" else parts[::-1], read, SERIES)
    assert found == pytest.approx([0.4 * (1 - i / 8) * scale for i, scale in enumerate(SCALES)])


def test_guard_presses_a_penalty_up():
    knobs, read = knobs_of(coef=0.1)
    guard = started("kl_guard", knobs, knob="coef", backoff=2.0, recover=1.25)
    found = run([guard], read, SERIES, "coef")
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.16, 0.128, 0.1024, 0.1])


@pytest.mark.parametrize(("floor", "scale"), [(0.01, 1.0), (0.008, 0.5)])
def test_a_leap_below_the_floor_is_no_spike(floor: float, scale: float):
    knobs, read = knobs_of(lr=1.0)
    assert run([started("kl_guard", knobs, floor=floor)], read, [0.001, 0.001, 0.009, 0.001])[-1] == scale


def test_guard_gets_used_to_a_kl_that_settles_higher():
    """The mean weighs a KL that lies k iterations back by .9^k, spikes included, so a step is a spike a few times."""
    kls = [0.02] * 40 + [0.2] * 40
    spikes = 0
    for n in range(1, len(kls)):
        weights = [0.9 ** (n - 1 - i) for i in range(n)]
        spikes += kls[n] > 3 * sum(w * kl for w, kl in zip(weights, kls, strict=False)) / sum(weights)
    knobs, read = knobs_of(lr=1.0)
    guard = started("kl_guard", knobs)
    found = run([guard], read, kls)
    assert guard.spikes == spikes > 1
    assert min(found) == pytest.approx(0.5**spikes)
    assert found[-1] == 1.0


def test_guard_of_the_old_policy_reads_its_kl():
    knobs, read = knobs_of(lr=1.0)
    guard = started("kl_guard", knobs, to="old", reference=None)
    for kl in (0.02, 0.02, 0.1):
        guard.after_iteration({TOKEN: 0.0, OLD: kl})
    guard.before_iteration(0.5)
    assert read["lr"] == 0.5


@pytest.mark.parametrize("cut", range(1, len(SERIES)))
def test_guard_goes_on_from_its_state(cut: int):
    knobs, read = knobs_of(lr=0.4)
    first = started("kl_guard", knobs, recover=1.25)
    found = run([first], read, SERIES[:cut])
    knobs, read = knobs_of(lr=0.4)
    second = started("kl_guard", knobs, recover=1.25)
    second.load_state_dict(first.state_dict())
    assert found + run([second], read, SERIES[cut:]) == pytest.approx([0.4 * scale for scale in SCALES])


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("adaptive_kl", {"target": 0}, r"controller\.adaptive_kl\.target=0: it must be greater than 0"),
        ("adaptive_kl", {"target": 1.0, "unit": "per_row"}, r"unit=per_row: choose one of per_token, per_sequence"),
        ("adaptive_kl", {"target": 1.0, "horizon": 0}, r"controller\.adaptive_kl\.horizon=0: it must be at least 1"),
        ("doubling_kl", {"target": 0}, r"controller\.doubling_kl\.target=0: it must be greater than 0"),
        ("kl_guard", {"spike": 1}, r"controller\.kl_guard\.spike=1: it must be greater than 1"),
        ("kl_guard", {"floor": -1}, r"controller\.kl_guard\.floor=-1: it must be at least 0"),
        ("kl_guard", {"backoff": 0}, r"controller\.kl_guard\.backoff=0: it must be greater than 0"),
        ("kl_guard", {"backoff": 1.0}, r"controller\.kl_guard\.backoff=1 has no effect"),
        ("kl_guard", {"recover": 1}, r"controller\.kl_guard\.recover=1: it must be greater than 1"),
        ("kl_guard", {"to": "ref"}, r"controller\.kl_guard\.to=ref: choose one of reference, old"),
    ],
)
def test_wrong_values_are_refused(part: str, keys: dict[str, object], message: str):
    with pytest.raises(rlfw.UserError, match=message):
        rlfw.build("controller", {"part": part, **keys})


def test_what_could_have_no_effect_is_refused_with_the_remedy():
    with pytest.raises(rlfw.UserError, match=r"adaptive_kl reads the KL to the reference, and no part keeps one: add"):
        started("adaptive_kl", knobs_of(coef=1.0)[0], reference=None, knob="coef", target=1.0)
    with pytest.raises(rlfw.UserError, match=r"or set controller\.kl_guard\.to=old"):
        started("kl_guard", knobs_of(lr=1.0)[0], reference=None)
    with pytest.raises(rlfw.UserError, match=r"doubling_kl reads the KL to the old policy.*set epochs or num_min"):
        started("doubling_kl", knobs_of(coef=1.0)[0], single_step=True, knob="coef")
    with pytest.raises(rlfw.UserError, match=r"kl_guard\.to=old reads the KL to the old policy.*set epochs or num_min"):
        started("kl_guard", knobs_of(lr=1.0)[0], single_step=True, to="old")
    with pytest.raises(rlfw.UserError, match=r"doubling_kl multiplies coef, which would stay 0: set it above 0"):
        started("doubling_kl", knobs_of(coef=0.0)[0], knob="coef")
    with pytest.raises(rlfw.UserError, match=r"kl_guard\.knob=coeff: no such knob; did you mean coef\?"):
        started("kl_guard", knobs_of(coef=1.0)[0], knob="coeff")


def test_two_controllers_cannot_set_one_course():
    knobs, _ = knobs_of(coef=1.0)
    started("doubling_kl", knobs, knob="coef")
    with pytest.raises(rlfw.UserError, match=r"controller\.doubling_kl and controller\.anneal both set coef"):
        started("anneal", knobs, knob="coef")


# ---------------------------------------------------------------------------------------------------- target


def test_target_kl_stops_beyond_its_factor():
    """k3 of log-ratios 0.5 and -0.3 is 0.0948 > 1.5 * 0.05; their signed mean would not have stopped it."""
    controller = rlfw.build("controller", {"part": "target_kl", "target": 0.05})
    assert controller.watches_kl
    assert controller.stops(0.094770)
    assert not controller.stops(0.075)
    assert not controller.stops(-0.1)


@pytest.mark.parametrize("key", ["target", "factor"])
def test_target_must_be_positive(key: str):
    with pytest.raises(rlfw.UserError, match=rf"controller\.target_kl\.{key}=0: it must be greater than 0"):
        rlfw.build("controller", {"part": "target_kl", key: 0})
