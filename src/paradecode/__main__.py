"""`python -m paradecode` is the command `paradecode`."""

from paradecode.cli import main

main()
