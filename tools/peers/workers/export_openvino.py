"""Export a transformers folder to OpenVINO with 4- or 8-bit weights.

Arguments: folder, target, bits.
"""

from __future__ import annotations

import sys
from typing import Any

from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig


def main(source: str, target: str, bits: int) -> None:
    grouped: dict[str, Any] = {"sym": False, "group_size": 64, "ratio": 1.0} if bits == 4 else {}
    config = OVWeightQuantizationConfig(bits=bits, **grouped)
    model = OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, quantization_config=config
    )
    model.save_pretrained(target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
