"""Single kernels against those of libraries: what `scripts/bench native-kernels` and its like measure."""
