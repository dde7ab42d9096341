"""The words from which tasks are made. Each is a single token in the tiny models' tokenizer."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words("""
    Ada Amy Ana Ann Art Ava Ben Bob Cal Cleo Dan Dee Eli Ella Eva Finn Gus Guy Hal Hana Ian
    Ida Ivy Jan Jay Jim Joe Kai Kay Ken Lea Leo Lily Lou Mae Max Mia Nat Ned Nia Noa Ola Pam
    Ray Rex Roy Sam Sue Ted Tim Tom Una Val Zoe
""")
CITIES = _words("""
    Athens Berlin Bern Cairo Dakar Delhi Dublin Lima Lisbon London Madrid Milan Nairobi Oslo
    Paris Prague Quito Riga Rome Sofia Tokyo Tunis Turin Vienna
""")
JOBS = _words("""
    baker barber chef cook dancer doctor driver farmer judge lawyer nurse painter pilot
    plumber poet sailor singer tailor teacher writer
""")
THINGS = _words("""
    apples beans books cards coins cups eggs figs keys lemons nuts pears pens plums shells
    stones
""")
DIGITS = _words("0 1 2 3 4 5 6 7 8 9")
