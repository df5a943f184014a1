"""A controller of your own: controller=[my_part]."""

from dataclasses import KW_ONLY, dataclass

from rlfw import register
from rlfw.checks import above
from rlfw.errors import UserError
from rlfw.interfaces import Controller
from rlfw.knobs import Controls


@register("controller", "my_part")
@dataclass
class MyPart(Controller):
    """Moves a knob exponentially from its set value to ``final`` times it (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: controller.my_part.final=0.01
    knob: str = "lr"  # or any number of a part: regularizer.clip.low
    final: float = 0.1
    formula = "{knob} ← its set value times {final}^(share of the budget that is spent)"

    def __post_init__(self) -> None:
        above("controller.my_part.final", self.final, 0)

    def start(self, controls: Controls) -> None:
        """Once, before the first iteration."""
        if self.knob not in controls.knobs:
            raise UserError(f"controller.my_part.knob={self.knob}: there are {', '.join(controls.knobs)}")
        self.knobs, self.initial = controls.knobs, controls.knobs[self.knob]

    def before_iteration(self, progress: float) -> None:
        """``progress``: the share of the budget that is spent. after_iteration(metrics) sees what came of it."""
        self.knobs[self.knob] = self.initial * self.final ** min(progress, 1.0)
