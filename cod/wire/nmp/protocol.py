"""NMP: the rules which side may send which message when, as tables; and one end of a connection
that enforces them. Without sockets.

`Conversation` knows the messages so far, refuses messages that are not allowed now, and matches
answers with questions. The diagram in `docs/nmp` is printed from the tables (`dot`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cod.wire.nmp.frames import VERSION, Fault, Message, encode

MOST_OPEN = 64  # questions that may be without an answer at a time, each way


class Side(StrEnum):
    """The two ends of a connection."""

    VCM = "vcm"
    COD = "cod"


class State(StrEnum):
    """States of a connection. Only *open* allows messages about nodes."""

    START = "start"  # connected; nothing said yet
    GREETED = "greeted"  # the VCM has said hello
    ASKED = "asked"  # it has no certificate yet, and has asked for one
    OPEN = "open"  # COD has said welcome
    CLOSED = "closed"  # one of them has said bye, or could not go on


@dataclass(frozen=True, slots=True)
class Verb:
    """The rules of a verb.

    by       the side that may send it; None: both
    answers  the verbs of the questions that the message may answer; 'any': of any message (errors)
    kept     COD's outbox numbers and keeps the message, and repeats it until it is acknowledged
    """

    by: Side | None
    answers: tuple[str, ...] = ()
    kept: bool = False


V, C = Side.VCM, Side.COD

VERBS: dict[str, Verb] = {
    "hello": Verb(V),
    "welcome": Verb(C, ("hello",)),
    "enroll": Verb(V),
    "enrolled": Verb(C, ("enroll",)),
    "request-nodes": Verb(V),
    "request-status": Verb(V),
    "withdraw": Verb(V),
    "renew": Verb(V),
    "renewed": Verb(C, ("renew",)),
    "request": Verb(C, ("request-nodes", "request-status", "withdraw")),
    "release-nodes": Verb(V),
    "park-nodes": Verb(V),
    "needed-nodes": Verb(C, ("park-nodes",)),
    "maintenance-status": Verb(V),
    "node-maintenance": Verb(C, ("maintenance-status",)),
    "reclaim-answer": Verb(V),
    "extend": Verb(V),
    "done": Verb(C, ("release-nodes", "reclaim-answer", "extend")),
    "status": Verb(V),
    "vcluster": Verb(C, ("status",)),
    "grant": Verb(C, kept=True),
    "refusal": Verb(C, kept=True),
    "node-state": Verb(C, kept=True),
    "reclaim": Verb(C, kept=True),
    "reclaim-over": Verb(C, kept=True),
    "lease": Verb(C, kept=True),
    "progress": Verb(C),
    "ack": Verb(V),
    "ping": Verb(None),
    "pong": Verb(None, ("ping",)),
    "error": Verb(None, ("any",)),
    "bye": Verb(None),
}
QUESTIONS = frozenset(question for verb in VERBS.values() for question in verb.answers) - {"any"}

# (state, verb) -> state; in *open* every other verb is allowed and leaves the connection open.
TRANSITIONS: dict[tuple[State, str], State] = {
    (State.START, "hello"): State.GREETED,
    (State.START, "enroll"): State.ASKED,
    (State.START, "error"): State.CLOSED,
    (State.START, "bye"): State.CLOSED,
    (State.GREETED, "welcome"): State.OPEN,
    (State.GREETED, "error"): State.CLOSED,
    (State.GREETED, "bye"): State.CLOSED,
    (State.ASKED, "enrolled"): State.CLOSED,
    (State.ASKED, "error"): State.CLOSED,
    (State.ASKED, "bye"): State.CLOSED,
    (State.OPEN, "bye"): State.CLOSED,
}
OPENING = frozenset({"hello", "welcome", "enroll", "enrolled"})


class Conversation:
    """One end of a connection: the messages that both sides have sent decide which are allowed
    next."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.state = State.START
        self._asked: dict[Side, dict[str, str]] = {Side.VCM: {}, Side.COD: {}}

    def says(self, message: Message) -> bytes:
        """Return the bytes of a message to send. Raises `Fault` if the protocol does not allow the
        message now, which is a bug of this side."""
        self._take(message, self.side)
        return encode(message)

    def hears(self, message: Message) -> str:
        """Check a message of the peer; return the verb of the question that it answers, or ''.
        Raises `Fault`."""
        try:
            if message.version.split(".")[0] != VERSION.split(".")[0]:
                raise Fault(
                    "version",
                    f"version {message.version} is not spoken here, {VERSION} is",
                    fatal=True,
                )
            return self._take(message, Side.COD if self.side is Side.VCM else Side.VCM)
        except Fault as fault:
            fault.about = message.id
            raise

    def waiting(self) -> int:
        """Return how many of our own questions are without an answer."""
        return len(self._asked[self.side])

    def _take(self, message: Message, speaker: Side) -> str:
        verb = VERBS.get(message.verb)
        if verb is None:
            raise Fault("unknown-verb", f"there is no verb {message.verb!r}")
        if verb.by not in (None, speaker):
            raise Fault("out-of-state", f"{message.verb!r} is not for the {speaker} to say")
        after = self._after(message.verb)
        question = self._question(message, verb, Side.COD if speaker is Side.VCM else Side.VCM)
        if message.verb in QUESTIONS:
            asked = self._asked[speaker]
            if message.id in asked:
                raise Fault("repeated", f"the question {message.id} is being answered already")
            if len(asked) >= MOST_OPEN:
                raise Fault(
                    "too-many", f"at most {MOST_OPEN} questions may be open; wait for answers"
                )
            asked[message.id] = message.verb
        self.state = after
        return question

    def _after(self, verb: str) -> State:
        after = TRANSITIONS.get((self.state, verb))
        if after is not None:
            return after
        if self.state is not State.OPEN or verb in OPENING:
            raise Fault(
                "out-of-state",
                f"{verb!r} may not be said while the connection is {self.state}",
                fatal=self.state is not State.OPEN,
            )
        return self.state

    def _question(self, message: Message, verb: Verb, asker: Side) -> str:
        """Return the verb of the question that `message` answers, and close the question."""
        if not verb.answers:
            if message.answers:
                raise Fault("out-of-state", f"{message.verb!r} answers nothing")
            return ""
        if verb.answers == ("any",):  # what was refused may not have got as far as being a question
            return self._asked[asker].pop(message.answers, "")
        question = self._asked[asker].get(message.answers, "")
        if not question or question not in verb.answers:
            named = message.answers or "none is named"
            raise Fault("out-of-state", f"{message.verb!r} answers no open question ({named})")
        del self._asked[asker][message.answers]
        return question


def dot() -> str:
    """Return the connection's life as a Graphviz digraph."""
    lines = ["digraph nmp {", "  rankdir=LR;"]
    lines += [
        f'  "{state}" [shape={"doublecircle" if state is State.CLOSED else "ellipse"}];'
        for state in State
    ]
    lines += [
        f'  "{state}" -> "{after}" [label="{verb}"];'
        for (state, verb), after in TRANSITIONS.items()
    ]
    free = sorted(VERBS.keys() - OPENING - {"bye"})
    lines.append('  "open" -> "open" [label="' + "\\n".join(free) + '"];')
    return "\n".join([*lines, "}"])
