"""The one table of limits and time-outs. Seconds unless the name says otherwise.

Source: design §11 "Defaults" where a comment says nothing else.
"""

from dataclasses import dataclass
from typing import Final

PROTOCOL: Final = 1
"""Version of the agent protocol; a coordinator serves this one and the one before."""

GIB: Final = 1 << 30
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Defaults:
    # Contact between coordinator and agents.
    beat_s: float = 1.0
    stall_s: float = 1.5
    """A coordinator that has not looked for so long was stalled, and judges no silence from before."""
    tick_s: float = 0.25
    """How often the coordinator looks at its deadlines."""
    lease_s: float = 6.0
    settle_poll_s: float = 0.01
    node_suspect_s: float = 2.0
    node_silent_s: float = 4.0
    second_path_s: float = 1.5
    """After `silent`: how long the gang itself has to prove that the node computes. With the 4 s of silence
    a power cut is known within 6 s."""
    proof_ask_s: float = 3.0
    hello_retry_s: float = 3.0
    document_poll_s: float = 25.0
    startup_hold_s: float = 10.0
    clock_warn_s: float = 300.0
    """A node's clock off by so much is worth a warning: certificates are judged with this grace."""
    agent_connect_timeout_s: float = 3.0
    agent_request_timeout_s: float = 6.0

    # Certificates.
    certificate_life_s: float = 365 * 86_400.0
    certificate_backdate_s: float = 86_400.0
    certificate_renew_share: float = 2 / 3
    """Of its life, from then on a certificate is renewed: a cluster may be off for four months."""
    certificate_warn_s: float = 30 * 86_400.0
    """So long before its end a certificate that was not renewed is told of."""
    authority_life_s: float = 20 * 365 * 86_400.0
    certificate_look_s: float = 60.0
    """How often the coordinator looks at the age of its own certificate."""
    certificate_retry_s: float = 300.0
    """After a renewal that failed; plus up to as much again, so that nodes do not ask all at once."""

    # Enrolment over SSH.
    ssh_connect_s: float = 10.0
    ssh_login_s: float = 30.0
    """From the connection to the end of the login, a person's typing aside; sudo may ask a slow directory."""
    enrol_step_s: float = 120.0
    """One step on a node: a slow disk writes a few megabytes in it."""
    enrol_verify_s: float = 30.0
    """From the start of an agent until its coordinator has heard from it."""
    wheel_download_s: float = 300.0
    enrol_hosts_at_once: int = 16
    enrol_disk_bytes: int = 256 * MIB
    """Free on a node, for the agent, its ledger and the first logs."""

    # Boot.
    boot_max_s: float = 7200.0
    preflight_s: float = 30.0
    facts_s: float = 10.0
    """For one node to look itself over, which takes a tenth of a second. One that does not answer is told of
    and starts all the same: its facts would only have warned sooner of what its rank will say."""
    fabric_listen_s: float = 5.0
    """For a test of the fabric a node listens this long: the one time it does."""
    fabric_ready_s: float = 2.0
    """For a node to begin to listen; the others have begun, and must still listen when they are called."""
    fabric_connect_s: float = 1.5
    fabric_datagram_s: float = 0.3
    fabric_datagrams: int = 3
    fabric_exchanges: int = 20
    collective_s: float = 60.0
    """A collective probe ends within so long, whatever it does: by itself, else its agent kills it."""
    collective_short_s: float = 10.0
    """Before a launch, from when the last of its processes has loaded torch, which takes 3 to 20 s."""
    collective_long_s: float = 45.0
    """For `sparkd fabric test`, from the same moment."""
    collective_ladder_share: float = 0.5
    """Of that time for sums; the rest is for meeting, and for reports that come once a beat."""
    collective_bytes: int = 256 * MIB
    """The largest sum. NVIDIA's own test takes 16 GiB, and froze a Spark with a desktop (public case 4)."""
    collective_short_bytes: int = 64 * MIB
    collective_free_share: int = 4
    """So many times as much memory as the largest sum must be available, or it is not tried."""
    hash_bytes_s: float = 500 * MIB
    """Read and hashed of a model, when somebody asks for it: a rank that loads wants the disk too."""
    hash_piece_bytes: int = 2 * GIB
    """Asked of a node at once: so soon it ends when nobody wants it any more, so exact is the place told."""
    hash_wait_s: float = 60.0
    """For one piece, beside the time that it takes: a disk may be slow, or another machine's."""
    resolve_s: float = 1.0
    """For a node's resolver to answer for the node's own name; without a name server it may take 30 s."""
    copy_bytes_s: float = 400 * MIB
    """What one rsync moves over ssh on a fast link, as one core encrypts: an estimate, for minutes told."""
    disk_block_bytes: int = MIB
    """Free for the agent's state below which a launch is refused: its intent must be written down first."""
    disk_warn_share: float = 0.1
    """Free of a disk, and less than `enrol_disk_bytes`: logs will soon be dropped."""
    shm_least_bytes: int = 512 * MIB
    """Free in shared memory that ranks have in common: vLLM takes 210 MiB of it for a pair of ranks."""
    launching_s: float = 180.0
    """Without any progress. vLLM's imports alone take 20 s here and more on a busy Spark."""
    loading_s: float = 900.0
    """Without any progress on *any* rank; case 41: a healthy load was silent for nine minutes."""
    warming_s: float = 900.0
    port_retry_s: float = 15.0
    api_port_first: int = 8100
    api_port_last: int = 8199
    rendezvous_port_first: int = 29600
    rendezvous_port_last: int = 29999
    rendezvous_ports_remembered: int = 20

    # Life and death.
    pulse_silence_s: float = 15.0
    pulse_timeout_s: float = 20.0
    pulse_retry_s: float = 2.0
    """After a pulse that was not delivered or answered without a token; also between looks at /metrics."""
    pulse_undelivered_s: float = 60.0
    """No token for so long because the API cannot be reached or answers with errors only, its process alive:
    such a pulse says nothing about the engine, but clients get nothing either."""
    metrics_timeout_s: float = 5.0
    stopped_state_s: float = 10.0
    """A process in state T for so long after loading is a verdict of its own."""
    compile_excuse_s: float = 600.0
    blackbox_s: float = 900.0
    """So much of every node that has ranks is kept at the coordinator, for incidents of nodes that froze."""
    blackbox_idle_s: float = 60.0
    """The same of a node without ranks: 1,000 of them must not take the coordinator's memory."""
    blackbox_log_bytes: int = 256 * 1024
    """Of each rank's log: read whole while a fall is written up, at some 0.2 s for each MiB, and no report is
    heard meanwhile."""
    blackbox_lines: int = 1000
    """Kernel lines, and acts of an agent, of a node."""
    incident_complete_s: float = 4.0
    """After the news of a fall come its exits, last lines and samples."""
    incident_files: int = 500
    timeline_s: float = 300.0
    timeline_sample_s: float = 10.0
    timeline_entries: int = 200
    ring_s: float = 5.0
    """So often a node with a rank writes down what it saw; a freeze costs at most the looks of so long."""
    ring_segment_bytes: int = 1 * MIB
    ring_segments: int = 4
    """15 minutes at one look a second are half a MiB, at five looks a second 2 MiB."""
    ring_told: int = 120
    """The last looks of a boot that ended badly, told to the coordinator by the next one."""
    stacks_s: float = 2.0
    """For one process to write where its threads are (design §3.6)."""
    stacks_pause_s: float = 0.1
    stacks_ask_s: float = 20.0
    """For all processes of a rank."""
    stacks_before_end_s: float = 2.0
    """So long a gang that is frozen, or does not get on, is left for its ranks to tell where they are."""
    stacks_told_s: float = 1.5
    """Of that, for the processes of one rank: the rest is for question and answer to travel."""
    stacks_lines: int = 200
    """Of one process, in an incident."""
    cause_window_s: float = 5.0
    """A death so close to another failure is told as its cause (design §8)."""
    last_words_s: float = 0.5
    """Between a fall and the kill of the fallen rank's own remains, so that its last lines get written:
    killed in the same instant, the launcher's exit code line was lost 1 time in 5."""
    down_grace_s: float = 10.0
    kill_proof_s: float = 15.0
    rank_scan_s: float = 1.0
    fault_over_s: float = 10.0
    """A fault in a rule counts as over when decisions about that deployment have been made for so long."""
    fault_chars: int = 300
    """Of the error that is shown to people; the log has all of it."""
    watch_stall_s: float = 5.0
    """Ranks that were not looked at for so long are not looked after: the watchdog may hear of it."""
    rank_young_s: float = 5.0
    rank_young_scan_s: float = 0.1
    """So often at first: a process that is killed early must have been seen before."""
    shim_start_s: float = 10.0
    """From the spawn of a shim to its record; it takes 50 ms on an idle machine."""
    shim_exit_s: float = 1.0
    """How long a shim may outlive the last process of its rank before it is ended too."""
    reap_s: float = 2.0
    """How long the parent of what has ended may take to note it: only from then on the kernel tells how."""
    service_manager_s: float = 10.0
    """For one answer of systemd, which takes 10 ms; a node that thrashes is slow."""
    docker_s: float = 20.0
    """For one answer of a Docker engine. Making and starting a container takes 0.3 s, with a GPU 2 s."""
    docker_look_s: float = 5.0
    """For the list of its containers, which an agent asks for as it starts: folders have to do then."""
    docker_tidy_s: float = 120.0
    """How long an engine that does not answer is asked again to remove the container of an ended rank."""
    docker_log_bytes: int = 8 << 20
    """What the engine keeps of a container's output: the shim's words; the rank's are in its folder."""
    image_facts_s: float = 60.0
    """For reading what is in an image, once for each."""
    kill_repeat_s: float = 0.01
    unkillable_repeat_s: float = 1.0
    orphaned_follower_s: float = 60.0
    """Without a coordinator: how long neither rank 0's API nor its rendezvous port may answer."""
    head_try_s: float = 5.0
    """Between two tries of theirs, and the time that one has."""

    # The watch over a node's memory, GPU and fabric (`sparkd.detect`). Sources: gb10.md §2, §3 and §5, and
    # the public reports; shares are of one core or of wall time, rates are per second.
    watch_s: float = 1.0
    watch_idle_s: float = 4.0
    """Between two looks of the watch's own while no rank is here: reports look a little before that."""
    watch_brisk_s: float = 180.0
    """So long after a rank has gone every report looks: its memory comes back, and the next one waits."""
    watch_fast_s: float = 0.2
    """Between two looks while memory is short: a rank that takes 1 GiB/s is 0.2 GiB further at each."""
    watch_window_s: float = 5.0
    """Pressure is over so long: the kernel's own ten-second average knows of a freeze too late."""
    watch_gap_s: float = 2.0
    """A look counts for at most so long: nothing is known of the time while the agent stood still."""
    memory_floor_bytes: int = 2 * GIB
    """Where a profile says nothing. Under 2 GiB every reported machine was about to freeze."""
    memory_critical_bytes: int = GIB
    """Below it nothing else is asked. A burst of prefill takes more than that in the second before the next
    look."""
    memory_near_bytes: int = 4 * GIB
    """So much above the floor, or `memory_near_share` of the node, looks become frequent."""
    memory_near_share: float = 0.06
    memory_leave_bytes: int = 2 * GIB
    memory_leave_s: float = 10.0
    """A grade falls only when MemAvailable was so far above the floor for so long without any trouble: a
    cache that was dropped fills again, and a gang that is shed and admitted in turn serves nobody."""
    memory_low_s: float = 2.0
    """Below the floor for so long: shed. Case 6: a floor alone must not end a healthy gang."""
    trouble_shed_s: float = 1.0
    trouble_end_s: float = 3.0
    """Of the last `watch_window_s`: thrash and not a single stall."""
    trouble_full_share: float = 0.10
    """PSI `full`: every task that could run waits for memory a tenth of the time. oomd acts at 60 % of 30 s,
    nohang at 40 %: on a GB10 the whole machine stands still by then."""
    trouble_some_share: float = 0.10
    trouble_rate_s: float = 2.0
    """Rates of pages are over so long: they jump within a second, and a burst should not count for five."""
    trouble_direct_pages: float = 256.0
    trouble_direct_yield: float = 0.3
    """Pages freed of pages looked at by tasks that had to reclaim for themselves: below it reclaim fails."""
    trouble_stalls: float = 10.0
    """Allocations that had to wait for direct reclaim, summed over zones; or for compaction, as for RDMA and
    for pinned memory."""
    trouble_swap_bytes: float = 10 * MIB
    trouble_refault_pages: float = 20_000.0
    """80 MiB/s of pages read again that had just been thrown away. Only below the floor: loading weights by
    mmap from a cache that is too small does the same, harmlessly."""
    trouble_thread_share: float = 0.5
    """Of a core, a `UVM …` or `kswapd` thread. UVM threads use none at all while vLLM serves (measured), so
    they can confirm, and are never required."""
    signature_free_bytes: int = 2 * GIB
    """With a busy UVM thread the known picture of a GB10 that is about to freeze."""
    no_memory_bytes: int = 3 * GIB
    """NVRM says NV_ERR_NO_MEMORY with less than this available: the next thing is a frozen host (case 2)."""
    no_memory_burst: int = 10
    """So many such lines in `watch_window_s` say the same whatever meminfo shows; 40 a second were seen."""
    plunge_s: float = 2.0
    """The floor will be reached within so long at the present slope. A gang takes half a second to end. The
    drop after loading, 7 GiB in a second at worst (case 5), stays above 3 s."""
    plunge_least_bytes: float = 256 * MIB
    """A second. What falls more slowly leaves 10 s between floor and critical line: the grades see it."""
    plunge_hold_s: float = 0.55
    """And every look for so long says so, which takes four: one large allocation may spread over two."""
    plunge_window_s: float = 1.0
    plunge_recent_s: float = 0.45
    """Two looks: the shortest time over which a slope means anything."""
    plunge_watch_s: float = 10.0
    """Within so long: look more often."""
    load_spike_bytes: int = 19 * GIB
    load_spike_s: float = 60.0
    """What loading takes beyond everything planned, within so long after the weights are loaded; 17-19 GiB
    are reported (case 5)."""
    memory_ask_s: float = 0.5
    """How long the coordinator has to take a rank out of the document before its own agent ends it."""
    evict_s: float = 60.0
    """Between two evictions of the page cache while loading."""
    evict_pressure_s: float = 10.0
    """The same under pressure: dropping a cache of 100 GiB takes a second of one core."""
    evict_least_bytes: int = GIB
    """Less cache than that is not worth the time."""
    threads_scan_s: float = 30.0
    """Between two looks for new kernel threads: a full look costs 13 µs a process."""
    threads_scan_short_s: float = 3.0
    """The same while memory is short: a UVM thread that has just come must be seen in time."""
    gpu_look_s: float = 1.0
    gpu_answer_s: float = 5.0
    """NVML that has not answered for so long says nothing: its numbers are unknown."""
    gpu_busy_percent: float = 90.0
    gpu_judge_s: float = 20.0
    gpu_slow_mhz: float = 1000.0
    """A GB10 under load runs at 2,280-2,420 MHz, one that is stuck at 500-850."""
    gpu_idle_watts: float = 30.0
    """A GB10 under load draws 45-92 W; 15-22 W with full utilisation is a stuck or a spinning one."""
    gpu_hot_s: float = 10.0
    fabric_look_s: float = 5.0
    fabric_flaps: int = 2
    fabric_window_s: float = 300.0
    node_look_s: float = 60.0
    """For what changes when somebody installs something: other killers, drivers, stale shared memory."""
    stale_shm_bytes: int = 256 * MIB
    """Less that nobody maps is not worth a word: every killed engine leaves some MiB."""
    watch_late_s: float = 1.0
    """The agent's own look came so much later than it should have: it does not get to run itself."""

    # Restart policy.
    restart_budget: int = 3
    restart_backoff_s: float = 5.0
    restart_backoff_max_s: float = 300.0
    restart_jitter: float = 0.25
    restart_refill_s: float = 600.0
    """`ready` for max(this, 2 x the boot's time) fills the budget again."""
    restart_day_limit: int = 10
    memory_margin_bytes: int = 3 * GIB
    memory_hold_s: float = 10.0
    memory_timeout_s: float = 180.0

    # Bounds.
    log_segment_bytes: int = 16 * MIB
    log_segments: int = 8
    log_line_bytes: int = 64 * 1024
    report_log_bytes: int = 256 * 1024
    """Log text in one report; a rank that writes more is sampled, and the skipped bytes are counted."""
    body_bytes: int = 8 * MIB
    """The largest request body either server reads."""
    files_bytes: int = 128 * 1024
    """All `engine.files` of a profile together: they travel in every document and stay in every ledger."""
    head_bytes: int = 32 * 1024
    receive_s: float = 10.0
    """From the first byte of a request, or the connection, to the end of its body; handshake included."""
    linger_s: float = 1.0
    """How long a refused client is listened to, so that it gets to read why."""
    connections: int = 4096
    """To one server. An agent has two."""
    connections_per_peer: int = 512
    connections_waiting: int = 1024
    """That have not sent a whole request yet. With TLS each costs up to 60 KiB."""
    connections_waiting_per_peer: int = 128
    events_kept: int = 10_000
    journal_pages: int = 100
    """Of 4 KiB, before a database's journal is emptied. SQLite's own 1,000 would fill a 2 MiB disk alone."""
    outbox_batch: int = 256
    """Exits and task results in one report; the rest waits in the ledger for the next."""
    exits_remembered: int = 64
    """Process ends of a deployment that are known to have been told. A rank of vLLM has about five."""
    generations_kept: int = 3
    """Ended ranks of a deployment whose logs and ledger rows a node keeps."""

    # Command line.
    client_connect_s: float = 5.0
    client_answer_s: float = 30.0
    """`up` and `down` are answered only when recorded; a plan may ask nodes for facts."""
    client_outage_s: float = 30.0
    """How long a coordinator that went away is waited for while following a deployment."""
    client_poll_s: float = 0.25
    plain_step_percent: float = 10.0
    plain_step_s: float = 10.0
    """Without a terminal: a rank's progress is told at each such step, or after so long."""
    mods_settle_s: float = 5.0
    """From a rank's line that its weights are loaded until its workers are asked for their mods: they are
    looked for each second, and a tiny model loads faster."""
    mods_answer_s: float = 60.0
    """A python that reads some sources of its vLLM takes two seconds."""
    local_start_s: float = 60.0
    """Until a local set answers. Far more than it takes: a machine that is loading models is slow."""
    local_stop_s: float = 15.0
    """Between SIGTERM and SIGKILL of a local daemon."""


DEFAULTS: Final = Defaults()
