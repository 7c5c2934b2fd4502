"""Our own jobs: the flows of a job's life and where the next claim begins.

Flows only: no store, no worker, no command line. What people do to jobs by hand belongs to `admin`.
"""

# What follows a job's end is attached where it is imported, so every process that may end jobs has it from here.
from holdfast import results as results
from holdfast import runs as runs
from holdfast.jobs.batches import add_batch as add_batch
from holdfast.jobs.batches import grow_batch as grow_batch
from holdfast.jobs.batches import seal_batch as seal_batch
from holdfast.jobs.claiming import begin as begin
from holdfast.jobs.claiming import claim as claim
from holdfast.jobs.claiming import expired as expired
from holdfast.jobs.claiming import progress as progress
from holdfast.jobs.claiming import renew as renew
from holdfast.jobs.effects import forget_once as forget_once
from holdfast.jobs.effects import take_once as take_once
from holdfast.jobs.enqueueing import enqueue as enqueue
from holdfast.jobs.enqueueing import enqueue_many as enqueue_many
from holdfast.jobs.meeting import has_parents as has_parents
from holdfast.jobs.meeting import meet as meet
from holdfast.jobs.moving import live_buckets as live_buckets
from holdfast.jobs.moving import live_queues as live_queues
from holdfast.jobs.pausing import pauses as pauses
from holdfast.jobs.pausing import said as said
from holdfast.jobs.positions import note_position as note_position
from holdfast.jobs.positions import position as position
from holdfast.jobs.positions import position_name as position_name
from holdfast.jobs.pruning import prune as prune
from holdfast.jobs.pruning import prune_debounces as prune_debounces
from holdfast.jobs.pruning import prune_dropped as prune_dropped
from holdfast.jobs.pruning import prune_keys as prune_keys
from holdfast.jobs.pruning import prune_queues as prune_queues
from holdfast.jobs.reaping import default_backoff as default_backoff
from holdfast.jobs.reaping import reap as reap
from holdfast.jobs.reaping import release_strays as release_strays
from holdfast.jobs.reaping import stuck as stuck
from holdfast.jobs.settling import cancel as cancel
from holdfast.jobs.settling import complete as complete
from holdfast.jobs.settling import complete_all as complete_all
from holdfast.jobs.settling import completed as completed
from holdfast.jobs.settling import kill as kill
from holdfast.jobs.settling import park as park
from holdfast.jobs.settling import release as release
from holdfast.jobs.settling import retry as retry
from holdfast.jobs.settling import settle as settle
from holdfast.jobs.settling import snooze as snooze
from holdfast.jobs.waiting import follow as follow
from holdfast.jobs.waiting import wake as wake
from holdfast.life.expiry import LEASE_EXPIRED as LEASE_EXPIRED
from holdfast.life.source import Renewed as Renewed
from holdfast.life.source import Settled as Settled
