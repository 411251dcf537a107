"""Claims of workers: the work of a claim is done by one server of the site at a time
(`claimkeeper`)."""

from cod.store import claims

Claim = claims.Claim
Lost = claims.Lost
find, hold, give_up = claims.find, claims.hold, claims.give_up
is_unchanged = claims.is_unchanged
