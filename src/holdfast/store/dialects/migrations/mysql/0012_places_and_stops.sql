-- Differs: the place in line is when a job was added, and its id, and a finished job has kept both already.

-- When a worker ended by itself. `status` says dead of it, as before, which is all that a worker of the version before asks for.
-- Differs: DDL commits by itself, so the statement may be run again; see 0002.
set @holdfast_step = (
    select if(count(*) = 0, 'alter table holdfast_workers add column stopped_at datetime(6)', 'do 0')
      from information_schema.columns
     where table_schema = database() and table_name = 'holdfast_workers' and column_name = 'stopped_at');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;
