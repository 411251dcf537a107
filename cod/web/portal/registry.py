"""The portal: pages that are rendered from the same flows as the REST API under the same rights,
and forms whose POSTs run through the API's own routes. The portal can do nothing that the API
cannot.

How to add a page
=================
1. In a module by noun (`cod/web/portal/pages/vclusters.py`; see `overview.py`), a `Page`:

       Page("/vclusters/{name}", "vcluster.html", _vcluster, see("vcluster"), nav="/vclusters")

       def _vcluster(tx: Tx, ask: PageCall[Named]) -> dict[str, Any]:
           return {"found": views.vcluster(tx, name=ask.names.name, policy=ask.site.policy)}

   `load(tx, ask)` returns the template's variables: it calls flows, all in one read transaction.
   `ask` has `who`, `site`, `now`, `names` (of the path) and `query` (checked by the page's model, a
   `api.models.Query`). Claims are those of the API: `see`, `use`, `manage`, `ADMINS`, `ANYBODY`.
   Lists get `groups=ask.who.groups`. Sorting, filtering and paging are query parameters, done by
   the flow.
2. Put the module into the table below. An entry of the navigation shows as soon as its page is
   there.
3. A template `web/templates/vcluster.html`:

       {% extends "base.html" %}
       {% block title %}{{ found[0].vcluster.name }}{% endblock %}
       {% block crumbs %}
       {{ m.crumbs([("Virtual clusters", url("vclusters"))], found[0].vcluster.name) }}
       {% endblock %}
       {% block main %}
       <section data-part="nodes" data-on="transition">
       {% block nodes %} ... {% endblock %}
       </section>
       {% endblock %}

   Every template has:
       m                   the macros of `_macros.html`, documented there
       me                  the caller (`Who`), or None; can('use', group_id): whether to offer it
       site, now, path     the site and the time, as in flows; the page's own path
       ask, part           the request; the name of the only block that is requested, or ''
       url('vclusters', name, sort='x')   a path of quoted parts, and a query
       here(sort='x')      this page with its query changed (None takes a name out)
       forms(path)         the form that is sent to that path: for `m.form` and the fields in it
       asset('style.css')  the path of an asset
       filters             at|when(now), at|clock, seconds|duration, bytes|size, n|count('node'),
                           done|percent(total)
       state is at_work    whether a node's disk is being written or read: then the page has a
                           bar, at first with 0 %
   Everything is escaped; `|safe` is for icons alone. An undefined name is an error. No `style=` or
   `on...=` attributes, no `<script>` or `<style>` with content: the Content-Security-Policy forbids
   them.
4. Live parts: a `{% block nodes %}` within an element with `data-part="nodes"` is fetched again as
   `?part=nodes` and replaced when an event of a kind in `data-on` comes ('transition', 'notice',
   'progress'), at most every few seconds, more seldom the more browsers watch; with
   `data-vcluster="NAME"` only when the event concerns it. Single values without that:
   `m.state(name, node=NODE)` and `m.progress(..., node=NODE)` follow the events by themselves. A
   block that is fetched cannot see a `{% set %}` outside of it. Everything has to be right without
   the script, too: it only saves the reload.
5. A form and its action:

       {% set f = forms(url("vclusters", v.name, "extend")) %}
       {% call m.form(f) %}
         {{ m.field(f, "lease", "New lease", help="From now, such as 3d or 12h", required=True) }}
         {{ m.submit("Extend") }}
       {% endcall %}

       act("/vclusters/{name}/extend", "POST", "/vclusters/{name}", "{reply.name} is extended.",
           convert={"lease": quantity.read_span})

   Fields are named as those of the route's body (`tuples.0.count` within lists) and become its
   types by themselves; see `page.Action`. The same page shows a refusal of the model or the flow at
   its field, with the typed text. A form that is sent twice is carried out once.
6. Tests: `tests/net/portalclient.py` has a browser without scripts: `browser.get(path)`,
   `page.send(path, field=...)`.

`page` (what a page is), `forms`, `links`, `formatting`, `answers`, `assets`, `render`
know no sockets; `front` finds pages and renders them; `page_body` hands requests over.
"""

from __future__ import annotations

from types import ModuleType

from cod.web.portal.page import Action, Page, SessionAction
from cod.web.portal.pages import (
    account,
    audit,
    calendar,
    faults,
    groups,
    hardware,
    hold,
    images,
    machine_list,
    maintenance,
    node_actions,
    nodes,
    notices,
    overview,
    people,
    policy,
    racks,
    requests,
    reserve,
    search,
    series,
    settings,
    shares,
    signing,
    templates,
    timeline,
    vclusters,
    volumes,
    wizard,
)
from cod.web.portal.pages.jobs import burnins, captures, reinstalls

# If a path matches two patterns, the first one counts: /vclusters/new comes before
# /vclusters/{name}.
_MODULES: tuple[ModuleType, ...] = (
    overview,
    wizard,
    vclusters,
    reinstalls,
    series,
    requests,
    images,
    captures,
    templates,
    volumes,
    groups,
    shares,
    notices,
    nodes,
    machine_list,
    node_actions,
    racks,
    faults,
    maintenance,
    hold,
    hardware,
    timeline,
    calendar,
    reserve,
    policy,
    settings,
    people,
    audit,
    account,
    search,
    signing,
    burnins,
)

PAGES: tuple[Page, ...] = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS: tuple[Action | SessionAction, ...] = tuple(
    action for module in _MODULES for action in getattr(module, "ACTIONS", ())
)
