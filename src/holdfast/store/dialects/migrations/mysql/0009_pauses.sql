-- What workers claim nothing of: a row for each queue and each kind that somebody has paused.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002.
create table if not exists holdfast_pauses (
    scope varchar(10) character set ascii collate ascii_bin not null check (scope in ('queue', 'kind')),
    name varchar(100) character set utf8mb4 collate holdfast_text not null,
    since datetime(6) not null,
    paused_by varchar(500) character set utf8mb4 collate holdfast_text,
    reason varchar(1000) character set utf8mb4 collate holdfast_text,
    primary key (scope, name)
) engine = InnoDB row_format = dynamic;

-- Audit lines are deleted by age from now on.
set @holdfast_step = (
    select if(count(*) = 0, 'alter table holdfast_audit add index holdfast_audit_at_idx (at)', 'do 0')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_audit' and index_name = 'holdfast_audit_at_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;
