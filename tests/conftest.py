"""Property tests on a busy machine: no deadlines, no complaints about slow first draws."""

from importlib.util import find_spec

from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

if find_spec("torch") is not None:
    import torch

    torch.set_num_threads(1)  # The models here are too small to be shared among threads.
