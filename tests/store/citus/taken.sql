-- Statements close to those that Citus refuses, in forms that it takes.

-- a_column_in_coalesce: taken
update holdfast_jobs set leased_at = now() + coalesce(lease_ms, 0) * interval '1 ms'
 where leased_at < now() - interval '1 s';

-- a_cast_in_a_subquery: taken
update holdfast_jobs set fence = coalesce((select $1::text::bigint[])[1], fence) returning id::text, payload::text;

-- a_clock_that_is_kept_apart: taken
update holdfast_jobs j set leased_at = case when j.created_at < c.at then c.at end
  from (select now() as at offset 0) c;

-- a_clock_beside_a_column: taken
update holdfast_jobs set leased_at = least(leased_at, now());

-- a_notification_outside: taken
with a as (update holdfast_jobs set fence = 1 returning id) select pg_notify('a', id::text) from a;

-- recursion_in_what_is_sent_as_a_whole: taken
update holdfast_jobs set fence = 1
 where fence in (with recursive a as (select 1 as n union all select n from a) select n from a);

-- ctid_in_what_is_sent_as_a_whole: taken
delete from holdfast_audit where ctid = any (array(select ctid from holdfast_audit limit 1 for update));

-- a_subquery_in_select: taken
insert into holdfast_meta select 'a', (select 'b') on conflict do nothing;
