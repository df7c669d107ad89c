"""Training pipelines whose stages form a graph: the planner, the schedule and the simulator of GraphPipe (chapter 3)."""
