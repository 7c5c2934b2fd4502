-- Differs: the place in line is when a job was added, and its id, and a finished job has kept both already.

-- When a worker ended by itself. `status` says dead of it, as before, which is all that a worker of the version before asks for.
alter table holdfast_workers add column stopped_at integer;
