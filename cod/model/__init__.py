"""Frozen records that travel between floors. Standard library only.

Times are seconds since the epoch, UTC, as floats; lengths of time are seconds; sizes are bytes
unless a name says otherwise; MACs are lower-case with colons; IPv4 addresses are dotted strings,
except in `bindings`, which sorts them as integers.

Import records from here: which file of the package they are in does not matter.
"""

from cod.model.addresses import *
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
from cod.model.sharing import *
from cod.model.site import *
from cod.model.site.network import *
from cod.model.site.rules import *
from cod.model.site.services import *
from cod.model.site.signin import *
from cod.model.software import *
from cod.model.switches import *
from cod.model.views import *
from cod.model.volumes import *
