"""The addresses that each host of a slice gets."""

COORDINATOR_PORT = 8476


def host_environment(rank: int, addresses: list[str]) -> dict[str, str]:
    """Return the variables by which JAX and PyTorch/XLA on one host find the others; none without others."""
    if len(addresses) == 1:
        return {}
    coordinator = f"{addresses[0]}:{COORDINATOR_PORT}"
    return {
        "TPU_WORKER_ID": str(rank),
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,  # JAX would listen on every address
        "MASTER_ADDR": addresses[0],
    }
