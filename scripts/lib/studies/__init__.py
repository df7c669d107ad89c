"""Studies of Collage on whole models, which `scripts/bench` runs: each takes a model and gives a JSON object."""
