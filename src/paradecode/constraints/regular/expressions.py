"""Regular expressions over bytes, as trees, and a parser of simple patterns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paradecode.constraints.limits import refused
from paradecode.core.errors import InvalidInput

MOST_REPEATS = 1000


@dataclass(frozen=True)
class Bytes:
    """Matches any one of these bytes."""

    values: frozenset[int]


@dataclass(frozen=True)
class Literal:
    """Matches these bytes, one after the other."""

    value: bytes


@dataclass(frozen=True)
class Concatenation:
    """Matches the parts, one after the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternation:
    """Matches one of the parts. Without parts it matches nothing."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """Matches the part ``least`` to ``most`` times, where None means no upper limit."""

    part: Expression
    least: int
    most: int | None


Expression = Bytes | Literal | Concatenation | Alternation | Repeat
EMPTY = Literal(b"")


def text(value: str) -> Expression:
    """Return an expression that matches the text in UTF-8."""
    return Literal(value.encode())


def sequence(*parts: Expression) -> Expression:
    return Concatenation(parts)


def one_of(parts: Iterable[Expression]) -> Expression:
    return Alternation(tuple(parts))


def optional(part: Expression) -> Expression:
    return Repeat(part, 0, 1)


def _byte(low: int, high: int) -> Bytes:
    """Return an expression that matches a byte from ``low`` to ``high``."""
    return Bytes(frozenset(range(low, high + 1)))


_NEXT = _byte(0x80, 0xBF)
WIDE = one_of(
    [
        sequence(_byte(0xC2, 0xDF), _NEXT),
        sequence(_byte(0xE0, 0xE0), _byte(0xA0, 0xBF), _NEXT),
        sequence(Bytes(frozenset({*range(0xE1, 0xED), 0xEE, 0xEF})), _NEXT, _NEXT),
        sequence(_byte(0xED, 0xED), _byte(0x80, 0x9F), _NEXT),
        sequence(_byte(0xF0, 0xF0), _byte(0x90, 0xBF), _NEXT, _NEXT),
        sequence(_byte(0xF1, 0xF3), _NEXT, _NEXT, _NEXT),
        sequence(_byte(0xF4, 0xF4), _byte(0x80, 0x8F), _NEXT, _NEXT),
    ]
)
"""Matches any character that takes several bytes in UTF-8."""


def between(low: int, high: int) -> Expression:
    """Return an expression that matches the whole numbers from ``low`` to ``high``.

    The numbers have no leading zeros, and 0 has no sign.
    """
    parts: list[Expression] = []
    if low < 0:
        parts.append(sequence(text("-"), _natural(max(1, -high), -low)))
    if high >= 0:
        parts.append(_natural(max(low, 0), high))
    return one_of(parts)


def _natural(low: int, high: int) -> Expression:
    """Return an expression that matches natural numbers, with one part per number of digits."""
    parts = []
    while len(str(low)) < len(str(high)):
        edge = 10 ** len(str(low)) - 1
        parts.append(_digits(str(low), str(edge)))
        low = edge + 1
    return one_of([*parts, _digits(str(low), str(high))])


def _digits(low: str, high: str) -> Expression:
    """Return an expression that matches numbers with the same number of digits as ``low``.

    Leading zeros are allowed.
    """
    if not low:
        return EMPTY
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(_byte(ord("0"), ord("9")), len(low), len(low))
    if low[0] == high[0]:
        return sequence(text(low[0]), _digits(low[1:], high[1:]))
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    parts = [sequence(text(low[0]), _digits(low[1:], nines))]
    if int(high[0]) - int(low[0]) > 1:
        inner = _byte(ord(low[0]) + 1, ord(high[0]) - 1)
        parts.append(sequence(inner, _digits(zeros, nines)))
    parts.append(sequence(text(high[0]), _digits(zeros, high[1:])))
    return one_of(parts)


# Simple patterns, for which automata are built quickly. They have literals, ``.``, classes, groups,
# ``|``, repeats, ``^`` at the beginning and ``$`` at the end. If dialects differ (does ``\d``
# include Arabic digits?), the smaller set of characters is used. So every text that the automaton
# accepts matches in all dialects.

ASCII = frozenset(range(128))
DIGITS = frozenset(b"0123456789")
WORD = DIGITS | frozenset(b"_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SPACE = frozenset(b" \t\n\r\f\v")
NAMED = {
    "d": DIGITS, "w": WORD, "s": SPACE, "D": ASCII - DIGITS, "W": ASCII - WORD, "S": ASCII - SPACE,
}  # fmt: skip
CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
DEEPEST = 50


@dataclass(frozen=True)
class Characters:
    """A set of characters: ASCII codes, and either some other characters or all others.

    Attributes:
        disputed: True if dialects differ about characters beyond ASCII. Then neither this set nor
            its complement has any such character.
    """

    ascii: frozenset[int]
    wide: frozenset[str] = frozenset()
    others: bool = False
    disputed: bool = False

    def expression(self, quoted: bool) -> Expression:
        """Return an expression that matches one character of the set.

        With ``quoted``, the character is written as in a JSON string, without control characters.
        """
        plain, parts = self.ascii, list[Expression]()
        if quoted:
            plain = plain - {*range(32), 34, 92, 127}
            parts = [text("\\" + chr(code)) for code in (34, 92) if code in self.ascii]
        if plain:
            parts.insert(0, Bytes(plain))
        parts += [text(character) for character in sorted(self.wide)]
        if self.others:
            parts.append(WIDE)
        return parts[0] if len(parts) == 1 else one_of(parts)


ANY = Characters(ASCII - frozenset(b"\n"), others=True)


def parse(pattern: str, quoted: bool = False) -> Expression:
    """Return an expression that matches the texts which ``pattern`` matches as a whole.

    Raises:
        InvalidInput: if the pattern has a syntax error, or unsupported syntax.
    """
    reader = _PatternReader(pattern, quoted)
    made = reader.alternatives(0)
    if reader.at < len(pattern):
        raise reader.error(f"{pattern[reader.at]} without its beginning")
    return made


class _PatternReader:
    def __init__(self, pattern: str, quoted: bool) -> None:
        self.pattern, self.quoted, self.at = pattern, quoted, 0

    def error(self, what: str) -> InvalidInput:
        fix = f"write it without that: {what} (at {self.at}); a canvas needs simple expressions"
        return refused(self.pattern, fix)

    @property
    def next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        self.at += 1
        if self.at > len(self.pattern):
            raise self.error("it ends too soon")
        return self.pattern[self.at - 1]

    def alternatives(self, depth: int) -> Expression:
        if depth > DEEPEST:
            raise self.error("very deep groups")
        parts = [self.series(depth)]
        while self.next == "|":
            self.take()
            parts.append(self.series(depth))
        return parts[0] if len(parts) == 1 else one_of(parts)

    def series(self, depth: int) -> Expression:
        parts: list[Expression] = []
        while self.next not in ("", "|", ")"):
            parts.append(self.repeats(self.item(depth)))
        return sequence(*parts) if parts else EMPTY

    def item(self, depth: int) -> Expression:
        character = self.take()
        if character == "(":
            if self.next == "?":
                if self.pattern[self.at : self.at + 2] != "?:":
                    raise self.error("(? other than (?:")
                self.at += 2
            inner = self.alternatives(depth + 1)
            if self.next != ")":
                raise self.error("a group is not closed")
            self.take()
            return inner
        if (character, self.at) in (("^", 1), ("$", len(self.pattern))):
            return EMPTY
        if character in "^$*+?{":
            raise self.error(f"{character} here")
        if character == ".":
            return ANY.expression(self.quoted)
        if character == "[":
            return self.characters().expression(self.quoted)
        if character == "\\":
            return self.escape().expression(self.quoted)
        return _one(character).expression(self.quoted)

    def escape(self) -> Characters:
        letter = self.take()
        if letter in NAMED:
            return Characters(NAMED[letter], disputed=True)
        if letter in CONTROL:
            return _one(CONTROL[letter])
        if letter in "xu":
            digits = "".join(self.take() for _ in range(2 if letter == "x" else 4))
            try:
                return _one(chr(int(digits, 16)))
            except ValueError:
                raise self.error(f"\\{letter}{digits}") from None
        if letter.isalnum():
            raise self.error(f"\\{letter}")
        return _one(letter)

    def characters(self) -> Characters:
        """Read a character class, after its opening bracket."""
        negated = self.next == "^"
        if negated:
            self.take()
        narrow: set[int] = set()
        wide: set[str] = set()
        disputed = False
        first = True
        while first or self.next != "]":
            first = False
            one = self.member()
            single = len(one.ascii) + len(one.wide) == 1
            if single and self.next == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                self.take()
                last = self.member()
                low, high = _code(one), _code(last)
                if high < low or high - low > 512 or len(last.ascii) + len(last.wide) != 1:
                    raise self.error("a range that is empty, or of more than 512 characters")
                for code in range(low, high + 1):
                    if code < 128:
                        narrow.add(code)
                    elif not 0xD800 <= code < 0xE000:
                        wide.add(chr(code))
            else:
                narrow |= one.ascii
                wide |= one.wide
                disputed |= one.disputed
        self.take()
        if negated:
            return Characters(ASCII - narrow, others=not (wide or disputed))
        return Characters(frozenset(narrow), frozenset(wide))

    def member(self) -> Characters:
        character = self.take()
        if character == "[" or (character == "&" and self.next == "&"):
            raise self.error("a class in a class")
        return self.escape() if character == "\\" else _one(character)

    def repeats(self, part: Expression) -> Expression:
        while self.next and self.next in "*+?{":
            sign = self.take()
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, 0))
            if sign == "{":
                least, most = self.bounds()
            part = Repeat(part, least, most)
            if self.next == "?":  # A lazy repeat matches the same texts.
                self.take()
        return part

    def bounds(self) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.at)
        low, comma, high = self.pattern[self.at : end].partition(",")
        numbers = [low, *([high] if high else [])]
        if end < 0 or not all(n.isascii() and n.isdecimal() and len(n) < 6 for n in numbers):
            raise self.error("{ that is no repeat")
        self.at = end + 1
        least = int(low)
        most = None if comma and not high else int(high or low)
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise self.error(f"repeats beyond {MOST_REPEATS}, or from more to less")
        return least, most


def _one(character: str) -> Characters:
    if ord(character) < 128:
        return Characters(frozenset({ord(character)}))
    if 0xD800 <= ord(character) < 0xE000:
        raise refused(character, "remove the lone surrogate")
    return Characters(frozenset(), frozenset({character}))


def _code(characters: Characters) -> int:
    return next(iter(characters.ascii), None) or ord(next(iter(characters.wide), "\0"))
