"""NVIDIA cards of this host, as its driver tells."""

import logging

import pynvml

logger = logging.getLogger(__name__)


def cards() -> tuple[str, ...]:
    """Indices of the cards, in the driver's order; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no card
        return ()
    try:
        return tuple(str(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        logger.warning("cards_not_counted", exc_info=True)
        return ()
    finally:
        pynvml.nvmlShutdown()
