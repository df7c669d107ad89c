"""GraphPipe (chapter 3): training pipelines whose stages form a graph; profiles, planner, simulator and runtime."""
