"""The list of optimizers, of which Weir has none."""

import functools

import torch

optim_db = []


def optims(infos, dtypes=None):
    def decorate(test):
        @functools.wraps(test)
        def run(self, device, **arguments):
            return test(self, device, dtype=dtypes[0], optim_info=torch.optim, **arguments)

        return run

    return decorate


def _get_optim_inputs_including_global_cliquey_kwargs(*arguments, **keywords):
    return torch.optim


class TensorTracker:
    def __init__(self):
        torch.optim  # noqa: B018 - compares the states of optimizers
