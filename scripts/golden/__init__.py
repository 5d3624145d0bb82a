"""Checkpoints that PyTorch and Megatron-Core write themselves, for tests of other programs."""
