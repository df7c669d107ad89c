"""The parts of `check_real_models`: finding the models, making real inputs, and comparing."""
