"""TVM's lowering with CPU schedules of our own: from a Relax function to bytes, and to a kernel without a VM.

The way through is `lower` → `build` (over `tidy`, `inline`, `rows`, `flat`, `arithmetic` in `schedule`) → `image` (or
`link`, for LLVM IR) → `artifact` → `run`, which needs TVM for LLVM IR only.
"""
