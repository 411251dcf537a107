"""SSH host keys from a secret, as OpenSSH's own programs read them; and what seeds, DNS and
known_hosts say of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cod.model import HostKey
from cod.policy.nodes import host_keys, template
from cod.policy.nodes.seed import vendor_data
from cod.security import hostkeys
from cod.security.ca import Ca

SEED = bytes(range(32))


def keygen(*words: str) -> str:
    return subprocess.run(["ssh-keygen", *words], check=True, capture_output=True, text=True).stdout


def test_openssh_reads_the_key(tmp_path: Path) -> None:
    public, private = hostkeys.ed25519(SEED)
    file = tmp_path / "ssh_host_ed25519_key"
    file.write_text(private)
    file.chmod(0o600)
    assert keygen("-y", "-f", str(file)).split()[:2] == ["ssh-ed25519", public]
    key = HostKey(hostkeys.ALGORITHM, public)
    assert keygen("-l", "-f", str(file)).split()[1] == key.fingerprint
    # What ssh-keygen would have an administrator put into a zone is what COD answers.
    printed = keygen("-r", "n1", "-f", str(file)).splitlines()
    algorithm, kind, fingerprint = host_keys.sshfp(key) or (0, 0, "")
    assert f"n1 IN SSHFP {algorithm} {kind} {fingerprint}" in printed


def test_the_same_secret_makes_the_same_file() -> None:
    assert hostkeys.ed25519(SEED) == hostkeys.ed25519(SEED)
    assert hostkeys.ed25519(SEED)[0] != hostkeys.ed25519(SEED[::-1])[0]


def test_the_authority_has_another_secret_for_each_purpose(tmp_path: Path) -> None:
    ca, other = Ca(tmp_path / "one", "test"), Ca(tmp_path / "two", "test")
    assert ca.host_key_seed("7.3") == ca.host_key_seed("7.3")
    assert (
        len(
            {
                ca.host_key_seed("7.3"),
                ca.host_key_seed("7.4"),
                other.host_key_seed("7.3"),
                bytes.fromhex(ca.invitation("7.3")),
            }
        )
        == 4
    )


def test_cloud_init_and_own_images_find_the_key_and_the_metadata_service_does_not() -> None:
    public, private = hostkeys.ed25519(SEED)
    part = host_keys.seed_part(HostKey("ssh-ed25519", public), private)
    assert part.secret
    assert part.files == {"ssh_host_ed25519_key": private}
    first, _, config = vendor_data([part]).partition("\n")
    assert first == "#cloud-config"
    assert json.loads(config) == {
        "ssh_keys": {"ed25519_private": private, "ed25519_public": f"ssh-ed25519 {public}"}
    }


def test_a_known_hosts_file_is_found_by_name_and_by_address(tmp_path: Path) -> None:
    public, _ = hostkeys.ed25519(SEED)
    [line] = host_keys.known_hosts(
        ["n1.web.cod.test", "10.77.1.70"], [HostKey("ssh-ed25519", public)]
    )
    known = tmp_path / "known_hosts"
    known.write_text(line + "\n")
    for name in ("n1.web.cod.test", "10.77.1.70"):
        assert public in keygen("-F", name, "-f", str(known))


def test_an_algorithm_without_a_number_has_no_record() -> None:
    assert host_keys.sshfp(HostKey("ssh-new", "AAAA")) is None


def test_a_template_may_leave_the_keys_to_its_system() -> None:
    document = (
        '<template name="x"><image target="disk" name="debian"/><personalise'
        ' seed="nocloud"{}/></template>'
    )
    assert not template.parse(document.format("")).own_host_keys
    assert not template.parse(document.format(' hostkeys="site"')).own_host_keys
    assert template.parse(document.format(' hostkeys="own"')).own_host_keys
