-- Jobs that gave their lease back and wait for something (`waits_for` says what), and jobs whose end has consequences
-- (`followers`: a bit for each surface that has some; null where nothing follows, as in nearly all rows).
-- Differs: DDL commits by itself, so each statement may be run again; see 0002. Both servers add columns in an instant.
set @holdfast_step = (
    select if(count(*) = 0,
              'alter table holdfast_jobs add column waits_for varchar(200) character set utf8mb4 collate holdfast_text, add column followers integer',
              'do 0')
      from information_schema.columns
     where table_schema = database() and table_name = 'holdfast_jobs' and column_name = 'waits_for');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

-- Differs: the rule on states goes, which takes an instant. A new one would have the servers copy the table to check it.
-- MariaDB keeps such a rule with its column, MySQL as a constraint with a name.
set @holdfast_step = coalesce((
    select concat('alter table holdfast_jobs '
           /*M! , 'modify column state varchar(10) character set ascii collate ascii_bin not null default ''pending''' */
           /*!80017 , 'drop check `', t.constraint_name, '`' */ )
      from information_schema.table_constraints t
      join information_schema.check_constraints c
        on c.constraint_schema = t.constraint_schema and c.constraint_name = t.constraint_name
           /*M! and c.table_name = t.table_name */
     where t.constraint_schema = database() and t.table_name = 'holdfast_jobs' and t.constraint_type = 'CHECK'
       and instr(c.check_clause, 'pending') > 0 and instr(c.check_clause, 'leased') > 0
     limit 1), 'do 0');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

-- A dead letter that comes back still has what follows it.
set @holdfast_step = (
    select if(count(*) = 0, 'alter table holdfast_finished add column followers integer', 'do 0')
      from information_schema.columns
     where table_schema = database() and table_name = 'holdfast_finished' and column_name = 'followers');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;
