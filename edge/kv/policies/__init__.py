"""What happens when a context is full: a module a policy, behind the interface of `policy`, and their table."""

from edge.errors import OptionError
from edge.kv.policies.error import Error
from edge.kv.policies.evict import Evict
from edge.kv.policies.policy import Policy, Room
from edge.kv.policies.sliding import Sliding
from edge.kv.policies.spill import Spill

__all__ = ["POLICIES", "Policy", "Room", "find"]

POLICIES: dict[str, Policy] = {"error": Error(), "sliding": Sliding(), "evict": Evict(), "spill": Spill()}


def find(name: str) -> Policy:
    """The policy of that name. Raises OptionError for an unknown one."""
    found = POLICIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise OptionError(f"policy is {name!r}; it must be one of {', '.join(POLICIES)}")
    return found
