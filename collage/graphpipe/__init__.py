"""GraphPipe (chapter 3): training pipelines whose stages form a graph; profiles, planner, simulator and runtime."""

from collage.graphpipe.notebook import Planned, planned, profiled

__all__ = ["Planned", "planned", "profiled"]
