"""What `check_real_models` is made of: finding the models, making real inputs, comparing."""
