"""Notices about single machines: their hardware, place, power and captures."""

from __future__ import annotations

from cod.notice_texts.words import NoticeText, notice, page, sentence


def hardware_changed(
    node: str, before: str, after: str, holder: str | None, lacking: str = "", changes: str = ""
) -> NoticeText:
    """Describe a node that reported other hardware than before. The types are names; `lacking` is
    what the holder's requirements now miss; `changes` are the differences."""
    what = f" What has changed: {sentence(changes)}" if changes else ""
    held = f" It is held by cluster {holder}." if holder else ""
    misses = f" It no longer matches: {sentence(lacking)}" if lacking else ""
    return notice(
        "hardware",
        f"node {node}: hardware has changed",
        f"Node {node} was of type {before} and is of type {after} now.{what}{held}{misses} If"
        " nobody changed the hardware on purpose, check the machine and its last report.",
        page("nodes", node),
    )


def cannot_boot(about: str) -> NoticeText:
    """Describe the first machine of the day that COD has no boot loader for; `about` names the
    machine and the reason."""
    text = sentence("Machine " + about)
    return notice(
        "architecture",
        "a machine cannot be booted",
        f"{text} COD does not answer it. Other machines of the same day are listed on the page"
        " Nodes.",
    )


def not_believed(node: str, why: str) -> NoticeText:
    """Describe a machine whose agent claimed to be a node and was refused; `why`: a sentence."""
    return notice(
        "identity",
        f"a machine claims to be node {node}",
        f"An agent that claims to be node {node} was refused: {sentence(why)} Another machine may"
        " use its MAC address, or the node's power driver and address are not its own.",
        page("nodes", node),
    )


def asked_elsewhere(node: str, about: str) -> NoticeText:
    """Describe a machine that asked to boot as a node, but from another place than the node's;
    `about`: a sentence."""
    return notice(
        "identity",
        f"node {node} was heard elsewhere",
        f"{sentence(about[0].upper() + about[1:])} It gets no answer. If the node was moved, an"
        " administrator confirms that; else another machine uses its MAC address. Further nodes"
        " heard elsewhere within the hour are listed as conflicts only.",
        page("nodes", node),
    )


def other_dhcp_server(node: str, about: str) -> NoticeText:
    """Describe a node whose system takes its address from another DHCP server; `about`: a
    sentence."""
    return notice(
        "dhcp",
        f"node {node} uses another DHCP server",
        f"{sentence(about[0].upper() + about[1:])} Further nodes within the hour are listed as"
        " conflicts only.",
        page("nodes", node),
    )


def namesakes(node: str, about: str) -> NoticeText:
    """Describe a node with a volume that has the same name as one that was written to another disk;
    `about`: sentences."""
    return notice(
        "namesake",
        f"node {node}: two volumes have the same name",
        f"Node {node}: {about}",
        page("nodes", node),
    )


def found_off(node: str) -> NoticeText:
    """Describe a node in use that is off, though COD did not switch it off."""
    return notice(
        "found-off",
        f"node {node} is off",
        f"The power driver of node {node} says twice in a row that the node is off, and COD did not"
        " switch it off. Its system may have shut down, or its power may have failed. Power the"
        " node on, or release it.",
        page("nodes", node),
    )


def found_on(node: str) -> NoticeText:
    """Describe the end of `found_off`."""
    return notice(
        "found-on",
        f"node {node} is on again",
        f"The power driver of node {node} says that the node is on again. No action is needed.",
        page("nodes", node),
    )


def quarantined(node: str, reason: str) -> NoticeText:
    """Describe a node that was taken out of service."""
    return notice(
        "quarantined",
        f"node {node} is quarantined",
        f"Node {node} was taken out of service: {sentence(reason)} It gets no work until an"
        " administrator returns it to service.",
        page("nodes", node),
    )


def captured(node: str, image: str, template: str) -> NoticeText:
    """Describe a node's disk that was saved as `image`; `template`: 'name@revision', '' for
    none."""
    use = f" The template {template} writes it to other nodes." if template else ""
    return notice(
        "captured",
        f"image {image} of node {node} is ready",
        f"The disk of node {node} was saved as the image {image}.{use}",
        page("images", *image.split("/")),
    )


def capture_failed(node: str, image: str, reason: str) -> NoticeText:
    """Describe a capture that failed."""
    return notice(
        "capture-failed",
        f"node {node} was not captured",
        f"The capture of node {node} as image {image} failed: {sentence(reason)} The disk was not"
        " changed.",
        page("nodes", node, "capture"),
    )


def new_machines_refused(subnet: str, about: str) -> NoticeText:
    """Describe that unknown machines are refused on a subnet; `about`: a sentence with the
    reason."""
    return notice(
        "new-machines",
        f"new machines on subnet {subnet} are refused",
        f"{sentence(about[0].upper() + about[1:])} Approved machines boot as before.",
    )
