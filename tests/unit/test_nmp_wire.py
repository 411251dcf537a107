"""NMP without sockets: frames cut anywhere, bodies against the schema, and who may say what
when."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.wire.nmp import bodies as b
from cod.wire.nmp import xml
from cod.wire.nmp.frames import LONGEST_LINE, LONGEST_SENT, Decoder, Fault, Message, encode
from cod.wire.nmp.protocol import MOST_OPEN, VERBS, Conversation, Side, State

# ---------------------------------------------------------------- frames

MESSAGES = st.builds(
    Message,
    verb=st.sampled_from(sorted(VERBS)),
    id=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    body=st.binary(max_size=300),
    answers=st.one_of(st.just(""), st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)),
    sequence=st.integers(0, 10**17),
)


@pytest.mark.slow
@given(st.lists(MESSAGES, max_size=4), st.lists(st.integers(1, 60), min_size=1))
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(
    messages: list[Message], cuts: list[int]
) -> None:
    data, decoder, found, n = b"".join(map(encode, messages)), Decoder(), [], 0
    while data:
        size = cuts[n % len(cuts)]
        found += decoder.feed(data[:size])
        data, n = data[size:], n + 1
    assert found == messages
    assert not decoder.midway


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "malformed", "start line"),
        (b"NMP/1.0 HELLO\r\n\r\n", "malformed", "start line"),
        (b"NMP/1.0  hello\r\n\r\n", "malformed", "start line"),
        (b"NMP/1.0 ping\r\n\r\n", "malformed", "message-id"),
        (b"NMP/1.0 ping\r\nMessage-Id: a b\r\n\r\n", "malformed", "message-id"),
        (b"NMP/1.0 ping\r\nMessage-Id: " + b"x" * 65 + b"\r\n\r\n", "malformed", "message-id"),
        (
            b"NMP/1.0 ping\r\nMessage-Id: 1\r\nContent-Length: -1\r\n\r\n",
            "malformed",
            "content-length",
        ),
        (
            b"NMP/1.0 ping\r\nMessage-Id: 1\r\nContent-Length: 0x10\r\n\r\n",
            "malformed",
            "content-length",
        ),
        (
            b"NMP/1.0 ping\r\nMessage-Id: 1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "malformed",
            "twice",
        ),
        (
            b"NMP/1.0 ping\r\nMessage-Id: 1\r\nSequence: 9999999999999999999\r\n\r\n",
            "malformed",
            "sequence",
        ),
        (
            b"NMP/1.0 ping\r\nMessage-Id: 1\r\nContent-Length: %d\r\n\r\n" % (LONGEST_SENT + 1),
            "too-large",
            f"the body has {LONGEST_SENT + 1} bytes, a body has at most {LONGEST_SENT}",
        ),
        (b"NMP/1.0 ping\r\n folded: line\r\n\r\n", "malformed", "header line"),
        (b"NMP/1.0 ping\r\nMessage-Id: \xff\r\n\r\n", "malformed", "header line"),
        (b"NMP/1.0 ping\r\n" + b"X-A: 1\r\n" * 40, "malformed", "more than"),
        (b"x" * (LONGEST_LINE + 1), "malformed", "longer than"),
        (b"\r\n" * 3 + b"x\n", "malformed", ""),
    ],
)
def test_a_malformed_frame_ends_the_connection(data: bytes, code: str, says: str) -> None:
    with pytest.raises(Fault) as whole:
        list(Decoder().feed(data + b"\r\n"))
    assert (whole.value.code, whole.value.fatal) == (code, True)
    assert says in whole.value.sentence
    decoder = Decoder()
    pieces = (found for byte in data + b"\r\n" for found in decoder.feed(bytes([byte])))
    with pytest.raises(Fault):  # byte by byte, it is refused all the same
        list(pieces)


def test_a_body_is_waited_for_but_not_a_byte_more() -> None:
    decoder, message = Decoder(), Message("ping", "1", b"<ping/>")
    data = encode(message)
    assert list(decoder.feed(data[:-1])) == []
    assert decoder.midway
    assert list(decoder.feed(data[-1:] + b"NMP/1.0 p")) == [message]
    assert decoder.midway


# ---------------------------------------------------------------- bodies

WANT = '<requires><memory><mib min="4GiB"/></memory></requires>'
REPORT = '<node><cpu arch="x86_64" count="2"/></node>'
MEMBER = b.Member("node7", "n1", "10.0.0.5", "prime", "batch@3", "type2")
BODIES: list[b.Body] = [
    b.Hello("pool", "cod-vcm-sge 1.0", 811),
    b.Welcome("pool", "cod1", 30.0, 811),
    b.Enroll("pool", "5e" * 32, "MIHx" * 80 + "MA=="),
    b.Enrolled("MIIBxzCCAW6g" * 40),
    b.Renew("MIHm" * 20),
    b.Renewed("MIIB" * 20, "MIIC" * 20),
    b.RequestNodes(
        "grow-7",
        (b.Wanted(3, "batch", WANT), b.Wanted(1)),
        wait=False,
        spread=True,
        reason="24 jobs wait",
    ),
    b.RequestStatus(17),
    b.Withdraw(17),
    b.Request(17, "grow-7", "pending", "waits for 2 nodes on their way back"),
    b.Grant(
        17,
        "grow-7",
        1763643600.0,
        (
            b.Member("a", "b", "10.0.0.9", "prime", "t@1", "x", REPORT),
            MEMBER,
            b.Member("node8", "n2", "", "trampoline", "batch@3"),
        ),
    ),
    b.Refusal(17, "grow-7", "4 nodes wanted, the site has 2 matching"),
    b.NodeState("node7", "n1", "10.0.0.5", "active"),
    b.Progress("node7", "write", 2**31, 2**32),
    b.ReleaseNodes((b.Named("n1"), b.Named("n2")), "idle for 600 s"),
    b.ParkNodes((b.Named("n1"), b.Named("n2"))),
    b.NeededNodes((b.Named("n2"),)),
    b.NeededNodes(),
    b.MaintenanceStatus(),
    b.NodeMaintenance(
        (
            b.Window(3, 1763643600.0, 1763650800.5, False, "new power feed", (b.Named("n4"),)),
            b.Window(4, 0.0, 0.0, True, "moves", (b.Named("n1"), b.Named("n4"))),
        )
    ),
    b.NodeMaintenance(),
    b.Reclaim(
        5,
        2,
        1763643600.5,
        "group web (priority 20) needs 2 nodes",
        WANT,
        (b.Named("n1"), b.Named("n2")),
    ),
    b.ReclaimAnswer(5, (b.Named("n2", 0.0), b.Named("n1", 120.0)), ""),
    b.ReclaimAnswer(5, (), "no such node is here"),
    b.ReclaimOver(5, "cancelled"),
    b.Lease("warning", 1763643600.0),
    b.Extend(3600.0),
    b.Done(),
    b.Status(),
    b.Vcluster(
        "pool",
        "active",
        3,
        1,
        1763643600.0,
        (MEMBER,),
        (b.Request(17, "k", "pending"),),
        (b.Reclaim(5, 2, 1.0, "needed", "", (b.Named("n1"),)),),
    ),
    b.Ack(812),
    b.Ping(),
    b.Pong(),
    b.Bye("restarting"),
    b.Error("invalid", "count: is -1", 3),
]


def test_each_verb_has_a_record_and_is_tried_here() -> None:
    assert set(xml.RECORDS) == set(VERBS) == {xml.verb(body) for body in BODIES}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: xml.verb(body))
def test_bodies_come_out_as_they_went_in(body: b.Body) -> None:
    assert xml.read(Message(xml.verb(body), "1", xml.write(body))) == body


@pytest.mark.slow
def test_the_largest_picture_is_read_by_whoever_it_is_sent_to() -> None:
    """Documents of people end at 4 MiB; a vcluster of the largest block has more to tell."""
    members = tuple(
        b.Member(
            f"node-52540000{n:04x}",
            f"n{n}",
            "10.150.255.255",
            "active",
            "physics/debian@12",
            "type2",
        )
        for n in range(60_000)
    )
    body = b.Vcluster("pool", "active", len(members), 3, 1763643600.0, members)
    written = xml.write(body)
    assert 4 * 2**20 < len(written) < LONGEST_SENT
    assert xml.read(Message("vcluster", "1", written)) == body


@pytest.mark.parametrize(
    ("verb", "body", "line", "says"),
    [
        ("grant", b"<grant", 1, "not well-formed"),
        ("grant", b"<!DOCTYPE grant [<!ENTITY a 'b'>]>\n<grant/>", 1, "document type"),
        ("grant", b"<ping/>", 1, "an element of that name"),
        (
            "request-nodes",
            b'<request-nodes key="a">\n<wanted count="-1"/></request-nodes>',
            2,
            "-1",
        ),
        (
            "request-nodes",
            b'<request-nodes key="a">\n\n<wanted count="9999999999999"/></request-nodes>',
            3,
            "",
        ),
        ("request-nodes", b'<request-nodes key="a"/>', 1, ""),
        (
            "request-nodes",
            b'<request-nodes key="a"><wanted count="1"><x/></wanted></request-nodes>',
            1,
            "",
        ),
        ("hello", b'<hello vcluster="../x" vcm="a" seen="0"/>', 1, ""),
        ("hello", b'<hello vcluster="a" vcm="a" seen="1e3"/>', 1, "1e3"),
        ("extend", b'<extend seconds="-5"/>', 1, ""),
        ("extend", b'<extend seconds="nan"/>', 1, ""),
        ("ack", b"<ack sequence='99999999999999999999'/>", 1, ""),
        ("ping", b"<ping>\xff</ping>", 1, ""),
        ("ping", b"<ping>" + b"<a>" * 300 + b"</a>" * 300 + b"</ping>", 1, ""),
        ("nonsense", b"<nonsense/>", 0, "no verb"),
        ("ping", b"", 1, "not well-formed"),
    ],
)
def test_a_bad_body_is_refused_with_its_line_and_the_connection_goes_on(
    verb: str, body: bytes, line: int, says: str
) -> None:
    with pytest.raises(Fault) as refused:
        xml.read(Message(verb, "m1", body))
    assert refused.value.line == line
    assert says in refused.value.sentence
    assert (refused.value.fatal, refused.value.about) == (False, "m1")


def test_a_sentence_with_control_characters_can_be_told() -> None:
    body = b.Bye("a\x00b\x1fc")
    assert xml.read(Message("bye", "1", xml.write(body))) == b.Bye("a b c")


# ---------------------------------------------------------------- who may say what, when


def greeted() -> tuple[Conversation, Conversation]:
    """Both ends of an open connection."""
    vcm, cod = Conversation(Side.VCM), Conversation(Side.COD)
    say(vcm, cod, Message("hello", "h"))
    say(cod, vcm, Message("welcome", "w", answers="h"))
    assert vcm.state is cod.state is State.OPEN
    return vcm, cod


def say(speaker: Conversation, hearer: Conversation, message: Message) -> str:
    """One end says it, the other hears it."""
    (heard,) = Decoder().feed(speaker.says(message))
    return hearer.hears(heard)


def test_a_question_is_answered_once() -> None:
    vcm, cod = greeted()
    say(vcm, cod, Message("status", "q1"))
    assert vcm.waiting() == 1
    assert say(cod, vcm, Message("vcluster", "a1", answers="q1")) == "status"
    assert vcm.waiting() == 0
    with pytest.raises(Fault, match="no open question"):
        vcm.hears(Message("vcluster", "a2", answers="q1"))


def test_an_error_may_name_what_was_no_question() -> None:
    """Or what the other side does not know as one: the speaker of a newer version has its answer
    all the same."""
    vcm, cod = greeted()
    with pytest.raises(Fault, match="there is no verb"):
        cod.hears(Message("dance", "q7"))
    assert say(cod, vcm, Message("error", "e1", answers="q7")) == ""
    say(vcm, cod, Message("status", "q8"))
    assert say(cod, vcm, Message("error", "e2", answers="q8")) == "status"
    assert (vcm.waiting(), say(cod, vcm, Message("error", "e3", answers="q8"))) == (0, "")


def test_an_answer_is_of_the_question_s_kind() -> None:
    vcm, cod = greeted()
    say(vcm, cod, Message("status", "q1"))
    with pytest.raises(Fault, match="no open question"):
        vcm.hears(Message("done", "a1", answers="q1"))
    assert say(cod, vcm, Message("error", "a2", answers="q1")) == "status"  # an error answers any


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"hello", "enroll", "error", "bye"}))
def test_nothing_is_said_before_hello(verb: str) -> None:
    with pytest.raises(Fault) as refused:
        Conversation(Side.COD).hears(Message(verb, "1", answers="x" if VERBS[verb].answers else ""))
    assert refused.value.fatal or refused.value.code == "out-of-state"


def test_each_side_keeps_to_its_verbs() -> None:
    vcm, cod = greeted()
    for verb, rule in VERBS.items():
        if rule.by is Side.COD:
            with pytest.raises(Fault, match="not for the vcm"):
                cod.hears(Message(verb, "1"))
        if rule.by is Side.VCM and verb != "hello":
            with pytest.raises(Fault, match="not for the cod"):
                vcm.hears(Message(verb, "1"))


def test_after_bye_there_is_silence() -> None:
    vcm, cod = greeted()
    say(vcm, cod, Message("bye", "b"))
    for speaker, hearer in ((vcm, cod), (cod, vcm)):
        with pytest.raises(Fault):
            speaker.says(Message("ping", "p"))
        with pytest.raises(Fault):
            hearer.hears(Message("ping", "p"))


def test_another_version_is_refused_before_its_verb_is_looked_at() -> None:
    with pytest.raises(Fault) as refused:
        Conversation(Side.COD).hears(Message("salve", "1", version="2.0"))
    assert (refused.value.code, refused.value.fatal, refused.value.about) == ("version", True, "1")
    # a later minor version is understood
    Conversation(Side.COD).hears(Message("hello", "1", version="1.7"))


def test_questions_without_answers_are_limited_and_named_once() -> None:
    _, cod = greeted()
    for number in range(MOST_OPEN):
        cod.hears(Message("status", f"q{number}"))
    with pytest.raises(Fault, match="wait for answers") as refused:
        cod.hears(Message("status", "one-more"))
    assert not refused.value.fatal
    with pytest.raises(Fault, match="being answered"):
        cod.hears(Message("status", "q1"))


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(VERBS)), st.integers(0, 3), st.integers(-1, 3)),
        max_size=30,
    )
)
def test_no_sequence_of_messages_breaks_the_other_end(said: list[tuple[str, int, int]]) -> None:
    cod = Conversation(Side.COD)
    for verb, number, answers in said:
        with contextlib.suppress(Fault):
            cod.hears(Message(verb, str(number), answers="" if answers < 0 else str(answers)))
        assert cod.state in State
