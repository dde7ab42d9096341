"""The conformance suite's models in the native core."""

from collections.abc import Mapping

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.testing.machines import DRAFT, Kind, checkpoint


def native_backends(kind: Kind) -> Mapping[str, Backend]:
    """Open the suite's models with 4-bit weights in the native core."""
    return {
        TARGET: open_backend("native", *checkpoint(kind), dtype="q4", threads=2),
        DRAFT: open_backend("native", *checkpoint(kind, blur=0.05), dtype="q4", threads=2),
    }
