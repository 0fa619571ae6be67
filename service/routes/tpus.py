"""Billed TPUs."""

from fastapi import APIRouter

from service.deps import Reading
from service.tpus import Tpus, tpus

router = APIRouter(prefix="/tpus", tags=["tpus"])


@router.get("")
def list_tpus(session: Reading) -> Tpus:
    """Every TPU that was asked for and is not known to be gone: its state, health, job, and cost so far."""
    return tpus(session)
