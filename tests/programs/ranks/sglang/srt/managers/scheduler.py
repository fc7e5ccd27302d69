"""The loop of a scheduler with the names of SGLang's; its ranks wait for each other in the collectives above.

States: "idle" (rank 0 sleeps, the others wait in the broadcast for it), "spin" (idle without the sleep: 100 % CPU),
"diverge" (the last rank asks for the all_reduce of a prefetch, the others do not), "livelock" (the waiting queue is
looked through and nothing is admitted), "straggle" (rank 0 computes, the others wait for it).
"""

from __future__ import annotations

import select

from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from torch.distributed import distributed_c10d as dist


class IdleSleeper:
    def __init__(self, control: int) -> None:
        self.poller = select.poll()
        self.poller.register(control, select.POLLIN)

    def maybe_sleep(self) -> None:
        self.poller.poll(1000)


class Scheduler:
    def __init__(self, group: dist.ProcessGroup, last: int) -> None:
        self.group, self.last = group, last
        self.receiver = SchedulerRequestReceiver(group)
        self.tree_cache = HiRadixCache(group)
        self.sleeper = IdleSleeper(group.released.fileno())
        self.state = "idle"

    def event_loop_normal(self) -> None:
        while True:
            try:
                self.receiver.recv_requests()
                if not self.get_next_batch_to_run():
                    self.on_idle()
            except dist.AbortedError:
                self.obey()

    def obey(self) -> None:
        """Take the next state once every rank has stopped and forgotten what it was told."""
        self.group.released.recv(1)
        self.group.forget()
        self.group.released.send(b".")
        self.state = self.group.released.recv(64).decode()

    def asked(self) -> None:
        if select.select([self.group.released], [], [], 0)[0]:
            raise dist.AbortedError

    def get_next_batch_to_run(self) -> bool:
        self.asked()
        if self.state == "diverge" and self.group.rank == self.last:
            self.tree_cache.can_terminate_prefetch()
        if self.state == "livelock":
            return self._get_new_batch_prefill_raw()
        if self.state == "straggle" and self.group.rank == 0:
            self.run_batch()
        return False

    def _get_new_batch_prefill_raw(self) -> bool:
        adder = PrefillAdder(waiting=30, budget=0)
        adder.add_one_req(0.2)
        return True

    def run_batch(self) -> None:
        PrefillAdder.add_one_req(PrefillAdder(waiting=0, budget=0), 60.0)

    def on_idle(self) -> None:
        if self.group.rank == 0 and self.state == "idle":
            self.sleeper.maybe_sleep()
