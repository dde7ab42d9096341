"""Reference answers are right, changed ones wrong, and held-out prompts are not trained on."""

import json
from itertools import pairwise
from random import Random

import pytest

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.tasks.task import HELD_OUT_OF, Task, TaskInstance, is_held_out
from paradecode_lab.measure.tasks.tasks import BY_NAME

DRAWS = 200


@pytest.fixture(params=BY_NAME.values(), ids=lambda task: task.name)
def task(request: pytest.FixtureRequest) -> Task:
    return request.param


def drawn(task: Task, held_out: bool = False) -> list[TaskInstance]:
    random = Random(7)
    return [task.draw(random, held_out) for _ in range(DRAWS)]


def test_the_reference_is_right(task):
    assert all(task.check(instance, instance.answer) for instance in drawn(task))
    assert all(task.check(instance, f" {instance.answer}\n") for instance in drawn(task)[:5])


def test_a_missing_an_extra_and_a_changed_piece_are_wrong(task):
    for instance in drawn(task):
        pieces = instance.answer.split(" ")
        assert not task.check(instance, " ".join(pieces[:-1]))
        assert not task.check(instance, " ".join([*pieces, pieces[0]]))
        assert not task.check(instance, " ".join(["Xerxes", *pieces[1:]]))
        assert not task.check(instance, "")


def test_a_neighbours_answer_is_wrong(task):
    instances = drawn(task)
    for instance, other in pairwise(instances):
        assert task.check(instance, other.answer) == (
            instance.prompt == other.prompt or instance.answer == other.answer
        )


def test_equal_seeds_give_equal_instances_and_others_do_not(task):
    assert drawn(task) == drawn(task)
    assert task.held_out(20, seed=1) == task.held_out(20, seed=1)
    assert task.held_out(20, seed=1) != task.held_out(20, seed=2)


@pytest.mark.first(6)
def test_the_split_is_disjoint_and_not_lopsided(task):
    training = {instance.prompt for instance in drawn(task)}
    held_out = {instance.prompt for instance in task.held_out(DRAWS)}
    assert len(held_out) == DRAWS
    assert training.isdisjoint(held_out)
    random = Random(3)
    share = sum(is_held_out(task.make(random)[0]) for _ in range(3000)) / 3000
    assert abs(share - 1 / HELD_OUT_OF) < 0.03


def test_more_than_there_is_is_refused():
    few = Task("few", lambda random: (f"say {random.randint(1, 40)}", ""), lambda p, a, t: True)
    with pytest.raises(InvalidInput, match="count"):
        few.held_out(40)


@pytest.mark.parametrize(("name", "prompt", "right", "wrong"), [
    ("shuffle", "shuffle: 1 2 3", ["1 2 3", "3 1 2"], ["1 2 2", "1 2", "4 1 2"]),
    ("insert-random", "insert 9 anywhere: 1 2", ["9 1 2", "1 9 2", "1 2 9"],
     ["1 2", "9 2 1", "9 9 1 2", "1 2 8"]),
    ("remove-random", "remove any item: 1 2 3", ["1 2", "1 3", "2 3"],
     ["1 2 3", "3 1", "1", "1 4"]),
    ("replace-random", "replace any item with 9: 1 2 3", ["9 2 3", "1 9 3", "1 2 9"],
     ["1 2 3", "9 9 3", "2 9 3", "9 1 2 3"]),
    ("balance", "balance: ([", ["([])", "()[]"], ["([)]", "(])", "[]()", "()", "([])]", "(["]),
    ("story", "story: Ada figs finds eats",
     ["Ada has 23 figs finds 4 27 eats 5 22", "Ada has 10 figs finds 1 11 eats 1 10"],
     ["Ada has 23 figs finds 4 28 eats 5 23", "Ada has 23 figs finds 4 27 eats 5 23",
      "Ada has 23 figs finds 4 27", "Ben has 23 figs finds 4 27 eats 5 22",
      "Ada has 23 figs finds 0 23 eats 5 18", "Ada has 23 keys finds 4 27 eats 5 22",
      "Ada has 02 figs finds 4 06 eats 5 01", "Ada has 23 figs eats 4 19 finds 5 24"]),
    ("nest", "nest: a.b=1 c=2", ['{"a":{"b":1},"c":2}', '{"c": 2, "a": {"b": 1}}'],
     ['{"a":{"b":1,"c":2}}', '{"a":{"b":1}}', '{"a":{"b":1},"c":2']),
    ("json", 'json: Ann is 20.', ['{"a": 1}', '{ "a":1 }'], ['{"a": 2}', "{", "[" * 100000]),
])  # fmt: skip
def test_free_answers(name, prompt, right, wrong):
    instance = TaskInstance(name, prompt, right[0])
    task = BY_NAME[name]
    assert all(task.check(instance, text) for text in right)
    assert not any(task.check(instance, text) for text in wrong)


def test_worked_steps_add_up():
    for instance in drawn(BY_NAME["addition"]):
        first, second = instance.prompt.removeprefix("add: ").split(" + ")
        assert instance.answer.endswith(f" so {int(first) + int(second)}")
        carry = 0
        for place, step in enumerate(instance.answer.split(" so ")[0].split(" ")):
            terms, total = step.split("=")
            a, b, c = (int(term) for term in terms.split("+"))
            assert (a, b) == tuple(int(n) // 10**place % 10 for n in (first, second))
            assert c == carry
            assert a + b + c == int(total)
            carry = int(total) // 10


def test_word_problems_follow_from_their_steps():
    for instance in drawn(BY_NAME["word-problem"]):
        *steps, end = instance.answer.removesuffix(".").split(". ")
        for step in steps:
            formula, result = step.split(" = ")
            assert eval(formula) == int(result)
            assert 0 < int(result) < 100
        assert end == f"The answer is {steps[-1].split(' = ')[1]}"


def test_chains_follow_from_their_prompts():
    """Answers of chains equal those of other programs that compute them."""
    for instance in drawn(BY_NAME["chain"]):
        digits = [int(digit) for digit in instance.prompt.removeprefix("chain: ").split(" ")]
        assert instance.answer == " ".join(
            str(sum(digits[: n + 1]) % 10) for n in range(len(digits))
        )
    for instance in drawn(BY_NAME["tally"]):
        terms = instance.prompt.removeprefix("tally: ").split(" ")
        sums = [eval(" ".join(terms[: n + 1])) for n in range(1, len(terms))]
        assert instance.answer == " ".join(map(str, sums))
        assert all(10 <= each <= 99 for each in sums)
    for instance in drawn(BY_NAME["path"]):
        began, _, told = instance.prompt.partition(": ")
        after = dict(pair.split(" ") for pair in told.split(", "))
        walk = [began.removeprefix("path ")]
        while walk[-1] in after:
            walk.append(after[walk[-1]])
        assert instance.answer == " ".join(walk)
    for instance in drawn(BY_NAME["close"]):
        left = instance.prompt.removeprefix("close: ")
        while (less := left.replace("()", "").replace("[]", "").replace("{}", "")) != left:
            left = less
        assert instance.answer == left[::-1].translate(str.maketrans("([{", ")]}"))


def test_traces_are_what_the_statements_do():
    for instance in drawn(BY_NAME["trace"]):
        began, _, told = instance.prompt.removeprefix("trace ").partition(": ")
        now = dict(zip(began[::2], map(int, began[1::2])))
        for statement, said in zip(told.split(";"), instance.answer.split(";"), strict=True):
            before = f"{now[statement[0]]}{statement[1]}{now[statement[2]]}"
            now[statement[0]] = eval(before) % 10
            assert said == f"{statement[0]}{before}={now[statement[0]]}"


def test_nested_paths_say_what_the_object_says():
    for instance in drawn(BY_NAME["nest"]):
        tree: dict = {}
        for path in instance.prompt.removeprefix("nest: ").split(" "):
            where, value = path.split("=")
            *above, last = where.split(".")
            inner = tree
            for key in above:
                inner = inner.setdefault(key, {})
            inner[last] = int(value)
        assert json.loads(instance.answer) == tree
