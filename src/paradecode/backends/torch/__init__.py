"""The reference backend: plain PyTorch on CPU or CUDA, in fp64, fp32 or bf16."""
