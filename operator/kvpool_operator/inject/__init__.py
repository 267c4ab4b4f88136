"""A pod template joins a pool: `inject(template, pool, settings)` gives the template with kvpool's parts, or
the reason why it was left alone. Pure: the command line and the tests call the same function.
"""

from kvpool_operator.inject.template import Injected, Settings, Skip, inject, is_injected, restore

__all__ = ["Injected", "Settings", "Skip", "inject", "is_injected", "restore"]
