-- Durable runs. A run is a job, so its lease, its attempts and when it is due stay in holdfast_jobs; this is the rest.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002.
create table if not exists holdfast_runs (
    id char(36) character set ascii collate ascii_bin not null primary key,
    workflow varchar(100) character set utf8mb4 collate holdfast_text not null,
    run_key varchar(300) character set utf8mb4 collate holdfast_text not null,
    -- Of the arguments: a second start with others is refused.
    digest bigint,
    parent_id char(36) character set ascii collate ascii_bin,
    parent_key varchar(300) character set utf8mb4 collate holdfast_text,
    outcome varchar(10) character set ascii collate ascii_bin check (outcome in ('done', 'dead', 'cancelled')),
    stuck text character set utf8mb4 collate holdfast_text,
    stuck_at datetime(6),
    created_at datetime(6) not null,
    ended_at datetime(6),
    -- The key first: most look for a run by it alone.
    unique index holdfast_runs_key_idx (run_key, workflow),
    index holdfast_runs_parent_idx (parent_id),
    index holdfast_runs_stuck_idx (stuck_at)
) engine = InnoDB row_format = dynamic;

-- The journal: what a run's body was told, in this order. Rows are only added, and read all together.
create table if not exists holdfast_steps (
    run_id char(36) character set ascii collate ascii_bin not null,
    seq integer not null,
    `key` varchar(300) character set utf8mb4 collate holdfast_text not null,
    kind varchar(20) character set ascii collate ascii_bin not null,
    ok smallint not null,
    value longtext character set utf8mb4 collate holdfast_text,
    digest bigint,
    attempt integer not null,
    worker varchar(200) character set utf8mb4 collate holdfast_text,
    took_ms integer,
    ref varchar(100) character set ascii collate ascii_bin,
    at datetime(6) not null,
    primary key (run_id, seq)
) engine = InnoDB row_format = dynamic;

-- What was sent to a run and not taken by it yet: signals, requests to cancel, the ends of children.
create table if not exists holdfast_signals (
    id char(36) character set ascii collate ascii_bin not null primary key,
    run_id char(36) character set ascii collate ascii_bin not null,
    name varchar(310) character set utf8mb4 collate holdfast_text not null,
    payload longtext character set utf8mb4 collate holdfast_text,
    -- 0 where the sender could not see to it that the run is woken: a worker does.
    told smallint not null,
    created_at datetime(6) not null,
    index holdfast_signals_run_idx (run_id, name, created_at, id),
    index holdfast_signals_untold_idx (told, created_at)
) engine = InnoDB row_format = dynamic;

-- What runs say of themselves, to be read and looked for from outside.
create table if not exists holdfast_attributes (
    run_id char(36) character set ascii collate ascii_bin not null,
    name varchar(100) character set utf8mb4 collate holdfast_text not null,
    value varchar(500) character set utf8mb4 collate holdfast_text not null,
    primary key (run_id, name),
    index holdfast_attributes_value_idx (name, value)
) engine = InnoDB row_format = dynamic;
