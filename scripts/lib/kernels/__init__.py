"""Single kernels against those of libraries, for `scripts/bench native-kernels`, `native-layers` and `tvm-kernels`."""
