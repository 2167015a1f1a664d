"""The library, libmemspill.so, and numpy's memory handlers: all that is called by address.

numpy is not there when this package is built. Its functions are found in the table that it publishes for
extensions, at places that are the same in all versions (NEP 49; numpy 1.22 and later).
"""

import ctypes
import functools
import os
from ctypes import c_char_p, c_int, c_size_t, c_uint64, c_void_p, py_object
from pathlib import Path

from memspill._command import find_memspill

COLD, WILLNEED = 0, 1
# Places in numpy's table.
FEATURE_VERSION, SET_HANDLER, GET_HANDLER = 211, 304, 305
FEATURES_LEAST = 0x0F
# A capsule keeps the address of its name.
CAPSULE_NAME = c_char_p(b"mem_handler")


class Error(Exception):
    """A budget cannot be had, or not in this way. The text says what mends it."""


class Stats(ctypes.Structure):
    _fields_ = [
        (name, c_uint64) for name in ("limit_bytes", "used_bytes", "swapped_bytes", "allocated_bytes")
    ]


FUNCTIONS = {
    "memspill_last_error": (c_char_p,),
    "memspill_use_command": (None, c_char_p),
    "memspill_arena_create": (c_void_p, c_uint64),
    "memspill_arena_advise": (c_int, c_void_p, c_void_p, c_size_t, c_int),
    "memspill_arena_pin": (c_int, c_void_p, c_void_p),
    "memspill_arena_unpin": (c_int, c_void_p, c_void_p),
    "memspill_arena_limit": (c_int, c_void_p, c_uint64),
    "memspill_arena_stats": (c_int, c_void_p, c_void_p),
    "memspill_budget_process": (c_int, c_uint64),
    "memspill_limit_process": (c_int, c_uint64),
    "memspill_statistics": (c_char_p,),
    "memspill_numpy_handler": (c_void_p, c_void_p),
}


@functools.lru_cache(maxsize=None)
def library():
    path = Path(__file__).with_name("libmemspill.so")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise Error(f"{error}: build the package with pip, which makes the library too") from None
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    try:
        loaded.memspill_use_command(os.fsencode(find_memspill()))
    except FileNotFoundError:
        pass  # Then it is beside the library, or in PATH.
    return loaded


def call(name, *arguments):
    """Call a function of the library, which says by -1 or NULL that it fails."""
    loaded = library()
    result = getattr(loaded, name)(*arguments)
    if result is None or result == -1:
        raise Error(loaded.memspill_last_error().decode(errors="replace"))
    return result


@functools.lru_cache(maxsize=None)
def numpy_functions():
    """numpy's functions that set and get the memory handler of the current context."""
    try:
        import numpy
    except ImportError:
        raise Error("a budget is for numpy's arrays, and there is no numpy: pip install numpy") from None
    try:
        from numpy._core._multiarray_umath import _ARRAY_API as capsule
    except ImportError:
        from numpy.core._multiarray_umath import _ARRAY_API as capsule
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [py_object, c_char_p]
    table = ctypes.cast(pointer(capsule, None), ctypes.POINTER(c_void_p))
    features = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[FEATURE_VERSION])()
    if features < FEATURES_LEAST:
        raise Error(f"numpy {numpy.__version__} has no memory handlers: install numpy 1.22 or later")
    set_handler = ctypes.PYFUNCTYPE(py_object, py_object)(table[SET_HANDLER])
    get_handler = ctypes.PYFUNCTYPE(py_object)(table[GET_HANDLER])
    return set_handler, get_handler


def handler_of(arena):
    """A capsule with the arena's memory handler."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
    return new(call("memspill_numpy_handler", arena), CAPSULE_NAME, None)
