"""An HTTP server that answers every request after a known time, exactly: for holding load generators to the truth.

``python -m tests.support.fake_service MEDIAN_MS SIGMA [SEED]`` serves log-normal times (sigma 0: constant), prints its
port, and answers any number of requests at once, so that nothing queues.
"""

import ctypes
import heapq
import random
import select
import socket
import sys
import time

PR_SET_TIMERSLACK = 29
BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def service_times_s(median_ms: float, sigma: float, seed: int = 0):
    """The endless row of service times."""
    chance = random.Random(seed)
    while True:
        yield median_ms / 1e3 * (chance.lognormvariate(0.0, sigma) if sigma else 1.0)


def quantile_s(median_ms: float, sigma: float, z: float) -> float:
    """The true quantile, ``z`` standard deviations above the median."""
    return median_ms / 1e3 * 2.718281828459045 ** (sigma * z)


def main() -> None:
    times_s = service_times_s(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    print(listener.getsockname()[1], flush=True)
    clients: dict[int, socket.socket] = {}
    due: list[tuple[float, int]] = []
    while True:
        wait_s = max(0.0, due[0][0] - time.perf_counter()) if due else 1.0
        if select.select((poll.fileno(),), (), (), wait_s)[0]:
            ready = poll.poll(0)
            arrived_s = time.perf_counter()  # after all of them: none is answered before its time
            for fd, _ in ready:
                if fd == listener.fileno():
                    client, _address = listener.accept()
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    clients[client.fileno()] = client
                    poll.register(client, select.EPOLLIN)
                elif clients[fd].recv(65536):
                    heapq.heappush(due, (arrived_s + next(times_s), fd))
                else:
                    poll.unregister(fd)
                    clients.pop(fd).close()
        while due and due[0][0] <= time.perf_counter():
            fd = heapq.heappop(due)[1]
            if fd in clients:
                clients[fd].send(BODY)


if __name__ == "__main__":
    main()
