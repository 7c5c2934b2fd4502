-- The live rows: pending and leased, nothing else. Finished rows move away, so this table and its indexes stay small.
-- Differs: times are whole microseconds since 1970, ids and JSON are text, booleans are 0 and 1.
-- Differs: "without rowid" stores a row under its id, which the claim index ends with anyway.
create table holdfast_jobs (
    id text primary key,
    fence integer not null default 0,
    available_at integer not null,
    created_at integer not null,
    leased_at integer,
    lease_expires_at integer,
    attempts integer not null default 0,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null default 0,
    priority integer not null default 0,
    bucket integer,
    cancel_requested integer not null default 0,
    state text not null default 'pending' check (state in ('pending', 'leased')),
    queue text not null,
    kind text not null,
    key text,
    unique_key text,
    leased_by text,
    payload text not null,
    headers text,
    progress text,
    errors text
) without rowid;

create index holdfast_jobs_claim_idx on holdfast_jobs (queue, priority desc, available_at, id) where state = 'pending';
create index holdfast_jobs_lease_idx on holdfast_jobs (lease_expires_at) where state = 'leased';
create unique index holdfast_jobs_unique_idx on holdfast_jobs (kind, unique_key) where unique_key is not null;
create index holdfast_jobs_key_idx on holdfast_jobs (key) where key is not null;

create table holdfast_finished (
    id text primary key,
    fence integer not null,
    available_at integer not null,
    created_at integer not null,
    leased_at integer,
    finished_at integer not null,
    attempts integer not null,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null,
    priority integer not null,
    bucket integer,
    outcome text not null check (outcome in ('done', 'dead', 'cancelled')),
    queue text not null,
    kind text not null,
    key text,
    unique_key text,
    leased_by text,
    fingerprint text,
    payload text not null,
    headers text,
    progress text,
    result text,
    errors text
) without rowid;

create index holdfast_finished_age_idx on holdfast_finished (outcome, queue, finished_at);
create index holdfast_finished_dead_idx on holdfast_finished (fingerprint, finished_at) where outcome = 'dead';

-- Idempotency keys outlive the job they name: the promise is about a window of time, not about a live row.
create table holdfast_keys (
    scope text not null,
    key text not null,
    job_id text not null,
    expires_at integer not null,
    primary key (scope, key)
) without rowid;

create index holdfast_keys_expiry_idx on holdfast_keys (expires_at);

create table holdfast_workers (
    id text primary key,
    status text not null default 'alive' check (status in ('alive', 'draining', 'dead')),
    started_at integer not null,
    seen_at integer not null,
    info text not null
) without rowid;

-- What people did to jobs by hand (retry, cancel, replay, discard): one line each.
create table holdfast_audit (
    at integer not null,
    action text not null,
    job_id text,
    actor text,
    detail text
);

create index holdfast_audit_job_idx on holdfast_audit (job_id, at);
