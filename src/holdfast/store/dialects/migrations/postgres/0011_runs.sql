-- Durable runs. A run is a job, so its lease, its attempts and when it is due stay in holdfast_jobs; this is the rest.
create table holdfast_runs (
    id uuid primary key,
    workflow text not null,
    run_key text not null,
    -- Of the arguments: a second start with others is refused.
    digest bigint,
    parent_id uuid,
    parent_key text,
    outcome text check (outcome in ('done', 'dead', 'cancelled')),
    stuck text,
    stuck_at timestamptz,
    created_at timestamptz not null,
    ended_at timestamptz
);

-- The key first: most look for a run by it alone.
create unique index holdfast_runs_key_idx on holdfast_runs (run_key, workflow);
create index holdfast_runs_parent_idx on holdfast_runs (parent_id) where parent_id is not null;
create index holdfast_runs_stuck_idx on holdfast_runs (stuck_at) where stuck_at is not null;

-- The journal: what a run's body was told, in this order. Rows are only added, and read all together.
create table holdfast_steps (
    run_id uuid not null,
    seq integer not null,
    key text not null,
    kind text not null,
    ok smallint not null,
    value text,
    digest bigint,
    attempt integer not null,
    worker text,
    took_ms integer,
    ref text,
    at timestamptz not null,
    primary key (run_id, seq)
);

-- What was sent to a run and not taken by it yet: signals, requests to cancel, the ends of children.
create table holdfast_signals (
    id uuid primary key,
    run_id uuid not null,
    name text not null,
    payload text,
    -- 0 where the sender could not see to it that the run is woken: a worker does.
    told smallint not null,
    created_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index holdfast_signals_run_idx on holdfast_signals (run_id, name, created_at, id);
create index holdfast_signals_untold_idx on holdfast_signals (created_at) where told = 0;

-- What runs say of themselves, to be read and looked for from outside.
create table holdfast_attributes (
    run_id uuid not null,
    name text not null,
    value text not null,
    primary key (run_id, name)
);

create index holdfast_attributes_value_idx on holdfast_attributes (name, value);
