"""Explanations of terms on pages, for people who meet them first; the manual has the same list."""

TERMS = {
    "autoscaler": "A program of a group that requests and returns the nodes of a virtual cluster by"
    " what its work needs. Protocol pages call it VCM, virtual cluster manager.",
    "block": "Nodes that are close to each other, such as those of a rack. A request can ask for"
    " nodes of one block.",
    "group": "People who share virtual clusters, images, templates and volumes. A group has owners,"
    " members and viewers.",
    "image": "The content of a disk or of a file system, which is written to nodes.",
    "lease": "How long a virtual cluster keeps its nodes. It can be extended. At its end, the nodes"
    " are erased and return to the pool.",
    "node": "A machine that COD installs, powers and assigns to one virtual cluster at a time.",
    "pool": "All nodes of the site. The free ones are what a request can get at once.",
    "preemptible": "Said of a virtual cluster whose nodes any other request may take.",
    "priority": "A number of a group, set by administrators. Requests of a higher priority are"
    " served first.",
    "reclaim": "Taking nodes back from a virtual cluster for a request that goes before it. The"
    " cluster chooses which nodes, and has time to empty them.",
    "request": "What a group asks for: how many nodes, of which kind, from when, and for how long.",
    "reservation": "A request that starts at a given time. Its nodes are kept free for it.",
    "share": "The part of the site that a group is meant to have in the long run.",
    "template": "What nodes run: the images, where they are written, and the settings of the"
    " system. A change of a template is a new revision.",
    "virtual cluster": "Whole nodes that a group has for a time, with root on each, a network"
    " domain, and a template.",
    "volume": "A directory of a file server that nodes of a group mount. It outlives virtual"
    " clusters.",
}
