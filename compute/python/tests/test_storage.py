"""Storages, and the classes of arrays and storages that are named after their type."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest

import weir
from weir import _C

TITLES = {
    "Double": weir.float64,
    "Float": weir.float32,
    "Half": weir.float16,
    "BFloat16": weir.bfloat16,
    "Long": weir.int64,
    "Int": weir.int32,
    "Short": weir.int16,
    "Char": weir.int8,
    "Byte": weir.uint8,
    "Bool": weir.bool,
    "ComplexDouble": weir.complex128,
    "ComplexFloat": weir.complex64,
}


@pytest.mark.parametrize("title", TITLES)
def test_classes(title):
    for module, place in ((weir, "cuda"), (weir.cpu, "cpu")):
        make = getattr(module, f"{title}Storage")
        storage = make([1, 0, 1])
        assert storage.dtype is make.dtype is TITLES[title] and storage.device.type == place
        assert storage.tolist() == [1, 0, 1] and len(storage) == 3 and storage.nbytes() == 3 * make.dtype.itemsize
        assert isinstance(storage, make) and isinstance(storage, weir.TypedStorage) and len(make()) == len(make(0)) == 0
        assert make(10).size() == 10 and repr(make) == f"<class '{module.__name__}.{title}Storage'>"
        assert not isinstance(storage, getattr(weir if module is weir.cpu else weir.cpu, f"{title}Storage"))
        if title.startswith("Complex"):
            assert not hasattr(module, f"{title}Tensor")
            continue
        make = getattr(module, f"{title}Tensor")
        array = make([[1, 0]])
        assert array.dtype is TITLES[title] and array.device.type == place and array.tolist() == [[1, 0]]
        assert isinstance(array, make) and isinstance(array, weir.Array) and not isinstance(storage, make)
        assert make(2, 5).shape == (2, 5) and make(array.size()).shape == (1, 2) and make().shape == (0,)
        assert array.type() == f"{module.__name__}.{title}Tensor"


def test_type_conversions():
    x = weir.cpu.FloatTensor(5, 5)
    assert isinstance(x.float(), weir.cpu.FloatTensor) and isinstance(x.cuda().double(), weir.DoubleTensor)
    assert isinstance(x.cuda().float(), weir.FloatTensor) and isinstance(x.cuda().int().cpu(), weir.cpu.IntTensor)
    assert isinstance(x.type(weir.HalfTensor), weir.HalfTensor)
    y = x.storage()
    assert isinstance(y.float(), weir.cpu.FloatStorage) and isinstance(y.cuda().double(), weir.DoubleStorage)
    assert isinstance(y.cuda().int().cpu(), weir.cpu.IntStorage) and y.float() is y
    assert isinstance(y.type(weir.LongStorage), weir.LongStorage)


def test_not_available():
    for name in ("from_buffer", "_new_with_weak_ptr", "_new_shared_filename"):
        with pytest.raises(RuntimeError, match=f"{name}: Not available for CUDA storage"):
            getattr(weir.FloatStorage, name)(b"")


def test_names_are_in_the_module():
    assert weir.FloatTensor is weir.FloatTensor and weir.cpu.FloatTensor is not weir.FloatTensor
    with pytest.raises(AttributeError, match="has no attribute 'NoTensor'"):
        weir.NoTensor


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_typed(device):
    x = weir.arange(4, dtype=weir.int32, device=device)
    storage = x[1:].storage()
    assert storage.data_ptr() == x.data_ptr() and storage.size() == 4 and storage[2] == 2
    assert storage._untyped_storage is x.untyped_storage() and isinstance(storage._untyped_storage, weir.UntypedStorage)
    storage[0] = 9
    assert x.tolist() == [9, 1, 2, 3] and list(storage) == [9, 1, 2, 3]
    assert storage == x.storage() == storage.clone() and storage != x.long().storage()
    assert storage.clone().fill_(5).tolist() == [5] * 4 and storage.half().dtype is weir.float16
    target = weir.TypedStorage(4, dtype=weir.float32, device=device)
    assert target.copy_(storage).tolist() == [9, 1, 2, 3]
    assert target.resize_(6).size() == 6 and target.tolist()[:4] == [9, 1, 2, 3]
    assert storage.pickle_storage_type() == "IntStorage" and storage.element_size() == 4
    assert storage.cuda().is_cuda and storage.cpu().get_device() == -1
    restored, array = pickle.loads(pickle.dumps([storage, x]))
    restored.fill_(1)
    assert array.tolist() == [1] * 4
    with pytest.raises(RuntimeError, match="slices are only supported in UntypedStorage"):
        storage[1:]
    with pytest.raises(RuntimeError, match="not resizable"):
        storage.resize_(10)
    with pytest.raises(IndexError):
        storage[4]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_untyped(device):
    storage = weir.UntypedStorage(4, device=device).fill_(3)
    assert storage.tolist() == [3] * 4 and len(storage) == storage.size() == storage.nbytes() == 4
    assert storage.device.type == device and storage.is_cuda == storage.is_shared() == (device == "cuda")
    storage[1] = 9
    assert storage[1] == 9 and storage[1:3].tolist() == [9, 3] and list(storage) == [3, 9, 3, 3]
    assert copy.deepcopy(storage).tolist() == storage.clone().tolist() == storage.tolist()
    assert weir.UntypedStorage([1, 2], device=device).tolist() == [1, 2]
    assert storage.cpu().device.type == "cpu" and storage.cuda().get_device() == 0
    assert storage.resize_(0).nbytes() == 0 and storage.resize_(8).nbytes() == 8
    assert "8 bytes" in repr(storage)
    if device == "cpu":
        assert storage.pin_memory().is_pinned() and storage.cpu() is storage
    else:
        storage.record_stream(weir.Stream())
        assert storage.cuda() is storage


def test_memory_is_freed_with_the_last_reference():
    gc.collect()
    before = weir.memory_allocated()
    x = weir.zeros(1000, device="cuda")
    storage = x.storage()
    del x
    assert weir.memory_allocated() > before and storage.tolist()[0] == 0
    del storage
    gc.collect()
    assert weir.memory_allocated() == before


def restored_pool():
    """Returns two arrays of a pool, the pool, and its state while they are alive."""
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        arrays = [weir.full((size,), 7, dtype=weir.uint8, device="cuda") for size in (512, 3 << 20)]
    return arrays, pool, _C._cuda_getCheckpointState(0, pool.id)


def test_storages_that_own_restored_memory():
    gc.collect()
    before = weir.memory_allocated()
    arrays, pool, state = restored_pool()
    shapes = [(array.data_ptr(), array.device, array.nbytes) for array in arrays]
    held = weir.memory_allocated() - before
    del arrays
    again = [_C._construct_storage_from_data_pointer(*shape) for shape in shapes]
    assert not any(_C._has_Standard_Deleter(storage._cdata) for storage in again)
    _C._cuda_setCheckpointPoolState(0, state, [], [storage._cdata for storage in again])
    assert weir.memory_allocated() == before + held
    assert all(_C._has_Standard_Deleter(storage._cdata) for storage in again) and again[0].tolist() == [7] * 512
    with pytest.raises(RuntimeError, match="must not own memory already"):
        _C._cuda_setCheckpointPoolState(0, state, [], [again[0]._cdata])
    del again
    assert weir.memory_allocated() == before
    del pool


def test_stale_storages_own_nothing():
    gc.collect()
    before = weir.memory_allocated()
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        kept = weir.zeros(100, device="cuda")
        state = _C._cuda_getCheckpointState(0, pool.id)
        stale = weir.zeros(200, device="cuda")
    name = stale.untyped_storage()._cdata  # the object of the storage is gone, and the storage is not
    assert _C._has_Standard_Deleter(name)
    _C._cuda_setCheckpointPoolState(0, state, [name], [])
    assert weir.memory_allocated() == before + 512 and not _C._has_Standard_Deleter(name)
    del stale
    assert weir.memory_allocated() == before + 512
    with pytest.raises(ValueError, match="is not the _cdata of a storage"):
        _C._has_Standard_Deleter(name)
    del kept, pool
    assert weir.memory_allocated() == before


def test_free_and_remove_deleter():
    x = weir.zeros(1000, device="cuda")
    name, before = x.untyped_storage()._cdata, weir.memory_allocated()
    address = x.data_ptr()
    _C._free_And_Remove_DeleterFn(name)
    assert weir.memory_allocated() == before - 4096 and x.data_ptr() == address
    with pytest.raises(TypeError, match="a storage that owns device memory"):
        _C._free_And_Remove_DeleterFn(name)
    buffer = weir.buffer(512)
    assert _C._has_Standard_Deleter(buffer)
    _C._free_And_Remove_DeleterFn(buffer)
    assert not _C._has_Standard_Deleter(buffer)
    with pytest.raises(ValueError):
        _C._has_Standard_Deleter(1)
