"""Users and members of groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, Never

from pydantic import Field

from cod import model
from cod.choices import Role, SingleRight
from cod.flows.people import invitations, people, sshkeys
from cod.flows.people.access import RequiredRight
from cod.model import HIGHEST, LOWEST, DirectorySyncResult, Refused, Right
from cod.pool import Tx
from cod.web.api.models import (
    Body,
    Chosen,
    Email,
    Line,
    Paged,
    PatchOf,
    Reply,
    ReplyOf,
    UserName,
)
from cod.web.api.resources.invitations import Invited, LinkBody, invited, linked
from cod.web.api.routes import (
    ADMINS,
    ANYBODY,
    Call,
    Flow,
    NamedMember,
    Names,
    Shaped,
    Worked,
    in_parts,
    listed,
    member_route,
    named_route,
    number,
    paged,
    part_route,
    route,
    see,
)
from cod.web.signin.service import SignIn

Uid = Annotated[int, Field(ge=LOWEST, le=HIGHEST, description="POSIX number on nodes")]


class SessionsEnded(Reply):
    """Number of browsers that were signed out."""

    ended: int


class GroupKey(Reply):
    """An SSH key with which people log in to the nodes of a group's vclusters. `line` is a line of
    an authorized_keys file."""

    user: str
    name: str
    algorithm: str
    fingerprint: str
    line: str

    @classmethod
    def of(cls, parts: tuple[str, model.SshKey]) -> GroupKey:
        """Return the reply from the user's name and the row."""
        user, key = parts
        return cls.read_from(key, user=user)


class KeyAdd(Body):
    """A line of a .pub file. `name` replaces its comment."""

    key: Annotated[str, Field(min_length=1, max_length=8000)]
    name: Line = ""


class KeyReply(ReplyOf[model.SshKey]):
    """A public SSH key. `given`: it comes from the user's directory."""

    id: int
    name: str
    algorithm: str
    fingerprint: str
    key: str
    created_at: float
    given: bool


KEYS = listed(KeyReply, "Keys, in the order in which they came.")


class UserQuery(Paged):
    sort: Literal["name", "-name", "created_at", "-created_at"] = "name"


class UserCreate(LinkBody):
    """A new user. The answer has a link by which the user sets a password."""

    name: UserName
    full_name: Line = ""
    email: Email = ""
    admin: bool = Field(default=False, description="a site administrator")
    uid: Uid | None = Field(
        default=None, description="POSIX number on nodes; null: the next of the site's range"
    )


class UserPatch(PatchOf[model.User]):
    """Changes to a user. A field that is null stays as it is."""

    null_stays = True


class UserReply(ReplyOf[model.User]):
    """A user. `signed_in_at`: when the user last signed in; null: never, or hidden from the
    caller."""


class Membership(ReplyOf[model.Member]):
    """A user's role in a group."""

    group: str
    role: str


class UserSync(Body):
    """Options of a comparison with the LDAP directory. `names`: people who become users though they
    have not signed in yet; `trust`: apply the directory's answer even if many users lose their
    rights at once."""

    names: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[], max_length=200
    )
    trust: bool = False


class UserSyncReply(ReplyOf[model.DirectorySyncResult], whole=True):
    """Changes made by a comparison with the LDAP directory, by names of users. `added`: new users;
    `gone`: users whom the directory no longer has; `back`: users whom it has again; `changed`:
    users whose roles changed; `held`: users who would lose rights, but keep them, because they are
    too many at once; `missing`: names in the request that the directory does not have."""


class UserInFull(UserReply):
    """A user, with the user's roles in the groups that the caller may see."""

    groups: list[Membership]


class MemberSet(Body):
    """A user's new role and rights in a group. `role`: null: unchanged; `rights`: the single rights
    beside the role, null: unchanged; `shares`: the user's shares among the group's users, if it has
    users' shares, null: unchanged; `force`: allow that the group has no owner, which only
    administrators may."""

    role: Chosen[Role] | None = None
    rights: list[Chosen[SingleRight]] | None = Field(default=None, max_length=len(SingleRight))
    shares: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    force: bool = False


class MemberReply(ReplyOf[model.Member]):
    """A user's role in a group, and single rights beside it. `shares`: in proportion to those of
    the group's other users, if it has users' shares. `given`: the role comes from a group of the
    user's directory."""

    group: str
    user: str
    full_name: str
    email: str
    role: str
    rights: tuple[str, ...]
    shares: float
    given: bool


class MemberRemoved(Reply):
    """A user who is no longer in a group. New logins fail within a minute. Sessions that are open
    on `nodes`, as HOST.VCLUSTER, continue until `command` is run there as root."""

    group: str
    user: str
    nodes: list[str]
    command: str

    @classmethod
    def of(cls, removed: tuple[str, str, list[str]]) -> MemberRemoved:
        """Return the reply from the group, the user and the nodes."""
        group, user, nodes = removed
        return cls(group=group, user=user, nodes=nodes, command=f"pkill -KILL -u {user}")


def _added(ask: Call[Names, UserCreate]) -> Flow[tuple[model.Invitation, str]]:
    """Return a new user, and the link by which they set their password."""
    link = linked(partial(invitations.renew, user=ask.body.name), ask)

    def add(tx: Tx) -> tuple[model.Invitation, str]:
        body = ask.body
        people.create(
            tx,
            body.name,
            full_name=body.full_name,
            email=body.email,
            admin=body.admin,
            uid=body.uid,
            posix=ask.site.posix,
            now=ask.now,
        )
        return link(tx)

    return add


def given_fields(body: Body) -> dict[str, Any]:
    """Return the fields that a patch names and that are not null, with their values."""
    return {
        key: value
        for key, value in body.model_dump(exclude_unset=True).items()
        if value is not None
    }


def _sets(ask: Call[NamedMember, MemberSet]) -> Sequence[RequiredRight]:
    """Return the rights of owners of the group. Only an administrator may leave a group without an
    owner."""
    forced = (RequiredRight(Right.ADMIN),) if ask.body.force else ()
    return (RequiredRight(Right.MANAGE, "group", ask.names.name), *forced)


def _removes(ask: Call[NamedMember]) -> Sequence[RequiredRight]:
    """Return the rights of owners of the group. Everybody may remove themselves."""
    leaves = ask.who.person == ask.names.user and ask.who.only is None
    return (RequiredRight(Right.SEE if leaves else Right.MANAGE, "group", ask.names.name),)


async def _synced(service: SignIn, ask: Call[Names, UserSync]) -> DirectorySyncResult:
    return await service.follow(ask.who, ask.body.names, trust=ask.body.trust)


def by_act(tx: Tx) -> Never:
    """Refuse the call: the route is carried out by its `act`, not in one transaction."""
    raise Refused("conflict", "this is not done in one transaction")


_IN_FULL: Shaped[tuple[model.User, list[model.Member]], UserInFull] = Shaped(
    UserInFull,
    lambda found: UserInFull(
        **UserReply.values(found[0]), groups=[Membership.of(each) for each in found[1]]
    ),
)

USERS = (
    route(
        "GET /users",
        ANYBODY,
        "List users: those of your groups; for administrators, all",
        lambda a: in_parts(
            partial(people.every, groups=a.who.groups),
            a.query.page,
            lambda one: (one.name, one.full_name, one.email),
            name=attrgetter("name"),
            created_at=attrgetter("created_at"),
        ),
        reply=paged(UserReply, "Users."),
        query=UserQuery,
    ),
    named_route(
        "GET /users/{name}",
        see("user"),
        "Show a user",
        lambda a: partial(people.one, name=a.names.name, groups=a.who.groups),
        reply=_IN_FULL,
    ),
    route(
        "POST /users",
        ADMINS,
        "Create a user, and a link for setting a password",
        _added,
        reply=Worked(Invited, invited),
        body=UserCreate,
        secret=True,
        makes="/users/{user}",
    ),
    named_route(
        "PATCH /users/{name}",
        ADMINS,
        "Change a user; disabling ends all sessions at once",
        lambda a: partial(
            people.change, name=a.names.name, changes=given_fields(a.body), now=a.now
        ),
        reply=_IN_FULL,
        body=UserPatch,
    ),
    named_route(
        "DELETE /users/{name}",
        ADMINS,
        "Delete a user for good, with sessions, tokens, keys and roles",
        lambda a: partial(people.delete, name=a.names.name),
    ),
    route(
        "POST /users/sync",
        ADMINS,
        "Compare the users with the LDAP directory now, and take people over from it",
        lambda a: by_act,
        act=_synced,
        reply=UserSyncReply,
        body=UserSync,
    ),
    named_route(
        "GET /users/{name}/keys",
        ADMINS,
        "List the SSH keys of a user",
        lambda a: partial(sshkeys.of_user, user=a.names.name),
        reply=KEYS,
    ),
    part_route(
        "GET /users/{name}/keys/{id}",
        ADMINS,
        "Show an SSH key of a user",
        lambda a: partial(sshkeys.one_of_user, user=a.names.name, key_id=number(a.names.id)),
        reply=KeyReply,
    ),
    named_route(
        "POST /users/{name}/keys",
        ADMINS,
        "Add an SSH key for a user; nodes let it in from their next installation on",
        lambda a: partial(
            sshkeys.add_for_user,
            user=a.names.name,
            line=a.body.key,
            name=a.body.name,
            now=a.now,
        ),
        reply=KeyReply,
        body=KeyAdd,
        makes="/users/{name}/keys/{id}",
    ),
    part_route(
        "DELETE /users/{name}/keys/{id}",
        ADMINS,
        "Remove an SSH key of a user",
        lambda a: partial(sshkeys.remove_of_user, user=a.names.name, key_id=number(a.names.id)),
    ),
    named_route(
        "DELETE /users/{name}/sessions",
        ADMINS,
        "End all sessions of a user",
        lambda a: partial(people.end_sessions, name=a.names.name),
        reply=Shaped(SessionsEnded, lambda count: SessionsEnded(ended=count)),
    ),
)

MEMBERS = (
    named_route(
        "GET /groups/{name}/members",
        see("group"),
        "List the members of a group",
        lambda a: partial(people.members, group=a.names.name),
        reply=listed(MemberReply, "The members of a group, by name."),
    ),
    member_route(
        "GET /groups/{name}/members/{user}",
        see("group"),
        "Show a member's role",
        lambda a: partial(people.member, group=a.names.name, user=a.names.user),
        reply=MemberReply,
    ),
    member_route(
        "PUT /groups/{name}/members/{user}",
        _sets,
        "Set a member's role: owner, member or viewer; and single rights beside it",
        lambda a: partial(
            people.set_role,
            group=a.names.name,
            user=a.names.user,
            role=a.body.role,
            rights=a.body.rights,
            shares=a.body.shares,
            enlist=a.who.admin,
            force=a.body.force,
        ),
        reply=MemberReply,
        body=MemberSet,
        puts=True,
    ),
    member_route(
        "DELETE /groups/{name}/members/{user}",
        _removes,
        "Remove a member from a group",
        lambda a: partial(people.remove, group=a.names.name, user=a.names.user),
        reply=Shaped(MemberRemoved, MemberRemoved.of),
    ),
    named_route(
        "GET /groups/{name}/keys",
        see("group"),
        "List the SSH keys that the nodes of a group's vclusters let in",
        lambda a: partial(sshkeys.of_group, group=a.names.name),
        reply=listed(GroupKey, "Keys by user."),
    ),
)
