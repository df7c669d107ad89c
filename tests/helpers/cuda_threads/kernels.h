// What the stand-in for NVRTC puts before each source. It is a file of its own for the compiler to parse once.
#pragma once
#include "cuda.h"
#include "cuda_fp16.h"
