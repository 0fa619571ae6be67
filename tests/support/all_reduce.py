"""A program for the nodes of a training, over plain sockets."""

# What a training does: all numbers meet at rank 0, and at each rank that of the one before it.
ALL_REDUCE = """\
import json, os, socket, time

def connect(address):
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.02)

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
config = json.loads(os.environ["TF_CONFIG"])
assert config["task"] == {"type": "worker", "index": rank}, config
tasks = [(host, int(port)) for host, port in (one.split(":") for one in config["cluster"]["worker"])]
assert len(tasks) == size == len(os.environ["GRADIENT_NODE_ADDRESSES"].split(","))
own = socket.create_server(tasks[rank])
if rank == 0:
    with socket.create_server(master) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    total = 1 + sum(int(peer.recv(100)) for peer in peers)
    for peer in peers:
        peer.sendall(str(total).encode())
else:
    with connect(master) as peer:
        peer.sendall(str(rank + 1).encode())
        total = int(peer.recv(100))
with connect(tasks[(rank + 1) % size]) as following:
    following.sendall(str(rank).encode())
before = int(own.accept()[0].recv(100))
print(f"sum {total} after rank {before}", flush=True)
with open(os.path.join(os.environ["GRADIENT_ARTIFACTS_DIR"], "sum.txt"), "w") as file:
    file.write(str(total))
"""
