-- Jobs that come again and again: one row for each schedule, with all that a tick needs, so that any worker can do it.
-- `revision` rises with every change of the row, ticks included: who has seen it may change the row, and one only.
-- Differs: DDL commits by itself, so the statement may be run again; no partial index.
create table if not exists holdfast_schedules (
    name varchar(100) character set utf8mb4 collate holdfast_text not null primary key,
    kind varchar(100) character set utf8mb4 collate holdfast_text not null,
    queue varchar(100) character set utf8mb4 collate holdfast_text not null,
    payload longtext character set utf8mb4 collate holdfast_text not null,
    options longtext character set utf8mb4 collate holdfast_text not null,
    cron varchar(200) character set utf8mb4 collate holdfast_text,
    every_ms bigint,
    timezone varchar(100) character set utf8mb4 collate holdfast_text not null default 'UTC',
    catch_up varchar(10) character set ascii collate ascii_bin not null default 'one'
        check (catch_up in ('skip', 'one', 'all')),
    next_at datetime(6) not null,
    last_at datetime(6),
    paused_at datetime(6),
    revision bigint not null default 1,
    fingerprint varchar(64) character set ascii collate ascii_bin not null,
    replaced longtext character set utf8mb4 collate holdfast_text not null,
    declared_by varchar(10) character set ascii collate ascii_bin not null
        check (declared_by in ('worker', 'sync', 'hand')),
    created_at datetime(6) not null,
    changed_at datetime(6) not null,
    index holdfast_schedules_next_idx (paused_at, next_at),
    check ((cron is null) <> (every_ms is null))
) engine = InnoDB row_format = dynamic;
