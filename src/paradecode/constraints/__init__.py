"""Structured output: JSON schemas, grammars, regular expressions and monitors as constraints.

:class:`~paradecode.constraints.compile.Compiler` compiles the
:class:`paradecode.core.constraint.Constraint` of a request. It needs the extra ``constraints``
(llguidance).
"""
