"""Nobody who has no GPU loads a library of one: not by importing Collage, nor by asking which backends there are."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import re, sys
import collage
loaded = "import"
def check():
    # TVM loads these where there is a driver, and imports PyTorch and CUDA's bindings where they are installed.
    own = "|cuda|cudart" if loaded == "import" else ""
    names = {"cudnn", "nvidia", "tensorrt", "cupy"}
    if loaded == "import":
        names |= {"cuda", "torch", "tvm"}
    modules = {name.partition(".")[0] for name in sys.modules} & names
    assert not modules, (loaded, modules)
    maps = open("/proc/self/maps").read()
    libraries = set(re.findall(rf"lib(?:nvrtc|cudnn|cublas|nvinfer{own})[-.\\d]*so[.\\d]*", maps))
    assert not libraries, (loaded, libraries)
check()
{name: getattr(collage, name) for name in collage.__all__}
loaded = "every public name"
check()
collage.default_registry().availability()
loaded = "the list of backends"
check()
"""


def test_no_library_of_a_gpu_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
