"""Checkpoints that PyTorch and Megatron-Core write themselves, for tests of other programs."""

import enum
import signal


class _Probe(enum.Enum):
    MEMBER = 0


def _by_value(member, _protocol):
    return member.__class__, (member.value,)


# Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) pickle members of enumerations by name, which
# torch.load(weights_only=True) refuses: Megatron-Core cannot load there what it saved. All others
# pickle them by class and value.
if _Probe.MEMBER.__reduce_ex__(2)[0] is getattr:
    enum.Enum.__reduce_ex__ = _by_value
    signal.Signals.__reduce_ex__ = _by_value
