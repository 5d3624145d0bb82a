"""Checkpoints written by PyTorch and Megatron-Core themselves, for tests of programs that are neither."""
