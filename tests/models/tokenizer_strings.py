"""Varied texts for comparing tokenizers, made in the same way every time."""

from __future__ import annotations

import random

PIECES = [
    "Hello", " world", "the", " quick", "don't", "I'll", "WE'VE", "naïve", " café", "Straße",
    "日本語", "こんにちは", "안녕하세요", "Привет", " мир", "مرحبا", "שלום", "हिन्दी", "ไทย",
    "中文字符", "😀", "👩‍👩‍👧", "🇫🇷", "🏳️‍🌈", "e\u0301", "\u200b", "\u00a0", "\ufeff", "ﬁ",
    "Ω", "𝒳", "\U0010ffff",
    "0", "7", "1234567890", "3.14159", " 42", "²", "½", "٣", "1,000", "0x1F",
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\x00", "\x7f",
    "def f(x):\n    return x + 1", "for (int i = 0; i < n; ++i) {", "</div>", "&amp;", "\\n",
    "SELECT * FROM t;", "#include <stdio.h>", "a_b-c.d", "http://x.y/z?q=1#a", "foo@bar.com",
    "!!!", "...", "—", "“quoted”", "(a)[b]{c}", "$5.00", "50%", "C++", "~`^|", "'s", "'S", "’s",
    "<|im_end|>", "<|im_start|>user\n", "<|endoftext|>", "<|im_", "<repo_name>", "<s>",
]  # fmt: skip


def strings(count: int = 260) -> list[str]:
    """Return each piece alone, then random mixtures of pieces."""
    rng = random.Random(0)
    mixed = ["".join(rng.choices(PIECES, k=rng.randint(2, 9))) for _ in range(count - len(PIECES))]
    return PIECES + mixed
