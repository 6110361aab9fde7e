"""Triton kernels and the torch operations that call them. Import these modules only where triton is installed."""
