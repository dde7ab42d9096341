"""Messages between the server's front and its workers, each a line with one JSON object.

The front and the engine are different processes, and neither trusts the other. A line becomes one
of the dataclasses below, or is refused with an error that names the field. ``REQUESTS`` go to a
worker, and ``EVENTS`` come back. A request is complete when ``Done`` was sent for each of its ``n``
outputs, or ``Failure`` once.

Constructing a message checks nothing. :mod:`paradecode.serve.lines` checks what is read.
"""

from paradecode.serve.wire.events import *
from paradecode.serve.wire.requests import *
