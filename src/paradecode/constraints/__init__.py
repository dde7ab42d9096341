"""Structured output: JSON schemas, grammars, expressions and monitors as constraints.

:class:`~paradecode.constraints.compile.Compiler` makes the
:class:`paradecode.core.constraint.Constraint` of a request. It needs the extra ``constraints``
(llguidance).
"""
