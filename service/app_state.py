from collections.abc import Callable
from dataclasses import dataclass, field

from core.catalogue.images import ImageCatalogue
from core.catalogue.machine_types import Catalogue, MachineType
from core.db.database import POOL_SIZE
from core.security.api_keys import ApiKeyCache
from core.security.record_writer import RecordWriter
from core.security.sessions import Sessions
from core.security.worker_tokens import WorkerTokenCache
from core.storage import stores
from core.storage.artifacts.text_lines import LineIndexCache
from service.auth.openid import Provider
from service.auth.per_key_limits import Limits
from service.auth.sign_in_throttle import SignInLimiter
from service.auth.signing import Signer
from service.http.lanes import Lanes
from service.log_stream.registry import StreamRegistry
from service.monitoring.project_usage import JobCounts, StorageUsage
from service.monitoring.service_metrics import ServiceMetrics
from service.presenters.outputs.metrics_cache import JobMetricsCache
from service.siblings import Siblings
from service.submission.group_commit import GroupCommit
from service.tensorboard.boards import Boards


@dataclass(kw_only=True)
class AppState(stores.Stores):
    """The application's state: settings, database, stores and caches, opened once per process."""

    catalogue: Catalogue
    images: ImageCatalogue
    keys: ApiKeyCache
    sessions: Sessions
    sign_ins: SignInLimiter
    signer: Signer
    streams: StreamRegistry
    limits: Limits
    job_counts: JobCounts
    text_indexes: LineIndexCache = field(default_factory=LineIndexCache)
    storage_usage: StorageUsage = field(init=False)
    boards: Boards = field(init=False)
    lanes: Lanes = field(init=False)
    worker_tokens: WorkerTokenCache = field(init=False)
    record: RecordWriter = field(init=False)
    provider: Provider = field(init=False)
    siblings: Siblings = field(default_factory=Siblings)  # the API processes that share the port
    metrics: JobMetricsCache
    submissions: GroupCommit = field(default_factory=GroupCommit)
    service_metrics: ServiceMetrics
    wake: Callable[[], None]  # wakes the dispatcher; called after the commit of a transaction that wrote to the outbox

    def __post_init__(self) -> None:
        super().__post_init__()
        self.storage_usage = StorageUsage(self.storage, self.settings.api.processes)
        self.boards = Boards(self.settings)
        self.provider = Provider(self.settings)
        self.record = RecordWriter(self.database, self.settings.retention)
        self.worker_tokens = WorkerTokenCache(self.database)
        self.lanes = Lanes(POOL_SIZE)

    def backend_for(self, machine: MachineType) -> str:
        return self.settings.backend_of(machine.backend)
