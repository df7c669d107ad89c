"""The study behind ``scripts/bench parallel``: decode iterations on several processes."""
