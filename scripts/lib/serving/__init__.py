"""What ``scripts/bench serve`` measures: Collage's engine and those of others, each in a process of its own."""
