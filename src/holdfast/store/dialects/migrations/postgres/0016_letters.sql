-- Dead letters by their age, and those of one group: lists and actions by hand go through them in order, a bounded number at a time.
create index holdfast_finished_letters_idx on holdfast_finished (id) where outcome = 'dead';

create index holdfast_finished_group_idx on holdfast_finished (fingerprint, id) where outcome = 'dead';

drop index holdfast_finished_dead_idx;

-- Ends of children have one name in inboxes from now on, and say in their text which child it was.
update holdfast_signals
   set payload = '{"key":' || to_json(substr(name, 8))::text || ',"end":' || payload || '}', name = '!child'
 where left(name, 7) = '!child:';
