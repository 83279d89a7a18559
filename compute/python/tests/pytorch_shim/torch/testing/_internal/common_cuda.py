"""Facts about the device."""

import torch

TEST_CUDNN = torch.backends.cudnn.is_available()
TEST_MULTIGPU = torch.cuda.device_count() >= 2


def _get_torch_cuda_version():
    return tuple(int(number) for number in torch.version.cuda.split("."))


def _create_scaling_case(*arguments, **keywords):
    return torch.optim.SGD, torch.nn.MSELoss  # without them there is no case


_create_scaling_models_optimizers = _create_scaling_case
