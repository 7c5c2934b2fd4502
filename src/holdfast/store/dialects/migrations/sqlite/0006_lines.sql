-- Order and limits: what was said of each queue and how much of it is used (`held` jobs at once, `tat` for rates), and a line
-- for each key that has something leased or waiting in a queue with lines.
-- `tat` is the theoretical arrival time of the next start, in microseconds since 1970 by the database's clock.
create table holdfast_queues (
    name text primary key,
    settings text not null,
    version integer not null default 1,
    changed_at integer not null,
    changed_by text,
    held integer not null default 0,
    tat integer
) without rowid;

create table holdfast_lines (
    queue text not null,
    key text not null,
    held integer not null default 0,
    tat integer,
    called text,
    stopped_at integer,
    stopped_for text,
    primary key (queue, key)
) without rowid;

-- Differs: one writer at a time, so the place in line is when a job was added, and its id among those of one moment.
-- It takes the place of the index on the key alone, so that a job with a key is in as many indexes as before.
create index holdfast_jobs_line_idx on holdfast_jobs (key, queue, created_at, id) where key is not null;

drop index holdfast_jobs_key_idx;
