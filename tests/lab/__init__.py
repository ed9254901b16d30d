"""A lab of real nodes on one machine: systemd as PID 1, sshd, two networks, and faults as Python verbs.

    room      the namespaces and control groups that hold everything of one lab, and go with it
    image     the root file system that all nodes share, made by debootstrap and cached
    network   two switches and the nodes' cables to them
    node      one machine: power, its disk, commands on it
    faults    what befalls nodes and cables
    relay     a cable that loses and delays frames
    tunnel    a loopback port of the test that leads into a node or onto the management network
    software  sparkd as it lies on a node's disk
    cluster   nodes with sparkd on them, and questions to their coordinator

`make lab` runs its tests; `python -m tests.lab` gives a cluster to try things by hand. It needs root. All
that it makes lives in namespaces of its own and ends with the process that made it, however that ends.
"""
