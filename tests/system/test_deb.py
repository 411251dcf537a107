"""The Debian package, installed by dpkg into this host's system under an overlay, so that nothing
of it stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from images import debian

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.xdist_group("wheel"),
    pytest.mark.in_turn(3, together=True),  # the package is made for all of them
]

ROOT = Path(__file__).resolve().parents[2]
# The quadlet's keys as podman's options; folders of the host are below `folder`.
QUADLET = {
    "Network": "--network={}",
    "Volume": "--volume={folder}{}",
    "Environment": "--env={}",
    "ReadOnly": "--read-only={}",
    "NoNewPrivileges": "--security-opt=no-new-privileges",
    "DropCapability": "--cap-drop={}",
    "AddCapability": "--cap-add={}",
}
# crun takes no host with both kinds of cgroups, and raises no limits without CAP_SYS_RESOURCE.
CONTAINER = """
mount -t tmpfs none /sys/fs/cgroup
ip link set lo up
ip link add nodes0 type veth peer name nodes1
ip address add 10.77.0.1/16 dev nodes0
ip link set nodes0 up && ip link set nodes1 up
mkdir -p etc/cod var/lib/cod run/cod
run() {{
    {podman} run --cgroups=disabled --ulimit=nofile=1024:1024 --ulimit=nproc=4096:4096 "$@"
}}
both="--volume={folder}/etc/cod:/etc/cod --volume={folder}/var/lib/cod:/var/lib/cod"
run --rm --network=host $both localhost/cod init --interface nodes0 --listen 127.0.0.1:8443 >&2
install -d -m 0770 -g 960 run/cod/metrics
run --rm --network=host $both localhost/cod permissions >&2
run -d --name=cod {options} localhost/cod >&2
for n in $(seq 6000); do
    test "$({podman} logs cod 2>&1 | grep -c "service: ready")" = 4 && break
    sleep 0.2
done
busybox wget --no-check-certificate -q -O - https://127.0.0.1:8443/api/v1/health; echo
{podman} exec --privileged cod cod --site /etc/cod/site.toml node list --json
for part in edge images manager web; do
    process=$({podman} logs cod 2>&1 | sed -n "s/.*started $part, process //p")
    {podman} exec cod sh -c \
        'echo $(stat -c %U /proc/$0) $(sed -n "s/CapEff:\\t//p" /proc/$0/status)' $process
done
{podman} stop -t 15 cod >&2
{podman} inspect --format "{{{{.State.ExitCode}}}}" cod
"""
UNITS = ("cod", "cod-edge", "cod-images", "cod-manager", "cod-web")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package, made as `make deb` makes it."""
    out = tmp_path_factory.mktemp("deb")
    done = subprocess.run(
        [ROOT / ".ci/deb/build", out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("cod_*.deb")
    yield made
    made.unlink()


def installed(package: Path, script: str) -> str:
    """What `script` prints in this system with the package installed; it runs in namespaces of its
    own."""
    inside = package.with_name("script")
    inside.write_text(
        "cd /\ndpkg -i --force-depends /tmp/cod.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log;"
        f" exit 1; }}\nip link set lo up\n{script}"
    )
    overlay = f"""
set -e
mount -t tmpfs -o mode=755 cod /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay cod -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
mount --bind /dev /mnt/root/dev
mount -t tmpfs -o mode=1777 cod /mnt/root/tmp
rm -rf /mnt/root/etc/cod /mnt/root/var/lib/cod
cp {package} /mnt/root/tmp/cod.deb
cp {inside} /mnt/root/tmp/script
exec chroot /mnt/root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \\
    sh -e /tmp/script
"""
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", overlay],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_the_package_says_of_itself(package: Path) -> None:
    said = subprocess.run(
        ["dpkg-deb", "--field", package], check=True, capture_output=True, text=True
    ).stdout
    fields = dict(line.split(": ", 1) for line in said.splitlines() if line[0] != " ")
    assert fields["Package"] == "cod"
    needed = {each.split()[0] for each in fields["Depends"].split(", ")}
    assert {
        "python3",
        "qemu-utils",
        "ipxe",
        "pxelinux",
        "syslinux-common",
        "ipmitool",
        "iproute2",
    } <= needed
    listed = subprocess.run(
        ["dpkg-deb", "--contents", package], check=True, capture_output=True, text=True
    ).stdout
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    paths = {line.split()[5] for line in listed.splitlines()}
    assert {f"./usr/lib/{kind}.d/cod.conf" for kind in ("sysusers", "tmpfiles")} <= paths
    assert {f"./usr/lib/systemd/system/{unit}.service" for unit in (*UNITS, "cod-vcm@")} <= paths
    assert not any("site-packages/pytest" in path or "site-packages/pip" in path for path in paths)


def test_the_package_lists_what_is_inside(package: Path) -> None:
    """The bill of materials, in CycloneDX, names the versions of the wheels that are in it."""
    listed = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(listed)) as content:
        paths = content.getnames()
        found = content.extractfile("./usr/share/doc/cod/sbom.cdx.json")
        assert found is not None
        bill = json.load(found)
    inside = {
        (re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
        for path in paths
        if (match := re.search(r"/site-packages/([^/]+?)-([^-/]+)\.dist-info$", path))
    }
    main = bill["metadata"]["component"]["name"]
    wheels = [each for each in bill["components"] if each["purl"].startswith("pkg:pypi/")]
    said = {(each["name"].lower(), each["version"]) for each in wheels}
    assert bill["bomFormat"] == "CycloneDX"
    assert main == "cod"
    named = {(re.sub(r"[-_.]+", "-", name), version) for name, version in said}
    assert {each for each in inside if each[0] != "cod"} == named
    assert ("twisted", next(v for n, v in inside if n == "twisted")) in named
    others = {each["purl"] for each in bill["components"] if each not in wheels}
    stamps = [path for path in paths if path.endswith("/cod/_data/widgets/widgets.json")]
    assert len(others) == (3 if stamps else 0)
    assert all(each.startswith("pkg:npm/") for each in others)


def test_one_command_installs_a_program_that_founds_and_serves_a_site(package: Path) -> None:
    """Bytecode is compiled already, and no file names the folder that the package was made in. The
    site is root's first, as sites were before parts had users of their own."""
    said = installed(
        package,
        """
cod --version
python3 -c "import cod" 2>/dev/null && echo "in the system's Python"
test "$(readlink -f /usr/bin/cod)" = /usr/lib/cod/bin/cod
stat -c "%a %n" /etc/cod /var/lib/cod
ip link add nodes0 type veth peer name nodes1
ip address add 10.77.0.1/16 dev nodes0
ip link set nodes0 up && ip link set nodes1 up
cod init --interface nodes0 >/dev/null
/usr/lib/cod/bin/python -c "import ldap, authlib, pysnmp.hlapi; print(\\"extras\\")"
cod serve --only web 2>/tmp/log & server=$!
for n in $(seq 600); do cod node list >/dev/null 2>&1 && break; sleep 0.2; done
cod node list --json || cat /tmp/log
kill $server; wait $server && echo "stopped well"
find /usr/lib/cod -newer /tmp/dpkg.log -type f | head -3

printf 'secret\\n' >/etc/cod/bmc && chmod 600 /etc/cod/bmc
printf '[[account]]\\nname = "bmc"\\nuser = "a"\\npassword_file = "/etc/cod/bmc"\\n' >>/etc/cod/site.toml
cod permissions >/tmp/changed && cod permissions
cod serve --users 2>/tmp/log & server=$!
for n in $(seq 1200); do test "$(grep -c "service: ready" /tmp/log)" = 4 && break; sleep 0.2; done
cod node list --json || cat /tmp/log
cod doctor --only permissions,users --json | python3 -c '
import json, sys
print([each for each in json.load(sys.stdin)["findings"] if each["state"] != "good"])'
for part in edge images manager web; do
    process=$(sed -n "s/.*started $part, process //p" /tmp/log)
    stat -c "%U:%G $part" /proc/$process
    grep CapEff /proc/$process/status
    for file in /var/lib/cod/ca/ca.key /etc/cod/bmc; do
        setpriv --reuid=cod-$part --regid=cod --init-groups cat $file >/dev/null 2>&1 &&
            echo "$part reads $file"
    done
    setpriv --reuid=cod-$part --regid=cod --init-groups python3 -c '
import socket
line = socket.socket(socket.AF_UNIX)
line.connect("/var/lib/cod/run/signer.sock")
line.sendall(b"{}\\n")
print(line.makefile().readline().strip())'
done
setpriv --reuid=cod-web --regid=cod --init-groups /usr/lib/cod/bin/python -c '
from pathlib import Path
from cod.security.signer import RemoteAuthority
data = Path("/var/lib/cod")
print(len(RemoteAuthority(data / "ca", data / "run/signer.sock").vcm("pool", None).serial))'
kill $server; wait $server && echo "stopped well"

dpkg --purge cod 2>&1 | grep "is left"
test -f /etc/cod/site.toml && test ! -e /usr/bin/cod && echo "the site stays"
""",
    )
    lines = said.splitlines()
    assert lines[0].startswith("cod ")
    assert lines[1:3] == ["755 /etc/cod", "700 /var/lib/cod"]
    assert lines[3:6] == ["extras", "[]", "stopped well"]
    refused, heard = (
        '{"error": "may not ask"}',
        '{"error": "the question cannot be read: \'vcluster\'"}',
    )
    assert lines[6:-3] == [
        "[]",
        "[]",  # what the doctor says against it
        "cod-edge:cod edge",
        "CapEff:\t0000000000003400",
        "edge reads /var/lib/cod/ca/ca.key",
        "edge reads /etc/cod/bmc",
        heard,  # its own user
        "cod-images:cod images",
        "CapEff:\t0000000000000400",
        refused,
        "cod-manager:cod manager",
        "CapEff:\t0000000000000000",
        "manager reads /etc/cod/bmc",
        refused,
        "cod-web:cod web",
        "CapEff:\t0000000000000400",
        heard,
        "40",  # digits of the number of a certificate that the signer has signed
        "stopped well",
    ]
    assert [line.split(" holds")[0] for line in lines[-3:-1]] == [
        "cod: /etc/cod",
        "cod: /var/lib/cod",
    ]
    assert lines[-1] == "the site stays"


def test_the_units_are_good_in_systemds_eyes(package: Path) -> None:
    said = installed(
        package, "systemd-analyze verify /lib/systemd/system/cod*.service 2>&1 && echo verified"
    )
    assert said.splitlines()[-1:] == ["verified"]
    for unit in UNITS:
        text = (ROOT / f"docs/systemd/{unit}.service").read_text()
        # none is started before there is a site
        assert "ConditionPathExists=/etc/cod/site.toml\n" in text
    assert os.access(ROOT / ".ci/deb/build", os.X_OK)


@pytest.mark.nightly  # an empty Debian is made, and the package installed there
@pytest.mark.timeout(2 * 3600)  # on a busy host the package alone takes a quarter of an hour
@pytest.mark.skipif(
    not all(map(shutil.which, ("podman", "mmdebstrap"))), reason="podman, mmdebstrap"
)
def test_a_server_runs_in_a_container(package: Path, short_folder: Path) -> None:
    """The server runs with the options of docs/systemd/cod.container, on a network of its own."""
    folder = short_folder  # podman takes no runroot of more than 50 characters
    podman = ["podman", "--root", str(folder / "store"), "--runroot", str(folder / "run")]
    (folder / "build").mkdir()
    for each in (package, ROOT / ".ci/container/cod.sysusers.conf"):
        shutil.copy(each, folder / "build")
    base = folder / "base.tar"
    for argv in (
        ["mmdebstrap", "--quiet", "--variant=minbase", debian.SUITE, str(base)],
        [*podman, "import", "-q", str(base), "localhost/base"],
        [
            *(*podman, "build", "-q", "--isolation=chroot", "--build-arg=BASE=localhost/base"),
            *("-t", "localhost/cod", "-f", str(ROOT / ".ci/container/Containerfile")),
            str(folder / "build"),
        ],
    ):
        made = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    script = folder / "script"
    script.write_text(
        CONTAINER.format(podman=" ".join(podman), options=quadlet(folder), folder=folder)
    )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-e", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    health, listed, *parts, stopped = done.stdout.splitlines()
    assert json.loads(health)["ok"]
    assert json.loads(listed) == []
    assert parts == [
        "cod-edge 0000000000002400",
        "cod-images 0000000000000400",
        "cod-manager 0000000000000000",
        "cod-web 0000000000000400",
    ]
    assert stopped == "0"


def quadlet(folder: Path) -> str:
    """Return the quadlet's options as podman takes them; folders of the host are below `folder`."""
    options = list[str]()
    for line in (ROOT / "docs/systemd/cod.container").read_text().splitlines():
        key, _, value = line.partition("=")
        if key in QUADLET:
            options += [QUADLET[key].format(each, folder=folder) for each in value.split()]
    return " ".join(options)
