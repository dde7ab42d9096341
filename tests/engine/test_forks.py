"""Forks share pages until one of them writes, and a fork may become the sequence itself."""

import numpy as np
import pytest
from driving import LOOP, PROMPT, add, finish, greedy, plainly, served, toy_engine

from paradecode.core.decoder import Fork, Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import CapacityError, DecoderError
from paradecode.core.tree import EMPTY
from paradecode.engine.pages import PagePool
from paradecode.methods.draft.verifiers import coupled


def branch_out(seq: TokenSequence) -> Steps:
    """Fork three children that start with different tokens; the sequence adopts the second one."""
    reply = yield Forward(seq.pending)
    seq.commit(coupled(seq, EMPTY, reply))
    children = yield Fork(3)
    for index, child in enumerate(children):
        child.commit(Verdict([10 + index], [0], reply.logits))
    for _ in range(4):
        replies = yield [Forward(child.pending, on=child) for child in children]
        for child, one in zip(children, replies):
            child.commit(coupled(child, EMPTY, one))
    seq.adopt(children[1])
    yield from plainly(seq)


@pytest.mark.parametrize("prompt", [LOOP, PROMPT, PROMPT[:15], PROMPT[:16], PROMPT[:31]])
def test_a_child_becomes_the_sequence(prompt: tuple[int, ...]) -> None:
    engine = toy_engine()
    sequence = add(engine, branch_out, prompt, 14)
    neighbour = add(engine, plainly, prompt, 14)
    finish(engine)
    assert sequence.error is None
    start = [greedy(prompt, 1)[0], 11]
    assert sequence.output == [*start, *greedy((*prompt, *start), 12)]
    assert neighbour.output == greedy(prompt, 14)


def test_children_share_pages_until_they_write() -> None:
    engine, held = toy_engine(), []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        held.append(engine.pools["target"].held)
        children = yield Fork(4)
        held.append(engine.pools["target"].held)
        for index, child in enumerate(children):
            child.commit(Verdict([10 + index], [0], reply.logits))
        yield [Forward(child.pending, on=child) for child in children]
        held.append(engine.pools["target"].held)
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = add(engine, decode, PROMPT)
    finish(engine)
    assert held == [3, 3, 7]
    assert sequence.output == greedy(PROMPT)


def test_children_and_parent_diverge_on_one_page() -> None:
    """All children and the parent write into copies of the same half-full page."""
    ends = []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        family = [seq, *(yield Fork(2))]
        for _ in range(6):
            replies = yield [Forward(one.pending, on=one) for one in family]
            for one, answer in zip(family, replies):
                one.commit(coupled(one, EMPTY, answer))
        ends.extend(one.tokens.tolist() for one in family)
        yield from plainly(seq)

    served(decode, PROMPT)
    assert ends == [[*PROMPT, *greedy(PROMPT, 7)]] * 3


def test_broken_copy_on_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePool, "writable", lambda pool, page: True)
    sequence = served(branch_out, PROMPT, 14)
    start = [greedy(PROMPT, 1)[0], 11]
    assert sequence.output != [*start, *greedy((*PROMPT, *start), 12)]


def test_cancelling_gives_the_pages_of_forks_back() -> None:
    engine = toy_engine()
    sequence = add(engine, branch_out, PROMPT, 14)
    for _ in range(4):
        engine.step()
    assert engine.pools["target"].held > 3
    engine.cancel(sequence)
    assert engine.pools["target"].held == 0
    engine.check()


def test_only_a_family_can_be_forwarded_or_adopted() -> None:
    engine, other = toy_engine(), []

    def first(seq: TokenSequence) -> Steps:
        other.append(seq)
        yield from plainly(seq)

    def thief(seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        yield Forward(np.array([5], np.int32), on=other[0])

    victim, bad = add(engine, first), add(engine, thief)
    finish(engine)
    assert isinstance(bad.error, DecoderError)
    assert victim.output == greedy()


@pytest.mark.parametrize("count", [0, -1, 65])
def test_the_number_of_forks_is_bounded(count: int) -> None:
    def decode(seq: TokenSequence) -> Steps:
        yield Fork(count)

    sequence = served(decode)
    assert isinstance(sequence.error, DecoderError)


def test_forks_that_do_not_fit_end_their_request_only() -> None:
    """Forks that do not fit end only their own request; others keep their reserved pages."""
    engine = toy_engine(kv_tokens=16 * 24, draft_tokens=0)
    neighbours = [add(engine, plainly, PROMPT[i:], 40) for i in range(3)]
    bad = add(engine, branch_out, PROMPT, 40)
    finish(engine)
    assert isinstance(bad.error, CapacityError)
    assert [one.output for one in neighbours] == [greedy(PROMPT[i:], 40) for i in range(3)]
    again = add(engine, branch_out, PROMPT, 14)
    finish(engine)
    assert again.error is None, "what the forks had reserved must be free again"
