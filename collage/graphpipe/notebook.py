"""The public face of GraphPipe for programs and notebooks: profiles, and plans that show themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from collage.errors import unknown_names
from collage.graphpipe.cluster import Cluster
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import BlockGraph, write_json
from collage.graphpipe.plan import Plan
from collage.graphpipe.simulate import simulated


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made for. A notebook shows it as a table and two pictures."""

    plan: Plan
    costs: Costs

    @property
    def iteration_s(self) -> float:
        """The simulated seconds of an iteration."""
        return simulated(self.plan, self.costs).iteration_s

    def save(self, path: str | Path) -> None:
        """Write the plan for ``collage graphpipe run``."""
        write_json(Path(path), self.plan.to_json())

    def __repr__(self) -> str:
        rows = (" | ".join(row) for row in self._rows())
        return "\n".join([*rows, self._sentence()])

    def _repr_html_(self) -> str:
        from collage.graphpipe.show import stages_svg, timeline_svg

        head, *body = (
            "".join(f"<{tag}>{escape(text)}</{tag}>" for text in row)
            for tag, row in zip(("th", *("td" for _ in self.plan.stages)), self._rows(), strict=True)
        )
        table = "".join(f"<tr>{row}</tr>" for row in (head, *body))
        pictures = (
            stages_svg(self.plan, self.costs),
            timeline_svg(self.plan, self.costs, simulated(self.plan, self.costs)),
        )
        return f"<table>{table}</table><p>{escape(self._sentence())}</p>{'<br>'.join(pictures)}"

    def _rows(self) -> list[tuple[str, ...]]:
        from collage.graphpipe.show import TITLES, stage_rows

        return [TITLES, *stage_rows(self.plan, self.costs)]

    def _sentence(self) -> str:
        seconds, depth = self.iteration_s, self.plan.depth
        rate = self.plan.mini_batch / seconds
        return f"An iteration takes {seconds * 1e3:.4g} ms ({rate:.4g} samples/s) at depth {depth}."


def profiled(
    module: Any,
    batch: Callable[[int, int], tuple[Any, ...]],
    optimizer: Callable[[list[Any]], Any] | None = None,
    *,
    most: int = 64,
    runs: int = 5,
) -> BlockGraph:
    """The blocks of a torch module with their seconds at 1, 2, 4, ... ``most`` samples, by torch's present threads.

    ``module`` gives its mean loss over the samples of its inputs. ``batch(step, samples)`` gives these inputs, and
    ``optimizer`` makes an optimizer for a list of parameters; SGD if it is None. Raises CollageError.
    """
    from collage.graphpipe import profile
    from collage.graphpipe.training import Training, sgd

    training = Training(module, batch, optimizer or sgd)
    return profile.profiled(training, training.trace(), type(module).__name__, most, runs)


def planned(
    graph: BlockGraph,
    cluster: Cluster | str | Path,
    mini_batch: int,
    planner: str = "graphpipe",
    seconds: float = 30.0,
) -> Planned:
    """The fastest plan for mini-batches of so many samples that is found in so many seconds of the processor.

    ``cluster`` may be the path of its TOML file. ``planner``: ``graphpipe``, or the best chain of ``pipedream`` or
    ``piper``. Raises NoPlanError, which says how much memory is missing, and UsageError.
    """
    from collage.graphpipe.baselines import PLANNERS
    from collage.graphpipe.planner import Options

    if planner not in PLANNERS:
        raise unknown_names("planner", [planner], [*PLANNERS])
    known = cluster if isinstance(cluster, Cluster) else Cluster.read(Path(cluster))
    costs = Costs(graph, known, mini_batch)
    return Planned(PLANNERS[planner](costs, Options(seconds=seconds)).best, costs)
