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
    enrol_hosts_at_once: int = 16
    enrol_disk_bytes: int = 256 * MIB
    """Free on a node, for the agent, its ledger and the first logs."""

    # Boot.
    boot_max_s: float = 7200.0
    preflight_s: float = 30.0
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
    last_words_s: float = 0.5
    """Between a fall and the kill of the fallen rank's own remains, so that its last lines get written:
    killed in the same instant, the launcher's exit code line was lost 1 time in 5."""
    down_grace_s: float = 10.0
    kill_proof_s: float = 15.0
    rank_scan_s: float = 1.0
    watch_stall_s: float = 5.0
    """Ranks that were not looked at for so long are not looked after: the watchdog may hear of it."""
    rank_young_s: float = 5.0
    rank_young_scan_s: float = 0.1
    """So often at first: a process that is killed early must have been seen before."""
    shim_start_s: float = 10.0
    """From the spawn of a shim to its record; it takes 50 ms on an idle machine."""
    shim_exit_s: float = 1.0
    """How long a shim may outlive the last process of its rank before it is ended too."""
    service_manager_s: float = 10.0
    """For one answer of systemd, which takes 10 ms; a node that thrashes is slow."""
    kill_repeat_s: float = 0.01
    unkillable_repeat_s: float = 1.0
    orphaned_follower_s: float = 60.0
    """Without a coordinator: how long neither rank 0's API nor its rendezvous port may answer."""

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
    local_start_s: float = 60.0
    """Until a local set answers. Far more than it takes: a machine that is loading models is slow."""
    local_stop_s: float = 15.0
    """Between SIGTERM and SIGKILL of a local daemon."""


DEFAULTS: Final = Defaults()
