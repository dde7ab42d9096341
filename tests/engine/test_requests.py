"""Each kind of request that a decoder can yield."""

import numpy as np
import pytest
from driving import LOOP, PROMPT, add, finish, greedy, negative, plainly, served, toy_engine

from paradecode.core.decoder import (
    Attend,
    BlockCausal,
    Forward,
    Overwrite,
    Steps,
    Store,
    TokenSequence,
    Verdict,
)
from paradecode.core.errors import DecoderError
from paradecode.core.layers import Half
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import ToyBackend, toy_config


def after(tokens: list[int]) -> int:
    return int(ToyBackend().plain_logits(np.array(tokens)).argmax())


def test_rows_come_in_the_order_that_was_asked_for() -> None:
    engine, seen = toy_engine(step_tokens=4), []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, logits=np.array([9, 0, 4], np.int32))
        seen.extend(reply.logits.argmax().tolist())
        yield from plainly(seq)

    add(engine, decode, max_tokens=1)
    engine.step()
    engine.step()
    assert seen == [after(list(LOOP[: i + 1])) for i in (9, 0, 4)]


def test_read_only_rows_leave_no_trace() -> None:
    seen = []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        looked = yield Forward(np.array([9, 9, 9], np.int32), store=Store.NONE)
        seen.extend(looked.logits.argmax().tolist())
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = served(decode)
    assert seen == [after([*LOOP, 9, 9, 9])]
    assert sequence.output == greedy()


def test_a_list_runs_in_one_step_and_is_answered_in_order() -> None:
    engine, seen = toy_engine(), []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        peeks = [Forward(np.array([token], np.int32), store=Store.NONE) for token in (4, 5, 6)]
        twice = negative(2, 3)
        replies = yield [*peeks, twice, twice]
        seen.extend(int(r.logits.argmax()[0]) for r in replies[:3])
        assert replies[3].tolist() == replies[4].tolist()
        seen.append(replies[3].tolist())
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = add(engine, decode)
    engine.step()
    engine.step()
    assert seen == [*(after([*LOOP, token]) for token in (4, 5, 6)), [[-1.0] * 3] * 2]
    finish(engine)
    assert sequence.output == greedy()


def test_sequences_share_one_run_of_a_network() -> None:
    sizes, seen = [], {}

    class Counted(ToyBackend):
        def apply(self, network, items):
            sizes.append([len(item["x"]) for item in items])
            return super().apply(network, items)

    def decode(seq: LiveSequence) -> Steps:
        rows = seq.params.max_tokens
        seen[rows] = yield negative(rows, 2, rows)
        yield from plainly(seq)

    engine = toy_engine({"target": Counted()})
    for rows in (1, 2, 5):
        add(engine, decode, max_tokens=rows)
    engine.step()
    assert sizes == [[1, 2, 5]]
    assert {rows: out.tolist() for rows, out in seen.items()} == {
        rows: [[-float(rows)] * 2] * rows for rows in (1, 2, 5)
    }


def test_hidden_states_of_a_chunked_prompt_are_whole() -> None:
    seen = []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, hidden=(0, -1))
        seen.append(reply.hidden)
        yield from plainly(seq)

    for step_tokens in (512, 3):
        engine = toy_engine(step_tokens=step_tokens)
        add(engine, decode, PROMPT)
        while len(seen) < (1 if step_tokens == 512 else 2):
            engine.step()
    whole, chunked = seen
    assert set(whole) == {0, -1}
    for layer in whole:
        assert whole[layer].shape == (len(PROMPT), 5)
        assert (whole[layer] == chunked[layer]).all()


def test_embeddings_stand_in_for_tokens_and_are_not_shared() -> None:
    engine = toy_engine()

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, embeddings=ToyBackend().embed(seq.pending))
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    first = add(engine, decode, PROMPT)
    finish(engine)
    second = add(engine, plainly, PROMPT)
    finish(engine)
    assert first.output == second.output == greedy(PROMPT)
    assert second.cached_tokens == 0


def test_a_draft_model_grows_a_tree_level_by_level() -> None:
    target, draft = ToyBackend(), ToyBackend(seed=1, surprise=0)
    engine = toy_engine({"target": target, "draft": draft})

    def decode(seq: TokenSequence) -> Steps:
        while not seq.finished:
            tokens: list[int] = []
            parents: list[int] = []
            reply = yield Forward(seq.pending_for("draft"), model="draft")
            level, rows = [-1], [0]
            for _ in range(min(3, seq.room - 1)):
                best, _ = reply.logits.select(rows).top_k(2)
                under = np.repeat(np.array(level, np.int32), 2)
                first = len(tokens)
                tokens += best.ravel().tolist()
                parents += under.tolist()
                level = list(range(first, len(tokens)))
                grown = TokenTree(best.ravel(), np.full(len(level), -1, np.int32))
                reply = yield Forward(
                    np.empty(0, np.int32), tree=grown, under=under, model="draft"
                )  # fmt: skip
                rows = list(range(len(level)))
            tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))
            check = yield Forward(seq.pending, tree=tree)
            seq.commit(coupled(seq, tree, check))

    for step_tokens in (512, 5):
        sequences = []
        engine = toy_engine({"target": target, "draft": draft}, step_tokens=step_tokens)
        for prompt in (LOOP, PROMPT, (7,)):
            sequences.append(add(engine, decode, prompt, 24))
        finish(engine)
        for sequence, prompt in zip(sequences, (LOOP, PROMPT, (7,))):
            assert sequence.error is None
            assert sequence.output == greedy(prompt, 24)
        assert sum(s.stats.accepted for s in sequences) > 20
        assert sequences[0].stats.forwards < 24


def test_grown_rows_see_their_own_path_only() -> None:
    """Nodes of a tree that was grown in two forwards see only their own path."""
    seen = []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, tree=TokenTree(np.array([4, 10]), np.array([-1, -1])))
        seen.extend(reply.logits.argmax().tolist())
        more = TokenTree(np.array([6, 7, 8]), np.array([-1, -1, 1]))
        under = np.array([0, 1, -1], np.int32)
        grown = yield Forward(np.empty(0, np.int32), tree=more, under=under)
        seen.extend(grown.logits.argmax().tolist())
        seq.commit(coupled(seq, EMPTY, reply))
        yield from plainly(seq)

    sequence = served(decode)
    loop = list(LOOP)
    assert seen == [
        after(path) for path in (
            loop, [*loop, 4], [*loop, 10], [*loop, 4, 6], [*loop, 10, 7], [*loop, 10, 7, 8]
        )
    ]  # fmt: skip
    assert sequence.output == greedy()


def test_overwritten_slots_hold_the_new_rows() -> None:
    """A forward can replace cached rows by its own rows, which all see one another."""
    toy = ToyBackend(toy_config(attention="full"))
    engine, seen = toy_engine({"target": toy}), []

    def decode(seq: TokenSequence) -> Steps:
        count = len(seq.pending)
        yield Forward(seq.pending, attend=Attend.FULL)
        other = (seq.tokens + 1) % 20
        everything = np.arange(count, dtype=np.int32)
        nothing = np.empty(0, np.int32)
        for _ in range(2):
            yield Forward(
                other, attend=Attend.FULL, store=Overwrite(everything),
                positions=everything, visible=nothing,
            )  # fmt: skip
        reply = yield Forward(np.array([9], np.int32), store=Store.NONE)
        seen.append(reply.logits.values)
        seq.commit(Verdict([1], [0], reply.logits))
        yield from plainly(seq)

    def straight(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending, attend=Attend.FULL)
        reply = yield Forward(np.array([9], np.int32), store=Store.NONE)
        seen.append(reply.logits.values)
        seq.commit(Verdict([1], [0], reply.logits))
        yield from plainly(seq)

    add(engine, decode, PROMPT, 2)
    add(engine, straight, [(token + 1) % 20 for token in PROMPT], 2)
    finish(engine)
    assert (seen[0] == seen[1]).all()


def test_rows_behind_the_committed_ones_can_be_stored_and_replaced() -> None:
    seen = []

    def decode(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        at = np.arange(len(PROMPT), len(PROMPT) + 2, dtype=np.int32)
        for first, tokens in ((0, [9, 9]), (1, [7])):
            reply = yield Forward(
                np.array(tokens, np.int32), store=Overwrite(at[first:]), positions=at[first:],
                visible=np.arange(at[first], dtype=np.int32),
            )  # fmt: skip
        seen.append(reply.logits.values[0])
        seq.commit(Verdict([1], [0], reply.logits))
        yield Forward(seq.pending)

    sequence = served(decode, PROMPT, 2)
    assert (seen[0] == ToyBackend().plain_logits(np.array([*PROMPT, 9, 7]))).all()
    assert isinstance(sequence.error, DecoderError)
    assert "Overwrite" in str(sequence.error)


def test_rows_of_some_layers_of_a_canvas_count_in_part() -> None:
    engine = toy_engine({"target": ToyBackend(toy_config(attention="full"))})

    def decode(seq: TokenSequence) -> Steps:
        everything = np.arange(12, dtype=np.int32)
        for layers in (None, (0,), (0, Half(1, "attention")), (Half(1, "mlp"),)):
            reply = yield Forward(
                np.full(12, 9, np.int32), attend=Attend.FULL, store=Overwrite(everything),
                positions=everything, visible=everything[:0], layers=layers,
            )  # fmt: skip
            counted.append(engine.running[0].sequence.rows)
        seq.commit(Verdict([1], [0], reply.logits))

    counted: list[float] = []
    sequence = add(engine, decode, PROMPT, 1)
    finish(engine)
    assert sequence.error is None
    # 12 rows; one of two layers; that layer and a third of the other; the other two thirds.
    assert np.diff([0, *counted]) == pytest.approx([12, 6, 8, 4])


def test_a_row_that_runs_piece_by_piece_counts_once() -> None:
    engine, counted = toy_engine(), []

    def decode(seq: TokenSequence) -> Steps:
        live = engine.running[0].sequence
        yield Forward(seq.pending[:-1])
        at, row = np.array([len(seq.tokens) - 1], np.int32), seq.tokens[-1:]
        for layers in ((0,), (Half(1, "attention"),), (Half(1, "mlp"),)):
            store = Store.COMMIT if layers == (0,) else Overwrite(at)
            seen = np.arange(at[0], dtype=np.int32)
            reply = yield Forward(row, store=store, positions=at, visible=seen, layers=layers)
            counted.append((live.forwards, live.rows))
        other = live.timer.other
        target = live.timer.target
        yield Forward(row, store=Store.NONE, layers=())  # The head alone: no row, no other model.
        counted.append((live.forwards, live.rows))
        assert live.timer.other == other == 0
        assert live.timer.target > target
        seq.commit(Verdict([1], [0], reply.logits))

    sequence = add(engine, decode, PROMPT, 1)
    finish(engine)
    assert sequence.error is None
    read = len(PROMPT) - 1
    assert [forwards for forwards, _ in counted] == [2] * 4
    rows = [read + 1 / 2, read + 2 / 3, read + 1, read + 1]
    assert [count for _, count in counted] == pytest.approx(rows)
    assert sequence.stats.rows == len(PROMPT)


def test_overwriting_never_touches_what_others_share() -> None:
    engine = toy_engine()

    def scribble(seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        slots = np.arange(4, 20, dtype=np.int32)
        visible = np.arange(4, dtype=np.int32)
        yield Forward(np.full(16, 9, np.int32), store=Overwrite(slots), visible=visible)
        seq.commit(Verdict([1], [0], reply.logits))
        yield from plainly(seq)

    first = add(engine, plainly, PROMPT)
    finish(engine)
    add(engine, scribble, PROMPT, 3)
    finish(engine)
    last = add(engine, plainly, PROMPT)
    finish(engine)
    assert last.cached_tokens == 32
    assert last.output == first.output == greedy(PROMPT)


@pytest.mark.parametrize("first", [0, 2])
def test_blocks_see_themselves_and_what_came_before(first: int) -> None:
    """Blocks are counted in positions: if rows begin at 2, the first block of 4 has two rows."""
    engine, seen = toy_engine(), []
    at = np.arange(first, first + 8, dtype=np.int32)

    def decode(attend: object) -> object:
        def inner(seq: TokenSequence) -> Steps:
            everything = np.arange(8, dtype=np.int32)
            reply = yield Forward(seq.pending, attend=attend, positions=at, logits=everything)
            seen.append(reply.logits.values)
            seq.commit(Verdict([1], [0], reply.logits))

        return inner

    blocks = at // 4
    for attend in (BlockCausal(4), blocks[:, None] >= blocks[None, :], Attend.CAUSAL):
        add(engine, decode(attend), LOOP[:8], 1)  # type: ignore[arg-type]
    finish(engine)
    assert (seen[0] == seen[1]).all()
    assert (seen[0] != seen[2]).any()
