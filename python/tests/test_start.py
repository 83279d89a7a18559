"""The import, the start, deferred calls, visible devices, fork and spawn."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import is_sanitized, is_soft, run_python

import weir


# ---- The import ----


def test_import_touches_no_device():
    # Any use of a device would try this file, which is not a driver, and fail.
    run_python(
        """
        import sys, threading
        import weir
        assert not weir.is_initialized()
        assert threading.active_count() == 1
        with open("/proc/self/maps") as maps:
            assert "libcuda" not in maps.read()
        with open("/proc/self/task/%d/children" % __import__("os").getpid()) as children:
            assert children.read() == ""
        assert len(__import__("os").listdir("/proc/self/task")) == 1
        """,
        WEIR_DRIVER="cuda",
        WEIR_CUDA_LIBRARY="/nonexistent/libcuda.so",
    )


@pytest.mark.skipif(is_soft, reason="needs NVIDIA's driver")
def test_import_leaves_the_driver_alone():
    """The driver was not initialized (CUDA_ERROR_NOT_INITIALIZED is 3)."""
    code = """
        import ctypes, weir
        print(ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int(-1))))
        """
    assert run_python(code).stdout.strip() == "3"


def test_import_brings_little():
    before = run_python("import sys; print(' '.join(sys.modules))").stdout.split()  # some installations import more
    found = run_python("import sys, weir; print(' '.join(sys.modules))").stdout.split()
    heavy = {"typing", "threading", "traceback", "numpy", "ctypes", "inspect", "subprocess", "triton", "torch"}
    assert not heavy & (set(found) - set(before))


def test_no_triton_on_import(tmp_path):
    """Neither the import nor the first use of a device imports Triton, although it is available."""
    for name in ("triton", "torch", "pynvml"):
        (tmp_path / f"{name}.py").write_text("")
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run_python(
        """
        import sys, weir
        assert weir.buffer(8).fill_(1).tobytes() == bytes([1]) * 8
        with weir.stream(weir.Stream()):
            weir.synchronize()
        weir.memory_summary(), weir.get_device_properties(), weir.list_gpu_processes()
        print([name in sys.modules for name in ("triton", "torch", "pynvml")])
        import triton
        print(triton.__file__)
        """,
        PYTHONPATH=search,
    )
    assert result.stdout.splitlines() == ["[False, False, False]", str(tmp_path / "triton.py")]


def import_copy(folder, names, code="import weir"):
    """Imports a copy of the package whose extension is replaced by files of these names, and returns its error."""
    package = Path(weir.__file__).parent
    shutil.copytree(package, folder / "weir", ignore=shutil.ignore_patterns("_weir.*.so", "__pycache__"))
    for name in names:
        (folder / "weir" / name).write_bytes(b"no library")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("ImportError: ") and "circular" not in result.stderr, result.stderr
    return lines[-1]


def test_an_extension_for_another_python(tmp_path):
    other = "_weir.cpython-38-x86_64-linux-gnu.so"
    text = import_copy(tmp_path, [other])
    assert f"was built for Python 3.8 ({other})" in text
    assert "this is Python %d.%d (%s)" % (*sys.version_info[:2], sys.executable) in text
    assert f"`{sys.executable} -m pip install .`" in text and f"`scripts/build-python {sys.executable} FOLDER`" in text


def test_an_extension_for_several_other_pythons(tmp_path):
    text = import_copy(tmp_path, ["_weir.cpython-38-x86_64-linux-gnu.so", "_weir.cpython-313t-aarch64-linux-gnu.so"])
    assert "Python 3.13 (_weir.cpython-313t-aarch64-linux-gnu.so) and Python 3.8 (" in text


def test_no_extension(tmp_path):
    for number, code in enumerate(["import weir", "import weir.memory", "from weir.cupy import install"]):
        text = import_copy(tmp_path / str(number), [], code)
        assert "the weir extension is not built: there is no _weir*.so in" in text and "-m pip install ." in text


def test_an_extension_that_cannot_be_loaded(tmp_path):
    """Errors of the dynamic linker are not replaced."""
    name = "_weir" + sysconfig.get_config_var("EXT_SUFFIX")
    text = import_copy(tmp_path, [name])
    assert "built" not in text and name in text and ("file too short" in text or "invalid ELF header" in text)


@pytest.mark.skipif(is_sanitized, reason="measures time")
def test_import_takes_at_most_30_ms(tmp_path):
    # CPU time, since other programs may delay this one. The first run compiles the files.
    program = "import time; t = time.process_time_ns(); import weir; print(time.process_time_ns() - t)"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times = []
    for _ in range(12):
        text = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        times.append(int(text) / 1e6)
    # The best of several runs, since a busy machine takes longer.
    assert min(times[1:]) <= 30, times


def test_dir():
    run_python("""
        import sys, weir
        names = dir(weir)
        assert "weir.tools" not in sys.modules and names == sorted(set(names))
        assert not {"annotations", "TYPE_CHECKING"} & set(names)
        tools = {name for name in weir.tools.__all__ if name.islower()}
        assert tools and tools <= set(names), tools - set(names)
        assert {"tools", *weir.__all__} <= set(names)
        for tool in tools:
            assert tool in weir.__doc__ and tool not in weir.__all__, tool
        assert not weir.is_initialized()
        """)


def test_without_compute():
    """The package works where compute was not built, without its names."""
    run_python("""
        import sys
        sys.modules["weir._names"] = None
        import weir
        assert weir.memory_allocated() == 0 and len(set(weir.__all__)) == len(weir.__all__)
        assert all(hasattr(weir, name) for name in weir.__all__)
        assert not hasattr(weir, "zeros") and not hasattr(weir, "amp") and "zeros" not in dir(weir)
        """)


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", weir.__version__)


# ---- The start ----


def test_lazy_init_count_of_nothing():
    assert run_python(
        "import os, weir; os.environ['CUDA_VISIBLE_DEVICES'] = '32'; print(weir.device_count(), weir.is_available())"
    ).stdout.split() == ["0", "False"]


def test_lazy_init_count_follows_the_variable():
    result = run_python(
        """
        import os, weir
        first = weir.device_count()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        second = weir.device_count()
        weir.init()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        print(first, second, weir.device_count())
        """
    )
    first, second, third = map(int, result.stdout.split())
    assert first >= 1 and second == 1 and third == 1


@pytest.mark.parametrize(
    "call",
    [
        "weir.current_device()",
        "weir.Stream()",
        "weir.Event()",
        "weir.CUDAGraph()",
        "weir.synchronize()",
        "weir.get_device_name()",
        "weir.current_stream()",
        "weir.set_device(0)",
        "weir.cudart()",
        "weir.mem_get_info()",
        "weir.Stream.priority_range()",
        "weir.set_sync_debug_mode(0)",
        "weir.device(0).__enter__()",
    ],
)
def test_first_call_starts(call):
    run_python(f"import weir; assert not weir.is_initialized(); {call}; assert weir.is_initialized()")


def test_kernels_are_loaded_lazily():
    show = "print(os.getenv('CUDA_MODULE_LOADING'))"
    code = f"import os, weir; {show}; weir.init(); {show}"
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_MODULE_LOADING"}
    for given, expected in [({}, ["None", "LAZY"]), ({"CUDA_MODULE_LOADING": "EAGER"}, ["EAGER", "EAGER"])]:
        result = subprocess.run(
            [sys.executable, "-c", code], env={**environment, **given}, capture_output=True, text=True, timeout=120
        )
        assert result.stdout.split() == expected, result.stderr


def test_questions_start_nothing():
    run_python(
        """
        import weir
        weir.is_available(), weir.device_count(), weir.graph_pool_handle()
        weir._parse_visible_devices()
        weir.Device(1), weir.device(None), weir.device(-1), weir.device(1), weir.stream(None)
        with weir.device(None), weir.device(-1), weir.stream(None):
            pass
        weir.set_device(-1)
        weir.set_stream(None)
        weir.check_error(0)
        assert not weir.is_initialized()
        """
    )


def test_no_device():
    result = run_python("import weir; weir.init()", check=False, CUDA_VISIBLE_DEVICES="32")
    assert result.returncode == 1
    assert f'RuntimeError: the driver "{os.environ["WEIR_DRIVER"]}" has no device' in result.stderr
    assert 'CUDA_VISIBLE_DEVICES="32"' in result.stderr


def test_no_driver():
    result = run_python(
        "import weir; print(weir.device_count(), weir.is_available()); weir.init()",
        check=False,
        WEIR_DRIVER="cuda",
        WEIR_CUDA_LIBRARY="/nonexistent/libcuda.so",
    )
    assert result.stdout.split() == ["0", "False"]
    assert "/nonexistent/libcuda.so" in result.stderr


def test_a_start_can_be_tried_again():
    run_python(
        """
        import os, weir
        try:
            weir.init()
        except RuntimeError:
            pass
        else:
            raise SystemExit("it started")
        assert not weir.is_initialized()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        weir.init()
        assert weir.is_initialized() and weir.device_count() == 1
        """,
        CUDA_VISIBLE_DEVICES="32",
    )


# ---- Deferred calls ----


def test_queued_calls_run_once_in_order():
    run_python(
        """
        import weir
        seen = []
        weir._lazy_call(lambda: seen.append(weir.current_device()))
        weir._lazy_call(lambda: seen.append("second"))
        # A call that is deferred while deferred calls run is run at once, since the devices are available.
        weir._lazy_call(lambda: weir._lazy_call(lambda: seen.append("third")))
        assert seen == [] and not weir.is_initialized()
        weir.init()
        assert seen == [0, "second", "third"], seen
        weir.init()
        weir._lazy_call(lambda: seen.append("at once"))
        assert seen == [0, "second", "third", "at once"], seen
        """
    )


def test_queued_seeds():
    """Only the most recent calls with seed and seed_all are kept; they run last, in the order of queueing."""
    for calls, order in [
        (["seed", "seed_all"], ["other", "seed 0", "seed_all 1"]),
        (["seed_all", "seed"], ["other", "seed_all 0", "seed 1"]),
        (["seed", "seed_all", "seed"], ["other", "seed_all 1", "seed 2"]),
        (["seed", "seed", "seed"], ["other", "seed 2"]),
        (["seed_all", "seed", "seed_all"], ["other", "seed 1", "seed_all 2"]),
    ]:
        run_python(
            f"""
            import weir
            seen = []
            for number, kind in enumerate({calls}):
                weir._lazy_call(lambda text=f"{{kind}} {{number}}": seen.append(text), **{{kind: True}})
            weir._lazy_call(lambda: seen.append("other"), seed=False, seed_all=False)
            assert seen == []
            weir.init()
            assert seen == {order}, seen
            weir._lazy_call(lambda: seen.append("now"), seed=True)
            weir._lazy_call(lambda: seen.append("now"), seed_all=True)
            assert seen == {order} + ["now", "now"], seen
            """
        )


def test_a_queued_seed_that_fails_names_its_place():
    run_python(
        """
        import weir
        def where_the_seed_was_queued():
            weir._lazy_call(lambda: 1 / 0, seed=True)
        where_the_seed_was_queued()
        try:
            weir.init()
        except weir.DeferredCudaCallError as error:
            assert "in where_the_seed_was_queued" in str(error), error
        else:
            raise SystemExit("it started")
        weir._lazy_call(lambda: None, seed=True)
        weir.init()
        """
    )


def test_a_queued_call_that_fails_names_its_place():
    run_python(
        """
        import weir
        def a_function_of_this_name():
            weir._lazy_call(lambda: broken[0] / 0)
        broken = [1]
        a_function_of_this_name()
        for _ in range(2):
            try:
                weir.synchronize()
            except weir.DeferredCudaCallError as error:
                assert "CUDA call failed lazily at initialization with error: division by zero" in str(error), error
                assert "CUDA call was originally invoked at:" in str(error), error
                assert "in a_function_of_this_name" in str(error), error
                assert isinstance(error.__cause__, ZeroDivisionError)
            else:
                raise SystemExit("it started")
            assert not weir.is_initialized()
        class Whole(int):
            def __truediv__(self, other):
                return 1
        broken[0] = Whole()
        weir.synchronize()
        assert weir.is_initialized()
        """
    )


def test_one_start_for_many_threads():
    run_python(
        """
        import threading, weir
        seen, barrier = [], threading.Barrier(8)
        weir._lazy_call(lambda: seen.append(threading.get_ident()))
        def start():
            barrier.wait()
            weir.current_stream().synchronize()
            assert len(seen) == 1
        threads = [threading.Thread(target=start) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(seen) == 1, seen
        """
    )


# ---- Visible devices ----


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, list(range(64))),
        ("", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 2 , 3", [2, 3]),
        ("1gpu2,2ampere", [1, 2]),
        ("0,0", []),
        ("0,1,0", []),
        ("1,-1,2", [1]),
        ("+3", [3]),
        ("-0", [0]),
        ("gpu", []),
        ("0,,1", [0]),
        ("GPU-9942190a", ["GPU-9942190a"]),
        ("GPU-9942190a,MIG-1", ["GPU-9942190a"]),
        ("GPU-a,GPU-a", []),
        ("MIG-a,MIG-b", ["MIG-a", "MIG-b"]),
    ],
)
def test_parse_visible_devices(monkeypatch, text, found):
    if text is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert weir._parse_visible_devices() == found


def test_names_to_numbers():
    from weir._device import _transform_uuid_to_ordinals

    uuids = ["GPU-9942190a", "GPU-9e8d35e3", "GPU-76e6e95e"]
    assert _transform_uuid_to_ordinals(["GPU-9942190a", "GPU-9e8d35e3"], uuids) == [0, 1]
    assert _transform_uuid_to_ordinals(["GPU-76", "GPU-9942190a"], uuids) == [2, 0]
    # An ambiguous name, an unknown one, and one that occurs twice.
    assert _transform_uuid_to_ordinals(["GPU-76", "GPU-9"], uuids) == [2]
    assert _transform_uuid_to_ordinals(["GPU-x", "GPU-76"], uuids) == []
    assert _transform_uuid_to_ordinals(["GPU-76", "GPU-76e"], uuids) == []


@pytest.mark.skipif(not is_soft, reason="needs four devices")
@pytest.mark.parametrize(("text", "count"), [("3,1", 2), ("0,9,1", 1), ("-1", 0), ("0,0", 0), ("GPU-", 0)])
def test_the_library_reads_it_the_same_way(text, count):
    code = "import weir; print(weir.device_count())"
    assert run_python(code, WEIR_SOFT_DEVICES="4", CUDA_VISIBLE_DEVICES=text).stdout.split() == [str(count)]


@pytest.mark.skipif(not is_soft, reason="needs four devices")
@pytest.mark.parametrize("text", ["1", "3,1", "2,0,3,1", "1,9,0"])
def test_device_numbers_mean_the_same_everywhere(text):
    # The last visible device: in the runtime, the allocator, the history and the snapshot.
    code = """
        import weir
        all_uuids = ["GPU-50f7%04x-7765-4069-8072-736f66740000" % i for i in range(4)]
        visible = [int(number) for number in "{text}".split(",") if int(number) < 4]
        if visible[-1] == 0:
            visible = [1]  # the list ended at 9
        assert weir.device_count() == len(visible)
        device = len(visible) - 1
        assert "GPU-" + str(weir.get_device_properties(device).uuid) == all_uuids[visible[device]]
        weir.memory._record_memory_history()
        before, _ = weir.mem_get_info(device)
        others = [weir.mem_get_info(other) for other in range(device)]
        buffer = weir.buffer(10 << 20, device=device)
        assert before - weir.mem_get_info(device)[0] >= 10 << 20
        assert weir.memory_reserved(device) >= 10 << 20
        assert [weir.mem_get_info(other) for other in range(device)] == others
        assert [weir.memory_reserved(other) for other in range(device)] == [0] * device
        snapshot = weir.memory._snapshot()
        assert [segment["device"] for segment in snapshot["segments"]] == [device]
        assert [bool(trace) for trace in snapshot["device_traces"]][: device + 1] == [False] * device + [True]
    """.replace("{text}", text)
    run_python(code, WEIR_DRIVER="soft", WEIR_SOFT_DEVICES="4", CUDA_VISIBLE_DEVICES=text)


# ---- Fork and spawn ----


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_a_started_process_is_refused():
    run_python(
        """
        import os, warnings, weir
        warnings.simplefilter("ignore", DeprecationWarning)
        stream, event, graph = weir.Stream(), weir.Event(), weir.CUDAGraph()
        event.record()
        # The address sanitizer's malloc has no fork handlers in GCC 12: a lock that another thread holds stays locked
        # in the child. After this call, all threads of the device wait for work.
        weir.synchronize()
        count = weir.device_count()
        assert count > 0
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert not weir.is_initialized()
                assert weir._is_in_bad_fork()
                assert weir.device_count() == count and weir.is_available()
                calls = [weir.init, weir.current_device, weir.synchronize, weir.Stream, weir.Event, weir.CUDAGraph,
                         stream.synchronize, event.synchronize, event.record, weir.current_stream,
                         graph.replay, weir.get_device_properties, lambda: weir.set_device(0)]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as error:
                        assert "Cannot re-initialize CUDA in forked subprocess" in str(error), error
                        assert "'spawn' start method" in str(error), error
                    else:
                        raise AssertionError(call)
                del stream, event, graph
                status = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        event.synchronize()
        """
    )


def test_a_child_of_a_process_that_only_asked_works():
    run_python(
        """
        import os, weir
        assert weir.device_count() > 0 and weir.is_available()
        child = os.fork()
        if child == 0:
            weir.synchronize()
            os._exit(0 if weir.is_initialized() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        weir.synchronize()
        """
    )


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_while_another_thread_starts():
    run_python(
        """
        import os, threading, time, warnings, weir
        warnings.simplefilter("ignore", DeprecationWarning)
        inside, over = threading.Event(), threading.Event()
        weir._lazy_call(lambda: (inside.set(), over.wait()))
        thread = threading.Thread(target=weir.init)
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            try:
                weir.init()
            except RuntimeError as error:
                os._exit(0 if "forked subprocess" in str(error) else 2)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        over.set()
        thread.join()
        assert status == 0, status
        assert weir.is_initialized()
        """
    )


def child_of_spawn(device, queue):
    weir.set_device(device)
    weir._sleep(1000)
    weir.synchronize()
    queue.put((weir.current_device(), str(device)))


def test_spawn():
    weir.synchronize()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child_of_spawn, args=(weir.Device(0), queue))
    process.start()
    assert queue.get(timeout=60) == (0, "cuda:0")
    process.join(60)
    assert process.exitcode == 0


def test_exit_while_a_stream_is_busy():
    run_python("import weir; s = weir.Stream(); s._spin(10**8); e = s.record_event(); g = weir.CUDAGraph()")


def test_exit_while_threads_wait():
    run_python(
        """
        import threading, weir
        s = weir.Stream()
        s._spin(3 * 10**8)
        threading.Thread(target=s.synchronize, daemon=True).start()
        """
    )
