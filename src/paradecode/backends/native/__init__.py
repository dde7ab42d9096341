"""The native CPU backend: a C++ core (``csrc/``) and its thin Python binding."""

from __future__ import annotations

from importlib.util import find_spec

from paradecode.core.errors import InvalidInput

INTERFACE = 14
"""Version of the compiled core that this package needs, equal to kInterface in csrc/binding.cpp."""


def core_is_built() -> bool:
    """Return whether the native core was compiled.

    Raises:
        InvalidInput: it was compiled from other sources, which do not fit this package.
    """
    if find_spec("paradecode.backends.native._core") is None:
        return False
    from paradecode.backends.native import _core

    found = getattr(_core, "INTERFACE", 0)
    if found != INTERFACE:
        raise InvalidInput(
            "native core",
            f"interface {found}",
            "it was compiled from other sources than this package, which needs interface"
            f" {INTERFACE}; compile it anew: pip install -e . in the checkout, or cmake --build"
            " where you built it",
        )
    return True
