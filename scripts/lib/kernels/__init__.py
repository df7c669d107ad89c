"""Single kernels in turns, for `scripts/bench native-kernels`, `native-layers`, `native-experts` and `tvm-kernels`."""
