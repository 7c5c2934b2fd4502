-- Which shard of an application this store is, and the map of all of them, with its version: one row, or none where there are no shards.
create table holdfast_shard_map (
    one integer primary key check (one = 1),
    number integer not null,
    version integer not null,
    map text not null,
    set_at integer not null
) without rowid;

-- The row of statistics that a worker's last beat has written: a repeat of that beat adds nothing, also when the row was merged since.
alter table holdfast_workers add column counted text;

-- Runs that are over, by how they ended, the newest last. Those that are not are left out: they cost nothing here.
create index holdfast_runs_outcome_idx on holdfast_runs (outcome, id) where outcome is not null;
