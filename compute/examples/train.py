#!/usr/bin/env python3
"""A two-layer perceptron is trained with gradients written by hand: PYTHONPATH=build/python compute/examples/train.py

One step is captured in a graph and replayed. With NumPy installed, the first steps are compared with the same formulas in
NumPy. The exit status is 0 if the loss fell and the results agree.
"""

from __future__ import annotations

import weir

POINTS, INPUTS, HIDDEN, RATE = 256, 8, 16, 0.3


def loss_and_gradients(x, y, w1, b1, w2, b2):
    """The mean squared error of tanh(x w1 + b1) w2 + b2, and its gradients. NumPy's arrays have the same operators."""
    hidden = tanh(x @ w1 + b1)
    error = hidden @ w2 + b2 - y
    loss = (error * error).mean()
    d_out = error * (2 / POINTS)
    d_hidden = (d_out @ w2.T) * (1 - hidden * hidden)
    return loss, (x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_out, d_out.sum(0))


def tanh(value):
    if isinstance(value, weir.Array):
        return value.tanh()
    import numpy

    return numpy.tanh(value)


def make_data():
    weir.manual_seed(1)
    x = weir.randn(POINTS, INPUTS, device="cuda")
    y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).tanh()  # no linear model fits it
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    weights = [weir.randn(*shape, device="cuda") * 0.5 for shape in shapes]
    return x, y, weights


def compare_with_numpy(x, y, weights) -> bool:
    """Five steps on the device and in NumPy, from the same weights. True if they agree, or without NumPy."""
    try:
        import numpy
    except ImportError:
        print("NumPy is not installed: nothing to compare with")
        return True
    here = [w.clone() for w in weights]
    there = [w.cpu().double().numpy() for w in weights]
    host_x, host_y = x.cpu().double().numpy(), y.cpu().double().numpy()
    largest = 0.0
    for _ in range(5):
        loss, gradients = loss_and_gradients(x, y, *here)
        expected, expected_gradients = loss_and_gradients(host_x, host_y, *there)
        largest = max(largest, abs(loss.item() - float(expected)))
        for w, g, v, h in zip(here, gradients, there, expected_gradients):
            largest = max(largest, float(numpy.abs(g.cpu().numpy() - h).max()))
            w -= RATE * g
            v -= RATE * h
    print(f"the largest difference from NumPy is {'below 0.0001' if largest < 1e-4 else largest}")
    return largest < 1e-4


def main() -> int:
    x, y, weights = make_data()
    agrees = compare_with_numpy(x, y, weights)

    def step() -> weir.Array:
        loss, gradients = loss_and_gradients(x, y, *weights)
        for w, g in zip(weights, gradients):
            w.sub_(g, alpha=RATE)
        return loss

    first = step().item()
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        loss = step()
    for _ in range(300):
        graph.replay()
    last = loss.item()
    print(f"the loss fell from {first:.3f} to {last:.3f}")
    return 0 if agrees and last < first / 4 else 1


if __name__ == "__main__":
    raise SystemExit(main())
