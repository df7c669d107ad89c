"""The `tvm_cuda` backend's parts: from lowered PrimFuncs to machine code for an NVIDIA GPU, without a GPU.

``schedule`` maps loops to blocks of threads by DLight's rules, ``source`` makes CUDA C++ and tells how its kernels are
launched, ``nvrtc`` compiles that, and ``artifact`` is what is kept of it. ``build`` does all of it. Lowering is that of
``tvm_codegen``, and ``special_values`` keeps NaN and infinities as it does.
"""
