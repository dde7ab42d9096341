"""The README's picture of two runs."""

from xml.etree import ElementTree

from tools.pages.race import LETTERS, Run, picture


def test_what_the_slow_run_wrote_later_is_pale() -> None:
    words = [f"w<{place}>" for place in range(30)]
    slow = Run("slow", [(place / 10, f"{word} ") for place, word in enumerate(words)], 30)
    fast = Run("fast", [(0.0, " ".join(words[:20])), (1.0, " " + " ".join(words[20:]))], 30)
    found = list(ElementTree.fromstring(picture([slow, fast])))
    texts = [(each.get("class", ""), each.text or "", each.get("y")) for each in found]
    pale = [text.strip() for kind, text, _ in texts if kind.endswith("late")]
    assert pale == words[11:]
    lines: dict[str | None, str] = {}
    for kind, text, y in texts:
        if kind.endswith(("even", "odd")) and len(text) > len(words[0]) + 2:  # The fast run's.
            lines[y] = lines.get(y, "") + text
    assert len(lines) > 2
    assert all(len(line) <= LETTERS for line in lines.values())
    assert {"30 tokens, 30 forwards, 2.90 s", "30 tokens, 2 forwards, 1.00 s"} <= {
        text for _, text, _ in texts
    }
