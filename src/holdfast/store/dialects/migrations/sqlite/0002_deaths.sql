-- What is known of an attempt whose process died: whether the handler had been called (`began`, written before the call
-- where it matters, else with a renewal), and how many processes died while they held the job (`lapses`).
-- Differs: one column a statement.
alter table holdfast_jobs add column began integer not null default 0;

alter table holdfast_jobs add column lapses integer not null default 0;

-- Of leases that are held now nothing was recorded: they count as begun, so that no job with a single attempt starts twice.
update holdfast_jobs set began = 1 where state = 'leased';

-- The ids of jobs that left no finished row, a batch a row, for as long as a lost reply may make somebody enqueue them again.
-- Differs: ids are a JSON array.
create table holdfast_dropped (
    at integer not null,
    ids text not null
);

create index holdfast_dropped_at_idx on holdfast_dropped (at);
