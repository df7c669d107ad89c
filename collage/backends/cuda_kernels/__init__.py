"""What the backends for NVIDIA GPUs share: loading machine code, launching it, and copies between devices."""
