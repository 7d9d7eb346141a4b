"""Presentation of steps of Spyre."""

from checks.export.policy import Presentation
from checks.policies.spyre.codec import CODEC
from checks.policies.spyre.examples import EXAMPLES
from checks.policies.spyre.picture import PICTURE
from checks.policies.spyre.plot import plot_lines
from checks.policies.spyre.published import FIGURES
from checks.policies.spyre.work import spyre_work, volume_figures
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import State

PRESENTATION: Presentation[SpyreConfig, State, Step] = Presentation(
    codec=CODEC,
    picture=PICTURE,
    work=spyre_work,
    figures=volume_figures,
    plot=plot_lines,
    volume_limit=lambda config: config.max_batch_tkv_limit,
    examples=EXAMPLES,
    published=FIGURES,
)
