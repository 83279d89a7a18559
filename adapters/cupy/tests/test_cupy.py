"""CuPy on Weir's memory. Run it with python3 or pytest; it needs CuPy and a GPU, and is waived without them.

PYTHONPATH must contain the package weir.
"""

import gc
import sys
import threading
import time

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # no CuPy, no driver, no device: each raises its own exception
    print(f"waived: {type(error).__name__}: {error}")
    if __name__ == "__main__":
        sys.exit(77)
    import pytest

    pytest.skip(f"CuPy is not available: {error}", allow_module_level=True)

import weir

import weir.cupy as weir_cupy

MIB = 1 << 20

# Keeps a stream busy for a number of cycles of the device clock.
spin = cupy.RawKernel(
    r"""
    extern "C" __global__ void spin(long long cycles) {
      long long begin = clock64();
      while (clock64() - begin < cycles) {
      }
    }
    """,
    "spin",
)


def busy(stream, cycles=400_000_000):
    with stream:
        spin((1,), (1,), (cycles,))


def fresh():
    gc.collect()
    cupy.cuda.runtime.deviceSynchronize()
    weir.empty_cache()
    weir.reset_peak_memory_stats()


def address(array):
    return array.data.mem.ptr


def test_install_and_uninstall():
    before = cupy.cuda.get_allocator()
    weir_cupy.install()
    weir_cupy.install()
    assert weir_cupy.is_installed()
    array = cupy.ones(MIB, dtype=cupy.uint8)
    assert weir.memory_allocated() >= MIB
    weir_cupy.uninstall()
    assert not weir_cupy.is_installed()
    assert cupy.cuda.get_allocator() == before
    held = weir.memory_allocated()
    other = cupy.ones(MIB, dtype=cupy.uint8)
    assert weir.memory_allocated() == held
    assert int(array.sum()) == int(other.sum()) == MIB
    del array
    assert weir.memory_allocated() < held


def test_allocations_are_in_c():
    """CuPy's classes and exported functions are those that python/src/cupy.c expects."""
    assert weir_cupy.why_not_c() is None, weir_cupy.why_not_c()
    with weir_cupy.using():
        array = cupy.arange(1000)
        memory = array.data.mem
    assert type(memory).__name__ == "Memory" and isinstance(memory, cupy.cuda.memory.BaseMemory)
    assert memory.ptr == array.data.ptr and memory.size == array.nbytes and memory.device == cupy.cuda.Device()
    assert (array.data + 8).mem is memory and int(array[1:].sum()) == 499500
    del array
    assert weir.memory_allocated() > 0
    del memory


def in_thread(function):
    """Calls the function in a new thread and returns its result, or raises its exception."""
    results, errors = [], []

    def run():
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def test_threads_have_a_context():
    """After an allocation, as with CuPy's pool, even if the memory was cached."""
    current = cupy.cuda.driver.ctxGetCurrent

    def allocate():
        assert not current()
        with weir_cupy.using():
            cupy.empty(1000)
        return current()

    cupy.empty(1)
    assert in_thread(allocate) == in_thread(allocate) == current()


def test_the_first_allocation_of_a_thread_in_a_capture():
    with weir_cupy.using(), cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.zeros(1000, dtype=cupy.int32)
        y = x + 1
        cupy.add(x, y, out=y)  # compiles the kernel
        stream.begin_capture()

        def allocate():
            with weir_cupy.using(), stream:
                return cupy.empty(1000, dtype=cupy.int32)

        z = in_thread(allocate)
        cupy.add(x, y, out=z)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert int(z.sum()) == 1000


def test_a_pool_of_cupy_on_weir():
    fresh()
    before = weir.memory_allocated()
    pool = cupy.cuda.MemoryPool(weir_cupy.malloc)
    with cupy.cuda.using_allocator(pool.malloc):
        array = cupy.ones(3 * MIB, dtype=cupy.uint8)
        assert int(array.sum()) == 3 * MIB
    assert weir.memory_allocated() > before
    del array
    pool.free_all_blocks()
    assert weir.memory_allocated() == before


def test_many_threads():
    fresh()
    failed = []

    def work(number):
        try:
            with weir_cupy.using(), cupy.cuda.Stream(non_blocking=True) as stream:
                for step in range(200):
                    x = cupy.full(1000 + 100 * number, step, dtype=cupy.int64)
                    y = x + x
                    del x
                    if step % 50 == 0:
                        assert int(y.sum()) == 2 * step * (1000 + 100 * number)
                stream.synchronize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_results_are_right():
    with weir_cupy.using():
        rng = cupy.random.default_rng(7)
        a = rng.random((512, 512), dtype=cupy.float64)
        b = rng.random((512, 512), dtype=cupy.float64)
        product = a @ b
        assert cupy.allclose(cupy.asnumpy(a) @ cupy.asnumpy(b), cupy.asnumpy(product))
        assert cupy.allclose(cupy.fft.ifft(cupy.fft.fft(a)).real, a)
        x = cupy.sort(a.ravel())
        assert bool((x[1:] >= x[:-1]).all())
        assert cupy.allclose(cupy.linalg.solve(a, b), cupy.asarray(cupy.linalg.inv(a) @ b), atol=1e-5)


def test_memory_is_counted_and_freed():
    fresh()
    before = weir.memory_allocated()
    with weir_cupy.using():
        arrays = [cupy.zeros(MIB, dtype=cupy.uint8) for _ in range(10)]
    assert weir.memory_allocated() == before + 10 * MIB
    del arrays
    assert weir.memory_allocated() == before
    assert weir.max_memory_allocated() >= before + 10 * MIB
    assert weir.memory_reserved() > 0
    fresh()


def test_memory_is_used_again_on_its_stream():
    fresh()
    stream = cupy.cuda.Stream(non_blocking=True)
    with weir_cupy.using(), stream:
        array = cupy.empty(3 * MIB, dtype=cupy.uint8)
        first = address(array)
        busy(stream)
        del array
        array = cupy.empty(3 * MIB, dtype=cupy.uint8)
        assert not stream.done
        assert address(array) == first
    stream.synchronize()


def test_streams_have_their_own_memory():
    fresh()
    one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with weir_cupy.using():
        with one:
            array = cupy.empty(3 * MIB, dtype=cupy.uint8)
            first = address(array)
            busy(one)
            del array
        with two:
            other = cupy.empty(3 * MIB, dtype=cupy.uint8)
            assert not one.done
            assert address(other) != first
    one.synchronize()


def test_record_stream():
    fresh()
    one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with weir_cupy.using(), one:
        array = cupy.empty(3 * MIB, dtype=cupy.uint8)
        first = address(array)
        busy(two)
        weir_cupy.record_stream(array, two)
        del array
        other = cupy.empty(3 * MIB, dtype=cupy.uint8)
        assert not two.done
        assert address(other) != first
        two.synchronize()
        again = cupy.empty(3 * MIB, dtype=cupy.uint8)
        assert address(again) == first


def test_streams_that_the_program_forgets():
    """CuPy destroys streams with their last object, and the driver crashes on the handle of a destroyed one."""
    fresh()
    with weir_cupy.using():
        arrays = []
        for _ in range(8):
            with cupy.cuda.Stream(non_blocking=True):
                array = cupy.empty(3 * MIB, dtype=cupy.uint8)
            stream = cupy.cuda.Stream(non_blocking=True)
            busy(stream, 1_000_000)
            weir_cupy.record_stream(array, stream)
            del stream
            arrays.append(array)
        del array
        gc.collect()
        # Handles of destroyed streams would be reused here.
        others = [cupy.cuda.Stream(non_blocking=True) for _ in range(16)]
        handles = {stream.ptr for stream in others}
        assert handles.isdisjoint(weir_cupy._streams)
        arrays.clear()
        weir.empty_cache()
        assert float(cupy.ones(10).sum()) == 10
    fresh()


def test_two_streams_do_not_disturb_each_other():
    """Temporaries come and go on both streams at once: a mistake in the order of memory shows as a wrong sum."""
    fresh()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    sums = [[], []]

    def work(number):
        with weir_cupy.using(), streams[number]:
            for step in range(200):
                x = cupy.full(1 << 18, number + 1, dtype=cupy.int64)
                y = x * 2 + step
                sums[number].append((y.sum(), (1 << 18) * ((number + 1) * 2 + step)))
            streams[number].synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert len(sums[number]) == 200
        for got, expected in sums[number]:
            assert int(got) == expected


def test_default_streams_of_threads():
    fresh()
    results = []

    def work(number):
        with weir_cupy.using(), cupy.cuda.Stream.ptds:
            for step in range(100):
                x = cupy.full(1 << 16, number, dtype=cupy.int64)
                results.append(((x + step).sum(), (1 << 16) * (number + step)))
            cupy.cuda.Stream.ptds.synchronize()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 400
    for got, expected in results:
        assert int(got) == expected


def test_default_stream_of_another_thread():
    """If an array dies on another thread, the stream of the first thread is waited for."""
    fresh()
    with weir_cupy.using():
        array = cupy.empty(3 * MIB, dtype=cupy.uint8)
        done = cupy.cuda.Event()

        def work():
            with cupy.cuda.Stream.ptds:
                spin((1,), (1,), (400_000_000,))
                done.record()
                weir_cupy.record_stream(array)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not done.done
        del array
        assert done.done


def test_out_of_memory():
    fresh()
    total = cupy.cuda.runtime.memGetInfo()[1]
    with weir_cupy.using():
        try:
            cupy.empty(2 * total, dtype=cupy.uint8)
        except cupy.cuda.memory.OutOfMemoryError as error:
            assert "Weir" in str(error)
            assert isinstance(error.__cause__, weir.OutOfMemoryError)
        else:
            raise AssertionError("expected OutOfMemoryError")
        assert int(cupy.ones(10, dtype=cupy.int32).sum()) == 10


def test_a_limit_of_weirs_holds():
    fresh()
    weir.set_per_process_memory_limit(64 * MIB)
    try:
        with weir_cupy.using():
            kept = cupy.zeros(40 * MIB, dtype=cupy.uint8)
            try:
                cupy.zeros(40 * MIB, dtype=cupy.uint8)
            except cupy.cuda.memory.OutOfMemoryError:
                pass
            else:
                raise AssertionError("the limit was not enforced")
            assert int(kept.sum()) == 0
    finally:
        weir.set_per_process_memory_limit(None)


def test_other_memory_is_refused():
    array = cupy.ones(10)
    try:
        weir_cupy.record_stream(array)
    except ValueError as error:
        assert "not Weir's" in str(error)
    else:
        raise AssertionError("CuPy's own memory was mistaken for Weir's")


def measure(count=20000):
    """Returns the microseconds to create and destroy an array."""
    begin = time.perf_counter()
    for _ in range(count):
        cupy.cuda.alloc(4096)
    return (time.perf_counter() - begin) / count * 1e6


def main():
    failed = 0
    tests = [(name, value) for name, value in globals().items() if name.startswith("test_")]
    for name, test in tests:
        try:
            test()
            print(f"passed {name}", flush=True)
        except Exception:
            import traceback

            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            failed += 1
    own = measure()
    with weir_cupy.using():
        weirs = measure()
    print(f"an allocation and its free: CuPy's pool {own:.2f} us, Weir {weirs:.2f} us")
    print(f"cupy: {len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
