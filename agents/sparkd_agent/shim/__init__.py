"""The parent of one rank: keeps its log and its exit status, and outlives the agent that started it.

Run as `python -I -S __main__.py FD NAME`; standard library only, because it lives as long as the model does.
This folder alone is what a container gets to see of the agent, below the same path.
The spec is JSON read from descriptor FD (it may hold secrets; argv is for people who read `ps`).

As a unit of systemd it runs as root although the unit names a user (`no-setuid`): the rank becomes that
user, and cannot touch what the shim writes of it. The unit has a control group; the rank gets one below it.

Files in the rank's folder, format 1 (read by `rankfolder.py`; later agents must read earlier formats):

    shim.json     {format, name, boot, shim: {pid, starttime}, leader: {pid, starttime}, pipes, mono, wall,
                  cgroup: the unit's, or null}
    exit.json     {format, name, pid, code, signal, error, mono, wall, lost_bytes}; at the leader's end
    log/<offset>  segments; the name is the offset of the first byte in the whole stream, 20 digits
    shim.err      what the shim itself had to say; empty in a good life

A log line is `MONO WALL STREAM TEXT`: nanoseconds of both clocks, then 1 (stdout), 2 (stderr), ! (the shim).
Two threads: the first one (`shim.py`) reads the pipes and reaps, and never waits for a disk; the second one
(`writer.py`) writes.
"""
