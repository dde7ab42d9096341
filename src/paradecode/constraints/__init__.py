"""Structured output: JSON schemas, grammars, expressions and monitors as constraints.

:class:`~paradecode.constraints.compile.Compiler` turns what a request asks for into a
:class:`paradecode.core.constraint.Constraint`. It needs the extra ``constraints`` (llguidance).
"""
