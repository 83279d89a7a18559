"""Random generators, and fills of Buffers.

Names of PyTorch's test_cuda.py are kept where a test is its counterpart.
"""

from __future__ import annotations

import copy
import math
import pickle
import struct
from array import array

import pytest
from conftest import run_python

import weir
from weir.random import bernoulli_, bits_, normal_, random_, randperm_, uniform_


@pytest.fixture(autouse=True)
def frozen_rng_state():
    """Each test leaves the default generators as they were, as PyTorch's freeze_rng_state does."""
    states = weir.get_rng_state_all()
    yield
    weir.set_rng_state_all(states)


def values(buffer, code):
    return array(code, buffer.tobytes()).tolist()


# ---- Scenarios of PyTorch's test_cuda.py ----


def test_manual_seed():
    x = weir.buffer(64)
    weir.manual_seed(2)
    assert weir.initial_seed() == 2
    uniform_(x)
    a = bernoulli_(weir.buffer(64), 0.5)
    weir.manual_seed(2)
    y = uniform_(weir.buffer(64))
    b = bernoulli_(weir.buffer(64), 0.5)
    assert x.tobytes() == y.tobytes()
    assert a.tobytes() == b.tobytes()
    assert a.tobytes() != x.tobytes()
    assert weir.initial_seed() == 2


def test_torch_manual_seed_seeds_cuda_devices():
    # torch.manual_seed seeds all devices; manual_seed_all is its part on devices.
    weir.manual_seed_all(2)
    assert weir.initial_seed() == 2
    x = uniform_(weir.buffer(64))
    weir.manual_seed_all(2)
    y = uniform_(weir.buffer(64))
    assert x.tobytes() == y.tobytes()
    assert weir.initial_seed() == 2
    assert all(generator.initial_seed() == 2 for generator in weir.default_generators)


# ---- The functions of torch.cuda.random ----


def test_graphsafe_set_get_rng_state():
    def create_states(generator):
        uniform_(weir.buffer(4))
        generator.manual_seed(0)
        return generator, generator.graphsafe_get_state(), generator.clone_state()

    def perform_random_generation_steps(generator, old_state, new_state):
        generator.graphsafe_set_state(new_state)
        values = [uniform_(weir.buffer(5 * 4), generator=generator)]
        generator.graphsafe_set_state(old_state)
        return values + [uniform_(weir.buffer(5 * 4), generator=generator) for _ in range(2)]

    state = create_states(weir.Generator(device="cuda"))
    graph, stream = weir.CUDAGraph(), weir.Stream()
    default = create_states(weir.default_generators[0])
    for registered in default[1:]:
        graph.register_generator_state(registered)
    with weir.stream(stream):
        graph.capture_begin()
        graphed = perform_random_generation_steps(*default)
        graph.capture_end()
    weir.current_stream().wait_stream(stream)
    for _ in range(3):
        expected = perform_random_generation_steps(*state)
        graph.replay()
        assert [s.get_offset() for s in state[1:]] == [s.get_offset() for s in default[1:]]
        assert [a.tobytes() for a in expected] == [b.tobytes() for b in graphed]


@pytest.mark.parametrize("fill", [uniform_, normal_, bernoulli_])
def test_graph_rng_functional(fill):
    """Work with random numbers, in turn in a graph and outside of it, gives the numbers that it gives outside."""
    size = 10000 * 4

    def op():
        return weir.buffer(size).copy_(fill(weir.buffer(size)))

    weir.manual_seed(5)
    eager = [op().tobytes() for _ in range(6)]
    stream = weir.Stream()
    stream.wait_stream(weir.current_stream())
    with weir.stream(stream):
        weir.manual_seed(5)
        graph = weir.CUDAGraph()
        graph.capture_begin()
        graphed = [op() for _ in range(2)]
        graph.capture_end()
    weir.current_stream().wait_stream(stream)

    def replay():
        graph.replay()
        return [buffer.tobytes() for buffer in graphed]

    assert replay() + [op().tobytes() for _ in range(2)] + replay() == eager
    for seed in (6, 128, 9999):
        weir.manual_seed(seed)
        assert [replay() for _ in range(3)] != [eager[:2], eager[2:4], eager[4:]]


def test_names():
    for name in weir.random.__all__:
        assert getattr(weir, name) is getattr(weir.random, name)
    assert len(weir.default_generators) == weir.device_count()
    assert all(isinstance(generator, weir.Generator) for generator in weir.default_generators)


def test_rng_state():
    weir.manual_seed(7)
    state = weir.get_rng_state()
    assert isinstance(state, weir.Array) and state.dtype is weir.uint8 and state.device.type == "cpu"
    assert bytes(state) == struct.pack("=QQ", 7, 0)
    first = uniform_(weir.buffer(4000))
    assert not weir.equal(weir.get_rng_state(), state)
    weir.set_rng_state(bytearray(state))
    assert uniform_(weir.buffer(4000)).tobytes() == first.tobytes()
    weir.set_rng_state(state, "cuda:0")
    weir.set_rng_state(memoryview(state), 0)
    assert bytes(weir.get_rng_state(0)) == bytes(weir.get_rng_state("cuda")) == bytes(state)
    states = weir.get_rng_state_all()
    assert len(states) == weir.device_count() and bytes(states[0]) == bytes(state)
    weir.manual_seed(8)
    weir.set_rng_state_all(states)
    assert bytes(weir.get_rng_state()) == bytes(state)


def test_seeds(two_devices):
    weir.manual_seed_all(5)
    with weir.device(1):
        weir.manual_seed(6)
        assert weir.initial_seed() == 6
    assert weir.initial_seed() == 5
    weir.seed_all()
    assert weir.default_generators[0].initial_seed() == weir.default_generators[1].initial_seed()
    weir.seed()
    assert weir.default_generators[0].initial_seed() != weir.default_generators[1].initial_seed()


def test_seeds_are_queued_before_the_start(two_devices):
    run_python(
        """
        import struct
        import weir

        assert weir.default_generators == ()
        weir.manual_seed_all(1)
        weir.manual_seed(2)
        weir.manual_seed(3)
        state = bytearray(struct.pack("=QQ", 9, 8))
        weir.set_rng_state(state, 1)
        state[0] = 77
        weir.seed()
        assert not weir.is_initialized()
        assert weir.initial_seed() == 3  # the last seed wins
        # Seeds come after other queued calls.
        assert weir.default_generators[1].initial_seed() == 1

        assert weir.default_generators[0].get_offset() == 0
        """,
        WEIR_SOFT_DEVICES="2",
    )
    run_python(
        """
        import weir

        weir.manual_seed(2)
        weir.manual_seed_all(4)
        assert [generator.initial_seed() for generator in (weir.init(), weir.default_generators)[1]] == [4, 4]
        """,
        WEIR_SOFT_DEVICES="2",
    )


def test_state_is_queued_before_the_start():
    run_python(
        """
        import struct
        import weir

        state = bytearray(struct.pack("=QQ", 9, 8))
        weir.set_rng_state(state)
        state[0] = 77
        assert not weir.is_initialized()
        assert bytes(weir.get_rng_state()) == struct.pack("=QQ", 9, 8)
        """
    )


# ---- Generators ----


def test_generator():
    generator = weir.Generator(device="cuda:0")
    assert generator.device == weir.Device("cuda", 0) and "cuda:0" in repr(generator)
    assert generator.initial_seed() == 67280421310721
    assert generator.manual_seed(11) is generator
    assert generator.set_offset(8) is generator
    assert generator.get_offset() == 8
    assert bytes(generator.get_state()) == struct.pack("=QQ", 11, 8)
    assert generator.set_state(struct.pack("=QQ", 12, 16)) is generator
    assert (generator.initial_seed(), generator.get_offset()) == (12, 16)
    generator.manual_seed(-1)
    assert generator.initial_seed() == 2**64 - 1
    seed = generator.seed()
    assert generator.initial_seed() == seed and seed < 2**53


def test_generator_states():
    generator = weir.Generator().manual_seed(3)
    clone, shared = generator.clone_state(), generator.graphsafe_get_state()
    generator.set_offset(4)
    assert (clone.get_offset(), shared.get_offset()) == (0, 4)
    assert generator.graphsafe_set_state(clone) is generator
    clone.set_offset(400)
    assert (generator.get_offset(), shared.get_offset()) == (400, 4)


def test_pickled_generator():
    generator = weir.Generator().manual_seed(3).set_offset(20)
    for other in (pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)):
        assert other is not generator and weir.equal(other.get_state(), generator.get_state())
        assert other.device == generator.device


def test_errors_of_generators():
    generator = weir.Generator()
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(3)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        generator.set_state(b"12345")
    with pytest.raises(TypeError, match="bytes-like"):
        generator.set_state(5)
    with pytest.raises(TypeError):
        generator.set_state(weir.buffer(16))
    with pytest.raises(RuntimeError, match="manual_seed expected a long, but got float"):
        generator.manual_seed(1.5)
    with pytest.raises(RuntimeError, match="Overflow"):
        generator.manual_seed(2**64)
    with pytest.raises(TypeError, match="expected a Generator, but got int"):
        generator.graphsafe_set_state(5)
    with pytest.raises(TypeError, match="expected a Generator, but got str"):
        weir.CUDAGraph().register_generator_state("default")
    with pytest.raises(RuntimeError):
        weir.Generator(device=99)


def test_generators_in_a_capture():
    stream, graph, other = weir.Stream(), weir.CUDAGraph(), weir.Generator()
    default = weir.default_generators[0].manual_seed(4)
    buffer = weir.buffer(400)
    with weir.stream(stream):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="Cannot call CUDAGeneratorImpl::get_offset"):
            default.get_offset()
        with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
            default.manual_seed(5)
        with pytest.raises(RuntimeError, match="Attempt to increase offset for a CUDA generator not in capture mode"):
            uniform_(buffer, generator=other)
        with pytest.raises(RuntimeError, match="Cannot register the state during capturing stage"):
            graph.register_generator_state(other)
        uniform_(buffer)
        graph.capture_end()
    weir.current_stream().wait_stream(stream)
    assert default.get_offset() == 0
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(buffer.tobytes())
    assert default.get_offset() == 12 and len(set(seen)) == 3
    # The same numbers without a graph.
    default.manual_seed(4)
    assert [uniform_(buffer).tobytes() for _ in range(3)] == seen


def test_registered_generator():
    generator, graph, stream = weir.Generator().manual_seed(6), weir.CUDAGraph(), weir.Stream()
    graph.register_generator_state(generator)
    buffer = weir.buffer(4096)
    with weir.graph(graph, stream=stream):
        normal_(buffer, generator=generator)
    weir.current_stream().wait_stream(stream)
    graph.replay()
    first = buffer.tobytes()
    assert generator.get_offset() == 4
    # The graph uses the state even if the generator is gone, and follows a shared one.
    shared = generator.graphsafe_get_state()
    del generator
    shared.manual_seed(6)
    graph.replay()
    assert buffer.tobytes() == first
    graph.replay()
    assert buffer.tobytes() != first


# ---- Fills ----


def philox(seed, thread, block):
    """Philox4x32-10, from its definition."""
    c = [block & 0xFFFFFFFF, block >> 32, thread & 0xFFFFFFFF, thread >> 32]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def words(seed, offset, count, geometry):
    """The 32-bit numbers of PyTorch's fill of `count` elements."""
    threads = 256 * min(geometry[0] * (geometry[1] // 256), (count + 255) // 256)
    return [philox(seed, i % threads, offset // 4 + i // threads // 4)[i // threads % 4] for i in range(count)]


@pytest.mark.parametrize("count", [1, 255, 257, 4097])
def test_fills_are_those_of_the_model(count):
    geometry = (2, 512)
    generator = weir.Generator().set_geometry(*geometry)

    def rewind():
        return generator.manual_seed(1234).set_offset(8)

    numbers = words(1234, 8, count, geometry)
    assert values(bits_(weir.buffer(4 * count), dtype="int32", generator=rewind()), "I") == numbers
    # In random_, integers have no sign bit.
    signless = values(random_(weir.buffer(4 * count), dtype="int32", generator=rewind()), "i")
    assert signless == [n & 0x7FFFFFFF for n in numbers]
    dice = values(random_(weir.buffer(4 * count), 1, 7, dtype="int32", generator=rewind()), "i")
    assert dice == [1 + n % 6 for n in numbers]
    single = [struct.unpack("f", struct.pack("f", n))[0] for n in numbers]
    uniform = values(uniform_(weir.buffer(4 * count), dtype="float32", generator=rewind()), "f")
    expected = [struct.unpack("f", struct.pack("f", (n + 0.5) / 2**32))[0] for n in single]
    assert uniform == [0.0 if n == 1.0 else n for n in expected]
    coins = values(bernoulli_(weir.buffer(count), 0.25, dtype="bool", generator=rewind()), "B")
    assert coins == [int(n < 0.25) for n in expected]


def test_permutation():
    for count in (1, 100, 5000):
        seen = values(randperm_(weir.buffer(8 * count), generator=weir.Generator()), "q")
        assert sorted(seen) == list(range(count)) and (count == 1 or seen != sorted(seen))


def test_normal():
    numbers = values(normal_(weir.buffer(40000), 5.0, 2.0, generator=weir.Generator()), "f")
    mean = sum(numbers) / len(numbers)
    assert abs(mean - 5) < 0.1
    assert abs(sum((n - mean) ** 2 for n in numbers) / len(numbers) - 4) < 0.3


def test_fills_are_on_the_current_stream(two_devices):
    stream = weir.Stream()
    buffer = weir.buffer(400)
    weir.manual_seed(1)
    with weir.stream(stream):
        weir._sleep(1)
        assert uniform_(buffer) is buffer
    stream.synchronize()
    first = buffer.tobytes()
    weir.manual_seed_all(1)
    with weir.device(1):
        other = uniform_(weir.buffer(400))
    assert other.device == 1 and other.tobytes() == first
    # The generator is that of the buffer's device, whichever is current.
    offset = weir.default_generators[1].get_offset()
    uniform_(other)
    assert weir.default_generators[1].get_offset() > offset


def test_ranges():
    buffer = weir.buffer(8000)
    assert set(values(random_(buffer, 3), "q")) == {0, 1, 2}
    assert set(values(random_(buffer, -1, 1), "q")) == {-1, 0}
    assert min(values(random_(buffer), "q")) >= 0
    wide = values(random_(buffer, -(2**63), 2**63 - 1), "q")
    assert min(wide) < 0 < max(wide)
    floats = values(uniform_(buffer, -3.0, -2.0, dtype="float64"), "d")
    assert -3 <= min(floats) and max(floats) < -2


def test_errors_of_fills():
    buffer = weir.buffer(16)
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        uniform_(buffer, dtype="int32")
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        normal_(buffer, dtype="int64")
    with pytest.raises(RuntimeError, match="normal expects std >= 0.0, but found std -1"):
        normal_(buffer, 0.0, -1.0)
    with pytest.raises(RuntimeError, match=r"bernoulli_ expects p to be in \[0, 1\], but got p=2"):
        bernoulli_(buffer, 2)
    with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to', but got from=5 >= to=2"):
        random_(buffer, 5, 2)
    with pytest.raises(RuntimeError, match="out of bounds"):
        random_(buffer, 0, 300, dtype="uint8")
    with pytest.raises(TypeError, match="expected a dtype"):
        uniform_(buffer, dtype="float31")
    with pytest.raises(TypeError, match="expected a weir.Buffer"):
        uniform_(bytearray(16))
    with pytest.raises(TypeError, match="expected a Generator, but got int"):
        uniform_(buffer, generator=5)
    with pytest.raises(ValueError, match="no whole number of elements"):
        uniform_(weir.buffer(6))
    with pytest.raises(RuntimeError, match="'cpu'"):
        uniform_(weir.host_empty(16))
    assert uniform_(weir.buffer(0)).nbytes == 0


def test_generator_of_another_device(two_devices):
    with pytest.raises(RuntimeError, match="Expected a 'cuda:0' generator device but found 'cuda:1'"):
        uniform_(weir.buffer(16), generator=weir.Generator(device=1))


def test_fork_rng():
    weir.manual_seed(5)
    before = weir.random.get_rng_state()
    with weir.random.fork_rng():
        weir.rand(100, device="cuda")
        assert not weir.equal(weir.random.get_rng_state(), before)
    assert weir.equal(weir.random.get_rng_state(), before)
    with pytest.raises(ZeroDivisionError), weir.random.fork_rng(devices=[0]):
        weir.manual_seed(6)
        1 / 0
    assert weir.equal(weir.random.get_rng_state(), before)
    with weir.random.fork_rng(enabled=False):
        weir.rand(100, device="cuda")
    assert not weir.equal(weir.random.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="expected 'cuda'"), weir.random.fork_rng(device_type="xpu"):
        pass


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_distributions_made_of_uniform_numbers(device):
    """Each has the quantiles that its formula gives."""
    count = 20000
    weir.manual_seed(7)

    def quantile(x, q):
        return sorted(x.tolist())[int(q * count)]

    for kind in (weir.float32, weir.float64, weir.float16):
        x = weir.empty(count, dtype=kind, device=device)
        assert quantile(x.exponential_(2.0), 0.5) == pytest.approx(math.log(2) / 2, rel=0.1) and (x >= 0).all()
        assert quantile(x.cauchy_(3.0, 2.0), 0.75) == pytest.approx(5, rel=0.05)
        assert quantile(x.log_normal_(1.0, 0.5), 0.5) == pytest.approx(math.e, rel=0.05)
        x.geometric_(0.25)
        assert quantile(x, 0.7) == 5 and x.min().item() == 1 and (x == 1).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert weir.empty(9, dtype=weir.int64, device=device).geometric_(0.5).min().item() >= 1
    for call in ("exponential_(0)", "cauchy_(0, 0)", "geometric_(1)", "log_normal_(0, 0)"):
        with pytest.raises(RuntimeError, match="expects"):
            eval(f"x.{call}", {"x": weir.empty(1, device=device)})
    with pytest.raises(NotImplementedError, match="\"cauchy_\" not implemented for"):
        weir.empty(1, dtype=weir.int32, device=device).cauchy_()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_poisson(device):
    weir.manual_seed(7)
    rates = weir.tensor([0.0, 0.5, 8.0, 40.0, 1e6], device=device).unsqueeze(1).expand(5, 2000)
    for kind in (weir.float32, weir.float64):
        made = weir.poisson(rates.to(kind))
        assert made.dtype is kind and (made == made.floor()).all() and (made[0] == 0).all()
        for rate, mean in zip([0.5, 8.0, 40.0, 1e6], made.mean(1).tolist()[1:]):
            assert mean == pytest.approx(rate, abs=5 * math.sqrt(rate / 2000))
    transposed = weir.poisson(rates.t())
    assert (transposed[:, 0] == 0).all() and transposed[:, 4].mean().item() == pytest.approx(1e6, rel=1e-3)
    if device == "cpu":
        with pytest.raises(RuntimeError, match="invalid Poisson rate"):
            weir.poisson(weir.tensor([-1.0]))
    with pytest.raises((NotImplementedError, RuntimeError), match="not implemented for 'Int'"):
        weir.poisson(weir.ones(2, dtype=weir.int32, device=device))


def test_accelerator():
    """The names of torch.accelerator that need generators or arrays."""
    from weir import accelerator

    weir.manual_seed(123)
    assert accelerator.random.initial_seed() == 123
    state = accelerator.random.get_rng_state()
    assert state.dtype is weir.uint8 and state.tolist() == weir.get_rng_state(0).tolist()
    assert [one.tolist() for one in accelerator.random.get_rng_state_all()] == [one.tolist() for one in weir.get_rng_state_all()]
    dtypes = accelerator.get_device_capability()["supported_dtypes"]
    assert {weir.bool, weir.float16, weir.complex128} <= dtypes and len(dtypes) == 12
    for kind in dtypes:
        assert weir.zeros(2, dtype=kind, device="cuda").tolist() == [0, 0]
    with pytest.raises(AssertionError, match="Invalid device id"):
        accelerator.get_device_capability(99)
