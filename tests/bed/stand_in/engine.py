"""EngineCore: takes requests from the API server and steps the workers, one token per request and step."""

import os
import select
import socket
import time
from typing import Any, NoReturn

from stand_in.place import Lines, Message, Place, exit_code, fork
from stand_in.worker import run_worker


class Engine:
    def __init__(self, place: Place, api: Lines) -> None:
        self.place = place
        self.api = api
        self.running: list[Message] = []
        here, there = socket.socketpair()
        self.worker_pid = fork(lambda: self.become_worker(here, there))
        there.close()
        self.worker = Lines(here)

    def become_worker(self, here: socket.socket, there: socket.socket) -> None:
        # Only the ends that this process uses may stay open in it, or nobody would ever see an end of file.
        here.close()
        self.api.sock.close()
        self.place.end_cleanly_on_sigterm()
        run_worker(self.place, Lines(there))

    def boot(self) -> None:
        place = self.place
        place.log(
            f"Initializing a V1 LLM engine (v0.32.0) with config: model='{place.model}', speculative_config=None",
            "core.py:133",
        )
        host = os.environ.get("VLLM_HOST_IP", "0.0.0.0")
        place.log(
            f"DP group leader: node_rank=0, node_rank_within_dp=0, master_addr={place.flag('master-addr', '127.0.0.1')}, "
            f"mq_connect_ip={host} (local), world_size={place.ranks}, local_world_size=1",
            "multiproc_executor.py:153",
        )
        while True:
            try:
                message = self.worker.receive()
            except EOFError:
                place.log(
                    "EngineCore failed to start.\nException: WorkerProc failed to start.",
                    "core.py:1180",
                    "ERROR",
                )
                os._exit(1)
            self.api.send(message)
            if "ready" in message:
                break
        place.log(
            "CPU KV cache size: 2,097,152 tokens, Maximum concurrency for 512 tokens per request: 4096.00x",
            "kv_cache_utils.py:2327",
        )
        time.sleep(place.seconds("BOOT_S", 0.3) / 3)
        place.log("init engine (profile, create kv cache, warmup model) took 0.10 s", "core.py:402")
        self.api.send({"up": os.getpid(), "segments": place.segment_paths})

    def run(self) -> None:
        while True:
            self.receive_all(0 if self.running else None)
            if not self.running:
                continue
            if self.place.setting("HANG"):
                time.sleep(0.02)
            else:
                self.step()

    def receive_all(self, timeout_s: float | None) -> None:
        """Take what has come; wait for it if there is nothing else to do."""
        while self.api.pending() or (ready := select.select([self.api, self.worker], [], [], timeout_s)[0]):
            if not self.api.pending() and self.worker in ready:
                self.worker_died()
            self.take()
            timeout_s = 0

    def take(self) -> None:
        try:
            message = self.api.receive()
        except EOFError:
            while True:  # the API server was killed: EngineCore and worker stay, as in vLLM
                time.sleep(60)
        if "abort" in message:
            self.running = [request for request in self.running if request["id"] != message["abort"]]
            return
        self.prefill(message)
        self.running.append(message)

    def prefill(self, request: Message) -> None:
        left = request["prompt"]
        parts = max(1, int(self.place.seconds("PREFILL_S", 0) / 0.1))
        counted = self.place.setting("PREFILL_MOVES", "prompt") == "prompt"
        for part in range(1, parts):
            self.execute()
            time.sleep(0.1)
            share = request["prompt"] // parts
            left -= share if counted else 0
            self.report([], prompt=share if counted else 0, kv=part / parts)
        request["left"] = left

    def step(self) -> None:
        self.execute()
        outputs, prompt = [], 0
        for request in self.running:
            prompt += request.pop("left", 0)
            token = request["tokens"].pop(0)
            outputs.append([request["id"], token, not request["tokens"]])
        self.running = [request for request in self.running if request["tokens"]]
        self.report(outputs, prompt=prompt, kv=0.0)
        time.sleep(self.place.seconds("STEP_S", 0.001))

    def report(self, outputs: list[list[Any]], prompt: int, kv: float) -> None:
        self.api.send({"outputs": outputs, "prompt": prompt, "running": len(self.running), "kv": kv})

    def execute(self) -> None:
        """One collective step: every worker of every rank must take part."""
        self.worker.sock.settimeout(float(os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300")))
        try:
            self.worker.send({"step": 1})
            answer = self.worker.receive()
        except TimeoutError:
            self.fatal("TimeoutError: RPC call to execute_model timed out.")
        except (EOFError, OSError):
            self.worker_died()
        if "error" in answer:
            self.fatal(
                f"RuntimeError: Worker failed with error '{answer['error']}', please check the stack trace above for the root cause"
            )

    def worker_died(self) -> NoReturn:
        _, status = os.waitpid(self.worker_pid, 0)
        self.place.log(
            f"Worker proc VllmWorker-0 died unexpectedly (exit code: {exit_code(status)}), shutting down executor.",
            "multiproc_executor.py:315",
            "ERROR",
        )
        self.fatal("vllm.v1.engine.exceptions.EngineDeadError: Executor failed.")

    def fatal(self, text: str) -> NoReturn:
        self.place.log(
            "EngineCore encountered a fatal error.\nTraceback (most recent call last):\n"
            '  File "/opt/vllm/v1/engine/core.py", line 1500, in run_engine_core\n    engine_core.run_busy_loop()\n'
            + text,
            "core.py:1512",
            "ERROR",
        )
        self.api.send({"dead": text})
        os._exit(1)


def run_engine(place: Place, api: Lines) -> None:
    place.title("VLLM::EngineCore")
    place.map_segment()
    engine = Engine(place, api)
    engine.boot()
    engine.run()
