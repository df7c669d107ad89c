"""GraphPipe (chapter 3): training pipelines whose stages form a graph; planner, schedules and simulator."""
