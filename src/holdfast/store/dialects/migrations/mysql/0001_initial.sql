-- The live rows: pending and leased, nothing else. Finished rows move away, so this table and its indexes stay small.
-- Differs: DDL commits by itself, so each statement may be run again; the indexes are part of their tables.
-- Differs: ids are text and sort by age; times are UTC without a zone; JSON is text, kept byte for byte.
-- Differs: `collate holdfast_text` is a binary collation without padding, which MariaDB and MySQL name differently.
-- Differs: no partial indexes, so the claim index starts with the state.
-- Differs: MariaDB has no descending indexes before 10.8, so urgency is the priority the other way round: the index then
-- gives the order of a claim, and InnoDB locks no more rows than the claim takes.
create table if not exists holdfast_jobs (
    id char(36) character set ascii collate ascii_bin not null primary key,
    fence bigint not null default 0,
    available_at datetime(6) not null,
    created_at datetime(6) not null,
    leased_at datetime(6),
    lease_expires_at datetime(6),
    attempts integer not null default 0,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null default 0,
    priority smallint not null default 0,
    urgency smallint generated always as (-priority) stored,
    bucket integer,
    cancel_requested boolean not null default false,
    state varchar(10) character set ascii collate ascii_bin not null default 'pending' check (state in ('pending', 'leased')),
    queue varchar(100) character set utf8mb4 collate holdfast_text not null,
    kind varchar(100) character set utf8mb4 collate holdfast_text not null,
    `key` varchar(200) character set utf8mb4 collate holdfast_text,
    unique_key varchar(200) character set utf8mb4 collate holdfast_text,
    leased_by varchar(500) character set utf8mb4 collate holdfast_text,
    payload longtext character set utf8mb4 collate holdfast_text not null,
    headers longtext character set utf8mb4 collate holdfast_text,
    progress longtext character set utf8mb4 collate holdfast_text,
    errors longtext character set utf8mb4 collate holdfast_text,
    index holdfast_jobs_claim_idx (state, queue, urgency, available_at, id),
    index holdfast_jobs_lease_idx (state, lease_expires_at),
    unique index holdfast_jobs_unique_idx (kind, unique_key),
    index holdfast_jobs_key_idx (`key`)
) engine = InnoDB row_format = dynamic;

create table if not exists holdfast_finished (
    id char(36) character set ascii collate ascii_bin not null primary key,
    fence bigint not null,
    available_at datetime(6) not null,
    created_at datetime(6) not null,
    leased_at datetime(6),
    finished_at datetime(6) not null,
    attempts integer not null,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null,
    priority smallint not null,
    bucket integer,
    outcome varchar(10) character set ascii collate ascii_bin not null check (outcome in ('done', 'dead', 'cancelled')),
    queue varchar(100) character set utf8mb4 collate holdfast_text not null,
    kind varchar(100) character set utf8mb4 collate holdfast_text not null,
    `key` varchar(200) character set utf8mb4 collate holdfast_text,
    unique_key varchar(200) character set utf8mb4 collate holdfast_text,
    leased_by varchar(500) character set utf8mb4 collate holdfast_text,
    fingerprint varchar(64) character set utf8mb4 collate holdfast_text,
    payload longtext character set utf8mb4 collate holdfast_text not null,
    headers longtext character set utf8mb4 collate holdfast_text,
    progress longtext character set utf8mb4 collate holdfast_text,
    result longtext character set utf8mb4 collate holdfast_text,
    errors longtext character set utf8mb4 collate holdfast_text,
    index holdfast_finished_age_idx (outcome, queue, finished_at),
    index holdfast_finished_dead_idx (fingerprint, finished_at)
) engine = InnoDB row_format = dynamic;

-- Idempotency keys outlive the job they name: the promise is about a window of time, not about a live row.
create table if not exists holdfast_keys (
    scope varchar(100) character set utf8mb4 collate holdfast_text not null,
    `key` varchar(200) character set utf8mb4 collate holdfast_text not null,
    job_id char(36) character set ascii collate ascii_bin not null,
    expires_at datetime(6) not null,
    primary key (scope, `key`),
    index holdfast_keys_expiry_idx (expires_at)
) engine = InnoDB row_format = dynamic;

create table if not exists holdfast_workers (
    id varchar(500) character set utf8mb4 collate holdfast_text not null primary key,
    status varchar(10) character set ascii collate ascii_bin not null default 'alive'
        check (status in ('alive', 'draining', 'dead')),
    started_at datetime(6) not null,
    seen_at datetime(6) not null,
    info longtext character set utf8mb4 collate holdfast_text not null
) engine = InnoDB row_format = dynamic;

-- What people did to jobs by hand (retry, cancel, replay, discard): one line each.
create table if not exists holdfast_audit (
    id bigint not null auto_increment primary key,
    at datetime(6) not null,
    action varchar(40) character set ascii collate ascii_bin not null,
    job_id char(36) character set ascii collate ascii_bin,
    actor varchar(500) character set utf8mb4 collate holdfast_text,
    detail longtext character set utf8mb4 collate holdfast_text,
    index holdfast_audit_job_idx (job_id, at)
) engine = InnoDB row_format = dynamic;
