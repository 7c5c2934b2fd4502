"""Random histories: everything is done to jobs at once, processes and sessions die, and a checker reads the traces.

`python -m tests.histories --seconds 180` (make histories). Who does what:

- `app`: the handlers, which do to their jobs whatever their payload says; `worker` runs them
- `enqueuers`, `people`: processes that enqueue in every way there is, and that cancel, replay, retry and discard
- `nemesis`: kills, stops and cuts them
- `log`: what each process writes down of its own doing; `history` puts that and the final tables together
- `checker`: the promises, each one of `rules_of_calls` and `rules_of_jobs`; `report` tells what came of it
- `run`: one run on one database, from the first enqueue to the last job's end
"""
