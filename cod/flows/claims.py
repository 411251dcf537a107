"""Claims of workers: each does what one server of the site does at a time (`claimkeeper`)."""

from cod.store import claims

Claim = claims.Claim
find, hold, give_up = claims.find, claims.hold, claims.give_up
is_unchanged = claims.is_unchanged
