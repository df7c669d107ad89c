"""Block graphs to plan: the networks of chapter 3, and random ones."""
