"""Enrolling VCMs over the API and on the command line."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509

from cod.cli.root import cod
from cod.client import ApiError
from cod.flows.scheduler import vclusters
from cod.flows.vcms import vcms
from cod.model import AskedVcluster, Nmp, Site
from cod.pool import Pool
from cod.security.ca import Ca, serial_text
from cod.store import tables as t
from cod.vcm import settings
from tests.contexts import flow_context
from tests.net.apiserver import NOW, READER, Served, said, serving
from tests.store import manager_world as world

pytestmark = pytest.mark.slow


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


@pytest.fixture
def served(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, ca: Ca
) -> Iterator[Served]:
    """A site with a vcluster 'pool', which lets VCMs in without certificates, too."""
    open_site = replace(site, nmp=Nmp(plain_port=8072))
    with serving(pool, reactor, in_reactor, open_site, ca) as served:
        furnish(served, site)
        yield served


def furnish(served: Served, site: Site) -> None:
    """Add a vcluster 'pool' and its node."""
    served.tx(world.furnish, 3)
    served.tx(
        vclusters.create,
        flow_context(site, NOW),
        AskedVcluster(name="pool", size=1, template="debian", group="site"),
    )


def test_enrolled_with_a_certificate_of_the_site_s(served: Served, ca: Ca) -> None:
    made = served.local.post("/vclusters/pool/vcm", {})
    certificate = x509.load_pem_x509_certificate(made["certificate"].encode())
    assert certificate.subject.rfc4514_string() == "CN=pool"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.certificate))
    assert (
        made["serial"]
        == serial_text(certificate.serial_number)
        == served.tx(vcms.show, "pool").vcm.serial
    )
    assert (made["servers"], made["authority"]) == (["10.77.0.1:8071"], ca.certificate.decode())
    shown = served.local.get("/vclusters/pool/vcm")
    assert (shown["vcluster"], shown["server"], shown["address"], shown["owed"]) == (
        "pool",
        None,
        None,
        0,
    )
    assert "key" not in shown
    assert served.local.get("/vcms")["items"] == [shown]


def test_enrolled_anew_another_one_counts(served: Served) -> None:
    first, second = (served.local.post("/vclusters/pool/vcm", {})["serial"] for _ in range(2))
    assert first != second
    assert served.local.get("/vclusters/pool/vcm")["serial"] == second


def test_by_address_alone(served: Served) -> None:
    made = served.local.post("/vclusters/pool/vcm", {"plain": True, "address": "10.77.9.9"})
    assert (made["servers"], made["key"], made["certificate"], made["serial"]) == (
        ["10.77.0.1:8072"],
        "",
        "",
        "",
    )
    assert served.local.get("/vclusters/pool/vcm")["address"] == "10.77.9.9"
    with pytest.raises(ApiError, match="say which"):
        served.local.post("/vclusters/pool/vcm", {"plain": True})


@pytest.mark.parametrize(
    "body", [{"address": "10.77.9"}, {"address": "::1"}, {"plain": "maybe"}, {"key": "x"}]
)
def test_what_is_no_enrolment(served: Served, body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        served.local.post("/vclusters/pool/vcm", body)
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("change", "body", "says"),
    [
        ({"port": 0}, {}, "switched off"),
        ({"port": 0}, {"plain": True, "address": "10.77.9.9"}, "plain_port"),
        ({"plain_port": 0}, {"plain": True, "address": "10.77.9.9"}, "plain_port"),
    ],
)
def test_a_site_that_does_not_have_it(
    pool: Pool,
    reactor: Any,
    in_reactor: Callable[..., Any],
    site: Site,
    ca: Ca,
    change: dict[str, Any],
    body: dict[str, Any],
    says: str,
) -> None:
    changed = replace(site, nmp=replace(site.nmp, **change))
    with (
        serving(pool, reactor, in_reactor, changed, ca) as served,
        pytest.raises(ApiError, match=says),
    ):
        served.local.post("/vclusters/pool/vcm", body)


def test_who_may_and_for_what(served: Served) -> None:
    with pytest.raises(ApiError) as reader:
        served.remote(READER).post("/vclusters/pool/vcm", {})
    assert reader.value.status == 403
    for spelling in ("none", "None", "x" * 80, "%C3%BC", "a%20b", "-", "a..b", "%22", "*"):
        with pytest.raises(ApiError, match="there is no vcluster") as missing:
            served.local.post(f"/vclusters/{spelling}/vcm", {})
        assert missing.value.status == 404, spelling
    with pytest.raises(ApiError, match="nobody is enrolled"):
        served.local.get("/vclusters/pool/vcm")
    with pytest.raises(ApiError, match="there is no vcluster"):
        served.local.delete("/vclusters/none/vcm")


@pytest.fixture
def headed(served: Served) -> Served:
    """The vcluster's template writes a seed."""
    served.tx(
        lambda tx: tx.execute(
            t.config_templates.update().values(
                document=(
                    '<template name="head"><image target="disk" name="debian"/><personalise'
                    ' seed="nocloud"/></template>'
                )
            )
        )
    )
    return served


def test_inside_its_vcluster_nothing_is_issued_yet(headed: Served) -> None:
    made = headed.local.post("/vclusters/pool/vcm", {"inside": True})
    assert (made["head"], made["primed"]) == ("n1", False)
    assert {
        made[name] for name in ("serial", "key", "certificate", "authority", "configuration")
    } == {""}
    shown = headed.local.get("/vclusters/pool/vcm")
    assert (shown["head"], shown["serial"], shown["address"]) == ("n1", "", None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inside": True, "plain": True}, "known by its certificate"),
        ({"inside": True, "address": "10.77.9.9"}, "comes from its node"),
        ({"inside": True, "head": "N 1"}, "DNS label"),
    ],
)
def test_inside_and_what_does_not_go_with_it(
    headed: Served, body: dict[str, Any], says: str
) -> None:
    with pytest.raises(ApiError, match=says):
        headed.local.post("/vclusters/pool/vcm", body)


def test_created_with_its_vcm_before_its_head_can_be_primed(headed: Served) -> None:
    body = {"name": "batch", "size": 1, "template": "debian", "vcm_inside": True}
    headed.local.post("/vclusters", body, key="once")
    first = headed.local.get("/vclusters/batch/vcm")
    assert (first["head"], first["serial"]) == ("n1", "")
    headed.local.post("/vclusters", body, key="once")  # its answer was lost
    assert headed.local.get("/vclusters/batch/vcm") == first
    document = '<template name="head"><image target="disk" name="debian"/></template>'
    headed.tx(lambda tx: tx.execute(t.config_templates.update().values(document=document)))
    with pytest.raises(ApiError, match="writes no seed"):
        headed.local.post("/vclusters", {**body, "name": "other"})
    with pytest.raises(ApiError, match="there is no vcluster"):
        headed.local.get("/vclusters/other")  # all or nothing


def test_a_template_without_a_seed_cannot_bring_an_invitation(served: Served) -> None:
    with pytest.raises(ApiError, match="writes no seed"):
        served.local.post("/vclusters/pool/vcm", {"inside": True})


# ---------------------------------------------------------------- the command line


def test_inside_nothing_is_written_here(
    headed: Served, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    printed = said(headed, "vcm", "enroll", "pool", "--inside", "--head", "n2")
    assert (
        printed == "n2 of pool finds configuration and invitation in its seed when it is primed\n"
    )
    headed.tx(world.run_pass, site, NOW)
    assert "primed before" in said(headed, "vcm", "enroll", "pool", "--inside")
    assert "n1 (has no certificate yet)" in " ".join(said(headed, "vcm", "list").split())
    assert set(tmp_path.iterdir()) == before
    for words in (["--head", "n1"], ["--inside", "--plain"], ["--inside", "--into", "x"]):
        assert "--head goes with --inside" in said(headed, "vcm", "enroll", "pool", *words, code=2)


def test_a_file_that_is_replaced_is_never_half_there_or_readable_for_others(
    served: Served, tmp_path: Path
) -> None:
    (tmp_path / "vcm.key").write_text("old")
    (tmp_path / "vcm.key").chmod(0o644)
    reader = (tmp_path / "vcm.key").open()
    said(served, "vcm", "enroll", "pool", "--into", tmp_path)
    assert reader.read() == "old"  # who was reading it reads the old one to its end
    assert stat.S_IMODE((tmp_path / "vcm.key").stat().st_mode) == 0o600


def test_a_folder_that_a_vcm_can_be_started_with(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "vcm"
    printed = said(served, "vcm", "enroll", "pool", "--into", folder)
    assert f"cod vcm sge {folder}/vcm.toml" in printed
    assert {file.name for file in folder.iterdir()} == {"vcm.toml", "vcm.key", "vcm.crt", "ca.crt"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert "PRIVATE" not in printed
    read = settings.load(folder / "vcm.toml", settings.Settings)
    assert (read.vcluster, read.servers, read.tls) == ("pool", ("10.77.0.1:8071",), True)


def test_the_end_of_its_certificate_is_shown_and_warned_of(served: Served, tmp_path: Path) -> None:
    said(served, "vcm", "enroll", "pool", "--into", tmp_path)
    certificate = x509.load_pem_x509_certificate((tmp_path / "vcm.crt").read_bytes())
    shown = served.local.get("/vclusters/pool/vcm")
    assert (shown["ends_at"], shown["warned_at"]) == (
        certificate.not_valid_after_utc.timestamp(),
        None,
    )
    for left, says, warns in (
        (100, "ends in 100 d", False),
        (12, "ends in 12 d", True),
        (-3, "ENDED 2 d 23 h ago", True),
    ):
        end = time.time() + left * 86400 + 60
        served.tx(lambda tx, end=end: tx.execute(t.vcms.update().values(ends_at=end)))
        for words in (("vcm", "list"), ("vcm", "show", "pool")):
            result = CliRunner().invoke(
                cod, ["--server", str(served.socket), *words], env={"COLUMNS": "200"}
            )
            assert says in " ".join(result.stdout.split())
            assert (
                f"warning: the certificate of pool's VCM {says} and was not renewed"
                in result.stderr
            ) == warns
    served.tx(lambda tx: tx.execute(t.vcms.update().values(ends_at=None)))
    assert said(served, "vcm", "list").split()[-1] == "-"


def test_enrolled_anew_what_was_renewed_before_is_removed(served: Served, tmp_path: Path) -> None:
    (tmp_path / "vcm.crt.renewed").write_text("a key that is worth nothing now")
    said(served, "vcm", "enroll", "pool", "--into", tmp_path)
    assert not (tmp_path / "vcm.crt.renewed").exists()


def test_enrolling_anew_leaves_the_configuration(served: Served, tmp_path: Path) -> None:
    said(served, "vcm", "enroll", "pool", "--into", tmp_path)
    first = (tmp_path / "vcm.crt").read_text()
    (tmp_path / "vcm.toml").write_text("# mine")
    printed = said(served, "vcm", "enroll", "pool", "--into", tmp_path)
    assert f"left {tmp_path}/vcm.toml as it was" in printed
    assert "wrote vcm.key, vcm.crt, ca.crt to" in printed
    assert (tmp_path / "vcm.toml").read_text() == "# mine"
    assert (tmp_path / "vcm.crt").read_text() != first


def test_a_folder_without_secrets(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "vcm"
    said(served, "vcm", "enroll", "pool", "--into", folder, "--plain", "--address", "10.77.9.9")
    assert {file.name for file in folder.iterdir()} == {"vcm.toml"}
    read = settings.load(folder / "vcm.toml", settings.Settings)
    assert (read.servers, read.tls) == (("10.77.0.1:8072",), False)


def test_listed_shown_and_revoked(served: Served, tmp_path: Path) -> None:
    said(served, "vcm", "enroll", "pool", "--into", tmp_path, "--address", "10.77.9.9")
    assert "10.77.9.9" in said(served, "vcm", "list")
    assert json.loads(said(served, "vcm", "show", "pool", "--json"))["vcluster"] == "pool"
    said(served, "vcm", "revoke", "pool")
    assert "pool" not in said(served, "vcm", "list")
    assert "nobody is enrolled" in said(served, "vcm", "show", "pool", code=1)
