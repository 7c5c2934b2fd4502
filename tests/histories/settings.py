"""What a run tells its processes, through their environment."""

URL = "HOLDFAST_URL"
FOLDER = "HISTORY_FOLDER"
SEED = "HISTORY_SEED"
# What is left out: acts of handlers, comma-separated, and the queue that keeps nothing.
WITHOUT = "HISTORY_WITHOUT"
# Of an enqueuer: sync or async.
COLOUR = "HISTORY_COLOUR"
# Of a worker: the options of its command.
OPTIONS = "HISTORY_OPTIONS"
