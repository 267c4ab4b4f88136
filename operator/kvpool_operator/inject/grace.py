"""The pod's time to end: a sidecar is told to end when the engine has, so the hand-off's time comes on top of the
engine's own. A pod that is to end at once is left so."""

import math

from kvpool_operator.inject.edits import Edits

GRACE = "terminationGracePeriodSeconds"
DEFAULT_SECONDS = 30  # Kubernetes'


def time_to_hand_over(edits: Edits, seconds: float) -> None:
    found = edits.template["spec"].get(GRACE)
    before = DEFAULT_SECONDS if found is None else found
    if seconds and before:
        edits.set(("spec", GRACE), before + math.ceil(seconds))
