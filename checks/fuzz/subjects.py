"""Who can be fuzzed and replayed, by name."""

from checks.fuzz.reference import reference_target
from checks.fuzz.target import Subject

REFERENCE = Subject("reference", reference_target)

SUBJECTS = {one.name: one for one in (REFERENCE,)}
