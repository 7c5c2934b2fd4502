-- Order and limits: what was said of each queue and how much of it is used (`held` jobs at once, `tat` for rates), and a line
-- for each key that has something leased or waiting in a queue with lines.
-- `tat` is the theoretical arrival time of the next start, in microseconds since 1970 by the database's clock.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002.
create table if not exists holdfast_queues (
    name varchar(100) character set utf8mb4 collate holdfast_text not null primary key,
    settings longtext character set utf8mb4 collate holdfast_text not null,
    version integer not null default 1,
    changed_at datetime(6) not null,
    changed_by varchar(500) character set utf8mb4 collate holdfast_text,
    held integer not null default 0,
    tat bigint
) engine = InnoDB row_format = dynamic;

create table if not exists holdfast_lines (
    queue varchar(100) character set utf8mb4 collate holdfast_text not null,
    `key` varchar(200) character set utf8mb4 collate holdfast_text not null,
    held integer not null default 0,
    tat bigint,
    called char(36) character set ascii collate ascii_bin,
    stopped_at datetime(6),
    stopped_for char(36) character set ascii collate ascii_bin,
    primary key (queue, `key`)
) engine = InnoDB row_format = dynamic;

-- Differs: no sequences in MySQL, and a column that counts by itself would be one more index for every job. The place in line is
-- when a job was added by the server's clock, and its id among those of one moment.
-- It takes the place of the index on the key alone, so that a job with a key is in as many indexes as before.
set @holdfast_step = (
    select if(count(*) = 0,
              'alter table holdfast_jobs add index holdfast_jobs_line_idx (`key`, queue, created_at, id)',
              'do 0')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_jobs' and index_name = 'holdfast_jobs_line_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

set @holdfast_step = (
    select if(count(*) = 0, 'do 0', 'alter table holdfast_jobs drop index holdfast_jobs_key_idx')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_jobs' and index_name = 'holdfast_jobs_key_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;
