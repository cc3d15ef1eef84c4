"""The GPU targets: CUDA, and ROCm as its differences."""
