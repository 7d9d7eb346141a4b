"""Who can be fuzzed and replayed, by name."""

from checks.fuzz.reference import reference_target
from checks.fuzz.target import Subject

SUBJECTS = {one.name: one for one in (Subject("reference", reference_target),)}
