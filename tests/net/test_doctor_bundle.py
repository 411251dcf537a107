"""`cod doctor --bundle`: what helpers are sent has no secret in it, and one part's fault leaves the
others."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cod.cli.root import cod
from cod.doctor import bundle

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"mysql+pymysql://cod:{SECRET}@db,db2:3306/cod", "@db,db2:3306/cod"),
        (f"asked https://hooks.example.org/in?token={SECRET} at ten", "at ten"),
        (f"open https://cod.example.org/invitation#{SECRET} once", "once"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer"),
        (f"made cod_{SECRET}-and-more-of-it for ann", "for ann"),
        (f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\nnext", "next"),
    ],
)
def test_secrets_are_taken_out_of_a_text(text: str, kept: str) -> None:
    found = bundle.without_secrets(text)
    assert SECRET not in found
    assert kept in found


def test_a_text_without_secrets_stays_as_it_is() -> None:
    text = "2026-11-27 INFO edge cod.dhcp: n1 is at 10.0.0.7 [mac=52:54:00:00:00:01]; what now?"
    assert bundle.without_secrets(text) == text


def test_a_long_word_of_the_log_costs_little() -> None:
    began = time.process_time()
    bundle.without_secrets("a" * 50_000 + "x://" * 1000)
    assert time.process_time() - began < 2  # CPU seconds; nine by the square of its length


def doctor(site: Path, *words: str) -> Result:
    return CliRunner().invoke(cod, ["--site", str(site), "doctor", "--only", "room", *words])


def files(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
        }


def unpacked(path: Path) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in files(path).items() if name != "log.txt"}


@pytest.mark.slow
def test_a_bundle_tells_of_a_site_whose_server_is_down(tmp_path: Path) -> None:
    made = CliRunner().invoke(cod, ["init", "--no-check", "--dir", str(tmp_path / "site")])
    assert made.exit_code == 0, made.output
    site, out = tmp_path / "site" / "site.toml", tmp_path / "head.tar.gz"
    done = doctor(site, "--bundle", str(out))
    assert "look into it before you send it" in done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    found = unpacked(out)
    assert found["database.json"]["schema"] == found["database.json"]["program"]
    assert found["database.json"]["rows"]["nodes"] == 0
    assert found["findings.json"][0]["check"] == "site file"
    assert found["about.json"]["packages"]["cod"]
    assert "Unreachable" in found["server.json"]["/server"]
    again = doctor(site, "--bundle", str(out))
    assert again.exit_code == 1
    assert "File exists" in again.stderr


def test_the_values_of_a_site_file_are_shown_without_what_secrets_are_called(
    tmp_path: Path,
) -> None:
    site, out = tmp_path / "site.toml", tmp_path / "head.tar.gz"
    site.write_text(
        f'# {SECRET}\n[server]\ndatabase = "mysql+pymysql://cod:{SECRET}@db/cod"\n'
        f'[oidc]\nclient_secret = "{SECRET}"\nsecret_file = "/etc/cod/oidc"\n'
        f'[[power]]\npassword = "{SECRET}"\naccount = "ops"\n'
        f'[[account]]\npassword_file = "{SECRET}"\n'  # a mistake that people make
    )
    doctor(site, "--bundle", str(out))
    told = files(out)
    assert not [name for name, text in told.items() if SECRET in text]
    values = json.loads(told["site.json"])
    assert values["server"]["database"] == "mysql+pymysql://…@db/cod"
    assert values["oidc"]["secret_file"] == "/etc/cod/oidc"
    assert values["power"] == [{"password": "…", "account": "ops"}]
    assert values["account"] == [{"password_file": "…"}]
    assert "ConfigError" in told["database.json"]


@pytest.mark.parametrize("before", ["pa/", "pa?", "pa#", "pa'", 'pa\\"', "pa "])
def test_a_databases_password_is_taken_out_whatever_its_characters(
    tmp_path: Path, before: str
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'[server]\ndatabase = "mysql+pymysql://cod:{before}{SECRET}@db/cod"\n')
    values = json.loads(bundle.without_secrets(bundle.site_values(site)))
    assert values["server"]["database"] == "mysql+pymysql://…@db/cod"


def test_a_broken_site_file_costs_its_parts_alone(tmp_path: Path) -> None:
    site, out = tmp_path / "site.toml", tmp_path / "head.tar.gz"
    site.write_text(f"[server\n{SECRET}")
    doctor(site, "--bundle", str(out))
    told = files(out)
    assert "TOMLDecodeError" in told["site.json"]
    assert json.loads(told["about.json"])["python"]
    assert not [name for name, text in told.items() if SECRET in text]
