"""The webhook's certificates: an authority of kvpool's own, the webhook's leaf, and the bundle that API servers trust.

`reconcile(api, settings, now)` brings the cluster to what `plan` says, and may be called at any time.
"""

from kvpool_operator.certificates.apply import Outcome, reconcile
from kvpool_operator.certificates.plan import Settings

__all__ = ["Outcome", "Settings", "reconcile"]
