-- Which shard of an application this store is, and the map of all of them, with its version: one row, or none where there are no shards.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002.
create table if not exists holdfast_shard_map (
    one smallint not null primary key check (one = 1),
    number integer not null,
    version integer not null,
    map longtext character set utf8mb4 collate holdfast_text not null,
    set_at datetime(6) not null
) engine = InnoDB row_format = dynamic;

-- The row of statistics that a worker's last beat has written: a repeat of that beat adds nothing, also when the row was merged since.
set @holdfast_step = (
    select if(count(*) = 0,
              'alter table holdfast_workers add column counted char(36) character set ascii collate ascii_bin', 'do 0')
      from information_schema.columns
     where table_schema = database() and table_name = 'holdfast_workers' and column_name = 'counted');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

-- Runs that are over, by how they ended, the newest last.
-- Differs: no partial indexes, so those that are not over are in it, too.
set @holdfast_step = (
    select if(count(*) = 0, 'alter table holdfast_runs add index holdfast_runs_outcome_idx (outcome, id)', 'do 0')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_runs' and index_name = 'holdfast_runs_outcome_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;
