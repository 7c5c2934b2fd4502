-- What is known of an attempt whose process died: whether the handler had been called (`began`, written before the call
-- where it matters, else with a renewal), and how many processes died while they held the job (`lapses`).
-- Differs: DDL commits by itself, so each statement may be run again; MySQL has no "add column if not exists".
set @holdfast_step = (
    select if(count(*) = 0,
              'alter table holdfast_jobs add column began boolean not null default false, add column lapses integer not null default 0',
              'do 0')
      from information_schema.columns
     where table_schema = database() and table_name = 'holdfast_jobs' and column_name = 'began');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

-- Of leases that are held now nothing was recorded: they count as begun, so that no job with a single attempt starts twice.
update holdfast_jobs set began = true where state = 'leased';

-- The ids of jobs that left no finished row, a batch a row, for as long as a lost reply may make somebody enqueue them again.
-- Differs: ids are a JSON array.
create table if not exists holdfast_dropped (
    id bigint not null auto_increment primary key,
    at datetime(6) not null,
    ids longtext character set ascii collate ascii_bin not null,
    index holdfast_dropped_at_idx (at)
) engine = InnoDB row_format = dynamic;
