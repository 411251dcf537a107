"""Fair shares of groups: usage that fades, and ranks of groups of equal priority. Pure.

Usage is node-seconds, each weighted by the cost of the node's type. It fades with a half-life::

    usage(t + dt) = usage(t) * 2 ** -(dt / half_life) + what was used in dt, faded likewise

`fair_tree` ranks groups by the ratio of their share to their usage, both as fractions of those of
their siblings; equal ratios have equal ranks. Groups without subgroups are thus sorted by share /
usage. Ratios are compared as exact fractions, so that rounding breaks no tie. `classic` computes
the factor ``2 ** -(usage / share)``; the factor of a subgroup uses an effective usage, which
includes part of its siblings' usage. Both methods are Slurm's (priority/multifactor: "Fair Tree"
and "classic fair-share"), with groups in place of users. `dominant` ranks groups by their dominant
share: the part that they hold now of the node type of which they hold the largest part (Ghodsi et
al., "Dominant Resource Fairness", NSDI 2011).
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from operator import itemgetter

Number = float | Fraction


@dataclass(frozen=True, slots=True)
class ShareAccount:
    """A group's shares and usage.

    shares  its weight, relative to its siblings'
    usage   faded node-seconds of the group itself, without its subgroups
    parent  id of its parent group; 0: it is no subgroup
    """

    id: int
    shares: Number
    usage: Number
    parent: int = 0


@dataclass(frozen=True, slots=True)
class ShareStanding:
    """A group's rank, and the values that it is ranked by.

    ratio   its share divided by its usage, both as fractions of its siblings'; larger is better;
            infinite without usage
    factor  0 to 1; larger is better
    rank    1 is the best; equal groups have equal ranks
    share   its share of the whole site, 0 to 1
    """

    id: int
    ratio: float
    factor: float
    rank: int
    share: float


def faded(usage: float, seconds: float, half_life: float, rate: float = 0.0) -> float:
    """Return the usage after `seconds`, if `rate` is added in each second. Negative `seconds` (the
    clock was set back) count as 0."""
    seconds = max(seconds, 0.0)
    left = math.exp2(-seconds / half_life)
    return usage * left + rate * half_life / math.log(2) * (1.0 - left)


def fair_tree(accounts: Iterable[ShareAccount]) -> dict[int, ShareStanding]:
    """Return each group's standing by Slurm's Fair Tree, with one level of subgroups.

    A group that has subgroups counts as one of them, too, with the mean of their shares. Groups of
    equal ratio are merged: their subgroups are ranked as one family. If a group without subgroups
    has the same ratio as groups with subgroups, its rank is that of the best of these subgroups.
    """
    # fractions: floats of equal ratios may differ, and equality decides about merging
    top, families = _families(
        replace(account, shares=Fraction(account.shares), usage=Fraction(account.usage))
        for account in accounts
    )
    places = list(_ranked(_merged(_ratios(top)), families))
    users = sum(len(place) for place in places)
    standings, before = {}, 0
    for place in places:
        for ratio, share, account in place:
            standings[account.id] = ShareStanding(
                account.id, _rounded(ratio), (users - before) / users, before + 1, float(share)
            )
        before += len(place)
    return standings


def classic(accounts: Iterable[ShareAccount]) -> dict[int, ShareStanding]:
    """Return each group's standing by Slurm's classic formula: the larger its factor the better.

    For a subgroup, an effective usage replaces its own usage U: ``U + (U_parent - U) * S /
    S_siblings``, S being its shares.
    """
    top, families = _families(accounts)
    whole = sum(account.usage for account in top)
    found: list[tuple[float, Number, Number, ShareAccount]] = []
    for ratio, share, account in _ratios(top):
        used = account.usage / whole if whole else 0.0
        family = families.get(account.id)
        if family is None:
            found.append((_factor(used, share), ratio, share, account))
            continue
        siblings = sum(one.shares for one in family)
        for _, part, one in _ratios(family):
            own = one.usage / whole if whole else 0.0
            effective = own + (used - own) * (one.shares / siblings if siblings else 0.0)
            wanted = share * part
            found.append((_factor(effective, wanted), _ratio(wanted, effective), wanted, one))
    found.sort(key=lambda one: (-one[0], one[3].id))
    factors = [one[0] for one in found]
    return {
        account.id: ShareStanding(
            account.id, float(ratio), factor, factors.index(factor) + 1, float(share)
        )
        for factor, ratio, share, account in found
    }


def dominant_share(held: Mapping[int, int], site: Mapping[int, int]) -> Fraction:
    """Return the largest fraction of a node type that is held, 0 to 1.

    held  nodes that the group or user holds, by type
    site  nodes that the site has, by type
    """
    parts = [Fraction(held[one], nodes) for one, nodes in site.items() if nodes and held.get(one)]
    return max(parts, default=Fraction(0))


def dominant(
    standings: Mapping[int, ShareStanding],
    held: Mapping[int, Mapping[int, int]],
    site: Mapping[int, int],
) -> dict[int, ShareStanding]:
    """Return each group's standing by its dominant share: the smaller that is, relative to the
    group's share of the site, the better.

    standings  by another rule; only the shares are used
    held       nodes that groups hold, by group and type
    site       nodes of the site, by type
    """
    ratios = {
        one: _ratio(Fraction(each.share), dominant_share(held.get(one, {}), site))
        for one, each in standings.items()
    }
    count, found, before = len(ratios), {}, 0
    for ratio, equals in groupby(sorted(ratios, key=lambda one: -ratios[one]), ratios.__getitem__):
        place = list(equals)
        for one in place:
            found[one] = replace(
                standings[one],
                ratio=float(ratio),
                factor=(count - before) / count,
                rank=before + 1,
            )
        before += len(place)
    return found


def _families(
    accounts: Iterable[ShareAccount],
) -> tuple[list[ShareAccount], Mapping[int, list[ShareAccount]]]:
    """Return the top groups, whose usage includes that of their subgroups, and the families of
    groups with subgroups, by the group's id: the subgroups, and the group itself as one of them."""
    by_id = {account.id: account for account in accounts}
    families: dict[int, list[ShareAccount]] = defaultdict(list)
    for account in by_id.values():
        if account.parent in by_id:
            families[account.parent].append(account)
    top = [account for account in by_id.values() if account.parent not in by_id]
    whole = [
        (
            replace(account, usage=account.usage + sum(one.usage for one in families[account.id]))
            if account.id in families
            else account
        )
        for account in top
    ]
    for parent, family in families.items():
        mean = sum(one.shares for one in family) / len(family)
        family.append(replace(by_id[parent], shares=mean))
    return whole, families


def _ratios(siblings: Sequence[ShareAccount], within: Number = 1) -> Iterator[Placed]:
    """Yield (ratio, share of the site, group) for each sibling. `within`: the siblings' share of
    the site together, 0 to 1."""
    shares, usage = sum(one.shares for one in siblings), sum(one.usage for one in siblings)
    for one in siblings:
        share = one.shares / shares if shares else 0.0
        yield _ratio(share, one.usage / usage if usage else 0.0), share * within, one


def _ratio(share: Number, used: Number) -> Number:
    if share <= 0:  # checked first: a group without a share must not rank best for lack of usage
        return 0.0
    return share / used if used > 0 else math.inf


def _rounded(ratio: Number) -> float:
    """Return the ratio as a float; the largest float for a larger ratio that is not infinite."""
    try:
        return float(ratio)
    except OverflowError:
        return sys.float_info.max


def _factor(used: Number, share: Number) -> float:
    return math.exp2(-used / share) if share > 0 else 0.0


Placed = tuple[Number, Number, ShareAccount]
"""(ratio, share of the site, group)."""

_first = itemgetter(0)


def _merged(placed: Iterable[Placed]) -> list[list[Placed]]:
    """Return groups in order, the largest ratio first, with groups of equal ratio together.

    Rounding keeps the order, so fractions are compared only where their floats are equal."""
    near: dict[float, list[Placed]] = defaultdict(list)
    for one in placed:
        near[_rounded(one[0])].append(one)
    return [
        list(equals)
        for rounded in sorted(near, reverse=True)
        for _, equals in groupby(sorted(near[rounded], key=_first, reverse=True), _first)
    ]


def _ranked(
    places: Iterable[list[Placed]], families: Mapping[int, list[ShareAccount]]
) -> Iterator[list[Placed]]:
    """Yield groups in the order of their ranks, with those of equal rank together. Families take
    the places of their parent groups; the best of a family have the same rank as groups without
    subgroups in that place."""
    for place in places:
        alone = [one for one in place if one[2].id not in families]
        inner = _merged(
            one
            for _, share, account in place
            for one in _ratios(families.get(account.id, ()), share)
        )
        yield [*alone, *(inner[0] if inner else ())]
        yield from inner[1:]
