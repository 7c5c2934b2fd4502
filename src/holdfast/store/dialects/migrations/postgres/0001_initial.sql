-- The live rows: pending and leased, nothing else. Finished rows move away, so this table and its indexes stay small.
-- fillfactor leaves room for the claim's update on the same page; autovacuum runs early because every job dies young.
create table holdfast_jobs (
    id uuid primary key,
    fence bigint not null default 0,
    available_at timestamptz not null,
    created_at timestamptz not null,
    leased_at timestamptz,
    lease_expires_at timestamptz,
    attempts integer not null default 0,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null default 0,
    priority smallint not null default 0,
    bucket smallint,
    cancel_requested boolean not null default false,
    state text not null default 'pending' check (state in ('pending', 'leased')),
    queue text not null,
    kind text not null,
    key text,
    unique_key text,
    leased_by text,
    payload json not null,
    headers json,
    progress json,
    errors jsonb
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index holdfast_jobs_claim_idx on holdfast_jobs (queue, priority desc, available_at, id) where state = 'pending';
create index holdfast_jobs_lease_idx on holdfast_jobs (lease_expires_at) where state = 'leased';
create unique index holdfast_jobs_unique_idx on holdfast_jobs (kind, unique_key) where unique_key is not null;
create index holdfast_jobs_key_idx on holdfast_jobs (key) where key is not null;

create table holdfast_finished (
    id uuid primary key,
    fence bigint not null,
    available_at timestamptz not null,
    created_at timestamptz not null,
    leased_at timestamptz,
    finished_at timestamptz not null,
    attempts integer not null,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null,
    priority smallint not null,
    bucket smallint,
    outcome text not null check (outcome in ('done', 'dead', 'cancelled')),
    queue text not null,
    kind text not null,
    key text,
    unique_key text,
    leased_by text,
    fingerprint text,
    payload json not null,
    headers json,
    progress json,
    result json,
    errors jsonb
);

create index holdfast_finished_age_idx on holdfast_finished (outcome, queue, finished_at);
create index holdfast_finished_dead_idx on holdfast_finished (fingerprint, finished_at) where outcome = 'dead';

-- Idempotency keys outlive the job they name: the promise is about a window of time, not about a live row.
create table holdfast_keys (
    scope text not null,
    key text not null,
    job_id uuid not null,
    expires_at timestamptz not null,
    primary key (scope, key)
);

create index holdfast_keys_expiry_idx on holdfast_keys (expires_at);

create table holdfast_workers (
    id text primary key,
    status text not null default 'alive' check (status in ('alive', 'draining', 'dead')),
    started_at timestamptz not null,
    seen_at timestamptz not null,
    info json not null
);

-- What people did to jobs by hand (retry, cancel, replay, discard): one line each.
create table holdfast_audit (
    at timestamptz not null,
    action text not null,
    job_id uuid,
    actor text,
    detail json
);

create index holdfast_audit_job_idx on holdfast_audit (job_id, at);
