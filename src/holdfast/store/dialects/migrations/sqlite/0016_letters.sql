-- Dead letters by their age: lists and actions by hand go through them in order, a bounded number at a time.
create index holdfast_finished_letters_idx on holdfast_finished (id) where outcome = 'dead';

drop index holdfast_finished_dead_idx;

-- Ends of children have one name in inboxes from now on, and say in their text which child it was.
update holdfast_signals
   set payload = '{"key":' || json_quote(substr(name, 8)) || ',"end":' || payload || '}', name = '!child'
 where substr(name, 1, 7) = '!child:';
