"""Frozen records that are passed between the layers of the program. Standard library only.

Times are seconds since the epoch, UTC, as floats; lengths of time are seconds; sizes are bytes
unless a name says otherwise; MACs are lower-case with colons; IPv4 addresses are dotted strings,
except in `bindings`, which sorts them as integers.

Import records from this package, whichever of its modules defines them. The first access to a name
imports all modules. A command that needs only one module imports that module, and starts sooner.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any

# imported now, because otherwise the module of the same name would become this attribute
from cod.model.described import described as described

if TYPE_CHECKING:
    from cod.model.addresses import *
    from cod.model.described import *
    from cod.model.field_errors import *
    from cod.model.ldap import *
    from cod.model.machines import *
    from cod.model.messages import *
    from cod.model.metadata import *
    from cod.model.names import *
    from cod.model.paging import *
    from cod.model.people import *
    from cod.model.posix import *
    from cod.model.results import *
    from cod.model.rights import *
    from cod.model.sharing.groups import *
    from cod.model.sharing.maintenance import *
    from cod.model.sharing.notices import *
    from cod.model.sharing.requests import *
    from cod.model.sharing.series import *
    from cod.model.sharing.vclusters import *
    from cod.model.sharing.vcms import *
    from cod.model.site import *
    from cod.model.site.database import *
    from cod.model.site.kerberos import *
    from cod.model.site.network import *
    from cod.model.site.rules import *
    from cod.model.site.services import *
    from cod.model.site.settings import *
    from cod.model.site.signin import *
    from cod.model.software import *
    from cod.model.switches import *
    from cod.model.views import *
    from cod.model.volumes import *
else:

    def __getattr__(name: str) -> Any:
        """Import all modules of the package, and return the object called `name`. Raise
        `AttributeError` if there is none."""
        if not name.startswith("_"):
            for each in walk_packages(__path__, f"{__name__}."):
                found = vars(import_module(each.name))
                globals().update(
                    {key: value for key, value in found.items() if not key.startswith("_")}
                )
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
