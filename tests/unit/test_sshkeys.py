"""Public SSH keys: real ones are taken, and nothing that is almost one."""

from __future__ import annotations

import struct
from base64 import b64encode
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, ssh_key_fingerprint
from hypothesis import given
from hypothesis import strategies as st

from cod.model import Refused
from cod.policy.people import sshkeys


def line(key: object, name: str = "ann@laptop") -> str:
    return f"{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {name}"  # type: ignore[attr-defined]


def made(algorithm: str, *fields: bytes, tail: bytes = b"") -> str:
    """A line with a blob of these strings."""
    blob = (
        b"".join(struct.pack(">I", len(field)) + field for field in (algorithm.encode(), *fields))
        + tail
    )
    return f"{algorithm} {b64encode(blob).decode()} test"


def refused(text: str) -> str:
    with pytest.raises(Refused) as caught:
        sshkeys.parse(text)
    assert caught.value.field == "key"
    return caught.value.sentence


ED = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
RSA = rsa.generate_private_key(65537, 2048).public_key()
POINT = b"\4" + bytes(64)


@pytest.mark.parametrize(
    "key",
    [
        ED,
        RSA,
        *(
            ec.generate_private_key(curve()).public_key()
            for curve in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
        ),
    ],
)
def test_real_keys_are_taken_with_their_fingerprint(key: object) -> None:
    found = sshkeys.parse(line(key))
    assert f"{found.algorithm} {found.key} {found.name}" == line(key)
    expected = b64encode(ssh_key_fingerprint(key, SHA256())).decode().rstrip("=")
    assert found.fingerprint == f"SHA256:{expected}"


def test_keys_on_security_tokens_are_taken() -> None:
    assert sshkeys.parse(made("sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:")).name == "test"
    assert (
        sshkeys.parse(made("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", POINT, b"ssh:")).name
        == "test"
    )


def test_space_around_a_line_and_no_comment_do_no_harm() -> None:
    assert sshkeys.parse(f"  {line(ED, '')}\r\n").name == ""
    assert sshkeys.parse(line(ED, "x" * 500)).name == "x" * 200


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 ",
        "hello world",
        f'command="rm -rf /" {line(ED)}',
        f"no-pty {line(ED)}",
        f"# {line(ED)}",
        f"{line(ED)}\nssh-ed25519 AAAA",
        line(ED).replace(" ", "\0", 1),
        line(ED) + "\x1b[2J",
        line(ED).replace(" ", "\t"),
        line(ED)[:40],
        line(ED).replace("AAAA", "AAA", 1),
        line(ED).replace("ssh-ed25519 ", "ssh-rsa "),
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "x" * 9000,
        made("ssh-ed25519", bytes(31)),
        made("ssh-ed25519", bytes(32), b"more"),
        made("ssh-ed25519", bytes(32), tail=b"\0"),
        made("ssh-ed25519", tail=struct.pack(">I", 2**31)),
        made("ssh-ed25519"),
        made("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 256, b"\1"),
        made("ssh-rsa", b"\1", b"\0" + b"\xff" * 256),
        made("ssh-rsa", b"\1\0\1", b"\xff" * 256),
        made("ssh-rsa", b"\1\0\1", b"\0\0" + b"\xff" * 256),
        made("ssh-rsa", b"\1\0\1", b"\0" + b"\xff" * 255 + b"\xfe"),
        made("ssh-rsa", b"\1\0\1", b""),
        made("ecdsa-sha2-nistp256", b"nistp384", POINT),
        made("ecdsa-sha2-nistp256", b"nistp256", b"\2" + bytes(64)),
        made("ecdsa-sha2-nistp256", b"nistp256", POINT[:-1]),
        made("sk-ssh-ed25519@openssh.com", bytes(32)),
        made("sk-ssh-ed25519@openssh.com", bytes(32), b""),
        made("ssh-dss", b"\1", b"\1", b"\1", b"\1"),
        made("ssh-ed25519-cert-v01@openssh.com", bytes(32)),
    ],
)
def test_what_is_almost_a_key_is_refused(text: str) -> None:
    assert refused(text)


def test_one_key_has_one_spelling() -> None:
    """Else the same key could be added again and again: base64 ignores the last bits before its
    padding."""
    algorithm, key, name = made("sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:").split()
    assert key.endswith("o=")
    assert refused(f"{algorithm} {key.replace('o=', 'p=')} {name}")


def test_what_is_wrong_is_said() -> None:
    weak = rsa.generate_private_key(65537, 1024).public_key()
    assert "1024" in refused(line(weak))
    assert "private" in refused("-----BEGIN RSA PRIVATE KEY-----")
    assert "options" in refused(f"no-pty {line(ED)}")


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    with suppress(Refused):
        sshkeys.parse(text)


@given(st.binary(max_size=300), st.sampled_from(sorted(sshkeys._KINDS)))
def test_no_blob_makes_it_fail(blob: bytes, algorithm: str) -> None:
    head = struct.pack(">I", len(algorithm)) + algorithm.encode()
    for each in (blob, head + blob):
        try:
            found = sshkeys.parse(f"{algorithm} {b64encode(each).decode()}")
        except Refused:
            continue
        assert found.key == b64encode(each).decode()
