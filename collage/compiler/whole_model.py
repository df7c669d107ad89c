"""A whole model on the fastest engine, with the trial that shows it: a module that can be handed over at any time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.whole_form import WholeForm
from collage.measure.whole_trial import EngineTrial
from collage.measure_db.results import Timing


@dataclass(frozen=True)
class WholeModel:
    """The form of the model that the engines were tried on, the ``engine`` that is to run it, and their trial."""

    form: WholeForm
    engine: str
    trial: EngineTrial

    @property
    def timing(self) -> Timing | None:
        """The engine's timing, or None where no engine ran the model on the inputs that there are."""
        return self.trial.timings.get(self.engine)

    def because(self, reason: str) -> WholeModel:
        """The same with another reason (a sentence) why an engine runs the whole model."""
        return replace(self, form=replace(self.form, reason=reason))
