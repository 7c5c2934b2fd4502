-- Dead letters by their age: lists and actions by hand go through them in order, a bounded number at a time.
-- Differs: DDL commits by itself, so each statement may be run again; see 0002. No partial indexes: what is done is in it,
-- too, and one for groups would be written for every job that ends.
set @holdfast_step = (
    select if(count(*) = 0, 'alter table holdfast_finished add index holdfast_finished_letters_idx (outcome, id)', 'do 0')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_finished'
       and index_name = 'holdfast_finished_letters_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

set @holdfast_step = (
    select if(count(*) > 0, 'alter table holdfast_finished drop index holdfast_finished_dead_idx', 'do 0')
      from information_schema.statistics
     where table_schema = database() and table_name = 'holdfast_finished'
       and index_name = 'holdfast_finished_dead_idx');

prepare holdfast_step from @holdfast_step;

execute holdfast_step;

deallocate prepare holdfast_step;

-- Ends of children have one name in inboxes from now on, and say in their text which child it was.
-- Differs: columns are set one after the other, so the name comes last.
update holdfast_signals
   set payload = concat('{"key":', json_quote(substr(name, 8)), ',"end":', payload, '}'), name = '!child'
 where left(name, 7) = '!child:';
