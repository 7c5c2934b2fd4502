-- Statements that PostgreSQL takes and Citus does not, each with the rule that it breaks (`citus_rules.py`).

-- a_clock_in_returning: RETURNING
update holdfast_jobs set fence = 1 returning now();

-- a_time_zone_in_returning: RETURNING
update holdfast_jobs set fence = 1 returning date_part('epoch', available_at);

-- a_notification_in_returning: RETURNING
insert into holdfast_meta values ('a', 'b') returning pg_notify('a', 'b');

-- a_notification_in_a_cte: RETURNING
with a as (insert into holdfast_meta values ('a', 'b') returning pg_notify('a', 'b')::text as b) select b from a;

-- a_cast_in_a_subquery_of_a_cte: RETURNING
with a as (update holdfast_jobs set fence = 1 returning (select $1::text::uuid[]) as b) select b from a;

-- a_clock_in_coalesce: CASE
update holdfast_jobs set leased_at = coalesce(leased_at, now());

-- a_clock_in_case: CASE
update holdfast_jobs set leased_at = case when fence = 1 then now() end;

-- a_clock_in_the_case_of_a_condition: CASE
delete from holdfast_jobs where case when fence = 1 then now() end > leased_at;

-- a_column_added_to_a_clock: COLUMN
update holdfast_jobs set leased_at = now() + lease_ms * interval '1 ms';

-- a_subquery_that_becomes_a_part: COLUMN
update holdfast_jobs set leased_at = c.at from (select now() as at) c;

-- chance: VOLATILE_WRITE
update holdfast_jobs set lease_ms = random() * 9;

-- chance_in_a_subquery: VOLATILE_WRITE
delete from holdfast_jobs where fence in (select 1 where random() < 1);

-- a_clock_where_a_key_is_taken: CONFLICT
insert into holdfast_rounds values ('', '', now())
on conflict (name) do update set worker = '' where holdfast_rounds.until < now();

-- a_clock_in_what_a_conflict_sets: CONFLICT
insert into holdfast_rounds values ('', '', now()) on conflict (name) do update set until = now();

-- a_subquery_in_values: VALUES
insert into holdfast_meta values ('a', (select 'b'));

-- a_case_with_an_operand: SIMPLE_CASE
update holdfast_jobs set fence = case lease_ms when 1 then 2 end;

-- recursion_beside_an_insert: RECURSION
with recursive a as (select 1 as n union all select n from a),
b as (insert into holdfast_meta values ('a', 'b'))
select n from a;

-- rows_in_a_subquery: ROWS_IN
delete from holdfast_keys where (scope, key) in (select scope, key from holdfast_keys);

-- a_whole_row: ROW
update holdfast_jobs j set fence = 1 returning j;

-- ctid_in_what_is_cut: CUT
with a as (insert into holdfast_meta values ('a', 'b')),
b as (delete from holdfast_audit where ctid = any (array(select '(0,1)'::tid)))
select 1;
