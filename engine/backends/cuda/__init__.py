"""The CUDA backend: convolutions and batch norm from cuDNN, products from cuBLAS, all else from kernels of our own."""
