"""Claims of decoders that break their promise on purpose, and a toy engine for them."""

from collections.abc import Callable

from broken import WRONG, one_more_draft_token
from paradecode.core.decoder import TARGET, Decoder, Reply, TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode_lab.measure.certificate.plan import Claim
from paradecode_lab.measure.prompts import Item

LOOP = (5, 6, 7, 8, 9) * 4


def text(name: str, tokens: tuple[int, ...]) -> Item:
    return Item(name, name, "", tokens, 64)


TEXTS = [
    text("loop", LOOP), text("pair", (11, 12) * 9 + (11,)),
    text("mixed", (*(4 + (3 * i * i + i) % 24 for i in range(9)), *LOOP, 5, 6)),
    text("long", tuple(4 + (3 * i * i + i) % 24 for i in range(37))),
]  # fmt: skip


def toy_engine() -> Engine:
    return Engine({TARGET: ToyBackend(toy_config())}, Limits(16, 512, 4096), LetterText)


def slips_in_company(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
    """Accept correctly when alone, and one draft token too many with others in the batch."""
    return (one_more_draft_token if seq.neighbours else coupled)(seq, tree, reply)


def exact(make: Callable[[], Decoder]) -> Claim:
    return Claim("own", make, "exact")


BONUS_OF_THE_PARENT = WRONG["bonus of the parent's row"]
BREAKS = WRONG["yields junk"]
