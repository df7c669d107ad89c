"""What ``scripts/bench gpu`` does on a machine that is there for minutes: checks first, then networks against rivals.

Each part is a process of its own with a time limit. It writes what it has found to a file after each of its steps, so
that a run which is cut off keeps its results.
"""
