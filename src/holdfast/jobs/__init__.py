"""Our own jobs: the flows of a job's life and where the next claim begins.

Flows only: no store, no worker, no command line. What people do to jobs by hand belongs to `admin`.
"""

from holdfast.jobs.enqueueing import enqueue as enqueue
from holdfast.jobs.enqueueing import enqueue_many as enqueue_many
from holdfast.jobs.flows import Renewed as Renewed
from holdfast.jobs.flows import Settled as Settled
from holdfast.jobs.flows import begin as begin
from holdfast.jobs.flows import cancel as cancel
from holdfast.jobs.flows import claim as claim
from holdfast.jobs.flows import complete as complete
from holdfast.jobs.flows import default_backoff as default_backoff
from holdfast.jobs.flows import kill as kill
from holdfast.jobs.flows import progress as progress
from holdfast.jobs.flows import prune as prune
from holdfast.jobs.flows import prune_dropped as prune_dropped
from holdfast.jobs.flows import prune_keys as prune_keys
from holdfast.jobs.flows import prune_queues as prune_queues
from holdfast.jobs.flows import reap as reap
from holdfast.jobs.flows import release as release
from holdfast.jobs.flows import release_strays as release_strays
from holdfast.jobs.flows import renew as renew
from holdfast.jobs.flows import retry as retry
from holdfast.jobs.flows import settle as settle
from holdfast.jobs.flows import snooze as snooze
from holdfast.jobs.flows import stuck as stuck
