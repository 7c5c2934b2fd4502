-- Order and limits: what was said of each queue and how much of it is used (`held` jobs at once, `tat` for rates), and a line
-- for each key that has something leased or waiting in a queue with lines.
-- `tat` is the theoretical arrival time of the next start, in microseconds since 1970 by the database's clock.
create table holdfast_queues (
    name text primary key,
    settings json not null,
    version integer not null default 1,
    changed_at timestamptz not null,
    changed_by text,
    held integer not null default 0,
    tat bigint
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

create table holdfast_lines (
    queue text not null,
    key text not null,
    held integer not null default 0,
    tat bigint,
    called uuid,
    stopped_at timestamptz,
    stopped_for uuid,
    primary key (queue, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- The place in line of jobs that have a key; the others have none. What has a key and no place (a replayed job, one of the version
-- before) stands in front, by age.
alter table holdfast_jobs add column place bigint;

create sequence holdfast_places owned by holdfast_jobs.place;

-- It takes the place of the index on the key alone, so that a job with a key is in as many indexes as before.
create index holdfast_jobs_line_idx on holdfast_jobs (key, queue, place nulls first, id) where key is not null;

drop index holdfast_jobs_key_idx;
