"""How fast somebody may guess, whom that keeps out, what a password must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Refused
from cod.policy.people import signin
from cod.policy.people.signin import FailureCount

NOW = 1_000_000.0


class Guard:
    """Counts in memory, as the flows keep them in the database."""

    def __init__(self) -> None:
        self.now, self.counts, self.known = NOW, dict[str, FailureCount](), set[str]()

    def keys(self, name: str, address: str) -> signin.Keys:
        keys = signin.keys(name, address)
        return signin.keys(name, address, keys.known in self.known)

    def wait(self, name: str, address: str) -> float:
        keys = self.keys(name, address)
        return signin.wait(
            {key: self.counts[key] for key in keys.all if key in self.counts}, self.now
        )

    def attempt(self, name: str, address: str, *, right: bool = False) -> None:
        """After the wait that it takes."""
        self.now += self.wait(name, address)
        keys = self.keys(name, address)
        self.counts |= signin.counted(keys, self.counts, self.now)
        if right:
            mine = {key: self.counts[key] for key in keys.all if key in self.counts}
            for key, count in signin.forgiven(keys, mine, self.now).items():
                self.counts.pop(key)
                if count is not None:
                    self.counts[key] = count
            self.known.add(keys.known)


def test_each_failure_doubles_the_wait_up_to_a_quarter_of_an_hour() -> None:
    guard, waits = Guard(), []
    for _ in range(13):
        guard.attempt("ann", "192.0.2.1")
        waits.append(guard.wait("ann", "192.0.2.1"))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]


def test_an_attempt_that_nobody_verified_is_taken_back_and_earlier_ones_stay() -> None:
    for failures in (0, 1, 2, 3, 5):
        guard = Guard()
        for _ in range(failures):
            guard.attempt("ann", "192.0.2.1")
        guard.now += guard.wait("ann", "192.0.2.1")
        keys = guard.keys("ann", "192.0.2.1")
        before = {key: count.failures for key, count in guard.counts.items()}
        guard.counts |= signin.counted(keys, guard.counts, guard.now)
        left = signin.taken_back(keys, guard.counts, guard.now)
        guard.counts = {
            key: count for key, count in (guard.counts | left).items() if count is not None
        }
        assert {key: count.failures for key, count in guard.counts.items()} == before
        assert guard.wait("ann", "192.0.2.1") == 0


def test_a_failure_is_forgotten_after_a_day() -> None:
    guard = Guard()
    for _ in range(20):
        guard.attempt("ann", "192.0.2.1")
    guard.now += signin.FORGOTTEN_AFTER + 1
    guard.attempt("ann", "192.0.2.1")
    assert guard.wait("ann", "192.0.2.1") == 1


def test_who_is_right_starts_anew() -> None:
    guard = Guard()
    for _ in range(5):
        guard.attempt("ann", "192.0.2.1")
    guard.attempt("ann", "192.0.2.1", right=True)
    assert guard.wait("ann", "192.0.2.1") == 0
    guard.attempt("ann", "192.0.2.1")
    assert guard.wait("ann", "192.0.2.1") == 1


def test_one_attacker_cannot_keep_a_user_out_from_elsewhere() -> None:
    guard = Guard()
    for _ in range(200):
        guard.attempt("ann", "192.0.2.66")
    assert guard.wait("ann", "192.0.2.66") == 900
    assert guard.wait("ann", "198.51.100.7") == 0  # a place that nobody has seen before
    assert guard.wait("bob", "192.0.2.66") == 900  # but nobody gets at others from there


def test_many_attackers_are_slowed_together_and_known_places_are_not() -> None:
    guard = Guard()
    guard.attempt("ann", "198.51.100.7", right=True)
    for number in range(40):
        guard.attempt("ann", f"203.0.113.{number}")
    assert guard.wait("ann", "203.0.113.99") == 900
    assert guard.wait("ann", "198.51.100.7") == 0
    guard.attempt("ann", "198.51.100.7")
    assert guard.wait("ann", "198.51.100.7") == 1


def test_an_attackers_own_account_buys_no_guesses() -> None:
    guard, started = Guard(), NOW
    for number in range(30):
        guard.attempt("eve", "192.0.2.66", right=True)
        guard.attempt(f"victim{number}", "192.0.2.66")
    assert guard.now - started > 3600


def test_a_name_from_many_places_and_a_place_with_many_names_are_each_slowed() -> None:
    guard = Guard()
    for number in range(signin.FREE_OF_ADDRESS + 1):
        assert guard.wait(f"user{number}", "192.0.2.1") == 0
        guard.attempt(f"user{number}", "192.0.2.1")
    assert guard.wait("another", "192.0.2.1") == 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5), st.booleans()), max_size=40))
def test_no_wait_is_longer_than_the_longest_and_no_count_falls_below_nothing(
    tries: list[tuple[str, int, bool]],
) -> None:
    guard = Guard()
    for name, place, right in tries:
        guard.attempt(name, f"192.0.2.{place}", right=right)
        assert 0 <= guard.wait(name, f"192.0.2.{place}") <= signin.LONGEST_WAIT
        assert all(count.failures > 0 for count in guard.counts.values())


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "local"),
    ],
)
def test_a_place_is_what_one_machine_can_have(address: str, place: str) -> None:
    assert signin.place(address) == place


@pytest.mark.parametrize(
    "written", ["ANN", " ann", "ann ", "a\N{SOFT HYPHEN}nn", "\N{FULLWIDTH LATIN SMALL LETTER A}nn"]
)
def test_a_name_is_counted_once_however_a_directory_lets_it_be_written(written: str) -> None:
    assert signin.keys(written, "192.0.2.1") == signin.keys("ann", "192.0.2.1")
    assert signin.keys("an n", "192.0.2.1") != signin.keys("ann", "192.0.2.1")


@given(st.text(max_size=300), st.text(max_size=60))
def test_keys_fit_their_column(name: str, address: str) -> None:
    keys = signin.keys(name, address)
    assert all(len(key) <= 80 for key in (*keys.all, keys.known))


@pytest.mark.parametrize(
    "password",
    [
        "",
        "short",
        "elevenchars",
        "x" * 1001,
        "aaaaaaaaaaaaaa",
        "annannannann",
        "Ann.Ann.Ann.",
        "abababababab",
        "abcdefghijkl",
        "zyxwvutsrqpo",
        "123456789012",
        "qwertyuiopas",
        "ann-ann-ann-12",
    ],
)
def test_passwords_that_are_guessed_first_are_refused(password: str) -> None:
    with pytest.raises(Refused) as refusal:
        signin.check_password(password, "ann")
    assert refusal.value.field == "password"
    assert password == "" or password not in refusal.value.sentence


@pytest.mark.parametrize("password", ["correct horse battery", "Übergrößenträger", "x7$kQ!9pLm2#"])
def test_others_are_taken(password: str) -> None:
    signin.check_password(password, "ann")


@pytest.mark.parametrize(
    "name", ["", "Ann", "1ann", "a" * 33, "ann@example.org", "a b", "ann:x", "änn", "ann\n"]
)
def test_names_that_nobody_may_have(name: str) -> None:
    with pytest.raises(Refused):
        signin.check_name(name)


def test_names_that_somebody_may_have() -> None:
    for name in ("a", "ann", "ann.b-c_d9", "a" * 32):
        signin.check_name(name)
