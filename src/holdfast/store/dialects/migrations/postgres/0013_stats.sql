-- Statistics: what workers have counted and timed since their last beat, and samples of what waits in the queues.
-- Rows are only added. Those of `span` 10 are as they were written; they are merged to minutes (60) and these to ten
-- minutes (600), of all workers together, so that the table stays small. `slot` is a time in seconds since 1970.
create table holdfast_stats (
    id uuid primary key,
    span integer not null,
    slot bigint not null,
    worker text not null,
    data json not null
);

create index holdfast_stats_slot_idx on holdfast_stats (span, slot);
