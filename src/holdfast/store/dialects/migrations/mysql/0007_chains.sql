-- Jobs that wait for others to end: the child, with a count of the parents that have not ended, and an edge to each parent.
-- `open` is one more while members may still be added to a batch. An edge has an outcome once its parent has ended; that of a
-- member which is done goes at once, because a batch keeps no results.
-- `asked` is the parent that the child was given; where that one is continued, the edge moves along its chain.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002. `open` is a reserved word, hence the backquotes.
create table if not exists holdfast_joins (
    child char(36) character set ascii collate ascii_bin not null primary key,
    `open` integer not null,
    total integer not null,
    done integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    sealed boolean not null default true,
    results boolean not null default true,
    on_dead varchar(10) character set ascii collate ascii_bin not null default 'run' check (on_dead in ('run', 'cancel')),
    doomed_by char(36) character set ascii collate ascii_bin,
    created_at datetime(6) not null
) engine = InnoDB row_format = dynamic;

create table if not exists holdfast_waits (
    parent char(36) character set ascii collate ascii_bin not null,
    child char(36) character set ascii collate ascii_bin not null,
    asked char(36) character set ascii collate ascii_bin not null,
    followed boolean not null default false,
    outcome varchar(10) character set ascii collate ascii_bin check (outcome in ('done', 'dead', 'cancelled', 'gone')),
    result longtext character set utf8mb4 collate holdfast_text,
    primary key (parent, child),
    index holdfast_waits_child_idx (child, parent)
) engine = InnoDB row_format = dynamic;
