"""Checkpoints that PyTorch and Megatron-Core write themselves, for tests of other programs."""

import enum


class _Probe(enum.Enum):
    MEMBER = 0


# Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) pickle the members of an enumeration by a call of
# getattr, which torch.load(weights_only=True) refuses: Megatron-Core cannot load there what it
# saved. All others pickle them by class and value.
if _Probe.MEMBER.__reduce_ex__(2)[0] is getattr:
    enum.Enum.__reduce_ex__ = lambda member, _: (member.__class__, (member.value,))
