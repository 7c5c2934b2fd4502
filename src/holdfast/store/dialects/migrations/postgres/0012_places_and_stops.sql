-- A finished job keeps its place in line: replayed, it comes back to where it stood. What ended before this has none, and stands in
-- front, by age. Null takes no room in a row and needs no rewrite.
alter table holdfast_finished add column place bigint;

-- When a worker ended by itself. `status` says dead of it, as before, which is all that a worker of the version before asks for.
alter table holdfast_workers add column stopped_at timestamptz;
