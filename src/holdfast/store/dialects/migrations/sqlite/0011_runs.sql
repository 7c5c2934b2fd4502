-- Durable runs. A run is a job, so its lease, its attempts and when it is due stay in holdfast_jobs; this is the rest.
create table holdfast_runs (
    id text primary key,
    workflow text not null,
    run_key text not null,
    -- Of the arguments: a second start with others is refused.
    digest integer,
    parent_id text,
    parent_key text,
    outcome text check (outcome in ('done', 'dead', 'cancelled')),
    stuck text,
    stuck_at integer,
    created_at integer not null,
    ended_at integer
) without rowid;

-- The key first: most look for a run by it alone.
create unique index holdfast_runs_key_idx on holdfast_runs (run_key, workflow);
create index holdfast_runs_parent_idx on holdfast_runs (parent_id) where parent_id is not null;
create index holdfast_runs_stuck_idx on holdfast_runs (stuck_at) where stuck_at is not null;

-- The journal: what a run's body was told, in this order. Rows are only added, and read all together.
create table holdfast_steps (
    run_id text not null,
    seq integer not null,
    key text not null,
    kind text not null,
    ok integer not null,
    value text,
    digest integer,
    attempt integer not null,
    worker text,
    took_ms integer,
    ref text,
    at integer not null,
    primary key (run_id, seq)
) without rowid;

-- What was sent to a run and not taken by it yet: signals, requests to cancel, the ends of children.
create table holdfast_signals (
    id text primary key,
    run_id text not null,
    name text not null,
    payload text,
    -- 0 where the sender could not see to it that the run is woken: a worker does.
    told integer not null,
    created_at integer not null
) without rowid;

create index holdfast_signals_run_idx on holdfast_signals (run_id, name, created_at, id);
create index holdfast_signals_untold_idx on holdfast_signals (created_at) where told = 0;

-- What runs say of themselves, to be read and looked for from outside.
create table holdfast_attributes (
    run_id text not null,
    name text not null,
    value text not null,
    primary key (run_id, name)
) without rowid;

create index holdfast_attributes_value_idx on holdfast_attributes (name, value);
