"""Who can be fuzzed and replayed, by name."""

from checks.fuzz.reference import reference_target
from checks.fuzz.target import Subject
from checks.harness.targets import engine_target

REFERENCE = Subject("reference", reference_target)
ENGINE = Subject("engine", engine_target)

SUBJECTS = {one.name: one for one in (REFERENCE, ENGINE)}
