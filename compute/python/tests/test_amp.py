"""GradScaler: the scenarios of PyTorch's test_torch.py and test_cuda.py by name, with optimizers and gradients that the
test itself has, since Weir has neither."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
from conftest import is_soft, run_python

import weir
from weir.amp import GradScaler, OptState, Parameter, autocast

DEVICES = ["cuda", "cpu"]
inf, nan = math.inf, math.nan


class Optimizer:
    """Gradient descent."""

    def __init__(self, params, lr=1.0):
        self.param_groups = [{"params": list(params), "lr": lr}]
        self.steps = 0

    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad, alpha=group["lr"])
        return self.steps

    def zero_grad(self):
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None


class FusedOptimizer(Optimizer):
    """Divides by the scale, and skips the step, on the device."""

    _step_supports_amp_scaling = True

    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for param in group["params"]:
                if self.grad_scale is not None:
                    param.grad.div_(self.grad_scale)
                keep = self.found_inf != 0
                param.copy_(weir.where(keep, param, param - param.grad * group["lr"]))


def parameter(*values, device="cuda", dtype=weir.float32):
    return Parameter(weir.tensor(values, dtype=dtype, device=device))


def is_filled(array, value):
    return weir.equal(array, weir.full_like(array, value))


# ---- The two operations ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [weir.float32, weir.float64])
def test_grad_scaling_unscale(device, dtype):
    inv_scale = weir.full((1,), 0.25, device=device)
    found_inf = weir.full((1,), 0.0, device=device)
    size = 20
    g = weir.full((size, size), 4.0, dtype=dtype, device=device)
    ginf, gnan = g.clone(), g.clone()
    ginf[2, 2] = inf
    gnan[2, 2] = nan
    cases = (
        ([g.clone(), g.clone()], False),
        ([g.clone(), g.clone().T], False),
        ([g.clone(), g.clone()[:, :5]], False),
        ([g.clone()[:, :5], g.clone()[:, :5]], False),
        ([g.clone(), ginf.clone()], True),
        ([g.clone(), gnan.clone()], True),
        ([g.clone(), ginf.clone()[:, :5]], True),
        ([g.clone(), gnan.clone()[:, :5]], True),
        ([ginf.clone(), g.clone()[:, :5]], True),
        ([ginf.clone()[:, :5], g.clone()[:, :5]], True),
    )
    for grads, has_inf in cases:
        found_inf.zero_()
        weir._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
        assert found_inf.item() == (1.0 if has_inf else 0.0)
        if not has_inf:
            assert all(is_filled(grad, 1) for grad in grads)

    # All types in one call.
    kinds = (weir.float16, weir.bfloat16, weir.float32, weir.float64)
    grads = [g.to(dtype=kind, copy=True) for kind in kinds]
    weir._amp_foreach_non_finite_check_and_unscale_(grads, found_inf.zero_(), inv_scale)
    assert found_inf.item() == 0 and all(is_filled(grad, 1) for grad in grads)
    if device == "cuda":
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            weir._amp_foreach_non_finite_check_and_unscale_([g.clone(), g.cpu()], found_inf, inv_scale)

    # Grads of mixed types and devices, with an infinity in any of them.
    second = "cuda:1" if device == "cuda" and weir.device_count() > 1 else device

    def perfect_storm_grads(inject_inf):
        grads = [g.clone(), g.clone()[:, :5], g.to(weir.float16), g.to(weir.bfloat16, copy=True)]
        grads += [g.to(device=second, copy=True), g.to(device=second, copy=True)[:, :5], g.to(second, weir.float16)]
        if inject_inf >= 0:
            grads[inject_inf][2, 2] = inf
        return grads

    scaler = GradScaler(device)
    params = [parameter(0.0, device=device) for _ in perfect_storm_grads(-1)]
    opt = Optimizer(params)
    for inject_inf in range(-1, len(params)):
        grads = perfect_storm_grads(inject_inf)
        for param, grad in zip(params, grads):
            param.grad = grad
        found = scaler._unscale_grads_(opt, inv_scale, weir.zeros(1, device=device), True)
        assert len(found) == len({str(grad.device) for grad in grads})
        assert sum(one.item() for one in found.values()) == (1 if inject_inf >= 0 else 0)
        for i, grad in enumerate(grads):
            if i != inject_inf:
                assert is_filled(grad, 1)
    # Half precision gradients are refused, unless an optimizer unscales them itself.
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients."):
        scaler._unscale_grads_(opt, inv_scale, weir.zeros(1, device=device), False)


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_update_scale(device):
    growth, backoff, growth_interval = 2.0, 0.25, 2
    scale = weir.full((1,), 4.0, device=device)
    growth_tracker = weir.full((1,), 0, dtype=weir.int32, device=device)
    found_inf = weir.full((1,), 0.0, device=device)
    for found, tracker, value in ((0, 1, 4.0), (0, 0, 8.0), (1, 0, 2.0)):
        found_inf.fill_(float(found))
        result = weir._amp_update_scale_(scale, growth_tracker, found_inf, growth, backoff, growth_interval)
        assert result is scale
        assert growth_tracker.item() == tracker and scale.item() == value


@pytest.mark.parametrize("device", DEVICES)
def test_interval_that_is_never_reached(device):
    scaler = GradScaler(device, init_scale=4.0, growth_interval=2**40)
    scaler.scale(weir.ones(1, device=device))
    for _ in range(3):
        scale = scaler._scale
        weir._amp_update_scale_(scale, scaler._growth_tracker, weir.zeros(1, device=device), 2.0, 0.5, 2**40)
    assert scaler.get_scale() == 4.0


def test_wrong_arguments_of_the_operations():
    one, two, host = weir.zeros(1, device="cuda"), weir.zeros(2, device="cuda"), weir.zeros(1)
    unscale, update = weir._amp_foreach_non_finite_check_and_unscale_, weir._amp_update_scale_
    tracker = weir.zeros(1, dtype=weir.int32, device="cuda")
    for args, text in (
        (([two], one, two), "inv_scale must be a 1-element tensor."),
        (([two], two, one), "found_inf must be a 1-element tensor."),
        (([two], one, host), "inv_scale must be a CUDA tensor."),
        (([two], one.half(), one), "found_inf must be a float tensor."),
        (([one.expand(3)], one, one), "more than one element of the written-to tensor"),
    ):
        with pytest.raises(RuntimeError, match=text):
            unscale(*args)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        unscale([tracker], one, one)
    with pytest.raises(TypeError, match="expected Tensor as element 1 in argument 0, but got int"):
        unscale([one, 3], one, one)
    for args in ((), (one,), (3, one, one), ([one], 1, 1)):
        with pytest.raises(TypeError):
            unscale(*args)
    with pytest.raises(RuntimeError, match="growth_tracker must be an int tensor."):
        update(one, one, one, 2.0, 0.5, 1)
    with pytest.raises(OverflowError):
        update(one, tracker, one, 2.0, 0.5, 1 << 70)
    unscale([], one, one)


# ---- Scaling ----


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_scale(device):
    scaler = GradScaler(device, init_scale=2.0)
    t0, t1 = weir.full((1,), 4.0, device=device), weir.full((1,), 4.0, device=device)
    assert scaler._scale is None and scaler.get_scale() == 2.0 and scaler._get_growth_tracker() == 0
    outputs = (t1.clone(), (t0.clone(), t1.clone()), [t0.clone(), (t1.clone(), t0.clone())])
    scaled = scaler.scale(outputs)
    assert type(scaled) is tuple and type(scaled[1]) is tuple and type(scaled[2]) is list
    for array in (scaled[0], *scaled[1], scaled[2][0], *scaled[2][1]):
        assert array.item() == 8.0 and array.device == t0.device
    assert [array.item() for array in scaler.scale(iter([t0, t1]))] == [8.0, 8.0]
    assert scaler._scale.device == t0.device and scaler._scale.shape == ()
    assert scaler.scale(weir.ones(3, dtype=weir.float16, device=device)).dtype is weir.float16
    for wrong in (3.0, None, object()):
        with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
            scaler.scale(wrong)


def test_grad_scaling_scale_of_several_devices(two_devices):
    scaler = GradScaler(init_scale=2.0)
    t0, t1 = weir.full((1,), 4.0, device="cuda:1"), weir.full((1,), 4.0, device="cuda:0")
    scaled = scaler.scale([t0, t1, t0])
    assert [array.item() for array in scaled] == [8.0, 8.0, 8.0]
    assert [array.device for array in scaled] == [t0.device, t1.device, t0.device]
    assert scaler._scale.device == t0.device


def test_grad_scaling_device_as_key():
    """Devices that are equal are one key, however they were made."""
    found = {}
    a, b = weir.zeros(1, device="cuda"), weir.zeros(1, device="cuda:0")
    found[a.device] = 1
    found[b.device] = 2
    assert list(found.values()) == [2]
    scaler, p, q = GradScaler(), parameter(0.0), parameter(1.0)
    p.grad, q.grad = a, b
    scaler.scale(a)
    opt = Optimizer([p, q])
    scaler.unscale_(opt)
    assert list(scaler._found_inf_per_device(opt)) == [a.device]


@pytest.mark.parametrize("lazy_init_scale", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_state_dict(device, lazy_init_scale):
    s0 = GradScaler(device, init_scale=3.0, growth_factor=4.0, backoff_factor=0.5, growth_interval=2)
    s1 = GradScaler(device, init_scale=6.0, growth_factor=7.0, backoff_factor=0.8, growth_interval=1)
    s1._init_growth_tracker = 7
    if lazy_init_scale:
        s1.scale(weir.full((1,), 4.0, device=device))
        assert s1._scale.dtype is weir.float32 and s1._growth_tracker.dtype is weir.int32
    state = s0.state_dict()
    assert state == {
        "scale": 3.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.5,
        "growth_interval": 2,
        "_growth_tracker": 0,
    }
    s1.load_state_dict(state)
    assert s1.get_scale() == 3.0
    assert s1.get_growth_factor() == 4.0
    assert s1.get_backoff_factor() == 0.5
    assert s1.get_growth_interval() == 2
    assert s1._init_growth_tracker == 0 and s1._get_growth_tracker() == 0
    s1.set_growth_factor(3.0)
    s1.set_backoff_factor(0.1)
    s1.set_growth_interval(9)
    assert (s1.get_growth_factor(), s1.get_backoff_factor(), s1.get_growth_interval()) == (3.0, 0.1, 9)
    assert s1.state_dict() == {**state, "growth_factor": 3.0, "backoff_factor": 0.1, "growth_interval": 9}
    with pytest.raises(RuntimeError, match="The source state dict is empty, possibly because it was saved"):
        s1.load_state_dict({})


def test_pickle():
    scaler, param = GradScaler(init_scale=8.0, growth_interval=1), parameter(1.0)
    for copied in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert copied._scale is None and copied.get_scale() == 8.0
    param.grad = scaler.scale(weir.ones(1, device="cuda"))
    opt = Optimizer([param])
    scaler.step(opt)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning of an iteration"):
        pickle.dumps(scaler)
    scaler.update()
    copied = pickle.loads(pickle.dumps(scaler))
    assert copied._scale is None and copied.get_scale() == 16.0 and copied.state_dict() == scaler.state_dict()
    assert copied.scale(weir.ones(1, device="cuda")).item() == 16.0
    disabled = pickle.loads(pickle.dumps(GradScaler(enabled=False)))
    assert not disabled.is_enabled()
    assert pickle.loads(pickle.dumps(OptState.STEPPED)) is OptState.STEPPED


# ---- Iterations: y = x * w, loss = (y - target)^2, so that the gradient of w is 2 (y - target) x ----


def scaling_case(device):
    data = [(weir.full((8,), float(i + 1), device=device), weir.full((8,), 3.0, device=device)) for i in range(4)]
    control, scaling = (Parameter(weir.full((8,), 0.5, device=device)) for _ in range(2))
    return control, scaling, Optimizer([control], lr=0.01), Optimizer([scaling], lr=0.01), data


def gradient(weight, input, target, scaler=None, factor=1.0):
    error = (input * weight - target) * (2.0 * factor)
    return (error if scaler is None else scaler.scale(error)) * input


def run_scaling_case(device, run, unskipped, skipped, skip_iter=2):
    for enabled in (True, False):
        control, scaling, opt_control, opt_scaling, data = scaling_case(device)
        scaler = GradScaler(device, init_scale=128.0, growth_factor=2.0, enabled=enabled, growth_interval=1)
        run(data, control, opt_control, scaler, skip_iter, False)
        before = run(data, scaling, opt_scaling, scaler, skip_iter, True)
        assert before is None
        if enabled:
            assert scaler.get_scale() == 128.0 * 2.0**unskipped * 0.5**skipped
        else:
            assert scaler.get_scale() == 1.0
        assert weir.allclose(control, scaling, rtol=1e-5, atol=1e-7)
        assert opt_control.steps == opt_scaling.steps == unskipped + (0 if enabled else skipped)


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_autocast(device):
    """The steps in half precision within a region: an infinite gradient skips its step."""

    def run(data, weight, opt, scaler, skip_iter, try_scaling_api):
        for i, (input, target) in enumerate(data):
            opt.zero_grad()
            with autocast(device, dtype=weir.float16, enabled=try_scaling_api):
                weight.grad = gradient(weight, input, target, scaler if try_scaling_api else None)
            if try_scaling_api:
                if i == skip_iter and scaler.is_enabled():
                    weight.grad.fill_(inf)
                assert scaler.step(opt) == (None if i == skip_iter and scaler.is_enabled() else opt.steps)
                scaler.update()
            elif not scaler.is_enabled() or i != skip_iter:
                opt.step()

    run_scaling_case(device, run, unskipped=3, skipped=1)


@pytest.mark.parametrize("separate_unscale", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_clipping(device, separate_unscale):
    def clip(param, most):
        norm = param.grad.norm()
        param.grad.mul_((most / (norm + 1e-6)).clamp(max=1.0))

    def run(data, weight, opt, scaler, skip_iter, try_scaling_api):
        max_norm = 0.2
        for i, (input, target) in enumerate(data):
            opt.zero_grad()
            weight.grad = gradient(weight, input, target, scaler if try_scaling_api else None)
            if not try_scaling_api:
                clip(weight, max_norm)
                if not scaler.is_enabled() or i != skip_iter:
                    opt.step()
                continue
            if separate_unscale:
                if i == skip_iter and scaler.is_enabled():
                    weight.grad.fill_(inf)
                scaler.unscale_(opt)
                clip(weight, max_norm)
            else:
                clip(weight, max_norm * scaler.get_scale())
                if i == skip_iter and scaler.is_enabled():
                    weight.grad.fill_(inf)
            scaler.step(opt)
            scaler.update()

    run_scaling_case(device, run, unskipped=3, skipped=1)


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_accumulation(device):
    def run(data, weight, opt, scaler, skip_iter, try_scaling_api):
        for i, (input, target) in enumerate(data):
            part = gradient(weight, input, target, scaler if try_scaling_api else None, factor=0.5)
            weight.grad = part if weight.grad is None else weight.grad + part
            if i % 2:
                if try_scaling_api:
                    scaler.step(opt)
                    scaler.update()
                else:
                    opt.step()
                opt.zero_grad()

    run_scaling_case(device, run, unskipped=2, skipped=0)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaling_multiple(device, enabled):
    """Two models and two optimizers, of which one has an infinite gradient once."""
    scaler = GradScaler(device, init_scale=128.0, growth_factor=2.0, enabled=enabled, growth_interval=1)
    control0, scaling0, opt_control0, opt_scaling0, data = scaling_case(device)
    control1, scaling1, opt_control1, opt_scaling1, _ = scaling_case(device)

    def run(w0, w1, opt0, opt1, try_scaling_api):
        for i, (input, target) in enumerate(data):
            scale = scaler.scale if try_scaling_api else (lambda x: x)
            errors = scale([(0.3 * w0 + 0.7 * w1) * input - target, (0.6 * w0 - 0.4 * w1) * input - target])
            w0.grad = (0.3 * errors[0] + 0.6 * errors[1]) * input
            w1.grad = (0.7 * errors[0] - 0.4 * errors[1]) * input
            if not try_scaling_api:
                opt0.step()
                if not enabled or i != 2:
                    opt1.step()
                continue
            if i == 2 and enabled:
                w1.grad[3] = inf
            scaler.unscale_(opt0)
            scaler.step(opt0)
            scaler.step(opt1)
            scaler.update()

    run(control0, control1, opt_control0, opt_control1, False)
    run(scaling0, scaling1, opt_scaling0, opt_scaling1, True)
    assert scaler.get_scale() == (128.0 * 2.0**3 * 0.5 if enabled else 1.0)
    assert weir.allclose(control0, scaling0, rtol=1e-5, atol=1e-7)
    assert weir.allclose(control1, scaling1, rtol=1e-5, atol=1e-7)


def test_several_devices(two_devices):
    scaler = GradScaler(init_scale=4.0, growth_interval=1)
    a, b = parameter(1.0, device="cuda:0"), parameter(1.0, device="cuda:1")
    opt = Optimizer([a, b])
    for value, steps, scale in ((8.0, 1, 8.0), (inf, 1, 4.0), (4.0, 2, 8.0)):
        scaler.scale(weir.ones(1, device="cuda:0"))
        a.grad, b.grad = (weir.full((1,), 8.0, device="cuda:0"), weir.full((1,), value, device="cuda:1"))
        scaler.step(opt)
        scaler.update()
        assert (opt.steps, scaler.get_scale()) == (steps, scale)


def test_grad_scale_will_not_overflow():
    scaler, param = GradScaler(growth_interval=1, growth_factor=2.0**4, init_scale=2.0**100), parameter(1.0)
    opt = Optimizer([param])
    for expected in (2.0**104, 2.0**108, 2.0**112, 2.0**116, 2.0**120, 2.0**124, 2.0**124):
        scaler.scale(weir.ones(1, device="cuda"))
        param.grad = weir.ones(1, device="cuda")
        scaler.step(opt)
        scaler.update()
        assert scaler.get_scale() == expected


# ---- Optimizers that scale ----


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler_pass_itself(device):
    class Optimizer1(Optimizer):
        _step_supports_amp_scaling = True

        def step(self, *, grad_scaler=None):
            assert isinstance(grad_scaler, GradScaler)
            assert not hasattr(self, "grad_scale") and not hasattr(self, "found_inf")

    class Optimizer2(Optimizer):
        _step_supports_amp_scaling = True

        def step(self):
            assert isinstance(self.grad_scale, weir.Array) and isinstance(self.found_inf, weir.Array)
            assert self.grad_scale.item() == 2.0 and self.found_inf.item() == 0.0
            return "stepped"

    param = parameter(1.0, device=device)
    o1, o2 = Optimizer1([param]), Optimizer2([param])
    scaler = GradScaler(device, init_scale=2.0)
    param.grad = scaler.scale(weir.ones(1, device=device))
    with pytest.warns(FutureWarning, match="GradScaler is going to stop passing itself"):
        scaler.step(o1)
    assert scaler.step(o2) == "stepped"
    assert not hasattr(o2, "grad_scale") and not hasattr(o2, "found_inf")
    assert param.grad.item() == 2.0  # checked, and not divided
    scaler.update()


@pytest.mark.parametrize("in_place_unscale", [False, True])
def test_grad_scaler_with_preset_grad_scale(in_place_unscale):
    weight = Parameter(weir.ones(5, 5, device="cuda"))
    weight.grad = weir.full_like(weight, 15)
    opt = FusedOptimizer([weight], lr=0.1)
    scaler = GradScaler(init_scale=5)
    scaler.scale(weir.ones(5))
    if in_place_unscale:
        scaler.unscale_(opt)
        assert is_filled(weight.grad, 3)
    # A scale of the program is combined with the scaler's: 15 / 5 / 3.
    opt.grad_scale = weir.FloatTensor([3])
    scaler.step(opt)
    assert is_filled(weight.grad, 1)
    assert weir.allclose(weight, weir.full_like(weight, 0.9))


def test_grad_scaling_autocast_fused_optimizers():
    """The step is skipped on the device; float16 gradients are allowed."""
    scaler, weight = GradScaler(init_scale=4.0, growth_interval=1), Parameter(weir.ones(8, device="cuda"))
    opt = FusedOptimizer([weight], lr=0.5)
    for kind, bad, expected, scale in (
        (weir.float32, False, 0.5, 8.0),
        (weir.float32, True, 0.5, 4.0),
        (weir.float16, False, 0.0, 8.0),
    ):
        weight.grad = scaler.scale(weir.ones(8, dtype=kind, device="cuda"))
        if bad:
            weight.grad[7] = nan
        assert scaler.step(opt) is None
        assert is_filled(weight, expected)
        scaler.update()
        assert scaler.get_scale() == scale
    assert opt.steps == 3


# ---- Graphs ----


def test_graph_grad_scaling():
    """The scale is read at each replay, so that it can change between two."""
    scaler = GradScaler("cuda", init_scale=4.0)
    g, s = weir.CUDAGraph(), weir.Stream()
    weight = Parameter(weir.ones(100, device="cuda"))
    opt = Optimizer([weight], lr=0.1)
    static_input, static_grad = weir.ones_like(weight), weir.ones_like(weight)
    s.wait_stream(weir.current_stream())
    with weir.stream(s):
        scaler.scale((static_input.half() * 1).sum())
    weir.current_stream().wait_stream(s)
    with weir.stream(s):
        g.capture_begin()
        # loss = (weight.half() * static_input).sum()
        static_grad.copy_(scaler.scale(weir.ones(100, dtype=weir.float16, device="cuda")) * static_input.half())
        g.capture_end()
    input_vals = [5, 20000, 5, 40000]
    expected_scales = [4, 2, 2, 1]
    expected_growth_trackers = [1, 0, 1, 0]
    expected_grad_vals = [5 * 4, inf, 5 * 2, inf]
    for data, scale, growth_tracker, grad_val in zip(
        input_vals, expected_scales, expected_growth_trackers, expected_grad_vals
    ):
        static_input.fill_(data)
        g.replay()
        weight.grad = static_grad
        assert is_filled(weight.grad, grad_val)
        scaler.step(opt)
        scaler.update()
        assert scaler._scale.item() == scale and scaler._growth_tracker.item() == growth_tracker


def test_whole_iteration_in_a_graph():
    """With an optimizer that skips its step on the device, nothing waits: a graph has the iteration and the update."""
    scaler = GradScaler("cuda", init_scale=4.0, growth_interval=2)
    g, s = weir.CUDAGraph(), weir.Stream()
    weight, x = Parameter(weir.ones(10, device="cuda")), weir.ones(10, device="cuda")
    opt = FusedOptimizer([weight], lr=1.0)

    def iteration():
        weight.grad = scaler.scale(x.half()).float()
        scaler.step(opt)
        scaler.update()

    s.wait_stream(weir.current_stream())
    with weir.stream(s):
        scaler.scale(x)  # makes the scale, outside of the graph
        s.synchronize()
        g.capture_begin()
        iteration()
        g.capture_end()
    values, scale, tracker, expected = [1.0, 2.0, 30000.0, 1.0, 1.0, 1.0], 4.0, 0, 1.0
    for value in values:
        x.fill_(value)
        g.replay()
        if value * scale > 65504:
            scale, tracker = scale / 2, 0
        else:
            expected, tracker = expected - value, tracker + 1
            if tracker == 2:
                scale, tracker = scale * 2, 0
        assert is_filled(weight, expected)
        assert (scaler.get_scale(), scaler._get_growth_tracker()) == (scale, tracker)


def test_nothing_waits():
    scaler, weight = GradScaler(), Parameter(weir.ones(10, device="cuda"))
    opt = FusedOptimizer([weight])
    for _ in range(2):
        weir.set_sync_debug_mode("error")
        weight.grad = scaler.scale(weir.ones(10, device="cuda"))
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        weir.set_sync_debug_mode("default")


# ---- Errors, and a scaler that is disabled ----


def test_order_of_calls():
    scaler, param = GradScaler(init_scale=2.0), parameter(1.0)
    opt = Optimizer([param])
    for call in (lambda: scaler.unscale_(opt), lambda: scaler.step(opt), scaler.update):
        with pytest.raises(AssertionError, match="Attempted .* but _scale is None.  This may indicate your script did"):
            call()
    param.grad = scaler.scale(weir.ones(1, device="cuda"))
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update."):
        scaler.update()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="unscale_\\(\\) has already been called on this optimizer since the last"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match="step\\(\\) has already been called since the last update\\(\\)."):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match="unscale_\\(\\) is being called after step\\(\\)."):
        scaler.unscale_(opt)
    scaler.update()
    scaler.scale(weir.ones(1, device="cuda"))
    opt.zero_grad()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer."):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match="Closure use is not currently supported if GradScaler is enabled."):
        scaler.step(opt, closure=lambda: None)
    opt.param_groups[0]["params"] = [object()]
    with pytest.raises(AssertionError, match="expected param to have an attribute grad, got object"):
        GradScaler.step(_started(), opt)


def _started():
    scaler = GradScaler()
    scaler.scale(weir.ones(1, device="cuda"))
    return scaler


def test_half_gradients_are_refused():
    scaler, param = _started(), parameter(1.0, dtype=weir.float16)
    param.grad = weir.ones(1, dtype=weir.float16, device="cuda")
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients."):
        scaler.step(Optimizer([param]))
    param.grad = param.grad.bfloat16()
    assert scaler.step(Optimizer([param])) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_new_scale(device):
    scaler = GradScaler(device)
    scaler.scale(weir.ones(1, device=device))
    scaler.update(3.0)
    assert scaler.get_scale() == 3.0
    array = weir.full((1,), 5.0, device=device)
    scaler.update(array)
    array.fill_(6.0)
    assert scaler.get_scale() == 5.0
    other = "cpu" if device == "cuda" else "cuda"
    for wrong in (weir.zeros(2, device=device), weir.zeros(1, device=other), 3):
        with pytest.raises(AssertionError, match="new_scale should be a float or a 1-element"):
            scaler.update(wrong)


def test_factors_are_checked():
    with pytest.raises(AssertionError, match="The growth factor must be > 1.0."):
        GradScaler(growth_factor=1.0)
    with pytest.raises(AssertionError, match="The backoff factor must be < 1.0."):
        GradScaler(backoff_factor=1.0)
    GradScaler(growth_factor=1.0, backoff_factor=1.0, enabled=False)
    with pytest.raises(TypeError):
        GradScaler(scale=3)


def test_disabled():
    scaler, param = GradScaler(enabled=False), parameter(1.0)
    opt, outputs = Optimizer([param]), [1, "anything"]
    param.grad = weir.full((1,), inf, device="cuda")
    assert scaler.scale(outputs) is outputs
    scaler.unscale_(opt)
    assert scaler.step(opt) == 1 and opt.steps == 1
    scaler.update()
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    scaler.load_state_dict({})


@pytest.mark.skipif(not is_soft, reason="needs a driver without devices")
def test_no_device():
    code = """
        import warnings, weir
        assert weir.amp.amp_definitely_not_available()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not weir.amp.GradScaler().is_enabled()
            with weir.amp.autocast("cuda"):
                assert not weir.is_autocast_enabled()
        assert [str(one.message) for one in caught] == [
            "weir.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
            "CUDA is not available or torch_xla is imported. Disabling autocast.",
        ], caught
        assert weir.amp.GradScaler("cpu").is_enabled()
        """
    run_python(code, CUDA_VISIBLE_DEVICES="")


def test_grad_scaler_deprecated_warning():
    text = r"`weir.amp.GradScaler\(args...\)` is deprecated. Please use `weir.amp.GradScaler\('cuda', args...\)`"
    with pytest.warns(FutureWarning, match=text) as caught:
        scaler = GradScaler(2.0, 3.0, 0.25, 7)
    assert caught[0].filename == __file__
    assert (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 3.0, 0.25)
    assert scaler.get_growth_interval() == 7
    assert GradScaler(init_scale=2.0).get_scale() == 2.0  # as torch.amp.GradScaler: no warning
    assert weir.GradScaler is GradScaler


# ---- Parameters ----


def test_parameter():
    array = weir.arange(4.0, device="cuda")
    param = Parameter(array)
    assert param.data_ptr() == array.data_ptr() and param.grad is None
    param.add_(1)
    assert array.tolist() == [1, 2, 3, 4]
    assert type(param + 1) is weir.Array and type(param.data) is weir.Array and type(param.T) is weir.Array
    assert param.add_(0) is param
    assert repr(param).startswith("Parameter containing:\narray([1.")
    param.grad = array
    file = io.BytesIO()
    pickle.dump(Parameter(weir.arange(3.0)), file)
    copied = pickle.loads(file.getvalue())
    assert type(copied) is Parameter and copied.tolist() == [0, 1, 2] and copied.grad is None
    for wrong in (3, [1.0], None):
        with pytest.raises(TypeError, match="expected an Array"):
            Parameter(wrong)
    with pytest.raises(AttributeError):
        param.other = 3


def test_parameters_free_their_memory():
    before = weir.memory_allocated()
    for _ in range(10):
        param = Parameter(weir.zeros(1000, device="cuda"))
        param.grad = weir.zeros(1000, device="cuda")
    del param
    assert weir.memory_allocated() == before
