"""Where a run's time goes: what runs record in, tables, pages and traces out.

`session.profile()` gives a `Profile`; `cost` says what a node has to do, `peak_of` what the machine can do.
"""

from .collect import NodeProfile, Profile
from .cost import Cost, cost, cost_of_nodes, cost_of_work
from .peak import Peak, peak_of
from .trace import Trace

__all__ = ["Cost", "NodeProfile", "Peak", "Profile", "Trace", "cost", "cost_of_nodes", "cost_of_work",
           "peak_of"]
