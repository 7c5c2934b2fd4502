-- Statistics: what workers have counted and timed since their last beat, and samples of what waits in the queues.
-- Rows are only added. Those of `span` 10 are as they were written; they are merged to minutes (60) and these to ten
-- minutes (600), of all workers together, so that the table stays small. `slot` is a time in seconds since 1970.
-- Differs: DDL commits by itself, so the statement may be run again.
create table if not exists holdfast_stats (
    id char(36) character set ascii collate ascii_bin not null primary key,
    span integer not null,
    slot bigint not null,
    worker varchar(500) character set utf8mb4 collate holdfast_text not null,
    data longtext character set utf8mb4 collate holdfast_text not null,
    index holdfast_stats_slot_idx (span, slot)
) engine = InnoDB row_format = dynamic;
