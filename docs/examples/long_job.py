"""Jobs that take longer than nsqd's msg_timeout, answered later by a pool of processes."""

import multiprocessing
import signal
import time
from concurrent.futures import Future, ProcessPoolExecutor

from gnsqsync import Message, Reader


def render(number: int) -> int:
    time.sleep(0.2)  # minutes, in earnest
    return number


def handle(message: Message) -> None:
    message.detach()  # returning does not finish it
    job = pool.submit(render, message.json()["number"])
    job.add_done_callback(lambda job: answer(message, job))


def answer(message: Message, job: Future[int]) -> None:
    if job.exception() is None and message.finish():
        print(f"rendered {job.result()}", flush=True)
    elif message.is_alive:
        message.requeue(delay=60)


if __name__ == "__main__":
    fresh = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    with ProcessPoolExecutor(2, fresh) as pool:
        reader = Reader(
            "orders",
            "render",
            handle,
            nsqd_tcp_addresses="127.0.0.1:4150",
            max_in_flight=4,
            auto_touch=True,
        )
        signal.signal(signal.SIGTERM, lambda number, frame: reader.stop())
        reader.start()
